"""cedarpy: Cedar's own parser and evaluator, its calls as this package makes them.

The library comes with the extra ``cedar``. Without it documents are refused and requests answered ``error``, both with
a sentence that says what to install; all other systems work.

The library recurses without a bound of its own: too deep, or too long, it ends the process. So nothing comes here that
`text` has not bounded, and what is large is parsed in a process of its own first (`parser_process`).
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from policy.core.caching import Cache, weight_of_texts
from policy.systems.cedar import parser_process
from policy.systems.cedar.parse_program import whole_message

try:
    import cedarpy
except ImportError:  # pragma: no cover, see tests/packaging
    cedarpy = None  # type: ignore[assignment]

MISSING = "Cedar policies need the library cedarpy: pip install 'lockkeeper-authz[cedar]'"
FAILED = re.compile(r"error while evaluating policy `([^`]*)`: (.*)", re.DOTALL)
STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]]')  # of JSON
SHOWN = 300  # characters of a message of the library
ACTION_BYTES = 270  # measured, of each action of a schema: they are among all entities that are parsed with it
PARSED = 10  # a parsed policy or entity takes about so many times its text
UNFIT = re.compile(
    r"(entity does not conform to the schema|error during entity deserialization|failed to build request): "
)
VALUE = re.compile(r", but (it actually has type .*?: `|got `).*|(: invalid [^:]*): .*|(^context )`.*", re.DOTALL)
FIRST_FAULT = re.compile(r"expected entity `|definition of action `|found action entity `|entity `.*` has type `")
UNDECLARED = re.compile(r"attribute `[^`]*` on `.*` should not exist according to the schema")
LINK = "link"  # what the ids of linked policies begin with in the engine

P = ParamSpec("P")
R = TypeVar("R")


class EngineError(Exception):
    """Cedar does not take what it was given; the message is the library's."""


class Link(NamedTuple):
    """A template's slots filled: the position of the template's text, and type and id by slot."""

    template: int
    values: tuple[tuple[str, tuple[str, str]], ...]


class Outcome(NamedTuple):
    """What Cedar answers: the policies that determine it, and those that failed with why, by their positions."""

    allowed: bool
    determining: tuple[int, ...]
    failed: tuple[tuple[int, str], ...]


class Schema:
    """Schemas as one, parsed. ``texts``: as they are written; ``actions``: each with all groups that it is in."""

    __slots__ = ("actions", "parsed", "texts", "weight")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.parsed = cedarpy.Schema.from_str("\n".join(texts))
        actions = str(cedarpy.Entities.from_json_str("[]", self.parsed))
        self.actions = {_uid(action["uid"]): tuple(map(_uid, action["parents"])) for action in json.loads(actions)}
        self.weight = len(actions)

    def refuses(self, type_: str, attribute: str) -> bool:
        """Whether an entity of a type does not conform because it has an attribute that is not declared."""
        key = (self.texts, type_, attribute)
        is_refused = _refused_attributes.get(key)
        if is_refused is None:
            entity = {"uid": {"type": type_, "id": "a"}, "attrs": {attribute: []}, "parents": []}
            try:
                parse_entities(json.dumps([entity]), self)
                is_refused = False
            except EngineError as error:
                is_refused = UNDECLARED.search(str(error)) is not None
            _refused_attributes.hold(key, is_refused, weight_of_texts((type_, attribute)))
        return is_refused


def _uid(value: dict[str, str]) -> tuple[str, str]:
    return value["type"], value["id"]


def _called(function: Callable[P, R]) -> Callable[P, R]:
    """Whatever the library raises, a panic of its too, as EngineError."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if cedarpy is None:
            raise EngineError(MISSING)
        try:
            return function(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit, EngineError):
            raise
        except BaseException as error:  # a panic is no Exception
            raise EngineError(shown(str(error))) from None

    return call


def shown(message: str) -> str:
    """The beginning of a message of the library, in one line."""
    text = " ".join(message.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _without_values(message: str) -> str:
    """A message of the library without the values in it: a request's may be secrets, and reasons are published."""
    return VALUE.sub(_beside_value, UNFIT.sub("", message, count=1))


def _beside_value(match: re.Match[str]) -> str:
    return "the context is not as the action declares it" if match[3] else match[2] or ""


@_called
def to_json(policies: str) -> list[tuple[bool, dict[str, Any]]]:
    """The policies of a text in Cedar's JSON form, in its order, each with whether it is a template."""
    return _by_number(json.loads(cedarpy.policies_to_json_str(policies)))


def _by_number(read: dict[str, Any]) -> list[tuple[bool, dict[str, Any]]]:
    by_id = {name: (False, policy) for name, policy in read["staticPolicies"].items()}
    by_id.update((name, (True, policy)) for name, policy in read["templates"].items())
    return [by_id[f"policy{number}"] for number in range(len(by_id))]


class Parsed(NamedTuple):
    """One policy in Cedar's JSON form. ``conditions``: as JSON, which may be nested deeper than Python reads."""

    is_template: bool
    json: dict[str, Any]
    conditions: str


def parse(policies: Sequence[str]) -> list["Parsed | EngineError"]:
    """Each text as the one policy that it is, or why it is not one.

    All that are large are parsed in one process; raises EngineError where it ends with them.
    """
    large = [text for text in policies if len(text) > parser_process.SMALL]
    answers = iter(_parsed_apart(large) if large else [])
    return [next(answers) if len(text) > parser_process.SMALL else _result(_parsed, text) for text in policies]


@_called
def _parsed_apart(policies: Sequence[str]) -> list["Parsed | EngineError"]:
    answers = parser_process.call("policies_json", policies)
    return [EngineError(shown(text)) if kind == "error" else _result(_split, text) for kind, text in answers]


def _result(function: Callable[[str], "Parsed"], text: str) -> "Parsed | EngineError":
    try:
        return function(text)
    except EngineError as error:
        return error


@_called
def _parsed(policy: str) -> Parsed:
    return _split(cedarpy.policies_to_json_str(policy))


@_called
def _split(text: str) -> Parsed:
    """The conditions, and what stands beside them. A quote within a string is escaped, so the key is found."""
    before, key, rest = text.partition('"conditions":')
    end = _end_of_list(rest)
    policies = _by_number(json.loads(f"{before}{key}[]{rest[end:]}"))
    if len(policies) != 1:
        raise EngineError("is not read as Cedar reads it; please report it")
    return Parsed(*policies[0], rest[:end])


def _end_of_list(text: str) -> int:
    depth = 0
    for token in STRING_OR_BRACKET.finditer(text):
        depth += (token[0] == "[") - (token[0] == "]")
        if not depth:
            break
    return token.end()


@_called
def parse_entities(entities: str, schema: Schema | None = None) -> Any:
    """A JSON list of entities, parsed; raises EngineError for one that Cedar does not take, or not with the schema."""
    parsed = None if schema is None else schema.parsed
    try:
        return cedarpy.Entities.from_json_str(entities, parsed)
    except ValueError as error:
        raise EngineError(shown(_without_values(whole_message(cedarpy, entities, parsed, error)))) from None


@_called
def check_documents_entities(entities: str, schema: Schema) -> None:
    """Raise EngineError where whole documents do not conform to a schema: what is large in a process of its own.

    The library works out each ancestor of each entity, which takes the square of a chain's length.
    """
    if len(entities) <= parser_process.SMALL:
        parse_entities(entities, schema)
    elif fault := parser_process.call("entities_fault", entities, "\n".join(schema.texts)):
        raise EngineError(shown(_without_values(fault)))


def value_fault(value: object) -> str:
    """What Cedar says of a value in its JSON form; "": it is one of its values."""
    entity = {"uid": {"type": "A", "id": "a"}, "attrs": {"value": value}, "parents": []}
    try:
        parse_entities(json.dumps([entity]))
    except EngineError as error:
        return str(error).removeprefix('failed to evaluate attribute `value` of `A::"a"`: ')
    return ""


@_called
def schema_text(schema: str | dict[str, Any]) -> str:
    """A schema, Cedar text or its JSON form, as Cedar text; raises EngineError where it does not parse."""
    is_json = not isinstance(schema, str)
    text = json.dumps(schema) if is_json else str(schema)
    if len(text) > parser_process.SMALL_SCHEMA:
        return str(parser_process.call("schema_text", text, is_json))
    return str(cedarpy.Schema.from_json_str(text) if is_json else cedarpy.Schema.from_str(text))


@_called
def schema(texts: tuple[str, ...]) -> Schema:
    """Schemas as Cedar text, together; parsed once in a process, as long as there is room for it.

    Raises EngineError where they contradict each other: Cedar takes each namespace once.
    """
    parsed = _schemas.get(texts)
    if parsed is None:
        joined = "\n".join(texts)
        if len(texts) > 1 and len(joined) > parser_process.SMALL_SCHEMA:
            # Each was parsed for its document, but what they refer to in each other may be deep together.
            parser_process.call("schema_text", joined, False)
        parsed = Schema(texts)
        _schemas.hold(texts, parsed, PARSED * (weight_of_texts(texts) + parsed.weight))
    return parsed


@_called
def violations(policies: Sequence[str], schema: Schema) -> list[tuple[int, str]]:
    """What is wrong with policies under a schema, each with the policy's position.

    In a process of its own, whatever the size: the work is that of each policy for each action, principal and resource
    type together.
    """
    errors = []
    for policy_id, error in parser_process.call("violations", "\n".join(policies), "\n".join(schema.texts)):
        number = policy_id.removeprefix("policy")
        message = error.removeprefix(f"for policy `{policy_id}`, ")  # its id is the engine's, not ours
        errors.append((int(number) if number.isdigit() else -1, shown(message)))
    return errors


_schemas: Cache[tuple[str, ...], Schema] = Cache()
_refused_attributes: Cache[tuple[tuple[str, ...], str, str], bool] = Cache()
_policy_sets: Cache[tuple[Any, ...], Any] = Cache()
_entities: Cache[tuple[tuple[str, ...], tuple[str, ...]], Any] = Cache()


def _policies(texts: tuple[str, ...], links: tuple[Link, ...]) -> Any:
    """A parsed policy set; parsed once in a process, as long as there is room for it."""
    key = (texts, links)
    parsed = _policy_sets.get(key)
    if parsed is None:
        parsed = cedarpy.PolicySet.from_str("\n".join(texts))
        if links:
            parsed = parsed.with_linked_batch([_linked(number, link) for number, link in enumerate(links)])
        _policy_sets.hold(key, parsed, PARSED * weight_of_texts(texts))
    return parsed


def _linked(number: int, link: Link) -> dict[str, Any]:
    values = {slot: {"type": type_, "id": id_} for slot, (type_, id_) in link.values}
    return {"template_id": f"policy{link.template}", "new_id": f"{LINK}{number}", "values": values}


def _parsed_entities(texts: tuple[str, ...], schema: Schema | None) -> Any:
    key = (texts, () if schema is None else schema.texts)
    parsed = _entities.get(key)
    if parsed is None:
        parsed = parse_entities(entity_list(texts), schema)
        actions = 0 if schema is None else ACTION_BYTES * len(schema.actions)
        _entities.hold(key, parsed, PARSED * weight_of_texts(texts) + actions)
    return parsed


@_called
def evaluate(
    texts: tuple[str, ...],
    links: tuple[Link, ...],
    entities: tuple[str, ...],
    request: dict[str, Any],
    schema: Schema | None = None,
) -> Outcome:
    """Cedar's answer to a request by these policies, and links of the templates among them, over these entities.

    Positions are those of ``texts``, followed by ``links``. Raises EngineError where Cedar cannot evaluate the request,
    or the request or an entity does not conform to the schema.
    """
    parsed = None if schema is None else schema.parsed
    response = cedarpy.is_authorized(request, _policies(texts, links), _parsed_entities(entities, schema), parsed)
    diagnostics = response.diagnostics
    if response.decision is cedarpy.Decision.NoDecision:
        raise EngineError(shown(_without_values("; ".join(diagnostics.errors)) or "no decision"))
    failed = (_failure(error, len(texts)) for error in diagnostics.errors)
    determining = (_position(id_, len(texts)) for id_ in diagnostics.reasons)
    return Outcome(response.allowed, tuple(sorted(determining)), tuple(sorted(failed)))


def _position(id_: str, texts: int) -> int:
    return texts + int(id_.removeprefix(LINK)) if id_.startswith(LINK) else int(id_.removeprefix("policy"))


def _failure(error: str, texts: int) -> tuple[int, str]:
    match = FAILED.fullmatch(error)
    if match is None:
        raise EngineError(shown(error))
    return _position(match[1], texts), shown(match[2])


def entity_list(texts: Iterable[str]) -> str:
    """Entities in JSON as one JSON list."""
    return f"[{','.join(texts)}]"

"""The OpenID AuthZEN Authorization API 1.0 without its transport: bytes of a request in, a status and plain data out.

Decisions are those of `policy.decide`, the evaluator of the stream. The caller names the snapshot: `EvaluationRequest`.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from policy import (
    MAX_NESTING,
    REQUEST_NAMES,
    Decision,
    Reason,
    all_systems,
    check_letter_case,
    check_nesting,
    decode_json,
    to_text,
)
from streaming.pdp.evaluation import LATE, evaluate
from streaming.pdp.reading import AnswerContext
from streaming.records.answered import FreshnessKind
from streaming.settings import Limits

SYSTEM, FRESHNESS, MIN_OFFSETS = "system", "freshness", "min_policy_offsets"
CHOICES = ("bounded", "full")
PARTS = ("subject", "action", "resource")
OF_ONE = (*PARTS, "deadline")
OF_ITEM = (*OF_ONE, "context", "evaluations")  # the last, and a deadline of its own, for `policy` to refuse
OF_SEVERAL = (*OF_ONE, "options")  # also without `evaluations`: as in the stream, options that are none are refused
MAX_EVALUATIONS = 1000

EVALUATION, EVALUATIONS = "/access/v1/evaluation", "/access/v1/evaluations"
SEARCH = "/access/v1/search/"
WELL_KNOWN = "/.well-known/authzen-configuration"


class BadRequest(Exception):
    """The body is not a request of the API: status 400, the message names what is wrong."""


class Rules(msgspec.Struct, frozen=True):
    """What holds for all requests of a caller. `systems`: that it may ask about; `unseen`: topics of others alone.

    `trust`: the claims that it may make. `enforced`: False in shadow mode.
    """

    systems: tuple[str, ...]
    default_system: str = ""
    trust: frozenset[str] = frozenset()
    limits: Limits = Limits()
    enforced: bool = True
    unseen: frozenset[str] = frozenset()


class EvaluationRequest(msgspec.Struct, frozen=True):
    """A request as `policy.decide` takes it, without its time. `freshness`: how new the policies must be.

    `bounded`: the newest that were read; `min_policy_offsets`: at least these of the request's context; `full`: read
    to ends that are asked for after the request came.
    """

    body: dict[str, Any]
    freshness: FreshnessKind = "bounded"


def parse_evaluation(body: bytes, id_: str, system: str, rules: Rules) -> EvaluationRequest:
    """A single evaluation. `id_`: of the request; `system`: of its path, "" for the plain ones. Raises BadRequest."""
    return _asked(parse_object(body), id_, system, rules, OF_ONE, [])


def parse_evaluations(body: bytes, id_: str, system: str, rules: Rules) -> EvaluationRequest:
    """Several evaluations, or a single one where `evaluations` is missing or empty. Raises BadRequest."""
    value = parse_object(body)
    items = value.get("evaluations", [])
    if not isinstance(items, list):
        raise BadRequest("evaluations: must be an array")
    if len(items) > MAX_EVALUATIONS:
        raise BadRequest(f"evaluations: {len(items)}; at most {MAX_EVALUATIONS}")
    return _asked(value, id_, system, rules, OF_SEVERAL, items)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises BadRequest."""
    try:
        value = decode_json(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("not a request: must be a JSON object")
    try:
        if body.count(b"{") + body.count(b"[") > MAX_NESTING:  # else it cannot be nested too deep
            check_nesting(value)  # also in what is left out: the stream refuses such a request
        check_letter_case(value, REQUEST_NAMES)
    except ValueError as error:
        raise BadRequest(f"not a request: {error}") from None
    return value


def _asked(
    value: dict[str, Any], id_: str, system: str, rules: Rules, names: tuple[str, ...], items: list[Any]
) -> EvaluationRequest:
    """Fields that neither the API nor requests of the stream have are left out: they must not change a decision.

    A deadline is the stream's: who moves from there must not be allowed late. Nor by the policies of another system
    than the stream's `system` names, unless the context chooses it.
    """
    request = {name: value[name] for name in names if name in value}
    if not isinstance(value.get("context", {}), dict):
        raise BadRequest("context: must be an object")
    parts = [part.get("context") for part in (value, *items) if isinstance(part, dict)]
    contexts = [context for context in parts if isinstance(context, dict)]
    request["id"] = id_
    request["system"] = _system(system, rules, contexts)
    is_chosen = not system and any(SYSTEM in context for context in contexts)
    for part in () if is_chosen else (value, *items):
        named = part.get("system") if isinstance(part, dict) else None
        if isinstance(named, str) and named != request["system"] and named in all_systems():
            why = f"system: {named}, but the request is for {request['system']}"
            raise BadRequest(f"{why}: ask at /{named}{EVALUATION}")
    freshness = _freshness(contexts)
    own = frozenset({FRESHNESS} if system else {FRESHNESS, SYSTEM})
    if "context" in value:
        request["context"] = _without(value["context"], own)
    if items:
        request["evaluations"] = [_item(item, own) for item in items]
    return EvaluationRequest(request, freshness)


def _item(item: Any, own: frozenset[str]) -> Any:
    if not isinstance(item, dict):
        return item  # `policy` answers it with an error of its own
    kept = {name: item[name] for name in OF_ITEM if name in item}
    return {**kept, "context": _without(kept["context"], own)} if isinstance(kept.get("context"), dict) else kept


def _without(context: dict[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """What the server reads of a context, policies must not: the stream would decide otherwise."""
    return context if own.isdisjoint(context) else {name: value for name, value in context.items() if name not in own}


def _system(path: str, rules: Rules, contexts: list[dict[str, Any]]) -> str:
    """The system of the path, else the one that all contexts name, else the default."""
    if path:
        return path
    named = [context[SYSTEM] for context in contexts if SYSTEM in context]
    if any(not isinstance(name, str) or not name for name in named):
        raise BadRequest("context.system: must be the name of a system")
    if len(set(named)) > 1:
        raise BadRequest(f"context.system: one request has one system, not {', '.join(sorted(set(named)))}")
    system = named[0] if named else rules.default_system
    if not system:
        raise BadRequest(
            f"the system is not known: ask at /SYSTEM{EVALUATION}, with SYSTEM one of {', '.join(rules.systems)}, or "
            "name it in context.system"
        )
    return system


def _freshness(contexts: list[dict[str, Any]]) -> FreshnessKind:
    """The strictest that any of the contexts asks for."""
    chosen = [context[FRESHNESS] for context in contexts if FRESHNESS in context]
    if any(choice not in CHOICES for choice in chosen if isinstance(choice, str)) or not all(
        isinstance(choice, str) for choice in chosen
    ):
        raise BadRequest(f"context.freshness: must be one of {', '.join(CHOICES)}")
    if "full" in chosen:
        return "full"
    return "min_policy_offsets" if any(MIN_OFFSETS in context for context in contexts) else "bounded"


def answer(asked: EvaluationRequest, answer_context: AnswerContext, rules: Rules) -> tuple[Decision, bytes]:
    """The decision, and the body of its response, JSON. Raises BadRequest."""
    decision = evaluate(asked.body, answer_context.without_topics(rules.unseen))
    if not decision.evaluations and decision.reasons[0].code == "malformed-request":
        raise BadRequest(decision.reasons[0].message)
    context = response_context(answer_context, rules)
    body = _body(decision, asked, context)
    if len(body) > rules.limits.record_out:
        why = f"the answer has {len(body)} bytes; at most {rules.limits.record_out}"
        decision = Decision("error", (Reason("answer-too-large", why),))
        body = _body(decision, asked, context)
    return decision, body


def late_answer(asked: EvaluationRequest, answer_context: AnswerContext, rules: Rules) -> tuple[Decision, bytes]:
    """What is answered in place of a decision that was recorded after the request's deadline."""
    return LATE, _body(LATE, asked, response_context(answer_context, rules))


def response_context(answer_context: AnswerContext, rules: Rules) -> dict[str, Any]:
    """What an answer rests on, as `context` of a response has it: without the offsets of what the caller may not see,
    which say how other systems' policies change. A record of the answer has them all.
    """
    context: dict[str, Any] = {
        "time": to_text(answer_context.time),
        **answer_context.without_topics(rules.unseen).read.versions,
        "freshness": msgspec.structs.asdict(answer_context.freshness),
    }
    return context if rules.enforced else {**context, "enforced": False}


def _body(decision: Decision, request: EvaluationRequest, context: dict[str, Any]) -> bytes:
    """AuthZEN's response: `evaluations` for several, else `decision`; what it rests on in `context`."""
    record = decision.to_record()
    if not decision.evaluations and "evaluations" not in request.body:
        record["context"] |= context
        return encode(record)
    # An error of all of them: each one is answered.
    items = record["evaluations"] if decision.evaluations else [record for _ in request.body["evaluations"]]
    for item in items if "enforced" in context else ():  # a client may read each by itself
        item["context"]["enforced"] = False
    return encode({"evaluations": items, "context": context})


def stale(message: str, code: str = "policies-stale") -> bytes:
    """The body of a 503: AuthZEN's response with an error, which is never an allow."""
    return encode(Decision("error", (Reason(code, message),)).to_record())


def message(text: str) -> bytes:
    """The body of an error: AuthZEN's error message string, as JSON."""
    return encode(text)


def encode(value: Any) -> bytes:
    """JSON. A text that is no Unicode, such as half of a surrogate pair, is written with escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def metadata(url: str, system: str, searches: Iterable[str] = ()) -> dict[str, str]:
    """The configuration of a policy decision point at a URL; `system`: "" for the plain paths."""
    base = f"{url.rstrip('/')}/{system}".rstrip("/")
    return {
        "policy_decision_point": base,
        "access_evaluation_endpoint": f"{base}{EVALUATION}",
        "access_evaluations_endpoint": f"{base}{EVALUATIONS}",
        **{f"search_{kind}_endpoint": f"{base}{SEARCH}{kind}" for kind in searches},
    }

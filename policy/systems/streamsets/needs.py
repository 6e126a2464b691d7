"""A need of the catalogue on an object as a requirement of the core: the one interpreter of catalogue.yaml."""

import functools

from policy.core.model import All, Condition, Expression, Unanswerable
from policy.core.times import to_text
from policy.systems.kit.query import Need, all_of, expression
from policy.systems.streamsets.access import Access, unknown
from policy.systems.streamsets.catalogue import catalogue, type_of
from policy.systems.streamsets.checks import CHECKS, CheckInput, Context, named
from policy.systems.streamsets.engines import engines_of

Related = tuple[str, ...] | Condition

RUN_ENGINES = "run-engines"  # of the present run of a job
ENGINES = ("engines", RUN_ENGINES)


class Needs:
    """Turns needs into requirements for one request. ``rule``: of leaves that do not name their own."""

    def __init__(self, access: Access, context: Context, rule: str) -> None:
        self._access = access
        self._context = context
        self._rule = rule

    def on(self, need: Need, name: str) -> Expression:
        """``need`` on the object TYPE:NAME."""
        return expression(need, functools.partial(self._leaf, name), self._rule) or All((), self._rule)

    def _leaf(self, name: str, leaf: Need, rule: str) -> Expression | None:
        """A leaf; the head of catalogue.yaml says what the fields mean."""
        if "fact" in leaf:
            return CHECKS[leaf["fact"]](CheckInput(self._access, name, self._context, rule))
        if "right" in leaf:
            return self._right(leaf["right"], name, rule)
        level, path = leaf["permission"], tuple(leaf["of"].split(".")) if "of" in leaf else ()
        if path[:1] == ("context",):
            return self._access.level(named(self._context, path[1], path[1]), level, rule, f"to be used in {name}")
        # The permissions of an active job itself count as they are now (SS-ACTIVE-JOB), those of its pipeline as they
        # were when it was started (SS-ACTIVE-PIPELINE).
        until = self._access.start_of_run(name) if leaf.get("frozen") else None
        return self._level(level, name, path, rule, "", until)

    def _level(
        self, level: str, name: str, path: tuple[str, ...], rule: str, because: str, until: int | None
    ) -> Expression | None:
        """The level on every object at the end of ``path``, one that fails makes it fail; None: there is no object."""
        if not path:
            return self._access.level(name, level, rule, because, until)
        related = self._related(name, path[0], until)
        if isinstance(related, Condition):
            return related
        text = f"{_singular(path[0])} of {name}" + ("" if until is None else f", frozen at its start {to_text(until)}")
        checks = (self._level(level, other, path[1:], rule, text, until) for other in related)
        parts = tuple(part for part in checks if part is not None)
        return all_of(parts, rule) if parts else None

    def _related(self, name: str, field: str, until: int | None) -> Related:
        """The objects that ``field`` of the object's document names; of a frozen one, as they were then."""
        if field in ENGINES:
            start = self._access.start_of_run(name) if field == RUN_ENGINES else None
            engines = engines_of(self._access, name, start)
            return engines or Condition(False, f"no engine of the right kind carries every label of {name}", "SS-Q3")
        versions = self._access.at_moment(name, until)
        if not versions:
            return unknown(name)
        links = {version.links.get(field) for version in versions}
        related = links.pop()
        if related is None or links:
            message = f"the document of {name} does not give its {field} (an empty list says that there are none)"
            return Condition(None, message, "SS-ACCESS")
        return related

    def _right(self, right: str, name: str, rule: str) -> Expression:
        body = self._access.organization_of_object(name)
        if isinstance(body, Condition):
            return body
        if right == "owner":
            return self._access.owner(name, rule)
        if right == "administrator":
            return self._access.administrator(body[0], rule)
        return self._access.auth_token_administrator(body[0], rule)


def _singular(field: str) -> str:
    article = "an" if field[0] in "aeiou" else "a"
    return f"{article} {field[:-1]}" if field.endswith("s") else f"the {field}"


def checked(name: str, wanted: str) -> str:
    """``name``, if it is an object of the type ``wanted`` (or any); raises Unanswerable."""
    try:
        type_ = type_of(name)
    except ValueError as error:
        raise Unanswerable("malformed-resource", f"resource: {error}") from None
    if wanted in catalogue().types and type_ != wanted:
        raise Unanswerable("wrong-resource", f"the action is on a {wanted}, and {name} is a {type_}")
    return name

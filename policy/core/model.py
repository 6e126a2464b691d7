"""What all systems reduce to: grants, memberships, facts and expressions. Plain data, no behaviour.

A *principal* is text that can have grants: a user (``user:dana``), a group, a role. Principals are made
by a system's translator alone, each kind with a prefix of its own, so that no request can name one it
is not. A principal has the grants of the principals that it is a member of, at any depth.

These and the structs of a decision are `gc=False`: they cannot change and are made after what is in them, so none is in
a cycle, and Python's collector has less to go through.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from policy.core.pattern import Name, Pattern
from policy.core.times import ALWAYS, Window

TIME_NEEDED = "a time-bound document applies, and the request does not say its time (or is not trusted to)"

Effect = Literal["allow", "deny"]
ALLOW: Effect = "allow"
DENY: Effect = "deny"
EFFECTS: tuple[Effect, ...] = (ALLOW, DENY)


class StatementId(msgspec.Struct, frozen=True, gc=False):
    """Where something was written: the document's ``system/kind/name`` and its statement, counted from 0."""

    document: str
    statement: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        """To sort by: a document before its statements."""
        return (self.document, -1 if self.statement is None else self.statement)

    def __str__(self) -> str:
        return self.document if self.statement is None else f"{self.document} statement {self.statement}"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """``principal`` is allowed or denied every permission matching ``permission`` on every ``object`` matching."""

    principal: str
    effect: Effect
    permission: Pattern
    object: Pattern
    statement_id: StatementId
    window: Window = ALWAYS


class Membership(msgspec.Struct, frozen=True, gc=False):
    """``member`` holds everything that ``principal`` holds."""

    member: str
    principal: str
    statement_id: StatementId
    window: Window = ALWAYS


class Fact(msgspec.Struct, frozen=True):
    """What is known of one thing; ``keys`` are (index, value) pairs under which it is found again.

    ``window``: when its version is in force; of one thing there may be several facts with windows that do not overlap.
    ``not_before``: the moment (ms) of the event that it reports; it does not count for an earlier one.
    """

    kind: str
    name: str
    body: Any
    keys: tuple[tuple[str, str], ...] = ()
    statement_id: StatementId | None = None
    window: Window = ALWAYS
    not_before: int | None = None

    @property
    def timeless(self) -> bool:
        """Whether it counts at every moment."""
        return self.window is ALWAYS and self.not_before is None

    def counts(self, at: int | None) -> bool:
        """Whether it does at a moment (ms). Without a time what is reported has happened: a report is of the past."""
        return in_force(self.window, at) and (at is None or self.not_before is None or self.not_before <= at)


class PermissionCheck(msgspec.Struct, frozen=True, tag="holds", gc=False):
    """An allow grant for (permission, object) is held, and no deny. The texts are for people.

    ``because`` says how the object came in: "connection of pipeline p of the job". ``principals``: who must
    hold it where that is not the subject, such as a user whom an application is to impersonate.
    """

    permission: Name
    object: Name
    rule: str
    permission_text: str
    object_text: str
    because: str = ""
    principals: tuple[str, ...] = ()


class Condition(msgspec.Struct, frozen=True, tag="given", gc=False):
    """A condition that is not a permission, already worked out; ``held`` None: not known."""

    held: bool | None
    message: str
    rule: str
    code: str = "fact"


class All(msgspec.Struct, frozen=True, tag="all", gc=False):
    """Every one of ``items``; with no items it never holds (nothing is allowed vacuously)."""

    items: tuple["Expression", ...]
    rule: str
    text: str = ""


class AnyOf(msgspec.Struct, frozen=True, tag="any", gc=False):
    """At least one of ``items``."""

    items: tuple["Expression", ...]
    rule: str
    text: str = ""


class Reason(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """One sentence of an explanation and where it comes from."""

    code: str
    message: str
    rule: str | None = None
    document: str | None = None
    statement: int | None = None


class EngineResult(msgspec.Struct, frozen=True, tag="engine", gc=False):
    """The answer of a system that evaluates its policies with an engine of its own, already worked out.

    ``held`` None: it cannot be determined, so the outcome is ``error``. ``rule``, ``message``: of the result as a
    whole. ``reasons``: the determining statements, each with its document and statement; where none is, why nothing is
    allowed or determined. ``denied``: a deny statement is satisfied: the deny stands although a claim is not trusted.
    """

    held: bool | None
    rule: str
    message: str
    reasons: tuple[Reason, ...] = ()
    denied: bool = False


Expression: TypeAlias = PermissionCheck | Condition | All | AnyOf | EngineResult


class AuthorizationQuery(msgspec.Struct, frozen=True, gc=False):
    """A request in terms of the core: the subject (principals to start from) and what must be true.

    ``claims``: what the request asserted and the answer rests on. ``notes``: contradictions found, and
    what is not known any more.
    ``untrusted``: the untrusted claims whose absence makes any answer but allow an error.
    """

    principals: tuple[str, ...]
    expression: Expression
    claims: tuple[str, ...] = ()
    notes: tuple[Reason, ...] = ()
    untrusted: tuple[str, ...] = ()


class CompiledDocument(msgspec.Struct, frozen=True, gc=False):
    """What one document says."""

    grants: tuple[Grant, ...] = ()
    memberships: tuple[Membership, ...] = ()
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()


NO_LONGER_KNOWN = "no-longer-known"  # the reason's code where the past would be needed, and is not kept that far


class Unanswerable(Exception):
    """The request cannot be worked out: the outcome is ``error``, never an allow."""

    def __init__(self, code: str, message: str, rule: str | None = None) -> None:
        super().__init__(message)
        self.reason = Reason(code, message, rule)


def in_force(window: Window, at: int | None) -> bool:
    """Whether ``window`` holds at ``at`` (ms); raises Unanswerable when it matters and the time is not known."""
    if window is ALWAYS or window == ALWAYS:
        return True
    if at is None:
        raise Unanswerable("time-needed", TIME_NEEDED)
    return window.holds(at)


class DocumentRefused(Exception):
    """A document breaks its system's rules; ``errors`` names every one."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors

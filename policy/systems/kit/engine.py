"""A system that evaluates its policies with an engine of its own: what tools for policy authors ask it.

Such a system keeps its policies as facts, one for each statement (``Fact.statement_id``). Its ``to_query`` looks up
those that may decide the request, has its engine evaluate them, and returns an `EngineResult`. Each lookup is noted,
also of what is not found, so that an answer that is kept ends when a policy changes or when a validity window begins or
ends. So ``to_query`` must read nothing but the request (without its id and time), ``facts`` and ``trust``, and
``reads_resource_id`` is True. Without prefixes of principals (``subjects = ()``) a refused document of a kind that is
neither a fact nor ``missed`` makes every request ``error``. Of its other kinds it asks `Facts.broken` itself.

The system's attribute ``engine`` is an `Engine`. All of its members have a default; each that is given makes a tool
know more. What cannot be worked out, tools say.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from policy.core.facts import Facts
from policy.core.model import Effect, Fact, StatementId
from policy.core.request import Request
from policy.core.times import ALWAYS, Window
from policy.systems.kit.privileged import PrivilegeKind, Severity


class Privilege(msgspec.Struct, frozen=True):
    """A right over the system or over everything that a statement gives; see `PrivilegedPermission`."""

    name: str
    kind: PrivilegeKind
    severity: Severity


class Statement(msgspec.Struct, frozen=True):
    """A statement of an engine's policies for tools. ``text``: all of it in one line, for people. An allow more only
    ever allows more, a deny more denies more.

    ``principals``: whom it names, ``*`` for everyone, sorted. ``privileges``: what an allow of it gives. ``content``:
    what the engine parsed, equal for two statements only if they do the same; without it, their texts have to be.
    """

    effect: Effect
    text: str
    principals: tuple[str, ...] = ("*",)
    privileges: tuple[Privilege, ...] = ()
    window: Window = ALWAYS
    content: Hashable = None

    @property
    def compared(self) -> tuple[Effect, Hashable]:
        """By which it is compared with others, its window aside."""
        return self.effect, self.text if self.content is None else self.content


class EngineFinding(msgspec.Struct, frozen=True):
    """What is suspicious about a statement of a document (``system/kind/name``); ``statement`` None: all of it."""

    document: str
    statement: int | None
    code: str
    message: str


class NearStatement(NamedTuple):
    """A statement that would allow a request but for ``lacks``; ``detail`` says what falls short.

    ``suffices`` False: it has conditions beside that, which are not known to be satisfied.
    """

    statement_id: StatementId
    text: str
    lacks: Literal["action", "resource", "validity", "condition"]
    detail: str
    suffices: bool = True


class Engine:
    """What tools ask of a system with an engine of its own. To be derived from; the defaults know nothing."""

    statement_kinds: tuple[str, ...] = ()
    """The kinds of facts that are statements, each with its ``statement_id``: for coverage, usage and differences."""

    statement_text: str = ""
    """The field of a document's spec that is one text of statements; "": none is, they are a list."""

    def lines_of_statements(self, text: str) -> tuple[int, ...]:
        """The line of the text, from 1, in which each of its statements begins; none where it cannot be cut."""
        return ()

    def statement(self, fact: Fact) -> Statement:
        """What a fact of ``statement_kinds`` says; its window need not be given."""
        return Statement("allow", f"{fact.kind} {fact.name}")

    def subjects(self, facts: Facts) -> Iterable[tuple[str, str]]:
        """Types and ids of the subjects that policies and facts know: ``who-can`` asks for each of them."""
        return ()

    def resources(self, facts: Facts) -> Iterable[tuple[str, str]]:
        """The same of resources: a search asks for each of them."""
        return ()

    def actions(self, facts: Facts) -> Iterable[str]:
        """Names of the actions that policies and facts know; of one without a catalogue (`ListsActions`) alone."""
        return ()

    def near(self, facts: Facts, request: Request, trust: frozenset[str]) -> Iterable[NearStatement]:
        """Statements that would allow a denied request but for one thing, of those for its subject."""
        return ()

    def findings(self, facts: Facts) -> Iterable[EngineFinding]:
        """What `lint` finds beyond each document's own warnings, such as violations of a schema document."""
        return ()


def engine_of(system: Any) -> Engine | None:
    """The engine of a system; None: it translates to grants."""
    engine: Engine | None = getattr(system, "engine", None)
    return engine


def statements_of(engine: Engine, facts: Iterable[Fact]) -> Iterator[tuple[StatementId, Statement]]:
    """Those of ``facts`` that are statements, each with the fact's window."""
    for fact in facts:
        if fact.kind in engine.statement_kinds:
            statement = msgspec.structs.replace(engine.statement(fact), window=fact.window)
            yield fact.statement_id or StatementId(fact.name), statement


def statement_facts(engine: Engine, facts: Facts) -> Iterator[Fact]:
    """The facts that are statements, in force at whatever moment."""
    for kind in engine.statement_kinds:
        for name in facts.names(kind):
            yield from facts.versions(kind, name)

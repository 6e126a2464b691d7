"""The monitor itself: how inputs and time change the state of a key. A pure function.

*Ingestion time* is when the enforcer wrote the record; it runs with the watermark and decides when to wait no longer.
What happened is compared by the events' own times.
"""

import math
from collections.abc import Iterator

import msgspec

from streaming.alert_kinds import AlertKind
from streaming.monitor import (
    SUBJECT,
    AccessEvent,
    CountedEvent,
    DecisionEvent,
    Fact,
    Input,
    JobEvent,
    Key,
    LoginEvent,
    Run,
    ran,
    run_of,
    session_of,
)
from streaming.monitor.rules import Accesses, Episode, Occurrence, Watch
from streaming.settings.monitor import Exemption, MonitorSettings, Rules

# Whose decisions are remembered at once; older ones are forgotten, and not held against the subject.
ACCESSES_OF_A_SUBJECT = 20_000


class Raised(msgspec.Struct, frozen=True):
    """There is news of an episode."""

    key: Key
    kind: str
    episode: Episode


class State(msgspec.Struct, array_like=True):
    """All that is remembered about one key. `due`: when it is to be looked at again (ms, ingestion time); -1: never.

    `held`: what its partition was read ahead for; it counts once every other partition is read as far.
    """

    accesses: Accesses = msgspec.field(default_factory=Accesses)
    watches: dict[str, Watch] = {}
    login: LoginEvent | None = None
    run: Run = msgspec.field(default_factory=Run)
    due: int = -1
    held: list[AccessEvent | CountedEvent] = []

    @property
    def empty(self) -> bool:
        """Whether nothing needs to be remembered. A login and a run that goes on do: older ones must not return."""
        accesses = self.accesses
        remembered = accesses.decided or accesses.waiting or accesses.forgotten >= 0 or self.watches or self.held
        return not remembered and self.login is None and self.run == Run()


class Monitor:
    """The rules of all systems, applied to one key at a time."""

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._rules: dict[str, Rules] = {}
        self._exempt: dict[str, list[Exemption]] = {}
        for exemption in settings.exempt:
            self._exempt.setdefault(exemption.subject, []).append(exemption)

    def rules_of(self, system: str) -> Rules:
        """The rules of a system, computed once."""
        if system not in self._rules:
            self._rules[system] = self._settings.rules_of(system)
        return self._rules[system]

    def take(
        self,
        key: Key,
        state: State,
        inputs: list[Input],
        now: int,
        until: float = math.inf,
        unread: int = -1,
        answered_lag: bool = False,
    ) -> Iterator[Raised | Fact]:
        """Change `state` by the inputs of `key` until `now` (ms, ingestion time), and yield what is to be reported.

        `until` (ms, ingestion time): every partition has been read up to there; what became known later is held back.
        `unread` (ms): a decision of then, perhaps of this subject, could not be read; -1: none. `answered_lag`:
        answered records, perhaps of this subject, are left to decide.
        The order of the inputs changes nothing but which of several is the first of an episode.
        """
        rules = self.rules_of(key.system)
        if key.about == SUBJECT:
            state.accesses.forgotten = max(state.accesses.forgotten, unread)
        others: list[Input] = []
        for input_ in inputs:
            if isinstance(input_, DecisionEvent):
                state.accesses.note(input_, rules)
            else:
                others.append(input_)
        if others or state.held:  # most subjects have decisions alone
            yield from self._take_others(key, state, others, max(until, now), rules)
        yield from self._look(key, state, now, answered_lag)

    def _take_others(
        self, key: Key, state: State, inputs: list[Input], until: float, rules: Rules
    ) -> Iterator[Raised | Fact]:
        counted = [*state.held, *(input_ for input_ in inputs if isinstance(input_, AccessEvent | CountedEvent))]
        state.held = [input_ for input_ in counted if input_.known > until]
        ready = (input_ for input_ in counted if input_.known <= until)
        for input_ in sorted(ready, key=lambda input_: (input_.known, input_.time, input_.id)):
            if isinstance(input_, AccessEvent):
                self._happened(key, state, input_, rules)
            else:
                self._occurred(
                    key, state, input_.kind, Occurrence(input_.id, input_.time, input_.known, input_.what), rules
                )
        yield from _logins(key, state, inputs)
        yield from _runs(key, state, inputs)

    def _look(self, key: Key, state: State, now: int, answered_lag: bool) -> Iterator[Raised | Fact]:
        """The same for time alone going on; sets `state.due`."""
        rules = self.rules_of(key.system)
        for happened in state.accesses.settle(now, rules, answered_lag):
            self._unallowed(key, state, happened, rules)
        settled = state.accesses.settled_until(now)
        state.accesses.tidy(settled, ACCESSES_OF_A_SUBJECT, rules)
        for kind, watch in list(state.watches.items()):
            yield from (Raised(key, kind, episode) for episode in watch.alerts(settled, rules, rules.of(kind)))
            if watch.empty:
                del state.watches[kind]
        if not state.run.active and _forgotten_at(state.run, rules) <= now:
            state.run = Run()
        # What is due and yet not done is so once nothing waits.
        timers = (moment for moment in self._timers(state, rules, answered_lag) if moment > now)
        state.due = min(timers, default=-1)

    def _timers(self, state: State, rules: Rules, answered_lag: bool) -> Iterator[int]:
        yield from state.accesses.timers(rules, answered_lag)
        yield from (input_.known for input_ in state.held)
        if state.run.stopped >= 0 and not state.run.active:
            yield _forgotten_at(state.run, rules)
        for kind, watch in state.watches.items():
            yield from watch.timers(rules, rules.of(kind))

    def _happened(self, key: Key, state: State, happened: AccessEvent, rules: Rules) -> None:
        if happened.denied:
            self._occurred(key, state, AlertKind.UNAUTHORIZED_ACCESS, _occurrence(happened, happened.why), rules)
        state.accesses.await_allow(happened, rules)

    def _unallowed(self, key: Key, state: State, happened: AccessEvent, rules: Rules) -> None:
        """An access whose time is up: it was denied, or not requested."""
        kind, why = AlertKind.UNREQUESTED_ACCESS, "no allow was given for it"
        if (denial := state.accesses.denied(happened, rules)) is not None:
            kind, why = AlertKind.DENIED_BUT_DONE, f"decision {denial} was no allow"
        self._occurred(key, state, kind, _occurrence(happened, why), rules)

    def _occurred(self, key: Key, state: State, kind: str, occurrence: Occurrence, rules: Rules) -> None:
        rule = rules.of(kind)
        exempt = any(e.covers(key.system, kind, occurrence.time) for e in self._exempt.get(key.name, ()))
        if rule.enabled and not exempt:
            state.watches.setdefault(kind, Watch()).add(kind, str(key), occurrence, rules, rule)


def _logins(key: Key, state: State, inputs: list[Input]) -> Iterator[Fact]:
    """Each login as a fact, the newest last: requests are evaluated by it, accesses by the one before them."""
    before, by_time = state.login, dict[int, LoginEvent]()
    for login in sorted((input_ for input_ in inputs if isinstance(input_, LoginEvent)), key=_login_order):
        by_time[login.time] = login
    if before is not None and before.time in by_time:
        by_time[before.time] = max(before, by_time[before.time], key=_login_order)
    logins = [login for login in by_time.values() if login != before]
    for login in logins:
        yield session_of(key, login)
    state.login = max(logins[-1:] + ([before] if before is not None else []), key=_login_order, default=None)
    if before is not None and logins and state.login == before:
        yield session_of(key, before)


def _runs(key: Key, state: State, inputs: list[Input]) -> Iterator[Fact]:
    """Each start and stop of a job as a fact, the present one last."""
    last: Fact | None = None
    for event in sorted((input_ for input_ in inputs if isinstance(input_, JobEvent)), key=_job_order):
        before, state.run = state.run, ran(state.run, event)
        if _is_news(event, before):
            last = run_of(key, ran(Run(), event))
            yield last
    present = run_of(key, state.run)
    if last is not None and last != present:
        yield present


def _is_news(event: JobEvent, run: Run) -> bool:
    """Whether an event says more of a job than was known; a stop ends nothing where no run goes on."""
    if event.started:
        return event.time != run.started
    return event.time not in (run.started, run.stopped) and (run.active or event.time < run.changed_at)


def _job_order(event: JobEvent) -> tuple[int, bool]:
    """At the same moment a stop comes first: see `Run.active`."""
    return event.time, event.started


def _forgotten_at(run: Run, rules: Rules) -> int:
    """When a run that is over is forgotten (ms). Its start may be reported after its stop, by another partition."""
    return max(run.stopped, run.known) + rules.kept_ms


def _login_order(login: LoginEvent) -> tuple[int, bool, bool, tuple[str, ...], tuple[str, ...]]:
    """At the same moment one that says more comes later: topics may be trusted with more or fewer of its claims."""
    said = login.groups is not None, login.roles is not None
    return login.time, *said, login.groups or (), login.roles or ()


def _occurrence(happened: AccessEvent, why: str) -> Occurrence:
    what = f"{happened.what}: {why}" if why else happened.what
    return Occurrence(happened.id, happened.time, happened.known, what)

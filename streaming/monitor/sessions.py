"""Facts from audit events: the last login of a user (`Session`), the present run of a job (`ActiveJob`).

What came out of order counts by its own time: an older login than the one known changes nothing. A logout changes
nothing either: what a user held at his login holds until the next one (SS-LOGIN).
"""

from typing import Any

import msgspec

from policy import all_systems
from streaming.monitor.inputs import JOB, SUBJECT, Key, LoggedIn, Ran

SESSION, ACTIVE_JOB = "Session", "ActiveJob"
KINDS = {SUBJECT: SESSION, JOB: ACTIVE_JOB}


class Fact(msgspec.Struct, frozen=True):
    """A fact document to write; `spec` None deletes it."""

    key: str
    system: str
    kind: str
    name: str
    spec: dict[str, Any] | None

    def to_value(self) -> bytes | None:
        """The record's value on the facts topic."""
        if self.spec is None:
            return None
        return msgspec.json.encode({"system": self.system, "kind": self.kind, "name": self.name, "spec": self.spec})


class Run(msgspec.Struct, array_like=True):
    """The newest start and the newest stop known of a job, ms; -1: none."""

    started: int = -1
    stopped: int = -1

    @property
    def active(self) -> bool:
        """Whether it runs: a stop at the very moment of a start ended another run, and the job runs."""
        return self.started >= 0 and self.started >= self.stopped


def knows_facts(system: str, about: str) -> bool:
    """Whether a system's facts hold subjects' logins or jobs' runs."""
    known = all_systems().get(system)
    return known is not None and KINDS.get(about, "") in known.kinds


def session_of(key: Key, login: LoggedIn) -> Fact:
    """The document of a login."""
    claimed = {"groups": login.groups, "roles": login.roles}
    spec = {"login_at": login.time} | {name: list(names) for name, names in claimed.items() if names is not None}
    return _fact(key, SESSION, spec)


def run_of(key: Key, run: Run) -> Fact:
    """The document of a job's run, or its deletion."""
    return _fact(key, ACTIVE_JOB, {"started_at": run.started} if run.active else None)


def ran(run: Run, event: Ran) -> Run:
    """A job's run after an event."""
    if event.started:
        return Run(max(run.started, event.time), run.stopped)
    return Run(run.started, max(run.stopped, event.time))


def _fact(key: Key, kind: str, spec: dict[str, Any] | None) -> Fact:
    return Fact(f"{key.system}/{kind}/{key.name}", key.system, kind, key.name, spec)

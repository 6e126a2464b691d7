"""A generated day as the monitor reads it, with incidents planted in it: what it must find, and nothing beside.

Ordinary traffic is allowed, done soon after, reported late or twice now and then, and out of order; some of it comes
close to an incident without being one. The same arguments give the same day.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from policy import Reason, to_text
from streaming.alert_kinds import AlertKind
from streaming.records.audit import Verdict, encode_verdict
from streaming.records.decision import ActionName, Entity

SYSTEM, ACTION = "lenses6", "kafka:ReadTopicData"
SECOND, MINUTE, DAY = 1_000, 60_000, 24 * 60 * 60_000
USERS, TOPICS = 200, 50
TYPES = ("lrn", "topic", "resource")  # which Lenses 6 does not read: any will do
START = 1_795_000_000_000


class MonitorRecord(msgspec.Struct, frozen=True, order=True):
    """A record of one of the monitor's topics. `known`: when the enforcer wrote it, ms; `to`: which topic."""

    known: int
    to: str
    value: bytes


DECISIONS, VERDICTS, DEAD_LETTERS = "decisions", "verdicts", "letters"


class Day:
    """The records of a day, by when they became known, and the incidents: kind and subject."""

    def __init__(self, seed: int = 1, accesses: int = 20_000, each: int = 20) -> None:
        self._rng = random.Random(seed)
        self._number = 0
        self._records: list[MonitorRecord] = []
        self.incidents: set[tuple[str, str]] = set()
        for _ in range(accesses):
            self._ordinary(self._moment(), f"user-{self._rng.randrange(USERS)}")
        for close in (self._nearly_a_burst, self._nearly_too_old, self._far_too_late, self._asked_again):
            for number in range(each):
                close(self._moment(), f"close-{close.__name__}-{number}")
        for kind, plant in self._plants().items():
            for number in range(each if kind != AlertKind.MALFORMED_BURST else 1):
                self._plant(kind, plant, number)
        self.records = sorted(self._records)

    def _plants(self) -> dict[str, Callable[[int, str], None]]:
        return {
            AlertKind.UNAUTHORIZED_ACCESS: self._unauthorized,
            AlertKind.UNREQUESTED_ACCESS: self._unrequested,
            AlertKind.DENIED_BUT_DONE: self._denied_but_done,
            AlertKind.DENIAL_BURST: self._burst,
            AlertKind.MALFORMED_BURST: self._malformed,
            AlertKind.FACT_CONTRADICTION: self._contradiction,
        }

    def _plant(self, kind: str, plant: Callable[[int, str], None], number: int) -> None:
        subject = DEAD_LETTERS if kind == AlertKind.MALFORMED_BURST else f"{kind}-{number}"
        plant(self._moment(), subject)
        self.incidents.add((kind, subject))

    def _moment(self) -> int:
        return START + self._rng.randrange(DAY - 20 * MINUTE)

    def _topic(self) -> str:
        return f"kafka:topic:prod/main/topic-{self._rng.randrange(TOPICS)}"

    def _delay(self) -> int:
        """How long an audit event is under way: seconds as a rule, minutes now and then."""
        return self._rng.randrange(9 * MINUTE) if self._rng.random() < 0.02 else self._rng.randrange(2 * SECOND)

    def _ordinary(self, at: int, subject: str) -> None:
        """Requested, mostly allowed, done within minutes, reported once or twice; some decisions come late."""
        topic = self._topic()
        if self._rng.random() < 0.1:
            self._decision(at, subject, topic, "deny")
            return
        late = self._rng.random() < 0.01
        done = at + self._rng.randrange(2 * SECOND if late else 4 * MINUTE)
        self._decision(at, subject, topic, "allow", known=done + 4 * SECOND if late else None)
        known = done + (2 * SECOND if late else self._delay())
        for _ in range(2 if self._rng.random() < 0.02 else 1):
            self._access(done, subject, topic, known=known)

    def _nearly_a_burst(self, at: int, subject: str) -> None:
        for number in range(60):
            self._decision(at + number * 3001, subject, self._topic(), "deny")

    def _nearly_too_old(self, at: int, subject: str) -> None:
        topic = self._topic()
        self._decision(at, subject, topic, "allow")
        self._access(at + 5 * MINUTE, subject, topic)

    def _far_too_late(self, at: int, subject: str) -> None:
        """Its request is no longer kept."""
        self._access(at, subject, self._topic(), known=at + 11 * MINUTE)

    def _asked_again(self, at: int, subject: str) -> None:
        topic = self._topic()
        self._decision(at, subject, topic, "deny")
        self._decision(at + SECOND, subject, topic, "allow")
        self._access(at + 2 * SECOND, subject, topic)

    def _unauthorized(self, at: int, subject: str) -> None:
        topic = self._topic()
        self._decision(at, subject, topic, "allow")
        self._access(at + SECOND, subject, topic, "deny", known=at + SECOND + self._delay())

    def _unrequested(self, at: int, subject: str) -> None:
        self._decision(at, subject, "kafka:topic:prod/main/another", "allow")
        self._access(at + SECOND, subject, self._topic(), known=at + SECOND + self._delay())

    def _denied_but_done(self, at: int, subject: str) -> None:
        topic = self._topic()
        self._decision(at, subject, topic, self._rng.choice(["deny", "error"]))
        self._access(at + SECOND, subject, topic, known=at + SECOND + self._delay())

    def _burst(self, at: int, subject: str) -> None:
        for number in range(self._rng.randrange(21, 200)):
            self._decision(at + number * 100, subject, self._topic(), "deny")

    def _malformed(self, at: int, _subject: str) -> None:
        self._records += [MonitorRecord(at + number * 100, DEAD_LETTERS, b"?") for number in range(100)]

    def _contradiction(self, at: int, subject: str) -> None:
        reason = Reason(AlertKind.FACT_CONTRADICTION, "the request claims what no document says")
        self._decision(at, subject, self._topic(), "allow", reasons=(reason,))

    def _decision(
        self,
        at: int,
        subject: str,
        topic: str,
        outcome: str,
        known: int | None = None,
        reasons: tuple[Reason, ...] = (),
    ) -> None:
        request = {
            "subject": {"type": "user", "id": subject},
            "action": {"name": ACTION},
            "resource": {"type": self._rng.choice(TYPES), "id": topic},
        }
        context = {"outcome": outcome, "reasons": reasons, "request": request}
        record = {"id": self._id(), "system": SYSTEM, "time": to_text(at), "context": context}
        later = at + self._rng.randrange(100, 1000) if known is None else known
        self._records.append(MonitorRecord(later, DECISIONS, msgspec.json.encode(record)))

    def _access(self, at: int, subject: str, topic: str, outcome: Any = "allow", known: int | None = None) -> None:
        id_ = self._id()
        verdict = Verdict(
            id=id_,
            event_id=f"{subject} {at}",
            system=SYSTEM,
            subject=Entity("user", subject),
            action=ActionName(ACTION),
            resource=Entity(self._rng.choice(TYPES), topic),
            time=at,
            result="success",
            outcome=outcome,
            reasons=(),
            policy_version="",
        )
        later = at + self._rng.randrange(100, 1000) if known is None else known
        self._records.append(MonitorRecord(later, VERDICTS, encode_verdict(verdict)))

    def _id(self) -> str:
        self._number += 1
        return f"r-{self._number}"


class Found(msgspec.Struct, frozen=True):
    """How well the alerts fit the incidents."""

    planted: int
    found: int
    invented: int

    @property
    def recall(self) -> float:
        """The share of the incidents that were found."""
        return self.found / self.planted

    @property
    def precision(self) -> float:
        """The share of what was alerted to that was an incident."""
        return self.found / (self.found + self.invented) if self.found + self.invented else 1.0


def compare(incidents: set[tuple[str, str]], alerts: Iterable[tuple[str, str]]) -> Found:
    """The incidents against the alerts, each by kind and subject."""
    raised = set(alerts)
    return Found(len(incidents), len(incidents & raised), len(raised - incidents))

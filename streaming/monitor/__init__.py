"""The monitor: a stateful query over decisions, verdicts and dead letters. Here: the inputs of a key, and the keys."""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from policy import Request, all_systems
from streaming.records.audit import ACTIVE_JOB, SESSION

SEPARATOR = "\0"  # no part of a well-formed record holds it
DENIALS_HELD = 20  # of one access, by their ids: one that names an older denial is matched like one that names none


class DecisionEvent(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """The same access was decided alike between two moments (ms) that lie within a window of each other.

    `ids`: of the decisions that are no allows, which an access may name.
    """

    access: bytes
    allowed: bool
    first: int
    last: int
    ids: tuple[str, ...]


class AccessEvent(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """An access that succeeded. `time`: when, `known`: when the enforcer reported it, ms. `denied`: by the policy then.

    `id`: the same for two records with the same content, and for no others, whatever ids their producers choose.
    `decision`: the id of the decision that the event names.
    """

    access: bytes
    time: int
    known: int
    id: str
    what: str
    denied: bool
    why: str = ""
    decision: str | None = None


class CountedEvent(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """Something that is counted: a denial, a dead letter, a contradiction. `time`, `known`: ms."""

    kind: str
    time: int
    known: int
    id: str
    what: str


class LoginEvent(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A login. `groups`, `roles`: None where the event has none."""

    time: int
    groups: tuple[str, ...] | None
    roles: tuple[str, ...] | None


class JobEvent(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """A job started, or it stopped. `time`: when, `known`: when the enforcer reported it, ms."""

    time: int
    started: bool
    known: int


class UnreadEvent(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """A decision that cannot be read, whoever's: written at ``at``, ms."""

    at: int


class AnsweredLagEvent(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Whether the enforcer had answered records, of any subject, left to decide at ``at``, ms."""

    at: int
    lag: bool


Input = UnreadEvent | AnsweredLagEvent | DecisionEvent | AccessEvent | CountedEvent | LoginEvent | JobEvent

InputsByKey = dict[str, list[Input]]
"""Inputs by the text of their key."""

encode_inputs: Callable[[InputsByKey], bytes] = msgspec.msgpack.Encoder().encode
"""The inputs of the keys of one bucket, as one cell."""

decode_inputs: Callable[[bytes], InputsByKey] = msgspec.msgpack.Decoder(InputsByKey).decode
"""The reverse."""


class Key(msgspec.Struct, frozen=True):
    """What a state is about: a `subject`, a `job` or a `topic` of dead letters (then without a system)."""

    about: str
    system: str
    name: str

    def __str__(self) -> str:
        return SEPARATOR.join((self.about, self.system, self.name))


SUBJECT, JOB, TOPIC, SERVER = "subject", "job", "topic", "server"
EVERY_KEY = Key("every key", "", "")
"""What is about all keys of a bucket, and of all buckets."""


BUCKETS = 4096  # part of the state's layout: another number needs another checkpoint
NO_BUCKET = -1  # the bucket without inputs, which advances the watermark


def bucket_of(key: Key) -> int:
    """Which of the state store's values holds a key's state, together with others: one by one would cost far more."""
    return zlib.crc32(str(key).encode()) % BUCKETS


def parse_key(text: str) -> Key:
    """The reverse of `str(key)`."""
    return Key(*text.split(SEPARATOR, 2))


def access_event_id(event_id: str, access: bytes, time: int) -> str:
    """The id of an access that happened."""
    return hashlib.blake2b(b"%b%d %b" % (access, time, event_id.encode()), digest_size=12).hexdigest()


ACCESS_BYTES = 17
"""The length of an access id. Another way to compute it needs another length: stored ones are known by it."""


def access_id(request: Request) -> bytes:
    """What makes two accesses of a subject the same one: the action and the resource as the system reads them."""
    system = all_systems().get(request.system)
    action, resource = request.action.name, (request.resource.id,)
    if system is not None:
        action, resource = system.canonical_action(action), system.canonical_resource(request)
    text = msgspec.json.encode([action, resource], order="deterministic")
    return hashlib.blake2b(text, digest_size=ACCESS_BYTES).digest()


class Fact(msgspec.Struct, frozen=True):
    """A fact document to write; `spec` None deletes it. `since`: when it became so, ms."""

    key: str
    system: str
    kind: str
    name: str
    spec: dict[str, Any] | None
    since: int

    def to_value(self) -> bytes | None:
        """The record's value on the facts topic."""
        if self.spec is None:
            return None
        return msgspec.json.encode({"system": self.system, "kind": self.kind, "name": self.name, "spec": self.spec})


class Run(msgspec.Struct, array_like=True):
    """The newest start and the newest stop known of a job, ms; -1: none. `known`: when the last event came (ms,
    ingestion time); older versions did not note it.
    """

    started: int = -1
    stopped: int = -1
    known: int = -1

    @property
    def active(self) -> bool:
        """Whether it runs: a stop at the very moment of a start ended another run, and the job runs."""
        return self.started >= 0 and self.started >= self.stopped

    @property
    def changed_at(self) -> int:
        """When it last started or stopped, ms."""
        return max(self.started, self.stopped)


def session_of(key: Key, login: LoginEvent) -> Fact:
    """The document of a login."""
    claimed = {"groups": login.groups, "roles": login.roles}
    spec = {"login_at": login.time} | {name: list(names) for name, names in claimed.items() if names is not None}
    return _fact(key, SESSION, spec, login.time)


def run_of(key: Key, run: Run) -> Fact:
    """The document of a job's run, or its deletion."""
    return _fact(key, ACTIVE_JOB, {"started_at": run.started} if run.active else None, run.changed_at)


def ran(run: Run, event: JobEvent) -> Run:
    """A job's run after an event."""
    known_at = max(run.known, event.known)
    if event.started:
        return Run(max(run.started, event.time), run.stopped, known_at)
    return Run(run.started, max(run.stopped, event.time), known_at)


def _fact(key: Key, kind: str, spec: dict[str, Any] | None, since: int) -> Fact:
    return Fact(f"{key.system}/{kind}/{key.name}", key.system, kind, key.name, spec, since)

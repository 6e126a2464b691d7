"""The topics as data: which there are, with which settings, and what breaks when a setting is another.

`topic_specs` gives it for the configured names (contracts, "Topics"); `streaming.kafka.topics` acts on it.
"""

from collections.abc import Iterator, Mapping

import msgspec
from confluent_kafka.admin import NewTopic

Offsets = Mapping[str, Mapping[str, int]]
"""The newest offset of each topic, by partition: what publishing returns, and what a decision rests on; -1: nothing."""

NOTHING_READ = -1
"""The newest offset of an empty topic."""


def newest_offset(offsets: Offsets, topic: str) -> int:
    """The newest offset of a topic with one partition."""
    return offsets.get(topic, {}).get("0", NOTHING_READ)


DEAD_LETTERS = ".dlq"
MIB = 1 << 20
ROOM = 64 * 1024  # what a record batch needs beside its largest record
ALWAYS_FITS = ROOM - 4 * 1024
"""Bytes of a record that fits whatever the limit: producer and topics have `ROOM` above it, most of it for this."""
DAY_MS = 24 * 60 * 60 * 1000


# Not all that are installed: an upgrade that brings a system must not ask for topics that no cluster has yet.
DEFAULT_SYSTEMS = ("cdap", "lenses5", "lenses6", "streamsets", "ververica")


class TopicNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the topics are called. `policies`: by system; a system that is not named has the default name.

    `answered`: of requests that a server or an application has answered already, and that the job decides again.
    """

    requests: tuple[str, ...] = ("authz.requests.v1",)
    audit: tuple[str, ...] = ("authz.audit.v1",)
    answered: tuple[str, ...] = ()
    policies: dict[str, str] = {}
    facts: str = "authz.facts.v1"
    history: str = "authz.history.v1"
    decisions: str = "authz.decisions.v1"
    verdicts: str = "authz.verdicts.v1"
    alerts: str = "authz.alerts.v1"
    changes: str = "authz.changes.v1"
    access_changes: str = "authz.access-changes.v1"
    systems: tuple[str, ...] = DEFAULT_SYSTEMS  # those that have topics: follows `Settings.systems`

    @property
    def asking(self) -> tuple[str, ...]:
        """The topics whose records get a decision or a dead letter each."""
        return (*self.requests, *self.answered)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics of events that the job reads: requests, audit events, and requests answered elsewhere."""
        return (*self.requests, *self.audit, *self.answered)

    def policy_topics(self) -> dict[str, str]:
        """The policy topic of every system that has one, by the system's name."""
        return {system: self.policies.get(system, f"authz.policies.{system}.v1") for system in self.systems}

    @property
    def documents(self) -> tuple[str, ...]:
        """The topics of policies and facts, and that of their older versions."""
        return (*self.policy_topics().values(), self.facts, self.history)


def topic_with_two_uses(names: TopicNames) -> tuple[str, str, str] | None:
    """A topic that two settings name, or one setting twice, and these two; None: each topic has one use."""
    uses: dict[str, str] = {}
    for setting, topic in _uses(names):
        if topic in uses:
            return topic, uses[topic], setting
        uses[topic] = setting
    return None


def _uses(names: TopicNames) -> Iterator[tuple[str, str]]:
    for field in ("requests", "audit", "answered"):
        yield from ((f"topics.{field}", topic) for topic in getattr(names, field))
    yield from ((f"topics.policies.{system}", topic) for system, topic in names.policy_topics().items())
    single = (field.name for field in msgspec.structs.fields(names) if field.type is str)
    yield from ((f"topics.{field}", getattr(names, field)) for field in single)
    yield from ((f"the dead letters of {topic}", dead_letters_of(topic)) for topic in names.inputs)


class Rule(msgspec.Struct, frozen=True):
    """What a topic's setting must be, and what a wrong one breaks.

    `value`: exactly this text, or with `at_least` a number no smaller.
    """

    setting: str
    value: str
    why: str
    at_least: bool = False

    def holds(self, found: str | None) -> bool:
        """Whether a topic whose setting is `found` keeps the promise; unknown is no."""
        if found is None:
            return False
        if self.at_least:
            return found.isdecimal() and int(found) >= int(self.value)
        return found.replace(" ", "") == self.value


RUN, ACCESS_CHANGES = "run", "access-changes"


class TopicSpec(msgspec.Struct, frozen=True):
    """One topic. `settings`: what a new one gets beside the rules. `single`: one partition, and why.

    `used_by`: the command that reads or writes it; `run` and the monitor need no topic of another one.
    """

    name: str
    rules: tuple[Rule, ...]
    settings: Mapping[str, str] = {}
    partitions: int | None = None
    single: str = ""
    used_by: str = RUN

    @property
    def is_of_job(self) -> bool:
        """Whether the job does not start without it."""
        return self.used_by == RUN

    def new_topic(self, partitions: int, replication: int) -> NewTopic:
        """What to ask Kafka for; `partitions` counts where the topic does not say its own."""
        rules = (*self.rules, *durability_rules(replication))
        config = {**self.settings, **{rule.setting: rule.value for rule in rules}}
        return NewTopic(self.name, self.partitions or partitions, replication, config=config)


BROKER_DATES = Rule(
    "message.timestamp.type", "LogAppendTime", "clients could choose the time, and so the policies, of their requests"
)
KEEPS_NEWEST = Rule("cleanup.policy", "compact", "documents would be deleted after a while, denies among them")
KEEPS_ALL = Rule("cleanup.policy", "delete", "compaction would drop all but the newest record of a key")
KEEPS_ACKNOWLEDGED = Rule(
    "unclean.leader.election.enable", "false", "a replica that lags could become leader and lose records"
)
KEEPS_VERSIONS = Rule(
    "min.compaction.lag.ms", str(7 * DAY_MS), "older versions could be gone before they were read", at_least=True
)
IN_SYNC = Rule(
    "min.insync.replicas",
    "2",
    "what is acknowledged could be on one replica alone, and be lost with it",
    at_least=True,
)
REPLICATED = 3  # with fewer replicas, two in sync would stop writes as soon as one is away


def durability_rules(replicas: int) -> tuple[Rule, ...]:
    """What a topic of so many replicas (-1: unknown) should have beside its rules; `run` warns where it has not."""
    return (IN_SYNC,) if replicas >= REPLICATED else ()


LOG_ORDERS = "the order of changes would be lost between the partitions"
FOR_EVER = {"retention.ms": "-1"}  # changes are few, and are asked for long after
TOMBSTONES = {"delete.retention.ms": str(7 * DAY_MS)}
# What a new one gets and an older one need not have: without it, fewer old decisions can be verified.
REBUILT = {"min.compaction.lag.ms": str(7 * DAY_MS)}


class Sizes(msgspec.Struct, frozen=True):
    """What topics must have room for, of `limits`: the largest record that the job writes, and the largest document."""

    record_out: int = 4 * MIB
    document: int = MIB


USUAL_SIZES = Sizes()


def _holds(size: int, what: str) -> Rule:
    why = f"one large {what} would stop its batch for ever"
    return Rule("max.message.bytes", str(size + ROOM), why, at_least=True)


def topic_specs(names: TopicNames, sizes: Sizes = USUAL_SIZES) -> list[TopicSpec]:
    """Every topic, as configured."""
    return [*_inputs(names), *_documents(names, sizes), *_outputs(names, sizes)]


def _inputs(names: TopicNames) -> Iterator[TopicSpec]:
    for topic in names.inputs:
        yield TopicSpec(topic, (KEEPS_ALL, BROKER_DATES, KEEPS_ACKNOWLEDGED))


def _documents(names: TopicNames, sizes: Sizes) -> Iterator[TopicSpec]:
    compacted = (KEEPS_NEWEST, KEEPS_ACKNOWLEDGED)
    settings = {"max.message.bytes": str(sizes.document + ROOM), **TOMBSTONES}
    for topic in names.policy_topics().values():
        yield TopicSpec(topic, (*compacted, BROKER_DATES, KEEPS_VERSIONS), settings, 1, LOG_ORDERS)
    yield TopicSpec(names.facts, (*compacted, BROKER_DATES), {**settings, **REBUILT}, 1, LOG_ORDERS)
    history = (*compacted, _holds(2 * sizes.document, "document"))  # the job writes more than the document itself
    yield TopicSpec(names.history, history, {**TOMBSTONES, **REBUILT}, 1, LOG_ORDERS)


def _outputs(names: TopicNames, sizes: Sizes) -> Iterator[TopicSpec]:
    rules = (KEEPS_ALL, _holds(sizes.record_out, "answer"), KEEPS_ACKNOWLEDGED)
    for topic in (names.decisions, names.verdicts):
        yield TopicSpec(topic, rules)
    yield TopicSpec(names.access_changes, rules, used_by=ACCESS_CHANGES)
    for topic in (names.alerts, *map(dead_letters_of, names.inputs)):
        yield TopicSpec(topic, rules, partitions=1)
    yield TopicSpec(names.changes, rules, FOR_EVER, 1)


def dead_letters_of(topic: str) -> str:
    """The topic for dead letters of an input topic."""
    return f"{topic}{DEAD_LETTERS}"

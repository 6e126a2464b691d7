"""The topics: which there are, with which settings, and what breaks when a setting is another.

Everything is data here (contracts, "Topics"): `topic_specs` gives it for the configured names,
`create_topics` makes what is missing, `check_topics` finds what would break a promise.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from policy.systems import all_systems

SECONDS = 15.0
POLL_SECONDS = 0.05
EVENT_PARTITIONS = 6
DEAD_LETTERS = ".dlq"

MIB = 1 << 20
ROOM = 64 * 1024  # what a record batch needs beside its largest record
DAY_MS = 24 * 60 * 60 * 1000


class TopicNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the topics are called. `policies`: by system; a system that is not named has the default name."""

    requests: tuple[str, ...] = ("authz.requests.v1",)
    audit: tuple[str, ...] = ("authz.audit.v1",)
    policies: dict[str, str] = {}
    facts: str = "authz.facts.v1"
    history: str = "authz.history.v1"
    decisions: str = "authz.decisions.v1"
    verdicts: str = "authz.verdicts.v1"
    alerts: str = "authz.alerts.v1"

    def policy_topics(self) -> dict[str, str]:
        """The policy topic of every system, by the system's name."""
        return {system: self.policies.get(system, f"authz.policies.{system}.v1") for system in all_systems()}


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


class TopicSpec(msgspec.Struct, frozen=True):
    """One topic. `settings`: what a new one gets beside the rules. `single`: one partition, and why."""

    name: str
    rules: tuple[Rule, ...]
    settings: Mapping[str, str] = {}
    partitions: int | None = None
    single: str = ""

    def new_topic(self, partitions: int, replication: int) -> NewTopic:
        """What to ask Kafka for; `partitions` counts where the topic does not say its own."""
        config = {**self.settings, **{rule.setting: rule.value for rule in self.rules}}
        return NewTopic(self.name, self.partitions or partitions, replication, config=config)


class Problem(msgspec.Struct, frozen=True):
    """A topic that would break a promise: what is wrong, what that breaks, and what mends it.

    `setting` and `value`: what `mend_topics` sets; empty where no setting mends it.
    """

    topic: str
    wrong: str
    breaks: str
    fix: str
    setting: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.wrong}: {self.breaks}. To mend it: {self.fix}"


BROKER_DATES = Rule(
    "message.timestamp.type", "LogAppendTime", "clients could date their records, and judge by another moment"
)
KEEPS_NEWEST = Rule("cleanup.policy", "compact", "documents would be deleted after a while, denies among them")
KEEPS_ALL = Rule("cleanup.policy", "delete", "compaction would drop all but the newest record of a key")
KEEPS_ACKNOWLEDGED = Rule(
    "unclean.leader.election.enable", "false", "a replica that lags could become leader and lose records"
)
KEEPS_VERSIONS = Rule(
    "min.compaction.lag.ms", str(7 * DAY_MS), "older versions could be gone before they were read", at_least=True
)

LOG_ORDERS = "the order of changes would be lost between the partitions"
TOMBSTONES = {"delete.retention.ms": str(7 * DAY_MS)}


class Sizes(msgspec.Struct, frozen=True):
    """The largest record that the job writes, and the largest document, in bytes; `Settings.limits` tells both."""

    record_out: int = 4 * MIB
    document: int = MIB


USUAL_SIZES = Sizes()


def _holds(size: int, what: str) -> Rule:
    why = f"one large {what} would stop its batch for ever"
    return Rule("max.message.bytes", str(size + ROOM), why, at_least=True)


def topic_specs(names: TopicNames, sizes: Sizes = USUAL_SIZES) -> list[TopicSpec]:
    """Every topic of the job, as configured."""
    return [*_inputs(names), *_documents(names, sizes), *_outputs(names, sizes)]


def _inputs(names: TopicNames) -> Iterator[TopicSpec]:
    for topic in (*names.requests, *names.audit):
        yield TopicSpec(topic, (KEEPS_ALL, BROKER_DATES, KEEPS_ACKNOWLEDGED))


def _documents(names: TopicNames, sizes: Sizes) -> Iterator[TopicSpec]:
    compacted = (KEEPS_NEWEST, KEEPS_ACKNOWLEDGED)
    settings = {"max.message.bytes": str(sizes.document + ROOM), **TOMBSTONES}
    for topic in names.policy_topics().values():
        yield TopicSpec(topic, (*compacted, BROKER_DATES, KEEPS_VERSIONS), settings, 1, LOG_ORDERS)
    yield TopicSpec(names.facts, (*compacted, BROKER_DATES), settings, 1, LOG_ORDERS)
    history = (*compacted, _holds(2 * sizes.document, "document"))  # the job writes more than the document itself
    yield TopicSpec(names.history, history, TOMBSTONES, 1, LOG_ORDERS)


def _outputs(names: TopicNames, sizes: Sizes) -> Iterator[TopicSpec]:
    rules = (KEEPS_ALL, _holds(sizes.record_out, "answer"), KEEPS_ACKNOWLEDGED)
    for topic in (names.decisions, names.verdicts):
        yield TopicSpec(topic, rules)
    for topic in (names.alerts, *map(dead_letters_of, (*names.requests, *names.audit))):
        yield TopicSpec(topic, rules, partitions=1)


def dead_letters_of(topic: str) -> str:
    """The topic for dead letters of an input topic."""
    return f"{topic}{DEAD_LETTERS}"


def create_topics(
    admin: AdminClient,
    names: TopicNames,
    *,
    partitions: int = EVENT_PARTITIONS,
    replication: int = -1,
    sizes: Sizes = USUAL_SIZES,
) -> list[str]:
    """Make the topics that are missing and return their names; the others are left as they are.

    `partitions`: of the topics of events. `replication`: of all; -1 leaves it to the broker.
    Raises KafkaException when the cluster does not answer or refuses.
    """
    there = _topics(admin)
    missing = {spec.name: spec for spec in topic_specs(names, sizes) if spec.name not in there}
    if not missing:
        return []
    wanted = [spec.new_topic(partitions, replication) for spec in missing.values()]
    made = admin.create_topics(wanted, operation_timeout=SECONDS)
    created = [topic for topic, future in made.items() if _created(future)]
    # The controller answers before the brokers know: whoever looks next must find them.
    _wait(lambda: set(created) <= _topics(admin).keys(), "the new topics are not visible")
    return created


def _topics(admin: AdminClient) -> Mapping[str, TopicMetadata]:
    return admin.list_topics(timeout=SECONDS).topics


def _wait(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure} after {SECONDS:.0f} s; run the command again to see how things stand")
        time.sleep(POLL_SECONDS)


def _created(future: Any) -> bool:
    """False when another creator was first."""
    try:
        future.result(SECONDS)
    except KafkaException as error:
        if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
            return False
        raise
    return True


def check_topics(admin: AdminClient, names: TopicNames, sizes: Sizes = USUAL_SIZES) -> list[Problem]:
    """Every topic that is missing or would break a promise; none: the job may run.

    Raises KafkaException when the cluster does not answer.
    """
    there = _topics(admin)
    specs = topic_specs(names, sizes)
    settings = _settings_of(admin, sorted({spec.name for spec in specs if spec.name in there}))
    problems = list(_shared(specs))
    for spec in specs:
        if spec.name not in there:
            problems.append(_missing(spec))
        else:
            problems += _wrong(spec, len(there[spec.name].partitions), settings[spec.name])
    return problems


def _shared(specs: Sequence[TopicSpec]) -> Iterator[Problem]:
    counts = Counter(spec.name for spec in specs)
    for topic, count in counts.items():
        if count > 1:
            wrong = f"the configuration names it for {count} purposes"
            yield Problem(topic, wrong, "records would be taken for what they are not", "give each a topic of its own")


def _settings_of(admin: AdminClient, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    if not topics:
        return {}
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics])
    return {
        resource.name: {name: entry.value for name, entry in future.result(SECONDS).items()}
        for resource, future in asked.items()
    }


def _missing(spec: TopicSpec) -> Problem:
    return Problem(spec.name, "it does not exist", "the job reads and writes it", "lockkeeper topics create")


def _wrong(spec: TopicSpec, partitions: int, settings: Mapping[str, str | None]) -> Iterator[Problem]:
    if spec.single and partitions != 1:
        fix = (
            "Kafka cannot take partitions away. Name another topic in the configuration, "
            "run `lockkeeper topics create`, and publish the documents there"
        )
        yield Problem(spec.name, f"it has {partitions} partitions instead of 1", spec.single, fix)
    for rule in spec.rules:
        found = settings.get(rule.setting)
        if not rule.holds(found):
            wanted = f"{rule.value} or more" if rule.at_least else rule.value
            wrong = f"{rule.setting} is {found} instead of {wanted}"
            yield Problem(spec.name, wrong, rule.why, _fix(spec.name, rule), rule.setting, rule.value)


def _fix(topic: str, rule: Rule) -> str:
    return (
        f"`lockkeeper topics create --mend`, or kafka-configs.sh --alter --entity-type topics "
        f"--entity-name {topic} --add-config {rule.setting}={rule.value}"
    )


def mend_topics(admin: AdminClient, problems: Sequence[Problem]) -> None:
    """Set right every problem that a setting can mend. Raises KafkaException when the cluster refuses."""
    changes: dict[str, dict[str, str]] = {}
    for problem in problems:
        if problem.setting:
            changes.setdefault(problem.topic, {})[problem.setting] = problem.value
    if changes:
        altered = admin.incremental_alter_configs([_change(topic, values) for topic, values in changes.items()])
        for future in altered.values():
            future.result(SECONDS)
        _wait(lambda: _are_set(admin, changes), "the changed settings are not visible")


def _change(topic: str, values: Mapping[str, str]) -> ConfigResource:
    set_ = AlterConfigOpType.SET
    entries = [ConfigEntry(name, value, incremental_operation=set_) for name, value in values.items()]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def _are_set(admin: AdminClient, changes: Mapping[str, Mapping[str, str]]) -> bool:
    found = _settings_of(admin, list(changes))
    return all(found[topic].items() >= values.items() for topic, values in changes.items())

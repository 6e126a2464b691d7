"""The topics on a cluster: created where they are missing, checked against the required settings, corrected.

What they must be is data, in `streaming.topics`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from streaming.kafka.clients import RETRIED_SECONDS, error_name, log_ends, partition_numbers, partitions_of
from streaming.topics import (
    USUAL_SIZES,
    Rule,
    Sizes,
    TopicNames,
    TopicSpec,
    durability_rules,
    topic_specs,
)

SECONDS = 15.0
READY_SECONDS = 60.0  # a broker with 10,000 partitions took more than 15 beside other programs
POLL_SECONDS = 0.05
EVENT_PARTITIONS = 6

MISSING = "missing"  # what is wrong with a topic that does not exist


class Problem(msgspec.Struct, frozen=True):
    """A topic that would break a promise: what is wrong, what that breaks, and what fixes it.

    `setting` and `value`: what `fix_topics` sets; empty where no setting fixes it. `refused`: whether `run` does not
    start with it; otherwise it warns.
    """

    topic: str
    wrong: str
    breaks: str
    fix: str
    setting: str = ""
    value: str = ""
    refused: bool = True

    def __str__(self) -> str:
        return self.of((self.topic,))

    def of(self, topics: Sequence[str]) -> str:
        """A line that says it of several topics."""
        noun = "topic" if len(topics) == 1 else "topics"
        return f"{noun} {', '.join(topics)}: {self.wrong}: {self.breaks}. To fix it: {self.fix}"


def explained_problems(problems: Iterable[Problem], refused: bool) -> list[str]:
    """A line for each problem, with all topics that have it: of those that refuse the topic, or of the others."""
    topics: dict[Problem, list[str]] = {}
    for problem in problems:
        if problem.refused is refused:
            topics.setdefault(msgspec.structs.replace(problem, topic=""), []).append(problem.topic)
    return [problem.of(names) for problem, names in topics.items()]


def create_topics(
    admin: AdminClient,
    names: TopicNames,
    *,
    partitions: int = EVENT_PARTITIONS,
    replication: int = -1,
    sizes: Sizes = USUAL_SIZES,
    created: list[str] | None = None,
) -> list[str]:
    """Make the topics that are missing and return their names; the others are left as they are.

    `partitions`: of the topics of events. `replication`: of all; -1 leaves it to the broker. `created`: where the names
    are added, also those before a failure.
    Raises KafkaException and TimeoutError when the cluster does not answer or refuses.
    """
    created = [] if created is None else created
    specs = topic_specs(names, sizes)
    there = partition_numbers(admin, (spec.name for spec in specs), SECONDS)
    missing = {spec.name: spec for spec in specs if spec.name not in there}
    if not missing:
        return []
    wanted = [spec.new_topic(partitions, replication) for spec in missing.values()]
    futures = admin.create_topics(wanted, operation_timeout=SECONDS)
    failures = [error for topic, future in futures.items() if (error := _failure(topic, future, created)) is not None]
    if failures:
        raise failures[0]
    # The controller answers before the brokers lead the partitions: clients must find them ready.
    _wait(lambda: _are_ready(admin, created), "the new topics are not ready")
    return created


def _are_ready(admin: AdminClient, topics: Sequence[str]) -> bool:
    """Whether every partition is known and its leader answers."""
    try:
        return bool(log_ends(admin, partitions_of(admin, topics), RETRIED_SECONDS))
    except (KafkaException, TimeoutError):
        return False


def _wait(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure} after {READY_SECONDS:.0f} s; run the command again to check")
        time.sleep(POLL_SECONDS)


def _failure(topic: str, future: Any, created: list[str]) -> KafkaException | TimeoutError | None:
    """Why a topic was not created; None: it was, and is added, or another creator was first."""
    try:
        future.result(SECONDS)
    except (KafkaException, TimeoutError) as error:
        is_there = isinstance(error, KafkaException) and error_name(error) == "TOPIC_ALREADY_EXISTS"
        return None if is_there else error
    created.append(topic)
    return None


def check_topics(
    admin: AdminClient, names: TopicNames, sizes: Sizes = USUAL_SIZES, used_by: str | None = None
) -> list[Problem]:
    """Every topic that is missing or would break a promise; none that is `refused`: the job may run.

    `used_by`: of one command's topics alone, and `refused` is about that command. Raises KafkaException when the
    cluster does not answer.
    """
    specs = [spec for spec in topic_specs(names, sizes) if used_by in (None, spec.used_by)]
    there = admin.list_topics(timeout=SECONDS).topics
    settings = settings_of(admin, sorted({spec.name for spec in specs if spec.name in there}))
    problems = list(_shared(specs))
    for spec in specs:
        if spec.name not in there:
            problems.append(_missing(spec))
        else:
            partitions = there[spec.name].partitions
            replicas = min((len(partition.replicas) for partition in partitions.values()), default=0)
            problems += problems_of(spec, len(partitions), replicas, settings[spec.name])
    others = {spec.name for spec in specs if used_by is None and not spec.is_of_job}
    return [
        msgspec.structs.replace(problem, refused=False) if problem.topic in others else problem for problem in problems
    ]


def _shared(specs: Sequence[TopicSpec]) -> Iterator[Problem]:
    counts = Counter(spec.name for spec in specs)
    for topic, count in counts.items():
        if count > 1:
            wrong = f"the configuration names it for {count} purposes"
            yield Problem(topic, wrong, "records of one kind would be read as another", "use a separate topic for each")


def settings_of(
    admin: AdminClient, topics: Sequence[str], seconds: float = SECONDS
) -> dict[str, dict[str, str | None]]:
    """Every setting of these topics, which exist, by topic. Raises KafkaException and TimeoutError."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    request = admin.describe_configs(resources, request_timeout=seconds)
    return {
        resource.name: {name: entry.value for name, entry in future.result(seconds).items()}
        for resource, future in request.items()
    }


def _missing(spec: TopicSpec) -> Problem:
    user = "the job" if spec.is_of_job else f"lockkeeper {spec.used_by}"
    return Problem(spec.name, MISSING, f"{user} reads or writes it", "lockkeeper topics create")


def problems_of(
    spec: TopicSpec, partitions: int, replicas: int, settings: Mapping[str, str | None]
) -> Iterator[Problem]:
    """What is wrong with a topic that has so many partitions, each with so many replicas, and these settings."""
    if spec.single and partitions != 1:
        fix = (
            "Kafka cannot take partitions away. Name another topic in the configuration, "
            "run `lockkeeper topics create`, and publish the documents there"
        )
        yield Problem(spec.name, f"it has {partitions} partitions instead of 1", spec.single, fix)
    rules = [(rule, True) for rule in spec.rules] + [(rule, False) for rule in durability_rules(replicas)]
    for rule, refused in rules:
        value = settings.get(rule.setting)
        if not rule.holds(value):
            wanted = f"{rule.value} or more" if rule.at_least else rule.value
            wrong = f"{rule.setting} is {value} instead of {wanted}"
            yield Problem(spec.name, wrong, rule.why, _fix(spec.name, rule), rule.setting, rule.value, refused)


def _fix(topic: str, rule: Rule) -> str:
    return (
        f"`lockkeeper topics create --mend`, or kafka-configs.sh --alter --entity-type topics "
        f"--entity-name {topic} --add-config {rule.setting}={rule.value}"
    )


def fix_topics(admin: AdminClient, problems: Sequence[Problem]) -> None:
    """Correct every problem that a setting can fix. Raises KafkaException when the cluster refuses."""
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
    settings = settings_of(admin, list(changes))
    return all(settings[topic].items() >= values.items() for topic, values in changes.items())

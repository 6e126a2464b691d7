"""The topics, and who may do what with them, as resources of Strimzi, which runs Kafka on Kubernetes.

They follow from the settings like the topics that `lockkeeper topics create` makes, so that the two cannot differ.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streaming.kafka.permissions import CLIENT_GROUP, Permission, by_resource
from streaming.kafka.publish import transactional_id
from streaming.settings import Settings, access_changes_settings, monitor_settings
from streaming.topics import TopicSpec, dead_letters_of, topic_specs

API = "kafka.strimzi.io/v1"
CLUSTER = "strimzi.io/cluster"
SPARK_GROUPS = "spark-kafka-source"  # Spark's readers name their groups so; they commit nothing
UNNAMEABLE = re.compile(r"[^a-z0-9.-]+")
EMPTY_LABEL = re.compile(r"-*\.[.-]*")  # between dots there are labels, which begin and end with a letter or digit

READ, WRITE, DESCRIBE = "Read", "Write", "Describe"
CHECK = ("Describe", "DescribeConfigs")  # the settings of a topic: `run`, `topics check` and `verify` look at them

Manifest = dict[str, Any]


def topic_manifests(settings: Settings, cluster: str, partitions: int, replication: int) -> Iterator[Manifest]:
    """A KafkaTopic for every topic of the settings. `cluster`: the name of Strimzi's Kafka resource."""
    topics = {
        spec.name: _topic(spec, partitions, replication) for spec in topic_specs(settings.topics, settings.limits)
    }
    yield from _resources("KafkaTopic", cluster, topics)


def _topic(spec: TopicSpec, partitions: int, replication: int) -> Manifest:
    topic = spec.new_topic(partitions, replication)
    config = dict(sorted((topic.config or {}).items()))
    return {"topicName": topic.topic, "partitions": topic.num_partitions, "replicas": replication, "config": config}


def user_manifests(settings: Settings, cluster: str, authentication: str = "scram-sha-512") -> Iterator[Manifest]:
    """A KafkaUser for the job and for each role around it, each with the fewest ACLs.

    `authentication`: Strimzi's type of it, `scram-sha-512` or `tls` (client certificates).
    """
    users = {user: _user(rights, authentication) for user, rights in rights_by_user(settings).items()}
    yield from _resources("KafkaUser", cluster, users)


def _user(rights: Iterable[Permission], authentication: str) -> Manifest:
    acls = [_acl(*resource, operations) for resource, operations in by_resource(rights).items()]
    return {"authentication": {"type": authentication}, "authorization": {"type": "simple", "acls": acls}}


def rights_by_user(settings: Settings) -> dict[str, list[Permission]]:
    """Who there is: the job, owners of each system's policies and of facts, clients, services, monitoring, analysts.

    What each of them runs is in docs/pages/guides/access.md, and tests run it; what each cannot do, in SECURITY.md.
    """
    job, topics = settings.job_name, settings.topics
    answers = (topics.decisions, *map(dead_letters_of, topics.asking))
    outputs = (topics.alerts, topics.changes, topics.access_changes, *answers, *map(dead_letters_of, topics.audit))
    documents = topics.documents
    # lockkeeper's own commands read under the name of the job's group, which they neither join nor commit for.
    seeing = Permission("group", job, DESCRIBE)
    requesting = [*_on(topics.requests, WRITE), *_on(answers, READ), Permission("group", CLIENT_GROUP, DESCRIBE)]
    everything = [spec.name for spec in topic_specs(topics)]
    everybody: dict[str, Iterable[Permission]] = {
        **_of_the_applications(settings),
        **{f"{job}-policies-{system}": _of_an_owner(settings, system, seeing) for system in topics.policy_topics()},
        f"{job}-facts": _on([topics.facts], WRITE),
        f"{job}-client": [*requesting, Permission("group", f"{job}-client", READ, prefix=True)],
        f"{job}-service": [
            *requesting,
            Permission("group", f"{job}-service", READ, prefix=True),
            *_on(topics.audit, WRITE),
            *_on([topics.access_changes], READ),
        ],
        f"{job}-audit": _on(topics.audit, WRITE),
        f"{job}-watch": [
            *_on((*outputs, *topics.asking, *documents), READ),
            *_on(everything, *CHECK),
            Permission("group", f"{job}-watch", READ, prefix=True),
            seeing,
        ],
        f"{job}-analyst": [*_of_an_analyst(settings, documents), seeing],
        f"{job}-console": [*_of_an_analyst(settings, documents), *_on([topics.alerts], READ), seeing],
        f"{job}-serve": [*_on(documents, READ, *CHECK), *_on(topics.answered, WRITE), seeing],
        access_changes_settings(settings).job_name: _of_access_changes(settings, documents),
        f"{job}-verify": [*_on((*answers, *topics.asking), READ), *_on(documents, READ, *CHECK), seeing],
    }
    return {user: _least(rights) for user, rights in everybody.items()}


def permissions_of(settings: Settings, user: str) -> list[Permission]:
    """What a user of `rights_by_user` is granted, one by one."""
    return rights_by_user(settings)[user]


def enforcer_permissions(settings: Settings) -> list[Permission]:
    """Those of the job's without which it decides nothing; what its monitor needs beside them is left out."""
    return _least(_of_the_enforcer(settings))


def monitor_permissions(settings: Settings) -> list[Permission]:
    """Those of the monitor as an application of its own."""
    return _least(_of_the_monitor(settings))


def _of_an_owner(settings: Settings, system: str, seeing: Permission) -> Iterator[Permission]:
    """Documents of one system, the requests that a change of them can be tried on, and the changes."""
    # An id of its own: by one that several owners share, each could abort what another publishes.
    yield Permission("transactionalId", transactional_id(settings, [system]), WRITE)
    yield from _on([settings.topics.policy_topics()[system]], READ, WRITE)
    yield from _on((*settings.topics.asking, settings.topics.changes), READ)
    yield seeing


def _of_an_analyst(settings: Settings, documents: Iterable[str]) -> Iterator[Permission]:
    """What decisions rest on, and by which policies they were made; of audit events no more than how many wait."""
    topics = settings.topics
    answers = (topics.decisions, *map(dead_letters_of, topics.asking))
    yield from _on((*topics.asking, *answers, topics.changes), READ)
    yield from _on(documents, READ, *CHECK)
    yield from _on((*topics.inputs, topics.verdicts), DESCRIBE)
    yield Permission("group", monitor_settings(settings).job_name, DESCRIBE)


def _of_the_applications(settings: Settings) -> dict[str, Iterable[Permission]]:
    """The job, and the monitor where that is an application of its own."""
    enforcer, monitor = _of_the_enforcer(settings), _of_the_monitor(settings)
    if settings.monitor.mode == "separate":
        name = monitor_settings(settings).job_name
        # How far the monitor has come with the logins that the job has passed on to it: see `FactLag`.
        following = [Permission("group", name, DESCRIBE), *_on([settings.topics.verdicts], READ)]
        return {settings.job_name: [*enforcer, *following], name: monitor}
    return {settings.job_name: [*enforcer, *monitor]}


def _of_the_enforcer(settings: Settings) -> Iterator[Permission]:
    topics = settings.topics
    inputs = topics.inputs
    said = (topics.history, topics.alerts, topics.changes)
    outputs = (*said, topics.decisions, topics.verdicts, *map(dead_letters_of, inputs))
    yield from _under(settings.job_name)
    yield Permission("transactionalId", partition_ids(settings.job_name), WRITE, prefix=True)
    yield from _on([spec.name for spec in topic_specs(topics) if spec.is_of_job], *CHECK)
    yield from _on((*inputs, *topics.documents), READ)
    yield from _on(outputs, WRITE)


def _of_the_monitor(settings: Settings) -> Iterator[Permission]:
    """The job's second query, which has a name of its own, and reads what the first one writes."""
    topics = settings.topics
    read = (topics.decisions, topics.verdicts, *map(dead_letters_of, topics.inputs))
    yield from _under(monitor_settings(settings).job_name)
    yield from _on(read, READ)
    yield from _on((topics.facts, topics.alerts), WRITE)


def _of_access_changes(settings: Settings, documents: Iterable[str]) -> Iterator[Permission]:
    """What `lockkeeper access-changes` joins and follows. It reads under its own name, and commits offsets for it."""
    topics, name = settings.topics, access_changes_settings(settings).job_name
    yield Permission("transactionalId", name, WRITE)
    yield Permission("group", name, READ)
    yield from _on((topics.decisions, *topics.asking), READ)
    yield from _on(documents, READ, *CHECK)
    yield from _on([topics.access_changes], WRITE, *CHECK)


def _under(name: str) -> list[Permission]:
    """What a query needs for its transactional id and its groups."""
    groups = [Permission("group", name, READ), Permission("group", SPARK_GROUPS, READ, prefix=True)]
    return [Permission("transactionalId", name, WRITE), *groups]


def partition_ids(job: str) -> str:
    """What the transactional ids of the job's input partitions begin with: see `streaming.commit.partition_sets`."""
    return f"{job}/"


def _on(topics: Iterable[str], *operations: str) -> list[Permission]:
    return [Permission("topic", topic, operation) for topic in topics for operation in operations]


def _least(rights: Iterable[Permission]) -> list[Permission]:
    """Each once, in a stable order, without what others of them give already."""
    every = dict.fromkeys(sorted(rights))
    return [right for right in every if not any(_gives(other, right) for other in every if other != right)]


def _gives(right: Permission, other: Permission) -> bool:
    """Whether a right gives another one, too: to Kafka, Read and Write are Describe."""
    is_same = (right.name, right.prefix) == (other.name, other.prefix)
    is_within = right.prefix and other.name.startswith(right.name)
    operations = (right.operation, DESCRIBE) if right.operation in (READ, WRITE) else (right.operation,)
    return right.type == other.type and (is_same or is_within) and other.operation in operations


def _acl(type_: str, name: str, prefix: bool, operations: list[str]) -> Manifest:
    named = {"type": type_, "name": name, "patternType": "prefix" if prefix else "literal"}
    return {"resource": named, "operations": operations}


def _resources(kind: str, cluster: str, specs: Mapping[str, Manifest]) -> Iterator[Manifest]:
    """Each under a name of its own: of resources with one name, Kubernetes keeps the one that is applied last."""
    names = {name: _kubernetes_name(name) for name in specs}
    uses = Counter(names.values())
    for name, spec in specs.items():
        is_unique = name == names[name] or uses[names[name]] == 1
        suffix = "" if is_unique else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        metadata = {"name": names[name] + suffix, "labels": {CLUSTER: cluster}}
        yield {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


def _kubernetes_name(name: str) -> str:
    """A name that Kubernetes allows for a resource. The chart's `lockkeeper.user` makes the same of it."""
    return EMPTY_LABEL.sub(".", UNNAMEABLE.sub("-", name.lower())).strip("-.")

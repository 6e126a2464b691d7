"""Lenses 5 documents and requests from small alphabets, so that namespaces meet topics often."""

from typing import Any

from hypothesis import strategies as st

SUBJECTS = ("dana", "erik")
GROUPS = ("readers", "writers")
CONNECTIONS = ("main", "main", "other")
TOPICS = ("a", "ab", "b")
DATASETS = (*TOPICS, "a*", "*b", "*")
KAFKA = ("Show Topic", "View Data", "Insert Data", "QueryTopic", "Update Schema", "View Schema")
SEARCH = ("Show Index", "View Schema")
APPLICATION = tuple(
    f"{feature} / {half}"
    for feature in ("Kafka Consumers", "Kafka Connectors", "SQL Processors", "Schema Registry", "Topology")
    for half in ("View", "Manage")
)
ADMINISTRATION = ("Audit Log / View", "Audit Log / Manage", "Connections / Manage")
CLUSTERS = ("dev", "prod")
THINGS = ("x", "y")
CONTEXT_OF = {  # action -> what its context may tell
    "kafka-consumers.view": ("topics",),
    "kafka-consumers.update-offsets": ("topics",),
    "sql-processors.view": ("input_topics", "output_topics"),
    "sql-processors.create": ("input_topics", "output_topics", "mode", "connect_cluster"),
    "sql-processors.stop": ("input_topics", "output_topics", "mode", "connect_cluster"),
    "kafka-connectors.view": ("kind", "target_topics", "source_topics", "connect_cluster"),
    "kafka-connectors.update-source": ("kind", "target_topics", "connect_cluster"),
    "kafka-connectors.stop": ("kind", "target_topics", "source_topics", "connect_cluster"),
    "schema-registry.view": ("topic",),
    "topology.remove-app": ("topics",),
}
DATASET_ACTIONS = ("kafka.topic.show", "kafka.topic.view-data", "kafka.topic.view-schema", "elasticsearch.index.show")
GLOBAL_ACTIONS = ("admin.audit-log.view", "admin.audit-log.manage-channels", "admin.connections.view", "admin.unknown")
NODES = ("processor:x", "connector:x", "app:x", "topic", "b", "planet")


def some(items: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Up to all of ``items``, each once."""
    return st.lists(st.sampled_from(items), max_size=len(items), unique=True)


def one(items: tuple[str, ...]) -> st.SearchStrategy[str]:
    """One of ``items``."""
    return st.sampled_from(items)


topics = st.lists(one(TOPICS), max_size=2)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "connection": one(CONNECTIONS),
    "mode": one(("in-process", "connect")),
    "kind": one(("source", "sink")),
    "connect_cluster": one(CLUSTERS),
    "topic": one(TOPICS),
    **dict.fromkeys(("topics", "input_topics", "output_topics", "target_topics", "source_topics"), topics),
}
KINDS = {
    "ConsumerGroup": ("topics",),
    "Processor": ("input_topics", "output_topics", "mode", "connect_cluster"),
    "Connector": ("kind", "target_topics", "source_topics", "connect_cluster"),
    "Schema": ("topic",),
    "Application": ("topics",),
}


def fields(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields ``names``, and mostly all, beside the connection."""
    fields = {name: FIELDS[name] for name in ("connection", *names)}
    full = st.fixed_dictionaries(fields)
    return st.one_of(full, full, st.fixed_dictionaries({}, optional=fields))


def namespaces(type_: str, permissions: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A namespace on a connection of ``type_``."""
    return st.fixed_dictionaries(
        {
            "connection": one(CONNECTIONS),
            "type": st.just(type_),
            "datasets": some(DATASETS),
            "permissions": some(permissions),
        }
    )


groups: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "members": some(SUBJECTS),
        "namespaces": st.lists(
            st.one_of(namespaces("Kafka", KAFKA), namespaces("Kafka", KAFKA), namespaces("Elasticsearch", SEARCH)),
            max_size=3,
        ),
        "application": some(APPLICATION),
        "administration": some(ADMINISTRATION),
        "connect_clusters": some(CLUSTERS),
    }
)
moments = st.integers(0, 4)


def windows() -> st.SearchStrategy[dict[str, int]]:
    """No window, mostly; else an end."""
    return st.one_of(st.just({}), st.just({}), st.builds(lambda end: {"valid_until": end}, moments))


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Groups and inventories with each name once; some bound in time, few of them broken."""
    found = []
    for name in sorted(draw(st.sets(one(GROUPS), min_size=1))):
        spec = draw(groups)
        if draw(st.integers(0, 19)) == 0:
            spec["application"] = ["Topology / Vue"]
        found.append({"system": "lenses5", "kind": "Group", "name": name, "spec": spec, **draw(windows())})
    for kind in sorted(draw(st.sets(st.sampled_from(sorted(KINDS))))):
        spec = draw(fields(KINDS[kind]))
        if draw(st.integers(0, 19)) == 0:
            spec["conection"] = "main"
        found.append({"system": "lenses5", "kind": kind, "name": "x", "spec": spec})
    return found


@st.composite
def about_datasets(draw: st.DrawFn) -> dict[str, Any]:
    """A request about a topic or an index."""
    properties = {"connection": draw(one(CONNECTIONS)), "dataset": draw(one(TOPICS))}
    return _asking(draw(one(DATASET_ACTIONS)), properties["dataset"], properties, {})


@st.composite
def about_things(draw: st.DrawFn) -> dict[str, Any]:
    """A request about a consumer group, processor, connector, schema or app, which claims something of it."""
    action = draw(st.sampled_from(sorted(CONTEXT_OF)))
    return _asking(action, draw(one(THINGS)), {}, draw(fields(CONTEXT_OF[action])))


@st.composite
def about_nodes(draw: st.DrawFn) -> dict[str, Any]:
    """A request about the topology page or one of its nodes."""
    node = {"node": draw(one(NODES)), "connection": draw(one(CONNECTIONS)), "dataset": "b"}
    properties = draw(st.sampled_from(({"page": "topology"}, node, node)))
    return _asking("topology.view", "x", properties, draw(fields(("topics",))))


@st.composite
def about_lenses(draw: st.DrawFn) -> dict[str, Any]:
    """A request about administration, or use of a Connect cluster."""
    if draw(st.booleans()):
        return _asking("connect-clusters.use", draw(one(CLUSTERS)), {}, {})
    operation = draw(st.sampled_from(({}, {"operation": "create"}, {"operation": "delete"})))
    fields = draw(st.sampled_from(({}, {"connection_exists": True}, {"connection_exists": False})))
    return _asking(draw(one(GLOBAL_ACTIONS)), "lenses", operation, fields)


def _asking(action: str, name: str, properties: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    resource = {"type": "resource", "id": name, "properties": properties}
    return {"id": "r", "system": "lenses5", "action": {"name": action}, "resource": resource, "context": context}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown subject, mostly with a time."""
    asked = draw(st.one_of(about_datasets(), about_things(), about_things(), about_nodes(), about_lenses()))
    claimed = draw(st.lists(one((*GROUPS, "nobody")), max_size=2, unique=True))
    subject = {"type": "user", "id": draw(one((*SUBJECTS, "nobody", "group:readers")))}
    asked["subject"] = {**subject, "properties": {"groups": claimed}} if claimed else subject
    return {**asked, "time": draw(moments)} if draw(st.integers(0, 9)) else asked

"""Policies, facts and requests of all five systems, and requests as records that `streaming.client` sends.

The same arguments give the same documents and requests on every machine. Lenses 6 comes from
`tests.bench.workload`. In the mix each system has a fifth of the statements (Lenses 5: namespaces, Ververica:
assignments, StreamSets: entries of an ACL, CDAP: grants); subjects and resources are skewed, a user's groups are
the same in all requests, as in `tests.bench.workload`, and about half of the requests are allowed.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from policy.core.times import to_text
from streaming.client.records import ProducerRecord, request_record
from tests.bench import workload
from tests.bench.workload import Skew

Document = dict[str, Any]
Request = dict[str, Any]
Draw = Callable[[random.Random], Request]  # a request without an id

SYSTEMS = ("lenses6", "lenses5", "ververica", "streamsets", "cdap")
WEIGHTS = (40, 20, 15, 15, 10)  # requests of each
FACTS = {("lenses5", "ConsumerGroup"), ("lenses5", "Connector"), ("cdap", "Entity")}
IN_REACH = 0.6  # of the requests of one of the other systems are aimed at a statement that its subject has

TYPE_HEADER = ("__TypeId__", b"com.example.AccessRequest")  # as Spring's serializer of JSON adds it

CONNECTION, CLUSTER = "kafka", "connect"
TOPIC_ACTIONS = {
    "Show Topic": "kafka.topic.show",
    "View Data": "kafka.topic.view-data",
    "Insert Data": "kafka.topic.insert-data",
    "View Schema": "kafka.topic.view-schema",
    "Configure Topic": "kafka.topic.configure",
}
FEATURES = ("Kafka Consumers / View", "Kafka Connectors / View", "Kafka Connectors / Manage")
LEVELS = ("READ", "WRITE", "EXECUTE")
PRIVILEGES = {"READ": "read", "WRITE": "write", "ADMIN": "admin"}


def policies_and_requests(
    statements: int, requests: int, seed: int = 1, mix: bool = True
) -> tuple[list[Document], list[Request]]:
    """The documents, facts among them, and the requests."""
    documents, draw = policies(statements, seed, mix)
    dice = random.Random(f"traffic {seed}")
    return documents, [draw(dice) for _ in range(requests)]


def policies(statements: int, seed: int = 1, mix: bool = True) -> tuple[list[Document], Draw]:
    """The documents, and what draws requests to them: with Lenses 6 alone, or a mix of all systems."""
    if not mix:
        documents = workload.documents(statements, seed)
        return documents, _identified(_lenses6(documents, seed))
    documents, draws = [], list[Draw]()
    for system in SYSTEMS:
        dice = random.Random(f"policies {system} {seed} {statements}")
        share, draw = BUILDERS[system](dice, max(5, statements // len(SYSTEMS)))
        documents += share
        draws.append(draw)
    return documents, _identified(lambda dice: dice.choices(draws, WEIGHTS)[0](dice))


def client_records(
    topic: str,
    draw: Draw,
    count: int,
    timeout: float,
    seed: int = 1,
    distinct: int | None = None,
    new_resources: bool = False,
    by_others: bool = False,
) -> Iterator[ProducerRecord]:
    """So many requests as the client sends them: with key, a deadline in `timeout` seconds, and a trace in headers.

    `distinct`: after so many the same requests come again, in the same order, with other ids and traces;
    `new_resources`: and each for a resource that no request has named before. `by_others`: as others than this client
    write them, with moments as text, the address of their client, and a header of their serializer.
    """
    dice, drawn = random.Random(f"traffic {seed}"), list[Request]()
    for number in range(count):
        trace = f"00-{dice.getrandbits(128):032x}-{dice.getrandbits(64):016x}-01"
        if distinct is None:
            request = draw(dice)
        elif number < distinct:
            drawn.append(request := draw(dice))
        else:
            request = {**drawn[number % distinct], "id": _id(dice)}
            if new_resources:
                request["resource"] = _renamed(request["resource"], str(number))
        if by_others:
            request = _by_others(request, timeout, f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}")
        record = request_record(topic, request, timeout, {"traceparent": trace})
        yield msgspec.structs.replace(record, headers=[TYPE_HEADER, *record.headers]) if by_others else record


def _by_others(request: Request, timeout: float, address: str) -> Request:
    now = int(time.time() * 1000)
    context = {**request.get("context", {}), "ip": address}
    return {**request, "context": context, "time": to_text(now), "deadline": to_text(now + int(timeout * 1000))}


def _renamed(resource: dict[str, Any], ending: str) -> dict[str, Any]:
    """With an id that ends otherwise, also where a property repeats it."""
    old = resource["id"]
    new = f"{old}-{ending}"
    properties = {name: new if value == old else value for name, value in resource.get("properties", {}).items()}
    return {**resource, "id": new, **({"properties": properties} if properties else {})}


def is_fact(document: Document) -> bool:
    """Whether a document belongs on the facts topic."""
    return (document["system"], document["kind"]) in FACTS


def shaped(shape: str, statements: int, requests: int, seed: int = 1) -> tuple[list[Document], list[Request]]:
    """Policies of Lenses 6 in one of the `SHAPES` that an index may be slow for, and requests to them."""
    dice = random.Random(f"{shape} {seed} {statements}")
    groups, roles = SHAPES[shape](statements)
    documents = [_document("lenses6", "Role", name, {"statements": held}) for name, held in roles.items()]
    documents += [_document("lenses6", "Group", name, {"roles": named}) for name, named in groups.items()]
    draw = _identified(lambda dice: _shaped_request(dice, list(groups), statements))
    return documents, [draw(dice) for _ in range(requests)]


Shape = tuple[dict[str, list[str]], dict[str, list[dict[str, Any]]]]  # the roles of each group, statements of each role


def _statement(action: str, resource: str, effect: str = "allow") -> dict[str, Any]:
    return {"effect": effect, "action": [action], "resource": [resource]}


def _in_roles(statements: Sequence[dict[str, Any]], groups: int, of_a_role: int) -> Shape:
    """Roles of so many statements each, in turn given to so many groups."""
    cut = range(0, len(statements), of_a_role)
    roles = {f"role-{number}": list(statements[start : start + of_a_role]) for number, start in enumerate(cut)}
    return {f"group-{n}": list(roles)[n::groups] for n in range(groups)}, roles


def _one_prefix(statements: int) -> Shape:
    return _in_roles(
        [_statement("kafka:*", f"kafka:topic:prod/main/{'a' * (n % 200)}{n}*") for n in range(statements)], 20, 10
    )


def _lone_wildcards(statements: int) -> Shape:
    denies = [_statement("kafka:Delete*", f"kafka:topic:prod/main/orders-{n}", "deny") for n in range(statements // 2)]
    return _in_roles([*denies, *[_statement("*", "*")] * (statements - len(denies))], 20, 10)


def _many_groups(statements: int) -> Shape:
    return _in_roles(
        [_statement("kafka:Get*", f"kafka:topic:prod/main/orders-{n}") for n in range(statements)], 1000, 1
    )


def _large_role(statements: int) -> Shape:
    return _in_roles(
        [_statement("kafka:Get*", f"kafka:topic:prod/main/orders-{n}*") for n in range(statements)], 1, 10_000
    )


SHAPES: dict[str, Callable[[int], Shape]] = {
    "patterns with one prefix": _one_prefix,
    "lone wildcards": _lone_wildcards,
    "a subject in 1,000 groups": _many_groups,
    "roles of 10,000 statements": _large_role,
}


def _shaped_request(dice: random.Random, groups: list[str], statements: int) -> Request:
    """By a subject in half of the groups; where there is one group, or are very many, in all."""
    action, number = dice.choice(("kafka:GetTopicDetails", "kafka:DeleteTopic")), dice.randrange(2 * statements)
    name = dice.choice((f"orders-{number}", f"{'a' * (number % 200)}{number}-x"))
    held = groups if len(groups) in (1, 1000) else dice.sample(groups, len(groups) // 2)
    return _request("lenses6", f"user:u{number}", held, action, "lrn", f"kafka:topic:prod/main/{name}")


def _identified(draw: Draw) -> Draw:
    """With an id of the form that the client gives."""
    return lambda dice: {"id": _id(dice), **draw(dice)}


def _id(dice: random.Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))


def _lenses6(documents: Sequence[Document], seed: int) -> Draw:
    population = workload.Population(documents, seed)

    def draw(dice: random.Random) -> Request:
        request = workload.draw_request(dice, population)
        return {"system": "lenses6", **request}

    return draw


def _lenses6_share(dice: random.Random, statements: int) -> tuple[list[Document], Draw]:
    seed = dice.getrandbits(32)
    documents = workload.documents(statements, seed)
    return documents, _lenses6(documents, seed)


def _document(system: str, kind: str, name: str, spec: dict[str, Any]) -> Document:
    return {"system": system, "kind": kind, "name": name, "spec": spec}


def _request(
    system: str, subject: str, groups: list[str], action: str, type_: str, resource: str, properties: Any = None
) -> Request:
    return {
        "system": system,
        "subject": {"type": "user", "id": subject, "properties": {"groups": groups}},
        "action": {"name": action},
        "resource": {"type": type_, "id": resource, **({"properties": properties} if properties else {})},
        "context": {},
    }


def _word(dice: random.Random) -> str:
    return f"{workload.NAMES.draw(dice)}-{workload.NUMBERS.draw(dice)}"


class Directory:
    """Users with one to three groups each: who a user is does not change from request to request."""

    def __init__(self, dice: random.Random, users: Sequence[str], groups: Sequence[str]) -> None:
        self._users = users
        self.groups = {user: sorted({dice.choice(groups) for _ in range(dice.randint(1, 3))}) for user in users}
        self._members = {group: [user for user in users if group in self.groups[user]] for group in groups}

    def user(self, dice: random.Random, group: str | None = None) -> str:
        """Any user, or a member of a group that has one."""
        return dice.choice(self._members[group] or self._users if group else self._users)


def _lenses5_share(dice: random.Random, statements: int) -> tuple[list[Document], Draw]:
    namespaces = [_namespace(dice) for _ in range(statements)]
    groups = []
    for number, start in enumerate(range(0, statements, 5)):
        spec = {"namespaces": namespaces[start : start + 5], "connect_clusters": [CLUSTER]}
        spec["application"] = dice.sample(FEATURES, dice.randint(1, 3))
        groups.append(_document("lenses5", "Group", f"team-{number}", spec))
    facts = [_described(dice, number, namespaces) for number in range(max(2, statements // 10))]
    population, described = Skew(groups, 0.8), Skew(facts, 0.8)
    names = [group["name"] for group in groups]
    directory = Directory(dice, [f"u{number}" for number in range(10 * len(names))], names)

    def draw(dice: random.Random) -> Request:
        group = population.draw(dice) if dice.random() < IN_REACH else None
        subject = directory.user(dice, group and group["name"])
        held = directory.groups[subject]
        if dice.random() < 0.25:
            return _ask_described(dice, described.draw(dice), subject, held)
        namespace = dice.choice((group or dice.choice(groups))["spec"]["namespaces"])
        permissions = namespace["permissions"] if group else [*TOPIC_ACTIONS]
        topic = _filled(dice, dice.choice(namespace["datasets"])) if group else _word(dice)
        action = TOPIC_ACTIONS[dice.choice(permissions)]
        properties = {"connection": CONNECTION, "dataset": topic}
        return _request("lenses5", subject, held, action, "topic", topic, properties)

    return groups + facts, draw


def _namespace(dice: random.Random) -> dict[str, Any]:
    datasets = {_word(dice) + ("*" if dice.random() < 0.6 else "") for _ in range(dice.randint(1, 3))}
    permissions = dice.sample([*TOPIC_ACTIONS], dice.randint(2, len(TOPIC_ACTIONS)))
    return {"connection": CONNECTION, "type": "Kafka", "datasets": sorted(datasets), "permissions": permissions}


def _filled(dice: random.Random, pattern: str) -> str:
    return pattern[:-1] + dice.choice(("", "-eu", "-us", "-raw")) if pattern.endswith("*") else pattern


def _described(dice: random.Random, number: int, namespaces: Sequence[dict[str, Any]]) -> Document:
    """A consumer group or a connector with up to three topics of one namespace."""
    datasets = dice.choice(namespaces)["datasets"]
    topics = sorted({_filled(dice, dice.choice(datasets)) for _ in range(dice.randint(1, 3))})
    if number % 2:
        spec = {"connection": CONNECTION, "kind": "sink", "source_topics": topics, "connect_cluster": CLUSTER}
        return _document("lenses5", "Connector", f"sink-{number}", spec)
    return _document("lenses5", "ConsumerGroup", f"consumers-{number}", {"connection": CONNECTION, "topics": topics})


def _ask_described(dice: random.Random, fact: Document, subject: str, groups: list[str]) -> Request:
    name = fact["name"]
    if fact["kind"] == "Connector":
        action = dice.choice(("kafka-connectors.view", "kafka-connectors.delete"))
        return _request("lenses5", subject, groups, action, "connector", name, {"connector": name})
    properties = {"consumer_group": name}
    return _request("lenses5", subject, groups, "kafka-consumers.view", "consumer-group", name, properties)


def _ververica_share(dice: random.Random, statements: int) -> tuple[list[Document], Draw]:
    users, teams = max(10, statements // 4), max(4, statements // 20)
    documents: list[Document] = [_document("ververica", "ReservedKinds", "main", {"kinds": ["ApiToken"]})]
    entries = []
    for number, start in enumerate(range(0, statements, 20)):
        workspace = f"workspace-{number}"
        some = [_assignment(dice, workspace, users, teams) for _ in range(min(20, statements - start))]
        entries += some
        documents.append(_document("ververica", "InitialAccess", workspace, {"initialAccess": some}))
    population, names = Skew(entries, 0.8), [f"team-{number}" for number in range(teams)]
    directory = Directory(dice, [f"u{number}@example.com" for number in range(users)], names)

    def draw(dice: random.Random) -> Request:
        entry, aimed = population.draw(dice), dice.random() < IN_REACH
        prefix, _, name = entry["userId"].rpartition(":")
        who = name if aimed and not prefix else directory.user(dice, name if aimed else None)
        kind = dice.choice(("Deployment", "Deployment", "SessionCluster", "ApiToken"))
        namespace = entry.get("namespaceId", f"namespace-{dice.randrange(5)}")
        properties = {"workspaceId": entry["workspaceId"], "namespaceId": namespace}
        action = dice.choices(("read", "write", "full"), (6, 3, 1))[0]
        held = directory.groups[who]
        return _request("ververica", who, held, action, kind, _word(dice), properties)

    return documents, draw


def _assignment(dice: random.Random, workspace: str, users: int, teams: int) -> dict[str, Any]:
    of_group = dice.random() < 0.4
    who = f"group:team-{dice.randrange(teams)}" if of_group else f"u{dice.randrange(users)}@example.com"
    role = dice.choices(("VIEWER", "EDITOR", "OWNER", "ADMIN"), (5, 4, 2, 1))[0]
    scope = {} if role == "ADMIN" else {"namespaceId": f"namespace-{dice.randrange(5)}"}
    return {"userId": who, "workspaceId": workspace, **scope, "role": role}


def _streamsets_share(dice: random.Random, statements: int) -> tuple[list[Document], Draw]:
    """Areas of a connection, an engine, two pipelines and a job for one of them, each with an ACL of five entries."""
    users, teams = max(20, statements // 10), max(10, statements // 50)
    documents = [_document("streamsets", "Organization", "acme", {"enforcement": True})]
    areas = max(1, statements // 25)
    for number in range(areas):
        shared = [_principal(dice, users, teams) for _ in range(4)]
        documents += _area(dice, number, shared, users, teams)
    jobs = [document for document in documents if document["name"].startswith("job:")]
    objects = [document for document in documents if document["kind"] == "Object"]
    population, of_jobs, names = Skew(objects, 0.8), Skew(jobs, 0.8), [f"team-{number}" for number in range(teams)]
    directory = Directory(dice, [f"u{number}" for number in range(users)], names)

    def draw(dice: random.Random) -> Request:
        document = (of_jobs if dice.random() < 0.3 else population).draw(dice)
        who, levels = directory.user(dice), LEVELS
        if dice.random() < IN_REACH:
            principal, levels = dice.choice(list(document["spec"]["acl"].items()))
            kind, _, name = principal.partition(":")
            who = name if kind == "user" else directory.user(dice, name)
        action = _streamsets_action(dice, document["spec"]["type"], levels)
        held = directory.groups[who]
        return _request("streamsets", who, held, action, document["spec"]["type"], document["name"])

    return documents, draw


def _principal(dice: random.Random, users: int, teams: int) -> str:
    return f"group:team-{dice.randrange(teams)}" if dice.random() < 0.5 else f"user:u{dice.randrange(users)}"


def _area(dice: random.Random, number: int, shared: Sequence[str], users: int, teams: int) -> Iterator[Document]:
    label, connection, pipelines = f"area-{number}", f"db-{number}", [f"p-{number}-{at}" for at in range(2)]
    specs: dict[str, dict[str, Any]] = {
        f"connection:{connection}": {},
        f"engine:e-{number}": {"engine_kind": "data-collector", "labels": [label]},
        **{f"pipeline:{name}": {"pipeline_kind": "data-collector", "connections": [connection]} for name in pipelines},
        f"job:j-{number}": {"pipeline": pipelines[0], "labels": [label]},
    }
    for name, spec in specs.items():
        type_ = name.partition(":")[0]
        levels = LEVELS if type_ in ("job", "engine") else LEVELS[:2]
        principals = {*shared, _principal(dice, users, teams)}
        acl = {who: sorted({"READ", *dice.sample(levels, dice.randint(1, len(levels)))}) for who in sorted(principals)}
        whole = {"type": type_, "owner": f"u{dice.randrange(users)}", "organization": "acme", "acl": acl, **spec}
        yield _document("streamsets", "Object", name, whole)


def _streamsets_action(dice: random.Random, type_: str, levels: Sequence[str]) -> str:
    actions = {
        "pipeline": {"READ": "pipeline.view", "WRITE": "pipeline.design", "EXECUTE": "pipeline.create-job"},
        "job": {"READ": "job.monitor", "WRITE": "job.edit", "EXECUTE": "job.start"},
        "engine": {"READ": "engine.view", "WRITE": "engine.assign-labels", "EXECUTE": "engine.view"},
        "connection": {
            "READ": "connection.view-summary",
            "WRITE": "connection.edit",
            "EXECUTE": "connection.view-values",
        },
    }
    return actions[type_][dice.choice(levels)]


def _cdap_share(dice: random.Random, statements: int) -> tuple[list[Document], Draw]:
    users, namespaces = max(10, statements // 10), max(3, statements // 50)
    grants = [_grant(dice, number, users, namespaces) for number in range(statements)]
    facts = [_document("cdap", "Entity", f"namespace:ns-{number}", {"parent": None}) for number in range(namespaces)]
    names = {(dice.randrange(namespaces), _word(dice)) for _ in range(statements // 2)}
    facts += [
        _document("cdap", "Entity", f"dataset:ns-{number}.{word}", {"parent": f"namespace:ns-{number}"})
        for number, word in sorted(names)
    ]
    population = Skew(grants, 0.8)

    def draw(dice: random.Random) -> Request:
        spec, aimed = population.draw(dice)["spec"], dice.random() < IN_REACH
        who = spec["user"] if aimed else f"u{dice.randrange(users)}"
        kind, _, name = spec["entity"].partition(":")
        name = (
            name.replace("*", str(dice.randrange(200))) if aimed else f"ns-{dice.randrange(namespaces)}.{_word(dice)}"
        )
        privilege = dice.choice(spec["privileges"] if aimed else [*PRIVILEGES])
        draw = dice.random()
        verb = PRIVILEGES[privilege] if draw < 0.7 else "list" if draw < 0.85 else "create"
        request = _request("cdap", who, [], f"{kind}.{verb}", kind, f"{kind}:{name}")
        request["subject"]["properties"] = {}
        return request

    return grants + facts, draw


def _grant(dice: random.Random, number: int, users: int, namespaces: int) -> Document:
    word = _word(dice)
    name = word if dice.random() < 0.6 else word.rpartition("-")[0] + "-*"
    kind = dice.choice(("dataset", "dataset", "stream"))
    privileges = sorted(dice.sample([*PRIVILEGES], dice.randint(1, 2)))
    entity = f"{kind}:ns-{dice.randrange(namespaces)}.{name}"
    spec = {"user": f"u{dice.randrange(users)}", "entity": entity, "privileges": privileges}
    return _document("cdap", "Grant", f"grant-{number}", spec)


BUILDERS: dict[str, Callable[[random.Random, int], tuple[list[Document], Draw]]] = {
    "lenses6": _lenses6_share,
    "lenses5": _lenses5_share,
    "ververica": _ververica_share,
    "streamsets": _streamsets_share,
    "cdap": _cdap_share,
}

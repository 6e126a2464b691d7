"""A workload for benchmarks: Lenses 6 roles, groups and requests as a large installation might have them.

Deterministic: the same arguments give the same documents and requests on every machine.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

Item = TypeVar("Item")

WORDS = (
    *("orders", "payments", "users", "clicks", "stock", "invoices", "sensors", "audit-trail", "prices", "shipments"),
    *("returns", "carts", "logins", "mails", "refunds", "reviews", "alarms", "meters", "claims", "trades"),
)
EVERY_FIFTH = 5  # statements a role
PER_GROUP = 25  # statements for which there is one more group
IN_REACH = 0.42  # share of requests aimed at a statement that the subject holds; about half are allowed then
DENY = 0.1


class Service(msgspec.Struct, frozen=True):
    """A service: its resource type, what its path consists of, its operations, and how often it is used."""

    name: str
    type: str
    path: tuple[str, ...]
    operations: tuple[str, ...]
    weight: int


SERVICES = (
    Service(
        "kafka",
        "topic",
        ("env", "cluster", "name"),
        (
            *("CreateTopic", "DeleteTopic", "ListTopic", "GetTopicDetails", "UpdateTopicDetails"),
            *("ReadTopicData", "WriteTopicData", "DeleteTopicData", "ListTopicDependants"),
        ),
        6,
    ),
    Service(
        "schemas",
        "schema",
        ("env", "cluster", "name"),
        ("CreateSchema", "DeleteSchema", "UpdateSchema", "GetSchemaDetails", "ListSchemas", "ListSchemaDependants"),
        2,
    ),
    Service(
        "kafka-connect",
        "connector",
        ("env", "cluster", "name"),
        (
            *("CreateConnector", "ListConnectors", "GetConnectorConfiguration", "UpdateConnectorConfiguration"),
            *("DeleteConnector", "StartConnector", "StopConnector", "ListConnectorDependants"),
        ),
        1,
    ),
    Service(
        "sql-streaming",
        "sql-processor",
        ("env", "cluster", "namespace", "name"),
        (
            *("CreateProcessor", "ListProcessors", "GetProcessorDetails", "GetProcessorSql", "UpdateProcessorSql"),
            *("DeleteProcessor", "StartProcessor", "StopProcessor", "ScaleProcessor", "GetProcessorLogs"),
        ),
        1,
    ),
)
BY_NAME = {service.name: service for service in SERVICES}


class Skew:
    """Draws items of which the first come more often: the weight of rank r is 1 / r to the power of `exponent`."""

    def __init__(self, items: Sequence[Item], exponent: float) -> None:
        self._items = items
        self._weights = list(accumulate((rank + 1) ** -exponent for rank in range(len(items))))

    def draw(self, dice: random.Random) -> Any:
        """One of the items."""
        return dice.choices(self._items, cum_weights=self._weights)[0]


PARTS = {"env": Skew(range(12), 0.8), "cluster": Skew(range(4), 0.8), "namespace": Skew(range(5), 0.8)}
NAMES, NUMBERS = Skew(WORDS, 0.9), Skew(range(200), 1.1)


def documents(statements: int = 1000, seed: int = 1) -> list[dict[str, Any]]:
    """Roles of five statements and groups that hold them; from 250 statements on a subject holds about 70."""
    dice = random.Random(f"documents {seed} {statements}")
    starts = range(0, statements, EVERY_FIFTH)
    roles = [_role(dice, number, min(EVERY_FIFTH, statements - start)) for number, start in enumerate(starts)]
    count = max(10, statements // PER_GROUP)
    held: list[list[str]] = [[] for _ in range(count)]
    for number, role in enumerate(roles):
        second = {dice.randrange(count)} if dice.random() < 0.3 else set()
        for group in {number % count} | second:
            held[group].append(role["name"])
    return roles + [_document("Group", f"group-{number}", {"roles": names}) for number, names in enumerate(held)]


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": "lenses6", "kind": kind, "name": name, "spec": spec}


def _role(dice: random.Random, number: int, statements: int) -> dict[str, Any]:
    return _document("Role", f"role-{number}", {"statements": [_statement(dice) for _ in range(statements)]})


def _statement(dice: random.Random) -> dict[str, Any]:
    effect, service = "deny" if dice.random() < DENY else "allow", _service(dice)
    actions = {_action_pattern(dice, service) for _ in range(dice.randint(1, 3))}
    resources = {_resource_pattern(dice, service, effect) for _ in range(dice.randint(1, 2))}
    return {"effect": effect, "action": sorted(actions), "resource": sorted(resources)}


def _service(dice: random.Random) -> Service:
    return dice.choices(SERVICES, [service.weight for service in SERVICES])[0]


def _part(dice: random.Random, name: str) -> str:
    if name == "name":
        return f"{NAMES.draw(dice)}-{NUMBERS.draw(dice)}"
    return f"{name}-{PARTS[name].draw(dice)}"


def _action_pattern(dice: random.Random, service: Service) -> str:
    """One operation (62 %), a verb (28 %), the whole service (9.5 %), everything (0.5 %)."""
    verb = dice.choice(("List*", "Get*", "Update*", "Create*", "Delete*"))
    forms = (f"{service.name}:{dice.choice(service.operations)}", f"{service.name}:{verb}", f"{service.name}:*", "*")
    return dice.choices(forms, (62, 28, 9.5, 0.5))[0]


def _resource_pattern(dice: random.Random, service: Service, effect: str) -> str:
    """Exact (35 %), a closing prefix (22 %) or wildcard (23 %), one within (18 %), a whole type or more (2 %)."""
    path = [_part(dice, name) for name in service.path]
    form = dice.choices((_exact, _prefix, _tail, _within, None), (35, 22, 23, 18, 2))[0]
    if form is None:
        wide = (
            "*" if effect == "allow" else f"{service.name}:*",
            f"{service.name}:*",
            f"{service.name}:{service.type}:*",
        )
        return dice.choices(wide, (10, 20, 70))[0]
    return f"{service.name}:{service.type}:{'/'.join(form(dice, path))}"


def _exact(_dice: random.Random, path: list[str]) -> list[str]:
    return path


def _prefix(dice: random.Random, path: list[str]) -> list[str]:
    """`orders-*` or `orders-17*`."""
    cut = "0123456789" if dice.random() < 0.5 else ""
    return [*path[:-1], path[-1].rstrip(cut) + "*"]


def _tail(dice: random.Random, path: list[str]) -> list[str]:
    return [*path[: 1 + int(dice.random() ** 0.6 * (len(path) - 1))], "*"]


def _within(dice: random.Random, path: list[str]) -> list[str]:
    at = dice.randrange(len(path) - 1)
    open_part = "*" if dice.random() < 0.6 else path[at] + "*"
    inner = [*path[:at], open_part, *path[at + 1 :]]
    return inner if dice.random() < 0.5 else _prefix(dice, inner)


class Population:
    """Subjects: ten subjects a group, each in one to four groups, and what the groups hold."""

    def __init__(self, published: Sequence[dict[str, Any]], seed: int) -> None:
        roles = {doc["name"]: doc["spec"]["statements"] for doc in published if doc["kind"] == "Role"}
        groups = {doc["name"]: doc["spec"]["roles"] for doc in published if doc["kind"] == "Group"}
        self._held = {name: [s for role in held for s in roles[role]] for name, held in groups.items()}
        self._names, self._seed = list(self._held), seed
        self._subjects = Skew(range(10 * len(self._held)), 1.0)
        self._groups_of: dict[int, list[str]] = {}

    def draw(self, dice: random.Random) -> tuple[int, list[str], list[dict[str, Any]]]:
        """A subject, its groups, and the statements of one of them."""
        who = self._subjects.draw(dice)
        groups = self._groups_of.get(who) or self._groups_of.setdefault(who, self._join(who))
        return who, groups, self._held[dice.choice(groups)]

    def _join(self, who: int) -> list[str]:
        dice = random.Random(f"subject {self._seed} {who}")
        count = 1 + sum(dice.random() < 0.4 for _ in range(3))
        return sorted({dice.choice(self._names) for _ in range(count)})


def requests(published: Sequence[dict[str, Any]], count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Requests to these documents; subjects and resources are skewed, about half are allowed."""
    dice, population = random.Random(f"requests {seed}"), Population(published, seed)
    for number in range(count):
        yield {"id": f"req-{number:08d}", "system": "lenses6", **draw_request(dice, population)}


def draw_request(dice: random.Random, population: Population) -> dict[str, Any]:
    """A request of somebody of the population, without id and system."""
    who, groups, statements = population.draw(dice)
    aimed = dice.choice(statements) if statements and dice.random() < IN_REACH else None
    action, resource = _aim(dice, aimed) if aimed else _anything(dice)
    return {
        "subject": {"type": "user", "id": f"user:u{who}", "properties": {"groups": groups}},
        "action": {"name": action},
        "resource": {"type": "lrn", "id": resource},
        "context": {},
    }


def _anything(dice: random.Random) -> tuple[str, str]:
    service = _service(dice)
    return f"{service.name}:{dice.choice(service.operations)}", _resource(dice, service, [])


def _aim(dice: random.Random, statement: dict[str, Any]) -> tuple[str, str]:
    """An action and a resource that a statement matches, its wildcards filled in."""
    action, like = dice.choice(statement["action"]), dice.choice(statement["resource"])
    named = [pattern.split(":")[0] for pattern in (like, action) if pattern != "*"]
    service = BY_NAME[named[0]] if named else _service(dice)
    operations = [f"{service.name}:{operation}" for operation in service.operations]
    fitting = [name for name in operations if name.startswith(action[:-1])] if action.endswith("*") else [action]
    path = like.split(":")[2].split("/") if like.count(":") == 2 else []
    return dice.choice(fitting or operations), _resource(dice, service, path)


def _resource(dice: random.Random, service: Service, patterns: list[str]) -> str:
    path = [_part(dice, name) for name in service.path]
    for at, pattern in enumerate(patterns):
        if not pattern.endswith("*"):
            path[at] = pattern
        elif not path[at].startswith(pattern[:-1]):
            path[at] = pattern[:-1] + path[at].rpartition("-")[2]
    return f"{service.name}:{service.type}:{'/'.join(path)}"

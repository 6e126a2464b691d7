"""Importing never allows what the source does not: however it is broken, and by Ranger's own rules.

The documents of a run with errors are what `--partial` writes, so they are held to the same.
"""

import contextlib
import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import Snapshot
from policy.store.repository import FilesRefused
from tests.examples import examples
from tests.policy.importers.running import allows, as_json, fixture, imported, snapshot, text
from tests.policy.importers.test_ranger import level

Path = tuple[str | int, ...]

JUNK: list[Any] = [17, "?!", [{"?!": None}]]
LOADED = {"lenses5": "lenses5.yaml", "lenses6": "lenses6.yaml", "ranger": "ranger.json", "ververica": "values.yaml"}
ACME = {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}}


def answers(source: str, at: Snapshot) -> set[str]:
    """What is allowed, of some requests about the exports in `data`."""
    asked: dict[str, Callable[[], Iterator[tuple[str, bool]]]] = {
        "lenses6": lambda: lenses6(at),
        "ranger": lambda: ranger(at),
        "lenses5": lambda: lenses5(at),
        "ververica": lambda: ververica(at),
    }
    return {what for what, allowed in asked[source]() if allowed}


def lenses6(at: Snapshot) -> Iterator[tuple[str, bool]]:
    """Members, by name and by the groups they claim, on topics that are denied and that are not."""
    for who in ("user:imani", "service-account:checkout", "user:checkout", "service-account:imani", "user:else"):
        for groups in ([], ["orders-team"], ["f3f2e850-b5d4-11ef-ac7e-96584d5248b2"]):
            for topic in ("prod/main/orders", "prod/main/audit-x", "dev/main/orders"):
                allowed = allows(at, "lenses6", who, "kafka:ReadTopicData", f"kafka:topic:{topic}", groups=groups)
                yield f"{who} {groups} {topic}", allowed


def ranger(at: Snapshot) -> Iterator[tuple[str, bool]]:
    """Everybody, on the datasets, the namespace and a program, in and out of time."""
    actions = [("dataset.read", "dataset:shop.orders"), ("dataset.write", "dataset:shop.orders-x")]
    actions += [
        ("namespace.admin", "namespace:shop"),
        ("dataset.read", "dataset:home.x"),
        ("namespace.get", "namespace:shop"),
    ]
    actions += [("program.execute", "program:shop.checkout.workflow.x"), ("artifact.admin", "artifact:shop.x")]
    for who in ("dana", "erik", "rashmi", "shankar", "mallory", "else"):
        for action, entity in actions:
            for time in ("2026-11-10T00:00:00Z", "2026-12-10T00:00:00Z"):
                yield f"{who} {action} {entity} {time}", allows(at, "cdap", who, action, entity, time=time)


def lenses5(at: Snapshot) -> Iterator[tuple[str, bool]]:
    """A member of either group, on datasets of all connections."""
    actions = ["kafka.topic.show", "kafka.topic.view-data", "kafka.topic.insert-data", "elasticsearch.index.show"]
    for group in ("analysts", "searchers", "old"):
        for connection in ("kafka", "Dev", "elastic"):
            for dataset in ("orders-1", "payments"):
                for action in (*actions, "kafka.topic.view-schema", "admin.audit-log.view"):
                    where = {"connection": connection, "dataset": dataset}
                    allowed = allows(at, "lenses5", "dana", action, dataset, properties=where, groups=[group])
                    yield f"{group} {connection} {dataset} {action}", allowed


def ververica(at: Snapshot) -> Iterator[tuple[str, bool]]:
    """A user and the groups, in both namespaces."""
    for who, groups in (("alice@example.com", []), ("x", ["platform-admins"]), ("x", ["équipe données"])):
        for namespace in ("default", "analytics"):
            for action in ("read", "full"):
                where = {"workspaceId": "defaultworkspace", "namespaceId": namespace}
                allowed = allows(at, "ververica", who, action, "x", type="Job", properties=where, groups=groups)
                yield f"{who} {groups} {namespace} {action}", allowed


def loaded(source: str) -> Any:
    """The export as plain data."""
    parts = list(yaml.safe_load_all(fixture(LOADED[source]).data))
    return parts if len(parts) > 1 else parts[0]


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """The place of every value in the data."""
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*at, step)
        yield from paths(inner, (*at, step))


def broken(value: Any, at: Path, junk: Any) -> Any:
    """The data with something else in a place."""
    found = copy.deepcopy(value)
    inner = found
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = junk
    return found


@functools.cache
def of_the_whole(source: str) -> set[str]:
    """What the export allows as it is."""
    return answers(source, snapshot(imported(source, as_json(loaded(source)))))


@pytest.mark.parametrize("source", LOADED)
def test_a_broken_export_never_allows_what_the_whole_one_does_not(source: str) -> None:
    """Each value of it in turn is something else: of another type, or a text that means nothing."""
    whole = loaded(source)
    for at, junk in itertools.product(paths(whole), JUNK):
        with contextlib.suppress(FilesRefused):
            found = imported(source, as_json(broken(whole, at, junk)))
            assert answers(source, snapshot(found)) <= of_the_whole(source), (at, junk)


def streamsets(at: Snapshot) -> set[str]:
    """What is allowed of the objects of the export."""
    asked = [
        ("pipeline.view", "pipeline:orders"),
        ("pipeline.design", "pipeline:orders"),
        ("job.delete", "job:orders, nightly"),
    ]
    asked += [(f"job.{verb}", "job:orders, nightly") for verb in ("start", "stop", "monitor", "edit", "reset-origin")]
    asked += [("engine.view", "engine:sdc-1"), ("engine.assign-labels", "engine:sdc-1")]
    people = [(who, groups) for who in ("rita", "miguel", "nora") for groups in ([], ["north"])]
    allowed = [(w, g, a, n) for w, g in people for a, n in asked if allows(at, "streamsets", w, a, n, groups=g)]
    return {f"{who} {groups} {action} {name}" for who, groups, action, name in allowed}


UNSHARED = "engine:sdc-2,rita,acme,,,,eu|night,,sdc,"


def test_a_broken_row_never_allows_what_the_whole_file_does_not() -> None:
    """A cell too many or too few, spaces, or what no cell of the column can be. Miguel has nothing on one engine."""
    rows = [*fixture("objects.csv").data.decode().splitlines(), UNSHARED]
    whole = streamsets(snapshot(imported("streamsets", text("\n".join([*rows, ""]), "objects.csv")), ACME))
    assert "miguel [] job.start job:orders, nightly" not in whole
    for number, row in enumerate(rows[1:], 1):
        odd = [f"{row},", row.rpartition(",")[0], f" {row}", row.replace(":", ";"), row.replace("rita", "user:rita")]
        for broken_row in (
            *odd,
            row.replace("rita", ""),
            row.replace("engine:", "Engine:"),
            row.replace("engine:", ""),
        ):
            changed = "\n".join([*rows[:number], broken_row, *rows[number + 1 :], ""])
            found = imported("streamsets", text(changed, "objects.csv"))
            assert streamsets(snapshot(found, ACME)) <= whole, broken_row


# Ranger's rules by themselves, for policies on what lies in namespaces.

KINDS = {"namespace": [], "dataset": ["dataset"], "application": ["application"], "program": ["application", "program"]}
names = {  # the first of each more often, so that something is allowed
    "namespace": st.sampled_from(["shop", "shop", "shop", "s*", "*", "?*", "sh?p", "*p", "a.b"]),
    "dataset": st.sampled_from(["orders", "orders", "o*", "*", "?*", "x.orders", "*s"]),
    "application": st.sampled_from(["app", "app", "a*", "*", "?*", "my.app"]),
    "program": st.sampled_from(["workflow.w", "workflow.?*", "?*", "*", "w*"]),
}
who = st.lists(st.sampled_from(["dana", "erik"]), max_size=2)
accesses = st.sampled_from([["read"], ["write"], ["read", "write"], ["read", "write"]])
ENTITIES = [
    *({"namespace": name} for name in ("shop", "sh", "sp")),
    {"namespace": "a", "dataset": "b.orders"},
    *(
        {"namespace": name, "dataset": inner}
        for name in ("shop", "s")
        for inner in ("orders", "x.orders", "o", "p.orders")
    ),
    *({"namespace": name, "application": inner} for name in ("shop", "a") for inner in ("app", "my.app", "a")),
    *(
        {"namespace": "shop", "application": app, "program": p}
        for app in ("app", "my")
        for p in ("workflow.w", "app.workflow.w")
    ),
]


def seldom(draw: st.DrawFn) -> bool:
    """Once in six times."""
    return draw(st.sampled_from([False] * 5 + [True]))


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    """A condition."""
    groups = ["team"] if seldom(draw) else []
    kinds = [{"type": kind, "isAllowed": not seldom(draw)} for kind in draw(accesses)]
    return {"users": draw(who), "groups": groups, "accesses": kinds}


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """A policy; few exclude, deny, except or are disabled."""
    path = ["namespace", *KINDS[draw(st.sampled_from(sorted(KINDS)))]]
    resources = {"instance": level("cdap")}
    for name in path:
        values = draw(st.lists(names[name], min_size=1, max_size=2))
        resources[name] = level(*values, excludes=seldom(draw))
    found = {"service": "s", "resources": resources, "policyItems": draw(st.lists(items(), min_size=1, max_size=2))}
    for field in ("denyPolicyItems", "allowExceptions", "denyExceptions"):
        if seldom(draw):
            found[field] = [draw(items())]
    return {**found, "isEnabled": not seldom(draw)}


def matched(policy: dict[str, Any], entity: dict[str, str]) -> bool:
    """Level by level; below the entity's own the policy may have an excluded * alone."""
    path = next(path for path in (["namespace", *inner] for inner in KINDS.values()) if set(path) == set(entity))
    resources = {name: value for name, value in policy["resources"].items() if name != "instance"}
    if not set(path) <= set(resources):
        return False
    below = [resources[name] for name in resources if name not in path]
    return all(fits(resources[name], entity[name]) for name in path) and all(
        inner["isExcludes"] and "*" in inner["values"] for inner in below
    )


def fits(inner: dict[str, Any], name: str) -> bool:
    """Ranger's wildcards, and what is excluded."""
    found = any(
        re.fullmatch("".join({"*": ".*", "?": "."}.get(mark, re.escape(mark)) for mark in value), name)
        for value in inner["values"]
    )
    return found != inner["isExcludes"]


def has(item: dict[str, Any], user: str, groups: list[str], access: str) -> bool:
    """Whether a condition is about somebody and an access."""
    named = user in item["users"] or not set(groups).isdisjoint(item["groups"])
    return named and any(kind["type"] == access and kind["isAllowed"] for kind in item["accesses"])


def by_ranger(found: list[dict[str, Any]], user: str, groups: list[str], access: str, entity: dict[str, str]) -> bool:
    """A deny of any policy wins; exceptions count within their policy."""
    verdicts = set()
    for policy in (one for one in found if one["isEnabled"] and matched(one, entity)):
        for verdict, field, exceptions in (
            ("allow", "policyItems", "allowExceptions"),
            ("deny", "denyPolicyItems", "denyExceptions"),
        ):
            applies = any(has(item, user, groups, access) for item in policy.get(field, ()))
            if applies and not any(has(item, user, groups, access) for item in policy.get(exceptions, ())):
                verdicts.add(verdict)
    return verdicts == {"allow"}


@given(st.lists(policies(), min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_grants_from_ranger_are_what_ranger_allows(found: list[dict[str, Any]], team: bool) -> None:
    """Never more; and the same where nothing was reported."""
    run = imported("ranger", as_json({"policies": found}))
    at, groups = snapshot(run), ["team"] if team else []
    reported = any(finding.level != "note" for finding in run.findings)
    for entity in ENTITIES:
        kind, name = list(entity)[-1], ".".join(entity.values())
        for user, access in (("dana", "read"), ("erik", "write")):
            ours = allows(at, "cdap", user, f"{kind}.{access}", f"{kind}:{name}", groups=groups)
            theirs = by_ranger(found, user, groups, access, entity)
            assert theirs or not ours
            assert reported or ours == theirs

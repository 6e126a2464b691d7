"""StreamSets in CSV: objects from several rows, and engines that must not be lost."""

from typing import Any

import pytest

from policy.importers import Translation
from tests.policy.importers.running import (
    allows,
    documents,
    findings_of_level,
    fixture,
    imported,
    places,
    snapshot,
    text,
)

ACME = {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}}
HEAD = "object,owner,subject,levels,pipeline,labels,pipeline_kind,engine_kind,connections"
JOB = ["pipeline:p,rita,user:miguel,READ,,,sdc,,[]", "job:j,rita,user:miguel,EXECUTE,p,eu,,,"]
ENGINE = "engine:e1,rita,user:miguel,EXECUTE,,eu,,sdc,"


def run(*rows: str, head: str = HEAD) -> Translation:
    """An import of rows."""
    return imported("streamsets", text("\n".join([head, *rows, ""]), "objects.csv"))


def may(found: Translation, action: str, name: str, who: str = "miguel", **more: Any) -> bool:
    """Whether somebody may, with enforcement on."""
    return allows(snapshot(found, ACME), "streamsets", who, action, name, **more)


def test_objects_and_shares_mean_what_they_mean_on_the_platform() -> None:
    """The owner has everything, a share its levels; a job needs its pipeline and its engines."""
    found = imported("streamsets", fixture("objects.csv"))
    assert may(found, "pipeline.view", "pipeline:orders")
    assert not may(found, "pipeline.design", "pipeline:orders")
    assert may(found, "pipeline.design", "pipeline:orders", "nora", groups=["north"])
    assert may(found, "pipeline.design", "pipeline:orders", "rita")
    assert not may(found, "pipeline.view", "pipeline:orders", "else")
    assert may(found, "job.start", "job:orders, nightly")
    assert not may(found, "job.edit", "job:orders, nightly")


def test_the_enforcement_switch_is_not_in_the_file_and_that_is_said() -> None:
    """Without an Organization document nothing is allowed."""
    found = imported("streamsets", fixture("objects.csv"))
    assert "enforcement" in findings_of_level(found, "note")[0].why
    assert not allows(snapshot(found), "streamsets", "rita", "pipeline.view", "pipeline:orders")


@pytest.mark.parametrize(
    "row",
    [
        "pipeline:p,,user:erik,EXECUTE,,,,,",
        "pipeline:p,,erik,READ,,,,,",
        "pipeline:p,,role:admin,READ,,,,,",
        "pipeline:p,,user:erik,,,,,,",
        "pipeline:p,,,READ,,,,,",
    ],
)
def test_a_share_that_cannot_be_converted_is_left_out_alone(row: str) -> None:
    found = run(*JOB, row, ENGINE)
    assert places(found, "warning") == ["line 4"]
    assert may(found, "job.start", "job:j")
    assert not may(found, "pipeline.view", "pipeline:p", "erik")


@pytest.mark.parametrize(
    "row",
    [
        "pipeline:p,erik,,,,,,,",
        "pipeline:p,,,,,,spark,,",
        "pipeline:q,group:north,,,,,,,",
        "pipeline:q,,user:miguel,READ,,,,,",
        "pipeline:q,rita,,,p,,,,",
    ],
)
def test_an_object_that_cannot_be_converted_is_left_out_whole(row: str) -> None:
    """Rows that contradict each other, no owner, a column that its type does not have."""
    found = run(*JOB, ENGINE, row)
    name = row.partition(",")[0]
    assert len(findings_of_level(found, "warning")) == 1
    assert f"Object/{name}" not in documents(found)
    assert "Object/engine:e1" in documents(found)


@pytest.mark.parametrize(
    "row",
    [
        "engine:e2,rita,,,,eu,,sdc,,,",
        "engine:e2,,user:erik,READ,,eu,,sdc,",
        "engine:e2,rita,,,p,eu,,sdc,",
        "engine:e1,,,,,us,,,",
        "Engine:e2,rita,,,,eu,,sdc,",
        "e2,rita,,,,eu,,sdc,",
        ",rita,,,,eu,,sdc,",
        " engine:e2,rita,,,,eu,,sdc,",
        '"job:j, x",rita',
    ],
)
def test_an_engine_that_cannot_be_converted_withholds_the_jobs(row: str) -> None:
    """They need a level on every engine with their labels: one that is missing would spare it."""
    good = run(*JOB, ENGINE)
    assert may(good, "job.start", "job:j")
    found = run(*JOB, ENGINE, row)
    assert found.errors
    assert not may(found, "job.start", "job:j")
    assert may(found, "pipeline.view", "pipeline:p")


def test_an_empty_list_is_not_the_same_as_not_known() -> None:
    """A pipeline of which the connections are not known starts nowhere."""
    found = run(JOB[0].replace("[]", ""), JOB[1], ENGINE)
    assert not may(found, "job.start", "job:j")


def test_rows_in_any_order_and_twice_give_the_same() -> None:
    """They are sets."""
    rows = [*JOB, ENGINE, "pipeline:p,,group:north,WRITE|READ,,,,,", "pipeline:p,,group:north,READ,,,,,"]
    assert run(*rows).documents == run(*reversed(rows), *rows).documents


def provisioned(modified: str) -> Translation:
    """An engine of a deployment that miguel may use, and that is itself shared with nobody."""
    head = f"{HEAD},provisioned_by,permissions_modified_by_admin"
    rows = [f"{row},," for row in JOB]
    engine, deployment = f"engine:e1,rita,,,,eu,,sdc,,d,{modified}", "deployment:d,rita,user:miguel,EXECUTE,,,,,,,"
    return run(*rows, engine, deployment, head=head)


def test_an_engine_without_its_deployment_is_open_to_nobody_but_its_owner() -> None:
    """What it would inherit is not known."""
    head = f"{HEAD},provisioned_by,permissions_modified_by_admin"
    rows = [f"{row},," for row in (*JOB, ENGINE)]
    assert may(run(*rows, head=head), "job.start", "job:j")
    rows[2] = f"{ENGINE},d1,false"
    assert not may(run(*rows, head=head), "job.start", "job:j")


@pytest.mark.parametrize(("modified", "starts"), [("false", True), ("true", False)])
def test_a_provisioned_engine_has_the_list_of_its_deployment_until_an_administrator_changes_its_own(
    modified: str, starts: bool
) -> None:
    found = provisioned(modified)
    assert not found.errors
    assert may(found, "job.start", "job:j") == starts


def test_whether_the_list_of_a_provisioned_engine_counts_must_be_stated() -> None:
    """An administrator may have taken away what the deployment gives."""
    found = provisioned("")
    assert "permissions_modified_by_admin" in found.errors[0].why
    assert not may(found, "job.start", "job:j")
    assert not may(found, "engine.view", "engine:e1")
    assert may(found, "pipeline.view", "pipeline:p")

"""CDAP grants in CSV: quotes, byte order marks, and rows that deny."""

import pytest

from policy.importers import Translation
from policy.store.repository import FilesRefused
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

HEAD = "principal_type,principal,entity,privileges"


def run(*rows: str, head: str = HEAD) -> Translation:
    """An import of rows."""
    return imported("cdap", text("\n".join([head, *rows, ""]), "grants.csv"))


def reads(found: Translation, user: str = "dana", entity: str = "dataset:shop.orders") -> bool:
    """Whether somebody may read an entity."""
    return allows(snapshot(found), "cdap", user, f"{entity.partition(':')[0]}.read", entity)


def test_rows_mean_what_they_say() -> None:
    """A byte order mark, CRLF, a comma in quotes, an end, CDAP's own name of a kind."""
    found = imported("cdap", fixture("grants.csv"))
    at = snapshot(found)
    assert not found.findings
    assert allows(at, "cdap", "dana", "dataset.read", "dataset:shop.orders")
    assert allows(at, "cdap", "dana", "dataset.write", "dataset:shop.orders")
    assert not allows(at, "cdap", "dana", "dataset.admin", "dataset:shop.orders")
    program, ops = "program:shop.checkout.workflow.daily", {"groups": ["ops, night"]}
    assert allows(at, "cdap", "x", "program.execute", program, time="2026-12-31T23:59:59Z", **ops)
    assert not allows(at, "cdap", "x", "program.execute", program, time="2027-01-01T00:00:00Z", **ops)
    assert allows(at, "cdap", "x", "secure-key.read", "secure-key:shop.db", roles=["auditor"])


@pytest.mark.parametrize(
    "row",
    [
        "user,dana,dataset:shop.orders,OWN",
        "user,dana,dataset:shop.orders,read",
        "user,dana,dataset:shop.orders,",
        "user,dana,table:shop.orders,READ",
        "user,dana,shop.orders,READ",
        "service,dana,dataset:shop.orders,READ",
        ",dana,dataset:shop.orders,READ",
        "entity,dataset:shop.orders,dataset:shop.orders,READ",
        "user,,dataset:shop.orders,READ",
        "user,dana,dataset:shop.orders",
        "user,dana,dataset:shop.orders,READ,WRITE",
        "user, dana,dataset:shop.orders,READ",
    ],
)
def test_a_row_that_cannot_be_converted_is_left_out_alone(row: str) -> None:
    """With its line."""
    found = run(row, "user,erik,dataset:shop.orders,READ")
    assert places(found, "warning") == ["line 2"]
    assert not reads(found)
    assert reads(found, "erik")


@pytest.mark.parametrize(
    "row",
    [
        "user,dana,dataset:shop.orders,READ,deny",
        "user,dana,namespace:shop,ADMIN,Deny",
        "group,interns,dataset:shop.*,READ,deny",
        "user,dana,dataset:s*,READ,deny",
        "user,dana,kerberos-principal:etl,ADMIN,deny",
        "user,\u200bdana,dataset:shop.orders,READ,deny",
        "user,dana,namespace:,READ,deny",
        "user,dana,dataset:.orders,READ,deny",
        "user,dana,dataset:shop .orders,READ,deny",
        "user,dana,dataset:shop\u200b.orders,READ,deny",
        "user,dana,dataset:shop.orders,READ,permit",
        "user,dana,dataset:shop.orders,READ",
        "user,dana,dataset:shop.orders,READ,deny,",
        "deny",
    ],
)
def test_a_row_that_denies_or_may_is_an_error_and_grants_near_it_are_withheld(row: str) -> None:
    """Where there is a column for it."""
    head = f"{HEAD},effect"
    found = run("user,dana,dataset:shop.orders,READ,allow", "user,erik,dataset:home.x,READ,allow", row, head=head)
    assert places(found, "error") == ["line 4"]
    assert not reads(found)


def test_a_deny_of_a_user_in_a_namespace_leaves_the_rest() -> None:
    rows = [f"user,{user},dataset:{where}.orders,READ," for user in ("dana", "erik") for where in ("shop", "home")]
    found = run(*rows, "user,dana,dataset:shop.orders,READ,deny", head=f"{HEAD},effect")
    asked = [(user, where) for user in ("dana", "erik") for where in ("shop", "home")]
    allowed = {(user, where) for user, where in asked if reads(found, user, f"dataset:{where}.orders")}
    assert allowed == {("dana", "home"), ("erik", "shop"), ("erik", "home")}


def test_times_must_be_moments_in_order() -> None:
    head = f"{HEAD},valid_from,valid_until"
    row = "user,dana,dataset:shop.orders,READ"
    found = run(f"{row},tomorrow,", f"{row},2027-01-02T00:00:00Z,2027-01-01T00:00:00Z", head=head)
    assert len(findings_of_level(found, "warning")) == 2
    assert not documents(found)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is missing"),
        ("principal,entity,privileges\n", "'principal_type' is missing"),
        (f"{HEAD},condition\n", "'condition' is not known"),
        (f"{HEAD},entity\n", "duplicate column 'entity'"),
        (HEAD.replace(",", ";"), "is missing"),
        (f'{HEAD}\nuser,"dana,x,READ\n', "not CSV"),
        (f'{HEAD}\nuser,"da"na,x,READ\n', "not CSV"),
    ],
)
def test_what_is_no_such_file_is_refused(content: str, why: str) -> None:
    """A column that nobody knows may say that a row restricts."""
    with pytest.raises(FilesRefused, match=why):
        imported("cdap", text(content, "grants.csv"))


@pytest.mark.parametrize(("column", "cell"), [("effect", "deny"), ("valid_until", "2020-01-01T00:00:00Z")])
def test_a_file_that_is_cut_off_allows_no_more_than_the_whole_one(column: str, cell: str) -> None:
    """At every byte of its last row; behind the last comma the row would lack its restriction alone."""
    whole = f"user,dana,dataset:shop.orders,READ,{cell}"
    for length in range(len(whole) + 1):
        content = f"{HEAD},{column}\n{whole[:length]}"
        assert not reads(imported("cdap", text(content, "grants.csv"))), content
    assert reads(run(whole.removesuffix(cell), head=f"{HEAD},{column}"))

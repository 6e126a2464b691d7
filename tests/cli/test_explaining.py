"""`lockkeeper explain | who-can`: why, and who."""

import json
from pathlib import Path

import pytest

from tests.cli.documents import GROUP, readers_folder, request
from tests.cli.lockkeeper import Command

ASKED = ("--system", "lenses6", "--action", "kafka:GetTopicDetails", "--resource", "kafka:topic:prod/main/orders")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A folder of good policies."""
    return readers_folder(tmp_path / "policies")


def test_an_allow_names_the_statement_and_the_way_to_it(lockkeeper: Command, policies: Path) -> None:
    """Plain without a terminal."""
    shown = lockkeeper("explain", "--policies", str(policies), *ASKED, "--subject", "user:dana")
    assert shown.code == 0
    top, atom, why = shown.out.splitlines()
    assert top == "✔ allow: user:dana kafka:GetTopicDetails kafka:topic:prod/main/orders"
    assert atom.endswith("✔ kafka:GetTopicDetails on kafka:topic:prod/main/orders [L6-DECIDE-ALLOW]")
    assert why.endswith(
        "allowed by lenses6/Role/order-readers statement 0 (user:dana → group:readers → role:order-readers)"
    )


def test_a_deny_and_an_error_exit_with_1(lockkeeper: Command, policies: Path) -> None:
    """Each with its sign."""
    shown = lockkeeper("explain", "--policies", str(policies), *ASKED, "--subject", "user:erik")
    assert (shown.code, shown.out[:6]) == (1, "✘ deny")
    shown = lockkeeper("explain", "--policies", str(policies), *ASKED, "--subject", "erik")
    assert (shown.code, shown.out[:7]) == (1, "? error")
    assert "is not user:NAME or service-account:NAME" in shown.out


def test_a_claimed_group_is_told(lockkeeper: Command, policies: Path) -> None:
    """What the answer rests on, and what it is when it may not."""
    asked = ("--subject", "user:erik", "--group", "readers")
    shown = lockkeeper("explain", "-p", str(policies), *ASKED, *asked)
    assert (shown.code, "rests on what the request claims: groups" in shown.out) == (0, True)
    shown = lockkeeper("explain", "-p", str(policies), *ASKED, *asked, "--trust", "")
    assert (shown.code, "rests on groups, which this request topic is not trusted" in shown.out) == (1, True)


def test_a_batch_gives_a_tree_for_each_evaluation(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """As JSON, a line each; an incomplete item is an error of its own."""
    file = tmp_path / "r.json"
    file.write_text(json.dumps(request(evaluations=[{}, {"action": {"name": "kafka:DeleteTopic"}}, {"action": 7}])))
    shown = lockkeeper("explain", "-p", str(policies), "--file", str(file), "--json")
    assert shown.code == 1
    assert [record["held"] for record in shown.records] == [True, False, None]


def test_the_moment_can_be_told(lockkeeper: Command, policies: Path) -> None:
    """Time-bound access, before and after its end."""
    bound = "valid_until: 2026-01-01T00:00:00Z\n" + GROUP.format(name="readers", role="order-readers")
    (policies / "group.yaml").write_text(bound)
    asked = ("explain", "-p", str(policies), *ASKED, "--subject", "user:dana")
    assert lockkeeper(*asked, "--at", "2025-12-31T23:59:59Z").code == 0
    assert lockkeeper(*asked, "--at", "1767225600000").out.startswith("✘ deny")
    assert "does not say its time" in lockkeeper(*asked).out
    assert lockkeeper(*asked, "--at", "noon").code == 2
    assert lockkeeper(*asked, "--at", "1767225599999", "--trust", "").code == 0, "--at is no claim"


def test_names_cannot_rewrite_the_terminal(lockkeeper: Command, policies: Path) -> None:
    """Control characters and markup of a request are shown as they are."""
    shown = lockkeeper("explain", "-p", str(policies), *ASKED, "--subject", "user:\x1b[31m[bold]x")
    assert "user:\\u001b[31m[bold]x" in shown.out


def test_who_can_lists_subjects_and_claims(lockkeeper: Command, policies: Path) -> None:
    """Whom the documents name, and whoever claims the group."""
    asked = ("who-can", "kafka:GetTopicDetails", "--system", "lenses6", "-p", str(policies))
    shown = lockkeeper(*asked, "kafka:topic:prod/main/orders")
    assert (shown.code, shown.out.splitlines()) == (0, ["user:dana", "any principal that claims readers in groups"])
    shown = lockkeeper(*asked, "kafka:topic:prod/main/orders", "--trust", "", "--json")
    dana = {"name": "user:dana", "claim": "", "type": ""}
    assert shown.records == [{"allowed": [dana], "everyone": False, "but": [], "complete": True}]
    shown = lockkeeper(*asked, "kafka:topic:prod/main/payments")
    assert (shown.code, shown.out, "no principal" in shown.err) == (0, "", True)


def test_who_can_asks_within_an_organization(lockkeeper: Command, tmp_path: Path) -> None:
    """Where there are several, nobody is allowed anything unless it is said in which."""
    organization = "{{system: streamsets, kind: Organization, name: {0}, spec: {{enforcement: true}}}}\n"
    job = "{system: streamsets, kind: Object, name: job:j, spec: {type: job, owner: rita, organization: acme}}\n"
    texts = (organization.format("acme"), organization.format("other"), job)
    (tmp_path / "all.yaml").write_text("---\n".join(texts))
    asked = ("who-can", "job.view", "job:j", "--system", "streamsets", "-p", str(tmp_path))
    assert lockkeeper(*asked).out == ""
    assert "rita" in lockkeeper(*asked, "--organization", "acme").out.splitlines()

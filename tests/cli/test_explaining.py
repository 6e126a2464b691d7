"""`lockkeeper explain | who-can`: why, and who."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streaming.cli.request_options import Evaluation
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


def test_a_claimed_group_is_reported(lockkeeper: Command, policies: Path) -> None:
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


def test_a_batch_that_ends_with_its_first_permit_is_an_allow(
    lockkeeper: Command, policies: Path, tmp_path: Path
) -> None:
    """Whatever its evaluations before that are; none after it is evaluated."""
    file, denied = tmp_path / "r.json", {"action": {"name": "kafka:DeleteTopic"}}
    semantic = {"evaluations_semantic": "permit_on_first_permit"}
    file.write_text(json.dumps(request(evaluations=[denied, {}, denied], options=semantic)))
    shown = lockkeeper("explain", "-p", str(policies), "--file", str(file), "--json")
    assert (shown.code, [record["held"] for record in shown.records]) == (0, [False, True])


def test_the_moment_can_be_given(lockkeeper: Command, policies: Path) -> None:
    """Time-bound access, before and after its end."""
    bound = "valid_until: 2026-01-01T00:00:00Z\n" + GROUP.format(name="readers", role="order-readers")
    (policies / "group.yaml").write_text(bound)
    asked = ("explain", "-p", str(policies), *ASKED, "--subject", "user:dana")
    assert lockkeeper(*asked, "--at", "2025-12-31T23:59:59Z").code == 0
    assert lockkeeper(*asked, "--at", "1767225600000").out.startswith("✘ deny")
    assert "does not say its time" in lockkeeper(*asked).out
    for at in ("noon", "9" * 19, "9" * 20, "9" * 5000):
        for command in (asked, ("what-can", "-p", str(policies), "--system", "lenses6", "--subject", "user:dana")):
            refused = lockkeeper(*command, "--at", at)
            assert (refused.code, "Traceback" in refused.err) == (2, False)
            assert "RFC 3339" in refused.err or "is not between 1970 and 9999" in refused.err
    assert lockkeeper(*asked, "--at", "1767225599999", "--trust", "").code == 0, "--at is no claim"


def test_names_cannot_rewrite_the_terminal(lockkeeper: Command, policies: Path) -> None:
    """Control characters and markup of a request are shown as they are."""
    shown = lockkeeper("explain", "-p", str(policies), *ASKED, "--subject", "user:\x1b[31m[bold]x")
    assert "user:\\u001b[31m[bold]x" in shown.out


def test_who_can_lists_subjects_and_claims(lockkeeper: Command, policies: Path) -> None:
    """Principals that the documents name, and any that claims the group."""
    asked = ("who-can", "--action", "kafka:GetTopicDetails", "--system", "lenses6", "-p", str(policies))
    shown = lockkeeper(*asked, "--resource", "kafka:topic:prod/main/orders")
    assert (shown.code, shown.out.splitlines()) == (0, ["user:dana", "any principal that claims readers in groups"])
    shown = lockkeeper(*asked, "--resource", "kafka:topic:prod/main/orders", "--trust", "", "--json")
    dana = {"name": "user:dana", "claim": "", "type": ""}
    assert shown.records == [{"allowed": [dana], "everyone": False, "but": [], "complete": True}]
    shown = lockkeeper(*asked, "--resource", "kafka:topic:prod/main/payments")
    assert (shown.code, shown.out, "no principal" in shown.err) == (0, "", True)


def test_values_without_names_of_options_are_taken_with_a_warning(lockkeeper: Command, policies: Path) -> None:
    """As 0.1 had it, in its order."""
    typed = ("--system", "lenses6", "-p", str(policies))
    shown = lockkeeper("who-can", "kafka:GetTopicDetails", "kafka:topic:prod/main/orders", *typed)
    assert (shown.code, shown.out.splitlines()[0]) == (0, "user:dana")
    assert shown.err.startswith("warning: write --action before kafka:GetTopicDetails")
    same = lockkeeper("who-can", "kafka:topic:prod/main/orders", "--action", "kafka:GetTopicDetails", *typed)
    assert (same.code, same.out) == (0, shown.out)
    shown = lockkeeper("what-can", "user:dana", *typed)
    assert (shown.code, "warning: write --subject before user:dana" in shown.err) == (0, True)
    for words in (("what-can",), ("what-can", "user:dana", "more"), ("who-can", "a", "b", "c"), ("who-can", "a")):
        assert lockkeeper(*words, *typed).code == 2, words


def test_who_can_asks_within_an_organization(lockkeeper: Command, tmp_path: Path) -> None:
    """Where there are several, nobody is allowed anything unless it is said in which."""
    organization = "{{system: streamsets, kind: Organization, name: {0}, spec: {{enforcement: true}}}}\n"
    job = "{system: streamsets, kind: Object, name: job:j, spec: {type: job, owner: rita, organization: acme}}\n"
    texts = (organization.format("acme"), organization.format("other"), job)
    (tmp_path / "all.yaml").write_text("---\n".join(texts))
    named = ("--action", "job.view", "--resource", "job:j", "--system", "streamsets")
    asked = ("who-can", *named, "-p", str(tmp_path))
    assert lockkeeper(*asked).out == ""
    assert "rita" in lockkeeper(*asked, "--organization", "acme").out.splitlines()


def test_typing_errors_are_reported_unless_they_are_allowed(lockkeeper: Command, policies: Path) -> None:
    """Exit code 2 with what was meant; without anything near, a subject or resource is answered."""
    typed = ("--system", "lenses6", "-p", str(policies))
    subject, action, resource = "user:dana", "kafka:GetTopicDetails", "kafka:topic:prod/main/orders"

    def explain(subject: str, action: str, resource: str, *more: str) -> tuple[object, str]:
        asked = ("--subject", subject, "--action", action, "--resource", resource)
        shown = lockkeeper("explain", *typed, *asked, *more)
        return shown.code, shown.err

    code, message = explain(subject, "kafka:DeleteTopci", resource)
    assert code == 2
    assert "no action kafka:DeleteTopci; did you mean kafka:DeleteTopic?" in message
    assert explain(subject, "kafka:DeleteTopci", resource, "--allow-unknown")[0] == 1
    code, message = explain("user:dnaa", action, resource)
    assert (code, "did you mean user:dana?" in message) == (2, True)
    code, message = explain(subject, action, "kafka:topic:prod/main/ordres")
    assert (code, "did you mean kafka:topic:prod/main/orders?" in message) == (2, True)
    assert explain("user:erik", action, resource) == (1, "no subject user:erik in the documents\n")


def test_who_can_and_request_report_typing_errors(lockkeeper: Command, policies: Path) -> None:
    """`request` sends nothing then: it needs no Kafka to say so."""
    resource = "kafka:topic:prod/main/orders"
    asked = ("--action", "kafka:GetTopicDetials", "--resource", resource)
    typed = ("who-can", *asked, "--system", "lenses6", "-p", str(policies))
    shown = lockkeeper(*typed)
    assert (shown.code, "did you mean kafka:GetTopicDetails?" in shown.err) == (2, True)
    assert lockkeeper(*typed, "--allow-unknown").code == 0
    asked = ("--subject", "user:dana", *asked)
    shown = lockkeeper("request", "--system", "lenses6", *asked, "--bootstrap", "localhost:1")
    assert (shown.code, "did you mean kafka:GetTopicDetails?" in shown.err) == (2, True)
    shown = lockkeeper("request", "--system", "lense6", *asked, "--bootstrap", "localhost:1")
    assert (shown.code, "no system lense6; did you mean lenses6?" in shown.err) == (2, True)


def test_what_can_reports_typing_errors(lockkeeper: Command, policies: Path) -> None:
    """Of the subject, of a group that it claims and of the system; a name without anything near is answered."""
    typed = ("--system", "lenses6", "-p", str(policies))
    shown = lockkeeper("what-can", "--subject", "user:dnaa", *typed)
    assert (shown.code, shown.out) == (2, "")
    assert "no subject user:dnaa in the documents; did you mean user:dana?\n--allow-unknown" in shown.err
    allowed = lockkeeper("what-can", "--subject", "user:dnaa", *typed, "--allow-unknown", "--json")
    assert (allowed.code, allowed.records) == (0, [[]])
    shown = lockkeeper("what-can", "--subject", "user:erik", *typed, "--group", "raeders")
    assert (shown.code, "did you mean readers?" in shown.err) == (2, True)
    shown = lockkeeper("what-can", "--subject", "user:dana", "--system", "lense6", "-p", str(policies))
    assert (shown.code, "no system lense6; did you mean lenses6?" in shown.err) == (2, True)
    shown = lockkeeper("what-can", "--subject", "user:erik", *typed)
    assert (shown.code, shown.err.splitlines()[0]) == (0, "no subject user:erik in the documents")


def test_the_shell_completes_commands_and_options() -> None:
    """As `lockkeeper --install-completion` sets it up."""
    asked = {"_LOCKKEEPER_COMPLETE": "complete_bash", "COMP_WORDS": "lockkeeper who", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).with_name("lockkeeper"))]
    found = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.stdout.split() == ["who-can"]


def test_offsets_cannot_be_demanded_of_files(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """As with `decide`: an error for the request and for each item of a batch, never an allow."""
    file, demand = tmp_path / "r.json", {"min_policy_offsets": {"authz.policies.lenses6.v1": {"0": 0}}}
    batch = request(evaluations=[{}, {"context": demand}])
    for asked, held in ((request(context=demand), [None]), (batch, [None, None])):
        file.write_text(json.dumps(asked))
        shown = lockkeeper("explain", "-p", str(policies), "--file", str(file), "--json")
        assert (shown.code, [record["held"] for record in shown.records]) == (1, held)
        assert shown.records[0]["text"].startswith("error: user:dana ")
        assert "min_policy_offsets: 'authz.policies.lenses6.v1' is not a policy topic" in shown.records[0]["notes"][-1]
    file.write_text(json.dumps(request(who="user:eve", context=demand)))
    denied = lockkeeper("explain", "-p", str(policies), "--file", str(file), "--allow-unknown")
    assert ("nearest" in denied.out, "allowed to" in denied.out) == (False, False), (
        "nor is anybody else allowed by them"
    )
    named = ("--system", "lenses6", "--action", "kafka:GetTopicDetails", "--resource", "kafka:topic:prod/main/orders")
    who = lockkeeper("who-can", "-p", str(policies), *named, "--context", json.dumps(demand), "--json")
    assert (who.code, who.lines) == (1, [])
    assert "min_policy_offsets: 'authz.policies.lenses6.v1' is not a policy topic" in who.err


def test_what_is_in_force_now_is_asked_about_now() -> None:
    """A request of a file keeps its own time where that counts; what is in files has none unless it is said."""
    now, own = time.time_ns() // 1_000_000, {"time": 5}
    live, untrusted, files = Evaluation(live=True), Evaluation(live=True, trust="groups"), Evaluation(policies=Path())
    for evaluation, asked in ((live, {}), (untrusted, {}), (untrusted, own)):
        assert now <= evaluation.timed(asked)["time"] < now + 60_000
        assert "time" in evaluation.claims()
    assert live.timed(own) == own
    assert Evaluation(live=True, at="7").timed(own) == {"time": 7}
    assert (files.timed({}), files.time()) == ({}, None)

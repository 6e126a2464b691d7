"""`lockkeeper policy lint | test | diff`: what policy authors and their build servers see."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from confluent_kafka import Producer

from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.cli.documents import BROKEN, GROUP, ROLE, lines, readers_folder, request
from tests.cli.lockkeeper import Command

CASES = """\
system: lenses6
cases:
- case: readers read
  stages:
  - expect:
    - ask: {{subject: "user:dana", action: "kafka:GetTopicDetails", resource: "kafka:topic:prod/main/{topic}"}}
      answer: allow
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A folder of good policies."""
    return readers_folder(tmp_path / "policies")


def case_file(folder: Path, topic: str = "orders") -> Path:
    """A case file that expects user:dana to be allowed on the topic."""
    folder.mkdir(exist_ok=True)
    (folder / f"{topic}.yaml").write_text(CASES.format(topic=topic))
    return folder / f"{topic}.yaml"


def test_lint_finds_nothing_in_good_policies(lockkeeper: Command, policies: Path) -> None:
    """No output, a count, exit code 0 even when strict."""
    shown = lockkeeper("policy", "lint", str(policies), "--strict")
    assert (shown.code, shown.out) == (0, "")
    assert "2 documents: 0 errors, 0 warnings" in shown.err


def test_lint_fails_for_errors_and_names_the_place(lockkeeper: Command, policies: Path) -> None:
    """File, line, document and what would be right."""
    (policies / "z.yaml").write_text(f"# a comment\n{BROKEN}")
    shown = lockkeeper("policy", "lint", str(policies))
    assert shown.code == 1
    assert f"{policies}/z.yaml:7:3: error: lenses6/Role/broken: enforcment: unknown field" in shown.out


def test_lint_names_the_place_of_what_is_no_document(lockkeeper: Command, tmp_path: Path) -> None:
    file = tmp_path / "roles.yaml"
    file.write_text("- system: lenses6\n  kind: Role\n  name: r\n  spec: {statements: []}\n- roles\n")
    shown = lockkeeper("policy", "lint", str(file))
    assert f"{file}:5 (document 2): error: ?: a document is a mapping, not str [refused]" in shown.lines


def test_lint_fails_for_warnings_when_it_is_strict_alone(lockkeeper: Command, policies: Path) -> None:
    """A role that nobody has, as JSON too."""
    (policies / "lonely.yaml").write_text(ROLE.format(name="lonely", topic="x"))
    assert lockkeeper("policy", "lint", str(policies)).code == 0
    shown = lockkeeper("policy", "lint", str(policies), "--strict", "--json")
    assert shown.code == 1
    (finding,) = shown.records
    assert (finding["code"], finding["document"], finding["level"]) == (
        "nobody-has-it",
        "lenses6/Role/lonely",
        "warning",
    )
    assert finding["place"].startswith(f"{policies}/lonely.yaml:1")


def test_cases_that_hold_pass(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """Against the policies of a folder, with coverage."""
    shown = lockkeeper("policy", "test", str(case_file(tmp_path / "t")), "-p", str(policies), "--coverage", "100")
    assert shown.code == 0
    assert shown.out == "1 of 1 expectations hold; 100.0 % of the statements decided\n"


def test_lint_lists_findings_in_the_order_of_lines(lockkeeper: Command, tmp_path: Path) -> None:
    """Whatever the documents are called."""
    roles = [ROLE.format(name=name, topic="x") for name in ("zebra", "middle", "ant")]
    (tmp_path / "roles.yaml").write_text("---\n".join(roles))
    lines_ = [record["line"] for record in lockkeeper("policy", "lint", str(tmp_path), "--json").records]
    assert lines_ == sorted(lines_)
    assert len(lines_) == 3


def test_typing_errors_in_cases_are_reported(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """A case that expects a deny would hold for any name that is misspelt."""
    file = case_file(tmp_path / "t")
    asked = ("policy", "test", str(file), "--policies", str(policies))
    for right, wrong, meant in (
        ("kafka:GetTopicDetails", "kafka:DeleteTopci", "kafka:DeleteTopic"),
        ("user:dana", "user:dnaa", "user:dana"),
        ("main/orders", "main/ordres", "kafka:topic:prod/main/orders"),
    ):
        file.write_text(CASES.format(topic="orders").replace("allow", "deny").replace(right, wrong))
        shown = lockkeeper(*asked)
        assert (shown.code, f"did you mean {meant}?" in shown.err) == (2, True)
        assert lockkeeper(*asked, "--allow-unknown").code == 0


def test_a_case_file_whose_names_match_nothing_fails(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """All of its denies hold, for the policies are others'."""
    file = case_file(tmp_path / "t", "payments")
    file.write_text(file.read_text().replace("allow", "deny"))
    asked = ("policy", "test", str(file), "--policies", str(policies))
    shown = lockkeeper(*asked)
    assert (shown.code, "no request has a subject and a resource that the documents know" in shown.err) == (1, True)
    assert lockkeeper(*asked, "--allow-unknown").code == 0


def test_cases_that_fail_are_reported_and_written_as_junit(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """One line each, and XML that a build server can show."""
    case_file(tmp_path / "t"), case_file(tmp_path / "t", "payments")
    report = tmp_path / "junit.xml"
    shown = lockkeeper("policy", "test", str(tmp_path / "t"), "--policies", str(policies), "--junit", str(report))
    assert shown.code == 1
    assert f"FAILED {tmp_path}/t/payments.yaml: readers read, stage 1: user:dana" in shown.out
    assert "must be allow, was deny" in shown.out
    suites = {suite.get("name"): suite for suite in ElementTree.parse(report).getroot()}
    counts = {Path(str(name)).stem: (suite.get("tests"), suite.get("failures")) for name, suite in suites.items()}
    assert counts == {"orders": ("1", "0"), "payments": ("1", "1")}
    (failure,) = ElementTree.parse(report).getroot().iter("failure")
    assert "was deny" in str(failure.get("message"))


def test_too_little_coverage_fails_and_names_the_idle_statement(
    lockkeeper: Command, policies: Path, tmp_path: Path
) -> None:
    """What no case would miss."""
    (policies / "more.yaml").write_text(ROLE.format(name="more", topic="x"))
    arguments = ("policy", "test", str(case_file(tmp_path / "t")), "--policies", str(policies))
    shown = lockkeeper(*arguments, "--coverage", "60")
    assert shown.code == 1
    assert "not covered by any case: lenses6/Role/more statement 0" in shown.out
    assert "50.0 % of the statements are covered; required: 60 %" in shown.err
    assert lockkeeper(*arguments, "--json").records == [
        {"expectations": 1, "failures": [], "coverage": 50.0, "idle": ["lenses6/Role/more statement 0"]}
    ]


def test_policies_that_do_not_conform_to_their_schema_are_reported_beside_the_results(
    lockkeeper: Command, tmp_path: Path
) -> None:
    """Cedar's Schema documents."""
    (tmp_path / "p.yaml").write_text(
        "{system: cedar, kind: Schema, name: s, spec: {schema: 'entity U {a?: Bool}; action r appliesTo "
        "{principal: U, resource: U};'}}\n---\n{system: cedar, kind: PolicySet, name: p, spec: {policies: "
        "'permit (principal, action, resource); permit (principal, action, resource) when { principal.b };'}}\n"
    )
    ask = "{subject: 'U::\"u\"', action: r, resource: 'U::\"u\"'}"
    case = f"{{system: cedar, cases: [{{case: c, stages: [{{expect: [{{ask: {ask}, answer: allow}}]}}]}}]}}"
    (tmp_path / "case.yaml").write_text(case)
    shown = lockkeeper("policy", "test", str(tmp_path / "case.yaml"), "-p", str(tmp_path / "p.yaml"))
    assert shown.code == 0
    assert "warning: cedar/PolicySet/p statement 1: attribute `b` on entity type `U` not found [schema]" in shown.err


def test_a_folder_without_case_files_and_a_wrong_one_are_reported(lockkeeper: Command, tmp_path: Path) -> None:
    """Nothing to run is no success."""
    (tmp_path / "empty").mkdir()
    assert lockkeeper("policy", "test", str(tmp_path / "empty")).code == 2
    (tmp_path / "wrong.yaml").write_text("cases: [{case: c, stages: []}]")
    shown = lockkeeper("policy", "test", str(tmp_path / "wrong.yaml"))
    assert shown.code == 1
    assert "wrong.yaml: cases[0] (c): expects nothing" in shown.err


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The policies with one more topic to read."""
    folder = readers_folder(tmp_path / "changed")
    (folder / "more.yaml").write_text(ROLE.format(name="more", topic="payments"))
    (folder / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers, more"))
    return folder


def test_diff_of_the_same_policies_is_nothing(lockkeeper: Command, policies: Path) -> None:
    """Exit code 0."""
    shown = lockkeeper("policy", "diff", str(policies), str(policies))
    assert (shown.code, shown.out) == (0, "0 differences; no requests were compared\n")


def test_diff_tells_grants_and_decisions_that_change(
    lockkeeper: Command, policies: Path, changed: Path, tmp_path: Path
) -> None:
    """What widens is marked; requests are replayed."""
    asked = tmp_path / "requests.jsonl"
    asked.write_text(lines(request(), request(topic="payments"), request(topic="other")))
    shown = lockkeeper("policy", "diff", str(policies), str(changed), "--requests", str(asked))
    assert shown.code == 1
    assert "+! lenses6/Role/more: role:more allow kafka:Get* on kafka:topic:prod/main/payments" in shown.out
    assert "+! lenses6/Group/readers: group:readers is role:more" in shown.out
    assert "request 2: user:dana kafka:GetTopicDetails kafka:topic:prod/main/payments: deny → allow" in shown.out
    assert shown.out.endswith("2 differences, 1 of 3 decisions would change\n")


def test_diff_fails_for_what_it_is_asked_to_fail_for(lockkeeper: Command, policies: Path, changed: Path) -> None:
    """A change that only narrows passes `--fail-on widening`."""
    assert lockkeeper("policy", "diff", str(policies), str(changed), "--fail-on", "widening").code == 1
    assert lockkeeper("policy", "diff", str(changed), str(policies), "--fail-on", "widening").code == 0
    assert lockkeeper("policy", "diff", str(changed), str(policies)).code == 1
    assert lockkeeper("policy", "diff", str(policies), str(changed), "--fail-on", "nothing").code == 0
    assert lockkeeper("policy", "diff", str(policies), str(changed), "--fail-on", "perhaps").code == 2


def test_diff_as_json_is_one_object(lockkeeper: Command, policies: Path, changed: Path, tmp_path: Path) -> None:
    """With whole decisions of both sides."""
    asked = tmp_path / "requests.jsonl"
    asked.write_text(lines(request(topic="payments")))
    shown = lockkeeper("policy", "diff", str(policies), str(changed), "-r", str(asked), "--json")
    (result,) = shown.records
    assert [difference["widens"] for difference in result["differences"]] == [True, True]
    assert (result["changes"][0]["before"]["decision"], result["changes"][0]["after"]["decision"]) == (False, True)


def test_diff_refuses_wrong_documents_and_requests(lockkeeper: Command, policies: Path, tmp_path: Path) -> None:
    """A comparison with what would not be in force is worth nothing."""
    asked = tmp_path / "requests.jsonl"
    asked.write_text(json.dumps(request()) + "\n[1]\n")
    shown = lockkeeper("policy", "diff", str(policies), str(policies), "--requests", str(asked))
    assert (shown.code, "line 2" in shown.err) == (2, True)
    (policies / "z.yaml").write_text(BROKEN)
    shown = lockkeeper("policy", "diff", str(policies), str(policies))
    assert (shown.code, "lenses6/Role/broken: enforcment" in shown.err) == (1, True)


@pytest.mark.stream
@pytest.mark.parametrize(
    "command",
    [
        ("policy", "diff", "{good}", "{missing}"),
        ("policy", "diff", "{missing}", "{good}"),
        ("policy", "review", "{good}", "{missing}"),
        ("policy", "lint", "{missing}"),
        ("policy", "test", "{missing}", "--policies", "{good}"),
        ("policy", "apply", "{missing}"),
        ("export", "kafka-acls", "{missing}"),
    ],
)
def test_a_path_that_does_not_exist_is_wrong_usage_and_no_difference_or_failed_check(
    lockkeeper: Command, policies: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A pipeline that takes exit code 1 for a difference, or for a review that failed, must not take this for one."""
    missing = tmp_path / "missing"
    shown = lockkeeper(*(part.format(good=policies, missing=missing) for part in command))
    assert shown.code == 2
    assert str(missing) in shown.err


@pytest.mark.parametrize(
    "command",
    [
        ("policy", "diff", "{good}", ""),
        ("policy", "diff", "", "{good}"),
        ("policy", "review", "", "{good}"),
        ("policy", "lint", ""),
        ("policy", "test", "", "--policies", "{good}"),
        ("policy", "apply", "", "--prune"),
        ("decide", "--policies", "", "--requests", "{good}"),
        ("replay", "--policies", "{good}", "--against", "", "--requests", "{good}"),
        ("replay", "--policies", "{good}", "--requests", ""),
        ("import", "lenses6", "", "--out", "{good}"),
        ("export", "kafka-acls", ""),
    ],
)
def test_an_empty_path_is_wrong_usage_and_not_the_working_folder(
    lockkeeper: Command, policies: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """As of a variable that is not set: `apply --prune` would delete what the working folder does not have."""
    monkeypatch.chdir(policies)
    shown = lockkeeper(*(part.format(good=policies) for part in command))
    assert shown.code == 2
    assert "an empty path" in shown.err or "no such path" in shown.err


def test_diff_replays_the_newest_requests_of_the_request_topic(
    lockkeeper: Command, policies: Path, changed: Path, config: Path, topics: TopicNames, broker: TestBroker
) -> None:
    """So many of them over all partitions; a record that is no request is passed over."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    values = [request(topic="payments"), request(topic="other"), request(topic="payments"), request(topic="payments")]
    for value in (b"no request", *(json.dumps(value).encode() for value in values)):
        producer.produce(topics.requests[0], value)
        assert producer.flush(30) == 0
    shown = lockkeeper("policy", "diff", str(policies), str(changed), "--newest", "2", "--config", str(config))
    assert shown.out.endswith("2 differences, 2 of 2 decisions would change\n")
    shown = lockkeeper("policy", "diff", str(policies), str(changed), "--newest", "9", "--config", str(config))
    assert shown.out.endswith("2 differences, 3 of 4 decisions would change\n")

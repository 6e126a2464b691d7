"""Every command that prints what others wrote: names with line breaks, escapes and hidden characters change no line."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from docs import generate
from streaming.kafka.authorship import Authorship
from streaming.kafka.publish import PolicyRecord, await_visible, policy_producer, write
from streaming.settings import Settings
from streaming.snapshots.policies import Policies
from streaming.terminal import one_line
from streaming.topics import TopicNames, dead_letters_of
from tests.cli.documents import ROLE, request
from tests.cli.lockkeeper import Command, Outcome
from tests.cli.test_questions import Decided
from tests.waiting import wait_until

FORGED = "FORGED"
HIDDEN = "\x00\x07\x08\r\x1b[2J\x7f\x85\x9b\u200b\u202e\u2028\u2066\U000e0001[red]x[/red]"
HOSTILE = f"ann\n{FORGED}  ALLOW\t{HIDDEN}"
DRIVEN = {
    *("decide", "decisions", "doctor", "explain", "export", "import", "report", "request", "status", "tail", "verify"),
    *(
        "who-can",
        "what-can",
        "topics check",
        "policy apply",
        "policy delete",
        "policy diff",
        "policy get",
        "policy lint",
        "policy review",
    ),
    *("policy log", "policy rollback", "policy show", "policy status", "policy test"),
}
OWN = {  # commands that print nothing that others wrote
    *(
        "broker",
        "checkpoint",
        "checkpoint archive",
        "contracts",
        "policy",
        "topics",
        "topics create",
        "topics manifest",
    ),
    *("console", "playground"),  # their pages: tests/console
    *("demo", "monitor", "run", "serve"),  # their lines: tests/demo, tests/observability/test_logs.py, tests/serve
    "access-changes",  # its lines: tests/access_changes/test_process.py
    "replay",  # needs Spark: its lines are printed in tests/cli/test_replay.py
}


def check(shown: Outcome, as_json: bool = False) -> None:
    """No character is hidden, and no line begins where a name goes on. JSON is JSON."""
    for text in (shown.out, shown.err):
        for line in text.split("\n"):
            assert one_line(line) == line, repr(line)
            assert not line.strip().startswith(FORGED), text
    assert "Traceback" not in shown.err, shown.err
    if as_json:
        for line in shown.lines:
            json.loads(line)


def test_every_command_is_driven_with_hostile_names() -> None:
    commands = {" ".join(path[1:]) for path, _ in generate.walk_commands()} - {""}
    assert commands == DRIVEN | OWN, "drive a new command here, or say that it prints nothing of others"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents with hostile texts wherever a document may have any, and one that is refused for its name."""
    made = tmp_path / "policies"
    made.mkdir()
    role = yaml.safe_load(ROLE.format(name="readers", topic="*"))
    role["spec"] |= {"description": HOSTILE, "metadata": {HOSTILE: HOSTILE}}
    role["spec"]["statements"].append(
        {"sid": HOSTILE, "effect": "deny", "action": "x:y", "resource": "kafka:topic:a/b/c"}
    )
    group = {
        "system": "lenses6",
        "kind": "Group",
        "name": "staff",
        "spec": {"roles": ["readers"], "members": ["user:dana"]},
    }
    (made / "a.json").write_text(json.dumps([role, group]))
    return made


def refused_folder(folder: Path) -> Path:
    """Beside it: documents whose names, kinds, fields and values are hostile."""
    made = folder.parent / "refused"
    made.mkdir()
    statement = {"effect": HOSTILE, "action": HOSTILE, "resource": HOSTILE, HOSTILE: HOSTILE}
    documents = [
        {"system": "lenses6", "kind": "Role", "name": HOSTILE, "spec": {"statements": [statement]}, HOSTILE: 1},
        {"system": HOSTILE, "kind": HOSTILE, "name": HOSTILE, "spec": {HOSTILE: 1}},
        {"system": "cedar", "kind": "PolicySet", "name": "x", "spec": {"policies": HOSTILE}},
        {
            "system": "cdap",
            "kind": "Grant",
            "name": "g",
            "spec": {"user": HOSTILE, "entity": HOSTILE, "privileges": [HOSTILE]},
        },
    ]
    (made / "b.json").write_text(json.dumps(documents))
    return made


@pytest.mark.long
def test_documents_and_requests_in_files(lockkeeper: Command, folder: Path, tmp_path: Path) -> None:
    refused = refused_folder(folder)
    asked = tmp_path / "requests.jsonl"
    batch = request(HOSTILE, HOSTILE, id=HOSTILE, evaluations=[{"action": {"name": HOSTILE}}])
    asked.write_text("\n".join(json.dumps(one) for one in (request(HOSTILE, HOSTILE, id=HOSTILE), batch, {HOSTILE: 1})))
    names = ("--system", "lenses6", "--subject", HOSTILE, "--action", HOSTILE, "--resource", HOSTILE)
    cases = tmp_path / "cases.yaml"
    case = {"name": HOSTILE, "stages": [{"documents": [], "expect": [{HOSTILE: HOSTILE}]}]}
    cases.write_text(json.dumps({"cases": [case], HOSTILE: 1}))
    exported = tmp_path / "lenses.yaml"
    exported.write_text(
        json.dumps([{"name": HOSTILE, "policy": [{"effect": HOSTILE, "action": [HOSTILE]}], HOSTILE: 1}])
    )
    for path in (str(folder), str(refused)):
        check(lockkeeper("decide", "--policies", path, "--requests", str(asked)), as_json=True)
        for options in ([], ["--json"]):
            as_json = bool(options)
            check(lockkeeper("explain", "--policies", path, *names, "--allow-unknown", *options), as_json)
            check(lockkeeper("explain", "--policies", path, *names, *options), as_json)
            check(lockkeeper("policy", "lint", path, *options), as_json)
            check(lockkeeper("policy", "diff", str(folder), path, "--requests", str(asked), *options), as_json)
            check(lockkeeper("policy", "diff", path, str(folder), *options), as_json)
            check(lockkeeper("policy", "review", str(folder), path, *options), as_json)
            check(lockkeeper("policy", "test", str(cases), "--policies", path, *options), as_json)
            check(
                lockkeeper(
                    "who-can",
                    "--action",
                    HOSTILE,
                    "--resource",
                    HOSTILE,
                    "--system",
                    "lenses6",
                    "--policies",
                    path,
                    *options,
                ),
                as_json,
            )
            check(
                lockkeeper("what-can", "--subject", "user:dana", "--system", "lenses6", "--policies", path, *options),
                as_json,
            )
            check(
                lockkeeper("import", "lenses6", str(exported), "--out", str(tmp_path), "--dry-run", *options), as_json
            )
        for form in ("markdown", "sarif"):
            check(lockkeeper("policy", "diff", str(folder), path, "--format", form))
        check(lockkeeper("policy", "review", str(folder), path, "--sarif"), as_json=True)
        check(lockkeeper("export", "kafka-acls", path))
    check(lockkeeper("policy", "lint", HOSTILE))
    check(lockkeeper("policy", HOSTILE))
    check(lockkeeper(HOSTILE))


@pytest.fixture
def ask(lockkeeper: Command, config: Path) -> Callable[..., Outcome]:
    """The command with the settings of the test."""
    return lambda *arguments: lockkeeper(*arguments, "--config", str(config))


@pytest.mark.stream
@pytest.mark.timeout(300)
@pytest.mark.long
def test_what_others_wrote_to_kafka(
    ask: Callable[..., Outcome], settings: Settings, topics: TopicNames, admin: AdminClient, folder: Path
) -> None:
    _write_hostile_records(ask, settings, topics, admin, folder)
    refused = str(refused_folder(folder))
    [change, *_] = [one["name"] for one in ask("policy", "log", "--json").records]
    [*_, decision] = [one["id"] for one in ask("decisions", "--json").records]
    both: list[list[str]] = [
        ["decisions"],
        ["decisions", "--subject", HOSTILE],
        ["explain", "--decision", decision],
        ["explain", "--decision", HOSTILE],
        ["doctor", HOSTILE],
        ["status"],
        ["tail", "decisions", "--from-beginning", "--count", "2"],
        ["tail", "alerts", "--from-beginning", "--count", "1"],
        ["topics", "check"],
        ["verify"],
        ["policy", "log"],
        ["policy", "log", "--author", HOSTILE],
        ["policy", "log", "--document", HOSTILE],
        ["policy", "show", change],
        ["policy", "show", HOSTILE],
        ["policy", "get"],
        ["policy", "get", "--refused"],
        ["policy", "get", "--at", HOSTILE],
        ["policy", "get", f"lenses6/{HOSTILE}"],
        ["policy", "status", str(folder)],
        ["policy", "diff", "live", str(folder)],
        ["policy", "apply", refused],
        ["policy", "apply", str(folder), "--no-strict", "--prune", "--author", HOSTILE],
        ["policy", "rollback", HOSTILE],
        ["policy", "rollback", change, "--reason", HOSTILE],
        ["policy", "delete", HOSTILE],
        ["policy", "delete", f"lenses6/Role/{HOSTILE}"],
        ["request", "--file", str(_request_file(folder)), "--timeout", "0.2", "--allow-unknown"],
    ]
    for command in both:
        check(ask(*command, "--json"), as_json=True)
        check(ask(*command))
    check(ask("report", "--last", "1h", "--json"), as_json=True)
    rows = [line for line in ask("decisions").lines if line.strip()]
    assert len(rows) == len(ask("decisions", "--json").lines)
    assert ask("decisions", "--json").records[0]["request_id"] == HOSTILE, "JSON says what was sent"


def _request_file(folder: Path) -> Path:
    file = folder.parent / "request.json"
    file.write_text(json.dumps(request(HOSTILE, HOSTILE, id=HOSTILE)))
    return file


def _write_hostile_records(
    ask: Callable[..., Outcome], settings: Settings, topics: TopicNames, admin: AdminClient, folder: Path
) -> None:
    """Policies, changes, requests, decisions, dead letters and alerts, each with hostile texts."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    with _job_reader(settings, producer) as write_changes:
        assert ask("policy", "apply", str(folder), "--no-strict").code == 0
        write_changes()
        topic, by = topics.policy_topics()["lenses6"], Authorship(*(HOSTILE.replace("ann", name) for name in "abcd"))
        role = {"system": "lenses6", "kind": "Role", "name": HOSTILE, "spec": {"statements": []}}
        keys = (f"Role/{HOSTILE}", HOSTILE, f"Role/other{HOSTILE}")
        values = (json.dumps(role).encode(), HOSTILE.encode(), f"{{{HOSTILE}: 1".encode())
        records = [PolicyRecord(topic, k.encode(), v, by.headers()) for k, v in zip(keys, values, strict=True)]
        await_visible(settings, write(policy_producer(settings, {"lenses6"}), records))
        write_changes()
    decided = Decided(settings, admin, topics)
    hostile = request(HOSTILE, HOSTILE, id=HOSTILE)
    decided.send(hostile, {**hostile, "action": {"name": HOSTILE}}, HOSTILE.encode(), {**hostile, "system": HOSTILE})
    decided.decide()
    alert = dict.fromkeys(("id", "kind", "severity", "time", "subject", "message"), HOSTILE)
    producer.produce(topics.alerts, json.dumps({**alert, "evidence": [HOSTILE]}).encode(), HOSTILE.encode())
    headers = [("__connect.errors.exception.message", HOSTILE.encode())]
    producer.produce(dead_letters_of(topics.requests[0]), HOSTILE.encode(), headers=headers)
    assert producer.flush(30) == 0


@contextlib.contextmanager
def _job_reader(settings: Settings, producer: Producer) -> Iterator[Callable[[], None]]:
    """The job's reader of policies; yields what writes the changes topic, as the job does between batches."""
    policies = Policies(settings, {})

    def write_changes() -> None:
        policies.catch_up(30)
        wait_until(lambda: policies.unanalysed() == {} or policies.has_news, "the change is compared")
        for topic, key, value, headers in policies.pending():
            producer.produce(topic, value, key, headers=headers)
        assert producer.flush(30) == 0
        policies.published()

    with contextlib.closing(policies):
        write_changes()  # the first start is over: what comes is a change
        yield write_changes

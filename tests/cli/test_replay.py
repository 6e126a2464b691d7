"""`lockkeeper replay` on Spark: requests of files and of topics, by the answers of `decide` on all of them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import policy
from policy import compile_documents, read_documents
from streaming.cli.comparing import FailOn
from streaming.cli.failure import Failure
from streaming.cli.replay import apply_fail_on, describe_unread_requests, show
from streaming.history.span import Span
from streaming.kafka.clients import topic_ids
from streaming.kafka.publish import publish
from streaming.replay.result import Compared, Example, Totals, replayed
from streaming.replay.run import files_of
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.cli.documents import readers_folder, request
from tests.cli.lockkeeper import Command, Outcome
from tests.cli.test_comparing import widen
from tests.cli.test_hostile_output import HOSTILE, check

MANY = 2000
COMMAND = [str(Path(sys.executable).parent / "lockkeeper")]


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: Spark's Java ends with it."""
    return subprocess.run([*COMMAND, "replay", *arguments], capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The policies, and a draft by which the readers may read every topic."""
    live, draft = readers_folder(tmp_path / "live"), readers_folder(tmp_path / "draft")
    widen(draft)
    return live, draft


def asked(count: int) -> list[dict[str, Any]]:
    """Requests by three subjects about five topics."""
    topics = ("orders", "payments", "salaries", "audit", "o/rders")
    return [
        request(f"user:{('dana', 'eve', 'finn')[n % 3]}", topics[n % 5], id=f"r-{n}", time=1_700_000_000_000 + n)
        for n in range(count)
    ]


def expected(requests: list[dict[str, Any]], live: Path, draft: Path) -> Counter[str]:
    """What `decide` answers by both."""
    sides = [compile_documents([one.value for one in read_documents(folder)]) for folder in (live, draft)]
    return Counter(" → ".join(policy.decide(side, one).outcome for side in sides) for one in requests)


@pytest.mark.long
@pytest.mark.stream
@pytest.mark.timeout(400)
def test_requests_of_files_are_decided_as_decide_does(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Those in folders of folders, too, of which Spark reads none by default, and says nothing."""
    live, draft = folders
    requests = asked(MANY)
    lines, table = tmp_path / "r[1]/day=1/requests.jsonl", tmp_path / "table/day=1/requests.parquet"
    lines.parent.mkdir(parents=True)
    table.parent.mkdir(parents=True)
    lines.write_text("".join(f"{json.dumps(one)}\n" for one in requests) + "not a request\n\n")
    pq.write_table(pa.table({"value": [json.dumps(one).encode() for one in requests]}), table)
    read = ("-r", str(tmp_path / "r[1]"), "-r", str(tmp_path / "table"))
    shown = replay("--policies", str(draft), "--against", str(live), *read, "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["outcomes"] == {name: 2 * number for name, number in expected(requests, live, draft).items()}
    assert (found["records"], found["unreadable"], found["gain"]) == (2 * MANY + 1, 1, ["user:dana"])
    assert found["opened"] == found["differ"] > 0
    assert "1 records cannot be read as requests" in shown.stderr


@pytest.mark.stream
@pytest.mark.long
@pytest.mark.timeout(400)
def test_requests_of_topics_are_decided_again_under_a_draft_in_place_of_what_is_live(
    lockkeeper: Command,
    config: Path,
    settings: Settings,
    topics: TopicNames,
    admin: AdminClient,
    folders: tuple[Path, Path],
) -> None:
    live, draft = folders
    publish(settings, [one.value for one in read_documents(live)])
    requests = [{k: v for k, v in one.items() if k != "time"} for one in asked(300)]
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for one in requests:
        producer.produce(topics.requests[0], json.dumps(one).encode(), one["id"].encode())
    assert producer.flush(30) == 0
    options = ("--policies", str(draft), "--since", "1h", "--config", str(config))
    shown = replay(*options, "--json", "--fail-on", "widening")
    assert shown.returncode == 1, shown.stderr
    found = json.loads(shown.stdout)
    assert found["outcomes"] == expected(requests, live, draft)
    assert found["records"] == len(requests)
    topic_id = topic_ids(admin, topics.requests)[topics.requests[0]]
    assert all(one["decision"].startswith(f"{topic_id}-") for one in found["examples"])
    assert {one["name"] for one in found["statements"]} == {"lenses6/Role/wide statement 0"}
    page = Path(config).with_name("replayed.json")
    page.write_text(shown.stdout)
    reviewed = lockkeeper("policy", "review", str(live), str(draft), "--replayed", str(page))
    assert f"{found['differ']:,} would differ" in reviewed.out
    source = page.with_name("source.yaml")
    source.write_text(f"{config.read_text()}\nsource: {{kafka.security.protocol: SASL_SSL}}\n")
    refused = replay(*options, "--config", str(source))
    assert refused.returncode == 2
    assert "source: Spark's clients connect by SASL_SSL, and those of the setting kafka by PLAINTEXT" in refused.stderr
    text = replay(*options, "--system", "cdap")
    assert (text.returncode, text.stdout.splitlines()[1]) == (
        0,
        "0 answers would differ: 0 would be allow, 0 would no longer be; unknown: 0",
    )


def test_names_of_strangers_cannot_break_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals(records=1)
    example = Example("t", "d", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, "deny", "allow", HOSTILE, HOSTILE, 0)
    totals.note(("deny", "allow"), 1)
    totals.differ("opened", example)
    show(replayed(totals, Compared("a", "b", "c"), 1.0, 10), totals, as_json=False)
    out, err = capsys.readouterr()
    check(Outcome(0, out, err))
    assert "would be allow" in out


def test_records_that_need_a_registry_are_named_beside_those_that_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Where some requests were in JSON, those in Avro were unreadable without a word why."""
    totals = Totals(records=2, unreadable=1, schemas=[7])
    totals.note(("deny", "deny"), 1)
    show(replayed(totals, Compared("a", "b", "c"), 1.0, 10), totals, as_json=False)
    assert "schema_registry" in capsys.readouterr().err


def test_errors_on_both_sides_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """None of them differs: without the facts that both sides lack, any draft passed."""
    totals = Totals(records=2)
    totals.note(("error", "error"), 1)
    totals.note(("deny", "deny"), 1)
    show(replayed(totals, Compared("a", "b", "c"), 1.0, 10), totals, as_json=False)
    assert "outcomes: deny → deny: 1, error → error: 1" in capsys.readouterr().out.splitlines()


@pytest.mark.stream
def test_requests_that_are_not_read_are_reported(settings: Settings, topics: TopicNames, admin: AdminClient) -> None:
    """A gate over 30 days passed where the topic kept one, or where all requests were answered elsewhere."""
    span, producer = Span(0, 1 << 50), Producer({"bootstrap.servers": settings.bootstrap_servers})
    for _ in range(2):
        producer.produce(topics.requests[0], b"{}", partition=0)
    assert producer.flush(30) == 0
    assert list(describe_unread_requests(settings, admin, span)) == []
    [deleted] = admin.delete_records([TopicPartition(topics.requests[0], 0, 1)]).values()
    deleted.result(30)
    answered = msgspec.structs.replace(topics, answered=("answered-here",))
    kept, elsewhere = describe_unread_requests(msgspec.structs.replace(settings, topics=answered), admin, span)
    assert kept.startswith(f"{topics.requests[0]}: requests before 20")
    assert elsewhere == "requests that were answered elsewhere are not replayed: answered-here"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests", "no-such-file.jsonl"], "there is no such file or folder"),
        (["--system", "lenses7"], "--system lenses7: not one of"),
        (["--since", "yesterday"], "--since"),
        (["--since", "7d"], "--requests: files are read whole; leave --since and --until out"),
        (["--until", "2026-11-21T10:00:00Z"], "--requests: files are read whole; leave --since and --until out"),
    ],
)
def test_wrong_options_are_refused_before_spark_starts(
    lockkeeper: Command, folders: tuple[Path, Path], arguments: list[str], message: str
) -> None:
    live, draft = folders
    requests = live.parent / "requests.jsonl"
    requests.write_text("")
    given = [] if "--requests" in arguments else ["--requests", str(requests)]
    shown = lockkeeper("replay", "--policies", str(draft), "--against", str(live), *given, *arguments)
    assert (shown.code, message in shown.err) == (2, True)


@pytest.mark.parametrize("name", ["_requests.jsonl", ".requests.jsonl"])
def test_a_file_that_spark_does_not_read_is_refused(lockkeeper: Command, folders: tuple[Path, Path], name: str) -> None:
    """It read none of the requests, and a gate passed."""
    live, draft = folders
    requests = live.parent / name
    requests.write_text(json.dumps(request()))
    shown = lockkeeper("replay", "--policies", str(draft), "--against", str(live), "--requests", str(requests))
    assert (shown.code, "Spark reads no file whose name begins with _ or ." in shown.err) == (2, True)


def test_a_folder_with_parquet_and_other_files_is_refused(lockkeeper: Command, folders: tuple[Path, Path]) -> None:
    """It ended with Spark's text, which named a file and no reason. What Spark leaves out may be there."""
    live, draft = folders
    requests = live.parent / "requests"
    requests.mkdir()
    for name in ("a.parquet", "_SUCCESS", ".a.parquet.crc"):
        (requests / name).write_bytes(b"")
    assert [file.name for file in files_of(requests)] == ["a.parquet"]
    (requests / "b.jsonl").write_text(json.dumps(request()))
    shown = lockkeeper("replay", "--policies", str(draft), "--against", str(live), "--requests", str(requests))
    assert (shown.code, "has Parquet and other files; name a folder for each" in shown.err) == (2, True)


@pytest.mark.parametrize("fail_on", [FailOn.widening, FailOn.any])
def test_a_gate_that_has_compared_no_answer_does_not_pass(fail_on: FailOn) -> None:
    """Such as of a range without requests, or where all need facts that are not known any more."""
    compared, nothing = Compared("a", "b", "c"), Totals(records=2, unknown=2)
    apply_fail_on(replayed(nothing, compared, 1.0, 10), FailOn.nothing)
    with pytest.raises(Failure, match="no answer was compared"):
        apply_fail_on(replayed(nothing, compared, 1.0, 10), fail_on)
    same = Totals(records=2, unknown=1)
    same.note(("deny", "deny"), 1)
    apply_fail_on(replayed(same, compared, 1.0, 10), fail_on)


def test_a_draft_of_a_system_without_a_topic_is_refused_before_kafka_is_asked(
    lockkeeper: Command, tmp_path: Path
) -> None:
    """Its documents were left out: no answer would differ, and a gate passed."""
    draft = tmp_path / "draft.yaml"
    draft.write_text(
        "system: cedar\nkind: PolicySet\nname: a\nspec: {policies: 'permit(principal, action, resource);'}\n"
    )
    shown = lockkeeper("replay", "--policies", str(draft), "--bootstrap", "127.0.0.1:1")
    assert (shown.code, shown.err) == (2, "lockkeeper: no topic for cedar: add it to the setting `systems`\n")

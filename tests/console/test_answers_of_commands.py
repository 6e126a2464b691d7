"""The console's pages say of the same policies what the commands say, also of names that are made to be misread."""

import html
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from starlette.testclient import TestClient

from policy import MalformedRequest, Snapshot, compile_documents, to_text
from policy.analysis import Who
from streaming.cli.nearest import who_text
from streaming.console.access import Uses, access_in, subject_in
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from streaming.terminal import one_line
from tests.cli.lockkeeper import Command
from tests.console.test_in_force import client, follower, in_force

__all__ = ["client", "follower", "in_force"]  # fixtures

ORDERS = "kafka:topic:prod/main/orders"
NAMES = (
    "user:dana",
    '{"id": "user:root"}',
    "user:{id: root}",
    "user:<script>document.title='owned'</script>",
    "user:a, b'\"&amp;",
    "user:ünï 東京",
    "user:a  b",
    "user:" + "x" * 600,
)
ROLE = "Readers <b>&amp;{{7*7}}"


def role(name: str, *statements: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    listed = [{"effect": effect, "action": action, "resource": resource} for effect, action, resource in statements]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": listed}, **more}


def group(name: str, roles: list[str], members: list[str], **more: Any) -> dict[str, Any]:
    spec = {"roles": roles, "members": members}
    return {"system": "lenses6", "kind": "Group", "name": name, "spec": spec, **more}


def documents() -> list[dict[str, Any]]:
    ends = to_text(time.time_ns() // 1_000_000 + 3_600_000)
    return [
        role(ROLE, ("allow", "kafka:Get*", "kafka:topic:prod/*"), ("allow", "kafka:GetTopicDetails", ORDERS)),
        role("frozen", ("deny", "kafka:*", "kafka:topic:prod/main/audit")),
        role("for-a-time", ("allow", "kafka:DeleteTopic", ORDERS), valid_until=ends),
        role("nobody-has-it", ("allow", "*", "*")),
        group("readers", [ROLE, "frozen"], [name for name in NAMES if name.startswith("user:")]),
        group("owners, of orders", ["for-a-time"], ["user:olga"]),
        {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
        {
            "system": "streamsets",
            "kind": "Object",
            "name": "pipeline:orders",
            "spec": {"type": "pipeline", "owner": "rita", "organization": "acme", "acl": {"user:miguel": ["READ"]}},
        },
    ]


def texts(part: str) -> list[str]:
    """What a reader sees of a part of a page, line by line."""
    plain = html.unescape(re.sub(r"<[^>]*>", "", part))
    return [line.strip() for line in plain.splitlines() if line.strip()]


def items(part: str) -> list[str]:
    return [" ".join(texts(item)) for item in re.findall(r"<li>(.*?)</li>", part, re.DOTALL)]


QUESTIONS = [
    *(("lenses6", name, "kafka:GetTopicDetails", ORDERS) for name in NAMES),
    ("lenses6", "user:dana", "kafka:GetTopicDetails", "kafka:topic:prod/main/audit"),
    ("lenses6", "user:dana", "kafka:DeleteTopic", ORDERS),
    ("lenses6", "user:olga", "kafka:DeleteTopic", ORDERS),
    ("lenses6", "user:nobody", "kafka:DeleteTopic", "kafka:topic:prod/{id: x}/orders"),
    ("streamsets", "rita", "pipeline.view", "pipeline:orders"),
    ("streamsets", "miguel", "pipeline.edit", "pipeline:orders"),
]


@pytest.fixture
def lockkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def snapshot(follower: Follower, tmp_path: Path) -> Snapshot:
    """The documents, in a folder and in force."""
    written = documents()
    compiled = compile_documents(written)
    assert compiled.rejected == ()
    (tmp_path / "policies.yaml").write_text(yaml.safe_dump_all(written, allow_unicode=True))
    follower.read = Read(compiled, time.monotonic(), {}, -1, {})
    return compiled


@pytest.mark.usefixtures("snapshot")
@pytest.mark.parametrize("question", QUESTIONS, ids=range(len(QUESTIONS)))
def test_an_answer_its_tree_and_who_else_can_are_those_of_explain_and_who_can(
    lockkeeper: Command, client: TestClient, tmp_path: Path, question: tuple[str, str, str, str]
) -> None:
    system, subject, action, resource = question
    fields = {"system": system, "subject": subject, "action": action, "resource": resource, "who": "1"}
    page = client.get("/ask", params=fields).text
    at = str(time.time_ns() // 1_000_000)
    options = ("--policies", str(tmp_path), "--at", at, "--system", system, "--action", action, "--allow-unknown")
    options = (*options, "--resource", resource, "--json")
    [explained] = lockkeeper("explain", *options, "--subject", subject).records
    tree = " ".join(texts(page.split('<ul class="tree">')[1].split("</ul>")[0]))
    assert one_line(explained["text"]) in tree
    assert one_line(explained["text"]).startswith(f"{texts(page.split('<h2>')[1])[0].split()[1]}: ")
    nearest = explained.get("nearest")
    shown = page.split("<h3>Nearest</h3>")[1:]
    assert bool(shown) == bool(nearest)
    for statement in (*nearest["near"], *nearest["denies"]) if nearest else ():
        assert statement["text"] in " ".join(texts(shown[0]))
    [reach] = lockkeeper("who-can", *options).records
    names = [who_text(who) for who in msgspec.convert(reach["allowed"], list[Who])]
    who = page.split('id="who"')[1]
    assert ("Any principal" in who) == reach["everyone"]
    assert items(who.split("</ul>")[0]) == (names or ["No principal in the documents."])


@pytest.mark.parametrize("name", [*NAMES, "user:olga", "user:nobody"])
def test_the_access_of_a_subject_is_that_of_what_can(
    lockkeeper: Command, snapshot: Snapshot, tmp_path: Path, name: str
) -> None:
    at = str(time.time_ns() // 1_000_000)
    options = ("--policies", str(tmp_path), "--at", at, "--system", "lenses6", "--allow-unknown")
    shown = lockkeeper("what-can", *options, "--subject", name)
    short = subject_in({"subject": name, "groups": "", "more": ""})
    if shown.code:
        with pytest.raises(MalformedRequest) as refused:
            access_in(snapshot, "lenses6", short, Uses({}), True)
        assert str(refused.value) in shown.err
        return
    access = access_in(snapshot, "lenses6", short, Uses({}), True)
    assert access is not None
    expected = [f"{line['effect']} {line['text']} [{line['statement']}; {line['route']}]" for line in access["lines"]]
    assert [line for line in shown.lines if not line.startswith("  ")] == list(map(one_line, expected))

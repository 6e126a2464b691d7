"""What SECURITY.md and the guide to access say is so: who writes which topic, which tests there are, what is locked."""

import re
import tomllib
from collections.abc import Iterator

from streaming.kafka.manifests import permissions_of, rights_by_user
from streaming.kafka.permissions import CLIENT_GROUP, Permission
from streaming.settings import Settings, load_settings
from streaming.topics import topic_specs
from tests.deploy.files import ROOT, documented_commands

SECURITY = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")
SETTINGS = Settings()
JOB, NAMES = SETTINGS.job_name, SETTINGS.topics
USERS = rights_by_user(SETTINGS)

WRITERS = {
    **{topic: {f"{JOB}-policies-{system}"} for system, topic in NAMES.policy_topics().items()},
    NAMES.facts: {JOB, f"{JOB}-facts"},
    NAMES.access_changes: {f"{JOB}-access-changes"},
    NAMES.requests[0]: {f"{JOB}-client", f"{JOB}-service"},
    NAMES.audit[0]: {f"{JOB}-audit", f"{JOB}-service"},
    **{topic: {JOB} for topic in (NAMES.decisions, NAMES.alerts, NAMES.changes, NAMES.verdicts, NAMES.history)},
    **{f"{topic}.dlq": {JOB} for topic in (NAMES.requests[0], NAMES.audit[0])},
}
"""Who may write which topic. A change of this is a change of what is trusted: see SECURITY.md."""


VERBS = ("apply", "get", "delete", "diff", "log", "show", "status")  # of `policy`, that a user of the guide can run


def _may(operation: str, type_: str, name: str) -> set[str]:
    """The users who may do it."""
    granted = {user: permissions_of(SETTINGS, user) for user in USERS}
    return {
        user
        for user, permissions in granted.items()
        for permission in permissions
        if (permission.operation, permission.type) == (operation, type_)
        and (name.startswith(permission.name) if permission.prefix else name == permission.name)
    }


def test_the_writers_of_each_topic_are_those_of_the_table() -> None:
    assert {topic: _may("Write", "topic", topic) for topic in WRITERS} == WRITERS
    assert WRITERS.keys() == {spec.name for spec in topic_specs(NAMES)}
    rows = dict(re.findall(r"^\| `([\w.<>-]+)` \| ([^|]+) \|", SECURITY, re.MULTILINE))
    documented = {
        topic.replace("<system>", system): {
            user.replace("<system>", system) for user in re.findall(r"`([^`]+)`", users)
        }
        for topic, users in rows.items()
        for system in (SETTINGS.systems if "<system>" in topic else ("",))
    }
    assert documented == WRITERS


def test_the_job_alone_may_use_its_groups_and_each_transactional_id_has_one_user() -> None:
    for name in (JOB, f"{JOB}-monitor"):
        assert _may("Read", "group", name) == {JOB}
        assert _may("Write", "transactionalId", name) == {JOB}
    assert _may("Write", "transactionalId", f"{JOB}/authz.requests.v1/0") == {JOB}
    watcher = f"{JOB}-access-changes"
    assert _may("Read", "group", watcher) == _may("Write", "transactionalId", watcher) == {watcher}
    for system in SETTINGS.systems:
        owner = f"{JOB}-policies-{system}"
        assert _may("Write", "transactionalId", owner) == {owner}


def test_the_job_sees_how_far_a_separate_monitor_has_come() -> None:
    """Else accesses that depend on logins are unknown, and what they do without a right raises no alert."""
    settings = load_settings(None, {"LOCKKEEPER_MONITOR_MODE": "separate"})
    granted = permissions_of(settings, JOB)
    assert Permission("group", f"{JOB}-monitor", "Describe") in granted
    assert Permission("topic", NAMES.verdicts, "Read") in granted
    assert Permission("group", f"{JOB}-monitor", "Read") not in granted


def test_clients_of_a_job_with_another_name_may_use_the_group_of_the_library() -> None:
    """Which cannot know the job's name."""
    settings = load_settings(None, {"LOCKKEEPER_JOB_NAME": "acme"})
    for user in ("acme-client", "acme-service"):
        assert Permission("group", CLIENT_GROUP, "Describe") in permissions_of(settings, user)


def test_no_user_has_an_operation_that_administers() -> None:
    granted = {permission.operation for user in USERS for permission in permissions_of(SETTINGS, user)}
    assert granted == {"Read", "Write", "Describe", "DescribeConfigs"}
    prefixes = {p.name for user in USERS for p in permissions_of(SETTINGS, user) if p.prefix}
    assert prefixes == {"spark-kafka-source", f"{JOB}/", *(f"{JOB}-{part}" for part in ("client", "service", "watch"))}


def _named_tests() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY)


def test_every_test_that_security_md_names_is_there() -> None:
    named = set(_named_tests())
    assert len(named) > 40
    lacking = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).exists() or f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert lacking == []


def test_every_attack_is_shown_by_a_test_or_says_that_nothing_stops_it() -> None:
    sections = SECURITY.split("## Attacks", 1)[1].split("## What is left")[0]
    rows = re.findall(r"^\| (?!attack|---)(.+?) \| (.+) \| (.+?) \|$", sections, re.MULTILINE)
    assert len(rows) > 40
    assert [attack for attack, leads_to, test in rows if test == "–" and "possible" not in leads_to] == []


def test_links_of_security_md_lead_somewhere() -> None:
    linked = re.findall(r"\]\((\.\.[^)#]+)", SECURITY)
    assert linked
    assert [link for link in linked if not (ROOT / ".github" / link).exists()] == []


def test_the_guide_names_every_user_and_each_command_that_asks_kafka() -> None:
    """That they can run them is tested in test_access."""
    documented = documented_commands()
    assert documented.keys() == USERS.keys()
    asks = {"access-changes", "run", "request", "serve", "tail", "report", "console", "verify", "topics check"}
    asks |= {"decisions", "explain", "who-can", "what-can", "doctor", "status"}
    assert set().union(*documented.values()) == asks | {f"policy {verb}" for verb in VERBS}


def test_every_distribution_is_locked_with_its_hash() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    outside = [package for package in lock["package"] if "registry" in package["source"]]
    assert len(outside) > 50
    files = [(p["name"], file) for p in outside for file in (*p.get("wheels", ()), *filter(None, [p.get("sdist")]))]
    assert [name for name, file in files if not re.fullmatch(r"sha256:[0-9a-f]{64}", file.get("hash", ""))] == []
    assert {p["name"] for p in lock["package"] if "registry" not in p["source"]} == {"lockkeeper-authz"}

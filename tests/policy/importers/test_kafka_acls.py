"""Kafka's ACLs: as kafka-acls.sh prints them, as a cluster describes them, and back as commands."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policy import FilesRefused
from policy.importers import Export, export, targets
from policy.systems.kafka_acls.importer.commands import COMMAND
from tests.policy.importers.running import (
    allows,
    as_json,
    documents,
    findings_of_level,
    fixture,
    imported,
    places,
    snapshot,
    text,
)

PRINTED = """\
Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders, patternType=PREFIXED)`:
 \t(principal=User:dana, host=*, operation=READ, permissionType=ALLOW)

Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders.secret, patternType=LITERAL)`:
 \t(principal=User:dana, host=10.0.0.1, operation=READ, permissionType=DENY)

Current ACLs for resource `ResourcePattern(resourceType=GROUP, name=*, patternType=LITERAL)`:
 \t(principal=User:CN=erik,OU=shop, host=*, operation=ALL, permissionType=ALLOW)

Current ACLs for resource `ResourcePattern(resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL)`:
 \t(principal=User:*, host=*, operation=DESCRIBE_CONFIGS, permissionType=ALLOW)

Current ACLs for resource `ResourcePattern(resourceType=TRANSACTIONAL_ID, name=job-, patternType=PREFIXED)`:
 \t(principal=User:job, host=*, operation=WRITE, permissionType=ALLOW)
"""
OLD = """\
Current ACLs for resource `Topic:PREFIXED:orders`:
 \tUser:dana has Allow permission for operations: Read from hosts: *
Current ACLs for resource `Topic:orders.secret`:
 \tUser:dana has Deny permission for operations: Read from hosts: 10.0.0.1
Current ACLs for resource `Group:LITERAL:*`:
 \tUser:CN=erik,OU=shop has Allow permission for operations: All from hosts: *
Current ACLs for resource `Cluster:LITERAL:kafka-cluster`:
 \tUser:* has Allow permission for operations: DescribeConfigs from hosts: *
Current ACLs for resource `TransactionalId:PREFIXED:job-`:
 \tUser:job has Allow permission for operations: Write from hosts: *
"""


def row(**changed: str) -> dict[str, str]:
    """An ACL as a cluster describes it."""
    found = {"principal": "User:dana", "host": "*", "operation": "READ", "permission": "ALLOW"}
    return {**found, "resource_type": "TOPIC", "pattern_type": "LITERAL", "name": "orders", **changed}


@pytest.mark.parametrize("printed", [PRINTED, OLD], ids=["now", "before Kafka 2.2"])
def test_what_is_printed_is_what_a_cluster_describes(printed: str) -> None:
    found = imported("kafka-acls", text(printed, "acls.txt"))
    assert found.documents == imported("kafka-acls", fixture("kafka-acls.json")).documents
    assert not found.errors


def test_the_import_decides() -> None:
    found = imported("kafka-acls", text(PRINTED, "acls.txt"))
    assert list(documents(found)) == [
        f"Acls/{name}" for name in ("User:*", "User:CN=erik,OU=shop", "User:dana", "User:job")
    ]
    assert allows(snapshot(found), "kafka-acls", "User:dana", "Read", "orders.eu", type="Topic")
    assert not allows(snapshot(found), "kafka-acls", "User:dana", "Read", "orders.secret", type="Topic")
    assert allows(snapshot(found), "kafka-acls", "User:CN=erik,OU=shop", "Delete", "any", type="Group")
    assert allows(snapshot(found), "kafka-acls", "User:any", "DescribeConfigs", "kafka-cluster", type="Cluster")
    [note] = findings_of_level(found, "note")
    assert "super.users" in note.why


def test_the_same_entry_twice_is_one() -> None:
    found = imported("kafka-acls", as_json([row(), row()]), text(PRINTED, "acls.txt"), text(PRINTED, "again.txt"))
    assert len(documents(found)["Acls/User:dana"]["entries"]) == 3


def test_an_operation_that_is_not_known_takes_away_and_never_gives() -> None:
    """Its resource keeps an entry: without any, it might be open to all."""
    found = imported(
        "kafka-acls",
        as_json([row(operation="FLY", permission="DENY"), row(operation="FLY", name="other"), row()], "acls.json"),
    )
    assert (places(found, "error"), places(found, "warning")) == (["[0]"], ["[1]"])
    at = snapshot(found, SETTINGS)
    assert not allows(at, "kafka-acls", "User:dana", "Read", "orders", type="Topic")
    assert not allows(at, "kafka-acls", "User:erik", "Read", "other", type="Topic")
    assert allows(at, "kafka-acls", "User:erik", "Read", "third", type="Topic")


@pytest.mark.parametrize(
    "wrong",
    [
        row(permission="DENY", pattern_type="MATCH"),
        row(permission="DENY", resource_type="UNKNOWN"),
        row(permission="UNKNOWN"),
        {**row(), "except": "Mondays"},
        {"principal": "User:dana"},
        17,
    ],
)
def test_what_may_be_a_deny_and_cannot_be_taken_over_leaves_nothing(wrong: Any) -> None:
    found = imported("kafka-acls", as_json([row(), wrong]))
    assert found.fatal
    assert found.documents == ()


SETTINGS = {
    "system": "kafka-acls",
    "kind": "Authorizer",
    "name": "authorizer",
    "spec": {"allow_everyone_if_no_acl_found": True},
}


@pytest.mark.parametrize(
    ("wrong", "denied"),
    [
        (row(principal="Group:ops"), "principal User:*"),
        (row(principal="user:dana"), "principal User:*"),
        (row(principal="ServiceAccount:ci"), "principal User:*"),
        (row(principal="dana"), "principal User:*"),
        (row(principal="User: dana"), "principal User:*"),
        (row(host="10.0.0.1\u200b"), "host *"),
        (row(name="orders "), "pattern_type PREFIXED, name orders"),
        (row(name=" orders"), "name *"),
        (row(name="orders\u200b", pattern_type="PREFIXED"), "name orders"),
        (row(name="orders" * 200, pattern_type="PREFIXED"), "name ordersorders"),
        (row(operation="FLY", principal="Group:ops"), "principal User:*, operation All"),
    ],
)
def test_a_deny_that_cannot_be_taken_over_denies_more_and_is_an_error(wrong: dict[str, str], denied: str) -> None:
    """So `--partial` goes on: a principal of another type is never in lockkeeper's requests, and its deny was void."""
    allow = row(operation="ALL", name="*")
    found = imported("kafka-acls", as_json([allow, {**wrong, "permission": "DENY"}, row(principal="User:erik")]))
    assert places(found, "error") == ["[1]"]
    assert f"more than it says ({denied}" in findings_of_level(found, "error")[0].why
    asked = wrong["name"].replace("\u200b", "").strip()
    assert not allows(snapshot(found), "kafka-acls", "User:dana", "Read", asked, type="Topic")


def test_an_allow_for_a_group_allows_nobody_and_says_so() -> None:
    found = imported("kafka-acls", as_json([row(principal="Group:ops")]))
    assert places(found, "warning") == ["[0]"]
    assert not allows(snapshot(found), "kafka-acls", "User:dana", "Read", "orders", type="Topic", groups=["ops"])


def test_what_kafkas_authorizer_enforces_is_taken_over() -> None:
    """Write on a group, ClusterAction on a topic: kafka-acls.sh adds neither, and the authorizer has both."""
    rows = [row(operation="WRITE", resource_type="GROUP"), row(operation="CLUSTER_ACTION", permission="DENY")]
    found = imported(
        "kafka-acls", as_json([*rows, row(operation="TWO_PHASE_COMMIT", resource_type="TRANSACTIONAL_ID")])
    )
    assert not found.errors
    assert not findings_of_level(found, "warning")
    assert allows(snapshot(found), "kafka-acls", "User:dana", "Write", "orders", type="Group")
    assert allows(snapshot(found), "kafka-acls", "User:dana", "TwoPhaseCommit", "orders", type="TransactionalId")


@pytest.mark.parametrize(
    "wrong", [row(principal="dana"), row(name="orders ", pattern_type="PREFIXED"), row(operation="FLY")]
)
def test_an_allow_that_is_left_out_leaves_its_resource_with_an_entry(wrong: dict[str, str]) -> None:
    """Without any it would be open to all (KA-EMPTY)."""
    found = imported("kafka-acls", as_json([wrong]))
    assert places(found, "warning") == ["[0]"]
    assert not allows(snapshot(found, SETTINGS), "kafka-acls", "User:erik", "Read", "orders", type="Topic")


def test_a_resource_type_that_is_not_known_needs_no_entry() -> None:
    """A request for one is an error."""
    found = imported("kafka-acls", as_json([row(), row(resource_type="BROKERS")]))
    assert documents(found) == documents(imported("kafka-acls", as_json([row()])))
    assert places(found, "warning") == ["[1]"]


def test_long_names_are_spread_over_documents() -> None:
    rows = [row(name=f"{number:05}" * 6000, resource_type="GROUP") for number in range(60)]
    found = imported("kafka-acls", as_json(rows))
    assert not found.fatal
    assert sum(len(spec["entries"]) for spec in documents(found).values()) == 60


@pytest.mark.parametrize(
    "line", ["Error while executing ACL command", "(principal=User:dana, host=*, operation=READ)", "User:dana may Read"]
)
def test_a_line_that_is_not_known_leaves_nothing(line: str) -> None:
    """It may be a deny."""
    assert imported("kafka-acls", text(f"{PRINTED}{line}\n", "acls.txt")).fatal


@pytest.mark.parametrize("rest", [6, None], ids=["between others", "at the end"])
def test_a_resource_without_its_entries_leaves_nothing(rest: int | None) -> None:
    """Kafka prints none: an ACL that may be a deny was cut off."""
    lines = PRINTED.splitlines()
    cut = lines[:4] if rest is None else [*lines[:4], *lines[rest:]]
    found = imported("kafka-acls", text("\n".join(cut), "acls.txt"))
    assert found.fatal
    assert found.documents == ()
    assert places(found, "error") == ["line 4"]


def test_an_entry_without_its_resource_leaves_nothing() -> None:
    found = imported("kafka-acls", text(PRINTED.partition("\n")[2], "acls.txt"))
    assert found.fatal


def exported(*given: dict[str, Any]) -> Export:
    """The commands for documents."""
    return export(targets()["kafka-acls"], given)


def acls(*entries: dict[str, str], **envelope: Any) -> dict[str, Any]:
    """An Acls document."""
    spec = {"entries": [{"principal": "User:dana", "resource_type": "Topic", **entry} for entry in entries]}
    return {"system": "kafka-acls", "kind": "Acls", "name": "a", "spec": spec, **envelope}


def commands(found: Export) -> list[list[str]]:
    """The arguments of each, as a shell reads them."""
    lines = [line.removeprefix(COMMAND) for line in found.text.splitlines() if line.startswith(COMMAND)]
    return [shlex.split(line) for line in lines]


def test_an_export_adds_denies_first_and_quotes_names() -> None:
    found = exported(
        acls(
            {"operation": "Write", "name": "orders"},
            {"operation": "Read", "name": "orders"},
            {"operation": "All", "permission": "DENY", "host": "10.0.0.1", "name": "it's", "pattern_type": "PREFIXED"},
            {"operation": "Read", "resource_type": "Group", "name": "--cluster"},
            {"operation": "Alter", "resource_type": "Cluster", "name": "*"},
        )
    )
    assert sorted(commands(found)[1:]) == [
        ["--allow-principal", "User:dana", "--operation", "Alter", "--cluster"],
        ["--allow-principal", "User:dana", "--operation", "Read", "--group=--cluster"],
        ["--allow-principal", "User:dana", "--operation", "Read", "--operation", "Write", "--topic", "orders"],
    ]
    deny = ["--deny-principal", "User:dana", "--deny-host", "10.0.0.1", "--operation", "All", "--topic", "it's"]
    assert commands(found)[0] == [*deny, "--resource-pattern-type", "prefixed"]
    assert found.findings == ()


def test_an_export_says_what_has_no_counterpart() -> None:
    """What is time-bound would be in force permanently: denies alone are, and what keeps a resource closed."""
    settings = {"super_users": ["User:root"], "allow_everyone_if_no_acl_found": True}
    found = exported(
        acls(
            {"operation": "Read", "name": "t"}, {"operation": "Read", "permission": "DENY", "name": "u"}, valid_until=9
        ),
        acls({"operation": "Read", "name": "dated"}, name="b", effective_at=5),
        acls({"operation": "Alter", "resource_type": "Cluster", "name": "other"}, name="c"),
        {"system": "kafka-acls", "kind": "Authorizer", "name": "authorizer", "spec": settings},
        {"system": "cdap", "kind": "Backend", "name": "b", "spec": {"admins": ["x"]}},
    )
    closing = ["--deny-principal", "User:dana", "--deny-host", "none", "--operation", "All", "--topic"]
    deny = ["--deny-principal", "User:dana", "--operation", "Read", "--topic", "u"]
    assert sorted(commands(found)) == [[*closing, "dated"], [*closing, "t"], deny]
    messages = {finding.file: f"{finding.level}: {finding.why}. {finding.fix}" for finding in found.findings}
    assert "warning: ACLs have no valid_until" in messages["Acls/a"]
    assert "warning: ACLs have no effective_at" in messages["Acls/b"]
    assert "note: is left out: no cluster is named 'other'" in messages["Acls/c"]
    assert "super.users=User:root and allow.everyone.if.no.acl.found=true" in messages["Authorizer/authorizer"]


def test_what_kafkas_command_does_not_take_keeps_its_effect() -> None:
    """What an allow implies, and that the resource has an ACL: without one the brokers may open it to all."""
    found = exported(
        acls(
            {"operation": "Write", "resource_type": "Group", "name": "implying"},
            {"operation": "ClusterAction", "name": "closed"},
            {"operation": "Write", "resource_type": "Group", "name": "denied", "permission": "DENY"},
        )
    )
    closing = ["--deny-principal", "User:dana", "--deny-host", "none", "--operation", "All"]
    assert commands(found) == [
        [*closing, "--group", "denied"],
        [*closing, "--topic", "closed"],
        ["--allow-principal", "User:dana", "--operation", "Describe", "--group", "implying"],
    ]
    implying, closed, denied = found.findings
    assert implying.why.startswith("is added as Describe, which it implies: kafka-acls.sh takes no Write on Group")
    for finding in (closed, denied):
        assert finding.why.startswith("is added as a deny for no host, so that its resource has an ACL: kafka-acls.sh")


def test_exported_super_users_are_those_of_the_document() -> None:
    """Of server.properties: a ; ends a name, a backslash is an escape, and all is ASCII."""
    users = ["User:CN=Smith\\, J", "User:é", "User:a;User:root"]
    authorizer = {"system": "kafka-acls", "kind": "Authorizer", "name": "authorizer", "spec": {"super_users": users}}
    warning, note = exported(authorizer).findings
    assert warning.level == "warning"
    assert "'User:a;User:root'" in warning.why
    assert r"set super.users=User:CN=Smith\\, J;User:\u00e9 and" in note.fix
    assert "root" not in note.fix


def test_exported_commands_pass_names_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """Java reads its arguments by the locale: in C, a deny for User:é would be one for another principal."""
    program = tmp_path / "kafka-acls.sh"
    program.write_text("""#!/bin/sh\nexec "$PYTHON" -X utf8=0 -c 'import sys; print(ascii(sys.argv[5]))' "$@"\n""")
    program.chmod(0o755)
    script = exported(acls({"principal": "User:é", "operation": "Read", "permission": "DENY", "name": "t"})).text
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHON": sys.executable, "PYTHONCOERCECLOCALE": "0"}
    environment |= {"LC_ALL": "C", "BOOTSTRAP_SERVERS": "localhost:9092"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "'User:\\xe9'\n"


def test_an_allow_of_a_version_that_another_replaces_is_not_exported() -> None:
    """The oldest version has no date, and is not in force any more."""
    oldest = acls({"operation": "Read", "name": "orders"}, {"operation": "Read", "permission": "DENY", "name": "u"})
    found = exported(oldest, acls({"operation": "Write", "name": "carts"}, effective_at=5))
    closing = ["--deny-principal", "User:dana", "--deny-host", "none", "--operation", "All", "--topic"]
    deny = ["--deny-principal", "User:dana", "--operation", "Read", "--topic", "u"]
    assert sorted(commands(found)) == [[*closing, "carts"], [*closing, "orders"], deny]
    [finding] = found.findings
    assert (finding.level, finding.file) == ("warning", "Acls/a")


def test_a_refused_document_is_not_exported() -> None:
    with pytest.raises(FilesRefused, match=r"kafka-acls/Acls/a: .*operation"):
        exported(acls({"operation": "Fly", "name": "t"}))


@pytest.mark.parametrize(
    "other",
    [
        {"system": "kafka-acl", "kind": "Acls", "name": "b", "spec": {}},
        {"kind": "Acls", "name": "b", "spec": {}},
        {"system": ["cdap"], "kind": "Acls", "name": "b", "spec": {}},
        None,
        acls({"operation": "Read", "name": "u"}),
    ],
    ids=["unknown system", "no system", "system that is no text", "no mapping", "same name"],
)
def test_nothing_is_exported_beside_a_document_that_may_hold_a_deny(other: Any) -> None:
    """Every request would be answered `error`: the allows of the others alone allow more."""
    with pytest.raises(FilesRefused):
        exported(acls({"operation": "Read", "name": "t"}), other)

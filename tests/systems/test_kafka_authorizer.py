"""kafka-acls answers as the authorizer of the embedded broker does: Kafka's own class, called through Java."""

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

import policy
from policy.evaluation import reference
from policy.systems.kafka_acls.catalogue import ALL, catalogue
from streaming.runtime.jars import classpath
from streaming.runtime.java import find_java

SOURCE = Path(__file__).with_name("KafkaAuthorizer.java")
COMPILER = "org.codehaus.janino.SimpleCompiler"  # Spark's: not every Java has one
SECONDS = 120.0
SETS, ASKED = 200, 50  # 10,000 questions
SEED = 19

PRINCIPALS = ("User:dana", "User:erik", "User:Dana", "Service:dana", "User:CN=dana,OU=x:y", "Service:*", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.11", "0:0:0:0:0:0:0:1")
NAMES = ("a", "ab", "abc", "a.b", "a/b", "b", "*", "a*", "é", "A")
TYPES: dict[str, list[str]] = catalogue()["operations"]


def entry(chance: random.Random) -> dict[str, str]:
    """An entry, more often for all hosts than for one."""
    resource_type = chance.choice((*["Topic"] * 8, "Group", *TYPES))
    return {
        "principal": chance.choice((*["User:dana", "User:*"] * 3, *PRINCIPALS)),
        "host": chance.choice(("*", "*", *HOSTS, "10.0.0.0/8")),
        "operation": chance.choice((*TYPES[resource_type], ALL)),
        "permission": chance.choice(("ALLOW", "ALLOW", "DENY")),
        "resource_type": resource_type,
        "pattern_type": chance.choice(("LITERAL", "PREFIXED")),
        "name": chance.choice(NAMES),
    }


def question(chance: random.Random) -> dict[str, Any]:
    """A request from a host."""
    resource_type = chance.choice((*["Topic"] * 8, "Group", *TYPES))
    return {
        "id": "r",
        "system": "kafka-acls",
        "subject": {"type": "user", "id": chance.choice((*["User:dana"] * 4, *PRINCIPALS[:-1], "User:ANONYMOUS"))},
        "action": {"name": chance.choice(TYPES[resource_type])},
        "resource": {"type": resource_type, "id": chance.choice((*NAMES, "abcd", "kafka-cluster"))},
        "context": {"host": chance.choice((*HOSTS, "10.0.0.2"))},
    }


class PolicySet:
    """Entries, settings, and questions about them."""

    def __init__(self, chance: random.Random) -> None:
        self.entries = [entry(chance) for _ in range(chance.randrange(40))]
        self.open = chance.random() < 0.4
        self.super_users = chance.sample(PRINCIPALS, chance.choice((0, 0, 1, 2)))
        self.questions = [question(chance) for _ in range(ASKED)]

    @property
    def documents(self) -> list[dict[str, Any]]:
        """As lockkeeper is given them: the entries in two documents, so that they add up."""
        settings = {"super_users": self.super_users, "allow_everyone_if_no_acl_found": self.open}
        parts = {"one": self.entries[::2], "two": self.entries[1::2]}
        found = [document("Acls", name, {"entries": entries}) for name, entries in parts.items()]
        return [*found, document("Authorizer", "authorizer", settings)]

    def lines(self) -> Iterator[Sequence[str]]:
        """As the broker's authorizer is given them."""
        yield "S", str(self.open).lower(), ";".join(self.super_users)
        for one in {tuple(one.values()) for one in self.entries}:
            yield "A", *one
        for asked in self.questions:
            resource = asked["resource"]
            yield (
                *("Q", asked["subject"]["id"], asked["context"]["host"], asked["action"]["name"]),
                *(resource["type"], resource["id"]),
            )


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A document of the system."""
    return {"system": "kafka-acls", "kind": kind, "name": name, "spec": spec}


def kafka_answers(sets: Sequence[PolicySet]) -> list[str]:
    """What org.apache.kafka.metadata.authorizer.StandardAuthorizer answers to all questions, in one process."""
    compiler = sorted((Path(pyspark.__file__).parent / "jars").glob("*compiler*.jar"))
    compiler += sorted((Path(pyspark.__file__).parent / "jars").glob("janino*.jar"))
    jars = os.pathsep.join(map(str, (*classpath("broker"), *compiler)))
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Dlog4j2.level=OFF")
    command = [str(find_java()), *options, "-cp", jars, COMPILER, str(SOURCE), SOURCE.stem]
    given = "".join("\t".join(line) + "\n" for one in sets for line in one.lines())
    done = subprocess.run(command, input=given, capture_output=True, text=True, encoding="utf-8", timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.long
def test_ten_thousand_answers_are_those_of_the_brokers_own_authorizer() -> None:
    """Over prefixes, hosts, denies, super users and resources without entries; by both evaluators."""
    chance = random.Random(SEED)
    sets = [PolicySet(chance) for _ in range(SETS)]
    expected = iter(kafka_answers(sets))
    differences, seen = [], Counter[tuple[str, str | None]]()
    for one in sets:
        snapshot = policy.compile_documents(one.documents)
        assert snapshot.rejected == ()
        for asked in one.questions:
            decision, kafka = policy.decide(snapshot, asked), next(expected)
            seen[kafka, decision.reasons[0].rule] += 1
            if not decision.outcome == reference.decide(snapshot, asked) == kafka:
                differences.append((asked, one.documents, decision.outcome, kafka))
    assert sum(seen.values()) == SETS * ASKED == 10_000
    assert next(expected, None) is None
    assert differences == []
    deciding = {("allow", rule) for rule in ("KA-PRINCIPAL", "KA-SUPER", "KA-EMPTY")}
    deciding |= {("deny", rule) for rule in ("KA-DENY-WINS", "KA-DEFAULT-DENY")}
    assert all(seen[one] > 100 for one in deciding), seen

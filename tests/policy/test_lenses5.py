"""Lenses 5 beyond its case files: the catalogue is sound, limits hold, every open question has its case."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from policy import DocumentStore, Snapshot, compile_documents, decide
from policy.core.document import Key
from policy.store.affected import affected
from policy.systems.kit.validator import MAX_STATEMENTS
from policy.systems.lenses5 import SYSTEM
from policy.systems.lenses5.catalogue import Catalogue, catalogue
from policy.testing.casefile import load_cases
from policy.testing.run import Result, run_cases

CASES = sorted((Path(__file__).parent.parent / "cases").glob("lenses5*.yaml"))
QUESTIONS = [f"L5-Q{number}" for number in range(1, 16)]
FORMS = {"all", "any", "rule", "condition", "permission", "field", "case", "stated"}


def group(**spec: Any) -> dict[str, Any]:
    """A Group document of dana's."""
    return {"system": "lenses5", "kind": "Group", "name": "g", "spec": {"members": ["dana"], **spec}}


def clauses(clause: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``clause`` and every clause inside of it."""
    yield clause
    inner = [*clause.get("all", ()), *clause.get("any", ()), *clause.get("of", {}).values()]
    for item in [*inner, *([clause["else"]] if "else" in clause else [])]:
        yield from clauses(item)


def every_clause(known: Catalogue) -> list[Mapping[str, Any]]:
    """All clauses of all rules and conditions."""
    return [inner for outer in (*known.rules.values(), *known.conditions.values()) for inner in clauses(outer)]


def test_every_clause_has_one_form_and_names_what_exists() -> None:
    """A misspelt rule, condition, permission or field in catalogue.yaml would only show when it is asked for."""
    known = catalogue()
    permissions = {*known.application, *known.administration, "Connect Clusters Access"}
    permissions |= {permission for listed in known.namespace.values() for permission in listed}
    fields = {field for thing in known.things.values() for field in thing.fields} | {"operation", "thing"}
    for clause in every_clause(known):
        assert len(FORMS & clause.keys()) == 1, clause
        assert clause.get("rule", "L5-CG-VIEW") in known.rules, clause
        assert clause.get("condition", "processor seen") in known.conditions, clause
        assert clause.get("permission", "Show Topic") in permissions, clause
        assert clause.get("field", clause.get("case", "thing")) in fields, clause
        assert clause.get("held_on", "dataset") in {"dataset", "connect_cluster"}, clause


def test_every_topic_field_has_words_and_exists() -> None:
    """Each field that a clause walks over is one that some thing has, and can be explained to people."""
    known = catalogue()
    walked = {clause["each"] for clause in every_clause(known) if "each" in clause}
    assert walked == set(known.words)
    assert walked <= {field for thing in known.things.values() for field in thing.fields}


def test_every_action_names_a_rule_and_a_thing() -> None:
    """Each action can be asked for; each rule is some action's."""
    known = catalogue()
    assert {action.rule for action in known.actions.values()} == known.rules.keys()
    assert {action.about for action in known.actions.values()} <= known.things.keys() | {"node"}
    assert set(known.nodes.values()) <= known.things.keys()


def test_code_names_stand_for_permissions_of_their_family() -> None:
    """What Lenses's clients call a permission is one that the same list takes."""
    known = catalogue()
    families = {"application": known.application, "administration": known.administration}
    families["namespace"] = [permission for listed in known.namespace.values() for permission in listed]
    assert known.code_names.keys() == families.keys()
    assert all(set(names.values()) <= set(families[family]) for family, names in known.code_names.items())


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Every expectation of the case files, played."""
    return [result for path in CASES for result in run_cases(load_cases(path))]


@pytest.mark.parametrize("query", QUESTIONS)
def test_every_open_question_has_a_case_for_it_and_a_case_against(query: str, results: list[Result]) -> None:
    """The interpretation given for each open question is shown by an allow and by a refusal."""
    signs = {sign for result in results if query in result.rules for sign in result.signs}
    assert signs == {True, False}


@pytest.mark.parametrize(("datasets", "errors"), [(MAX_STATEMENTS, 0), (MAX_STATEMENTS + 1, 1)])
def test_a_group_names_a_bounded_number_of_datasets(datasets: int, errors: int) -> None:
    """Ten thousand datasets over all namespaces are accepted, one more is refused."""
    half = datasets // 2
    parts = [[f"t{number}" for number in range(half)], [f"t{number}" for number in range(half, datasets)]]
    namespaces = [
        {"connection": "main", "type": "Kafka", "datasets": part, "permissions": ["Show Topic"]} for part in parts
    ]
    rejected = compile_documents([group(namespaces=namespaces)]).rejected
    assert len(rejected) == errors
    assert all("at most 10000" in error for document in rejected for error in document.errors)


def test_too_many_topics_are_an_error_and_not_an_allow() -> None:
    """A consumer group of ten thousand topics touches as many objects as one request may."""
    wide = {"connection": "main", "type": "Kafka", "datasets": ["*"], "permissions": ["Show Topic"]}
    snapshot = compile_documents([group(namespaces=[wide], application=["Kafka Consumers / View"])])
    assert decide(snapshot, consumers([f"t{number}" for number in range(10_000)])).outcome == "allow"
    decision = decide(snapshot, consumers([f"t{number}" for number in range(10_001)]))
    assert (decision.outcome, decision.reasons[0].code) == ("error", "too-many-objects")


def consumers(topics: list[str]) -> dict[str, Any]:
    """A request of dana's to see a consumer group of ``topics``."""
    return {
        "id": "r",
        "system": "lenses5",
        "subject": {"type": "user", "id": "dana"},
        "action": {"name": "kafka-consumers.view"},
        "resource": {"type": "consumer-group", "id": "g"},
        "context": {"connection": "main", "topics": topics},
    }


def test_a_group_does_not_belong_in_the_facts_topic() -> None:
    """A publisher of inventories may not grant with them."""
    facts = DocumentStore(facts_only=True)
    rejected = facts.put(group(administration=["License / Manage"]))
    assert rejected is not None
    assert "does not belong in the facts topic" in rejected.errors[0]
    assert Snapshot(DocumentStore(), facts).policy_sets["lenses5"].grants == {}


def test_every_error_of_a_document_is_named() -> None:
    """A refused group lists all that is wrong with it, not the first thing."""
    namespaces = [{"connection": "", "type": "kafka", "datasets": "t"}, 7]
    document = group(namespaces=namespaces, application=["x"], connect_clusters=[""], extra=1)
    (rejected,) = compile_documents([document]).rejected
    places = ("[0].connection", "[0].type", "[0].datasets", "[1]", "application", "connect_clusters", "extra")
    assert all(any(place in error for error in rejected.errors) for place in places), rejected.errors


@pytest.mark.parametrize(
    ("asked", "code", "message", "rule"),
    [
        (
            {"context": {"connection": "main", "topics": []}},
            "fact",
            "topics of consumer group g: there is none, so nothing allows it",
            "L5-Q11",
        ),
        ({"context": {}}, "fact-missing", "topics of consumer group g is not known", "L5-CG-VIEW"),
        ({"context": {"topics": 7}}, "malformed-claim", "context.topics: must be a list, not 7", None),
        (
            {"action": {"name": "sql-processors.view"}},
            "fact-missing",
            "input topics of SQL processor g is not known",
            "L5-Q11",
        ),
        (
            {"action": {"name": "admin.audit-log.manage-channels"}},
            "fact-missing",
            "operation of administration is not known",
            "L5-ADM-AUDIT-MANAGE",
        ),
        (
            {"action": {"name": "connect-clusters.use"}},
            "no-grant",
            "no grant of Connect Clusters Access on Connect cluster g",
            "L5-CC-ACCESS",
        ),
        (
            {"action": {"name": "admin.audit-log.manage-channels"}}
            | {"resource": {"type": "feature", "id": "g", "properties": {"operation": "create"}}}
            | {"context": {"connection_exists": False}},
            "fact",
            "administration: it is not so that the connection that the channel uses exists",
            "L5-ADM-AUDIT-MANAGE",
        ),
        ({"action": {"name": "topology.view"}}, "malformed-properties", None, None),
        ({"action": {"name": "topology.see"}}, "unknown-action", None, None),
    ],
)
def test_what_is_said_when_something_is_missing(
    asked: dict[str, Any], code: str, message: str | None, rule: str | None
) -> None:
    """The reason names what is not known, of what, and the rule that needs it, and says no more."""
    held = ["Kafka Consumers / View", "SQL Processors / View", "Topology / View"]
    administration = ["Audit Log / View", "Audit Log / Manage"]
    snapshot = compile_documents([group(application=held, administration=administration)])
    reasons = decide(snapshot, consumers([]) | {"context": {}} | asked).reasons
    assert (code, rule) in [(reason.code, reason.rule) for reason in reasons]
    assert message is None or message in [reason.message for reason in reasons]


def test_a_group_without_anything_suspicious_warns_of_nothing() -> None:
    """Manage beside View, one type for each connection, datasets and permissions: no warning."""
    namespaces = [
        {"connection": "main", "type": "Kafka", "datasets": ["a*"], "permissions": ["Show Topic"]},
        {"connection": "main", "type": "Kafka", "datasets": ["b"], "permissions": ["View Data"]},
        {"connection": "es", "type": "Elasticsearch", "datasets": ["*"], "permissions": ["Show Index"]},
    ]
    application = ["Topology / View", "Topology / Manage"]
    document = group(
        namespaces=namespaces, application=application, administration=["License / Manage"], connect_clusters=["dev"]
    )
    snapshot = compile_documents([document])
    assert (snapshot.rejected, snapshot.warnings) == ((), ())


@pytest.mark.parametrize(("datasets", "permissions"), [([], ["Show Topic"]), (["a"], []), ([], [])])
def test_a_namespace_that_grants_nothing_is_warned_of(datasets: list[str], permissions: list[str]) -> None:
    """Without datasets or without permissions it is valid, and surely not meant."""
    namespace = {"connection": "main", "type": "Kafka", "datasets": datasets, "permissions": permissions}
    ((_, warning),) = compile_documents([group(namespaces=[namespace])]).warnings
    assert warning == "namespaces[0]: grants nothing; it has no datasets or no permissions"


def test_a_refused_group_binds_itself_its_claimants_and_members_and_a_refused_fact_nobody() -> None:
    """Members of a document that is about what exists are not taken for people; a number is a name without quotes."""
    value = {"spec": {"members": ["dana", 7]}}
    bound = affected(SYSTEM, Key("lenses5", "Group", "g"), value)
    named = {f"{prefix}{name}" for prefix in ("user:", "claim:", "group:") for name in ("dana", "7")}
    assert bound == {"group:g", "claim:g", *named}
    assert affected(SYSTEM, Key("lenses5", "Processor", "g"), value) == frozenset()


@pytest.mark.parametrize(
    ("context", "notes"),
    [
        ({"connection": "main", "topics": ["b", "a"]}, []),
        ({"topics": []}, ["topics of consumer group g: the request says none, the document a, b, which counts"]),
        (
            {"connection": "other"},
            ["connection of consumer group g: the request says other, the document main, which counts"],
        ),
    ],
)
def test_a_claim_that_contradicts_a_document_is_noted_and_changes_nothing(
    context: dict[str, Any], notes: list[str]
) -> None:
    """The document counts and is named; the same topics in another order are no contradiction."""
    wide = {"connection": "main", "type": "Kafka", "datasets": ["*"], "permissions": ["Show Topic"]}
    known = {"system": "lenses5", "kind": "ConsumerGroup", "name": "g"}
    inventory = known | {"spec": {"connection": "main", "topics": ["a", "b"]}}
    snapshot = compile_documents([inventory, group(namespaces=[wide], application=["Kafka Consumers / View"])])
    decision = decide(snapshot, consumers([]) | {"context": context})
    contradictions = [reason for reason in decision.reasons if reason.code == "fact-contradiction"]
    assert (decision.outcome, decision.claims) == ("allow", ())
    assert [reason.message for reason in contradictions] == notes
    assert {reason.document for reason in contradictions} <= {"lenses5/ConsumerGroup/g"}


def test_the_sentences_of_a_decision_name_statement_rule_and_object() -> None:
    """Through a compound requirement the explanation names which topic of which processor stood in the way."""
    reads = {"connection": "main", "type": "Kafka", "datasets": ["in*"], "permissions": ["Show Topic"]}
    request = consumers([]) | {
        "action": {"name": "sql-processors.view"},
        "resource": {"type": "processor", "id": "p"},
        "context": {"connection": "main", "input_topics": ["in"], "output_topics": ["out"]},
    }
    decision = decide(compile_documents([group(namespaces=[reads], application=["SQL Processors / View"])]), request)
    assert [(missing.message, missing.rule) for missing in decision.missing] == [
        (
            "Show Topic on topic out of connection main, an output topic of SQL processor p is not granted",
            "L5-SQL-VIEW",
        )
    ]
    writes = reads | {"datasets": ["out"]}
    granted = group(namespaces=[reads, writes], application=["SQL Processors / View"])
    reasons = decide(compile_documents([granted]), request).reasons
    assert [(reason.document, reason.statement) for reason in reasons] == [
        ("lenses5/Group/g", None),
        ("lenses5/Group/g", 0),
        ("lenses5/Group/g", 1),
    ]
    assert reasons[2].message == (
        "lenses5/Group/g statement 1 allows Show Topic on topic out of connection main, "
        "an output topic of SQL processor p (user:dana → group:g)"
    )

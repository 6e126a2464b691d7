"""Nothing grows faster than its input: work is counted at ten times the size (`tests.work`), time is not looked at."""

import contextlib
import difflib
import gc
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import policy.store.snapshot
from policy import compile_documents
from policy.analysis.diff import compare
from policy.analysis.edits import Edit, said
from policy.analysis.escalation import analyse
from policy.analysis.impact import what_subject_can
from policy.analysis.lint import lint_documents
from policy.core.limits import Work
from policy.core.pattern import LONGEST, Glob, Part, Pattern, Prefix, covers, overlaps, part_overlaps
from policy.core.plain_data import Unreadable, read_json
from policy.core.suggest import COMPARED, nearest
from policy.core.unique_names import unique_members
from policy.evaluation.authorize import decide
from policy.store.documents import DocumentStore
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.validator import HINTED
from policy.systems.streamsets.catalogue import operations
from tests.work import Compared, comparisons, grows_with_its_input, work


def _look_for_twins(size: int) -> int:
    """A mapping whose last two keys are the same; they are compared, not looked up, as the parser's own text is."""
    pairs = [(Compared(f"key{number}"), 1) for number in range(size)]
    pairs.append((Compared(f"key{size - 1}"), 2))

    def read() -> None:
        with contextlib.suppress(ValueError):
            unique_members(list(pairs))

    return comparisons(read)


def test_a_late_duplicate_key_is_found_in_one_pass() -> None:
    assert grows_with_its_input(_look_for_twins, 100)


def test_of_several_duplicate_keys_the_first_is_named() -> None:
    with pytest.raises(Unreadable, match="duplicate key 'b'"):
        read_json('{"a": 1, "b": 2, "c": 3, "c": 4, "b": 5}')


@pytest.mark.parametrize(
    "pair",
    [
        lambda size: (Glob("a" * size + "*b"), Glob("a" * size + "*c*b")),
        lambda size: (Glob("a*" * size), Prefix("a" * size)),
        lambda size: (Glob("*a" * size + "*b"), Glob("*a" * size + "*c")),
        lambda size: (Glob("*a?" * size, single=True), Glob("a?" * 2 * size, single=True)),
    ],
    ids=["long heads", "with a prefix", "many stars", "without a star"],
)
def test_overlaps_of_long_globs(pair: Callable[[int], tuple[Part, Part]]) -> None:
    def measure(size: int) -> int:
        left, right = pair(size)
        return work(lambda: part_overlaps(left, right))

    assert grows_with_its_input(measure, 30)


@pytest.mark.parametrize(
    "pair",
    [
        lambda size: (Glob("*" + "a" * size + "*b"), Glob("a" * 2 * size + "*b")),
        lambda size: (Glob("*" + "a" * size + "b*"), Glob("*" + "a" * 2 * size + "*")),
        lambda size: (Glob("*" + "?a" * size + "b*", single=True), Glob("a?" * 2 * size + "*", single=True)),
        lambda size: (Glob("a*" * size), Glob("a*" * size)),
        lambda size: (Glob("*a" * size + "*b"), Prefix("a" * size)),
    ],
    ids=["a long piece", "one that almost fits", "any one in both", "many stars", "with a prefix"],
)
def test_covering_of_long_globs(pair: Callable[[int], tuple[Part, Part]]) -> None:
    """And whether these overlap: a piece that fits nearly everywhere is looked for at all places at once."""

    def measure(size: int, compare: Callable[[Pattern, Pattern], bool]) -> int:
        wide, narrow = (Pattern((part,)) for part in pair(size))
        return work(lambda: compare(wide, narrow))

    assert grows_with_its_input(lambda size: measure(size, covers), 30)
    assert grows_with_its_input(lambda size: measure(size, overlaps), 30)


def test_a_piece_too_long_to_be_looked_for_may_overlap_and_is_not_known_to_be_covered() -> None:
    """Also where it is: what is decided by patterns does not rest on this."""
    wide, narrow = (Pattern((Glob(text),)) for text in ("*" + "a" * (LONGEST + 1) + "*b", "a" * (LONGEST + 1) + "*b"))
    assert not covers(wide, narrow)
    assert overlaps(wide, narrow)


def _documents(system: str, kind: str, specs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"system": system, "kind": kind, "name": name, "spec": spec} for name, spec in specs.items()]


def _store(*documents: dict[str, Any]) -> DocumentStore:
    store = DocumentStore()
    for document in documents:
        store.put(document)
    return store


LIST = {
    "id": "1",
    "system": "cdap",
    "subject": {"type": "user", "id": "dana"},
    "action": {"name": "namespace.list"},
    "resource": {"type": "namespace", "id": "namespace:shop"},
}


def _held(*entities: str) -> list[dict[str, Any]]:
    specs = {entity: {"user": "dana", "entity": entity, "privileges": ["READ"]} for entity in entities}
    return _documents("cdap", "Grant", specs)


def _list_beside_refused(size: int) -> int:
    """Each application holds a refused program, below which each grant with a wildcard may name another."""
    numbers = range(size)
    refused = {f"program:shop.a{number}.p": {"parent": 5} for number in numbers}
    entities = _documents("cdap", "Entity", {"namespace:shop": {}, "dataset:shop.d": {"parent": 5}, **refused})
    held = _held(*(entity for n in numbers for entity in (f"application:shop.a{n}", f"program:shop.a?.p{n}")))
    snapshot = Snapshot(_store(*entities, *held))
    return work(lambda: decide(snapshot, LIST))


def test_lists_of_cdap_beside_refused_entities() -> None:
    with (
        mock.patch("policy.systems.cdap.descendants.MAX_RELATED", 50),
        mock.patch("policy.systems.cdap.tree.MAX_RELATED", 50),
    ):
        assert grows_with_its_input(_list_beside_refused, 20)


def test_of_many_refused_entities_the_answer_names_the_first_and_counts_the_others() -> None:
    refused = _documents("cdap", "Entity", {f"application:shop.a{number:03}": {"parent": 5} for number in range(130)})
    answer = decide(Snapshot(_store(*_documents("cdap", "Entity", {"namespace:shop": {}}), *refused)), LIST)
    messages = [reason.message for reason in answer.reasons]
    assert (answer.outcome, len([text for text in messages if "was refused" in text])) == ("error", 100)
    assert "30 more documents of cdap/Entity were refused, so where it lies is not known" in messages


def _role(name: str, *statements: tuple[str, str]) -> dict[str, Any]:
    """Statements: effect, and the topic that everything is allowed or denied on."""
    written = [
        {"effect": effect, "action": ["*"], "resource": [f"kafka:topic:{topic}"]} for effect, topic in statements
    ]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": written}}


def _group(roles: list[str]) -> dict[str, Any]:
    spec = {"roles": roles, "members": ["user:dana", "user:max"]}
    return {"system": "lenses6", "kind": "Group", "name": "all", "spec": spec}


def _one_role(size: int, topic: str) -> list[dict[str, Any]]:
    return [_group(["r"]), _role("r", *(("allow", f"a/b/{topic}{number}") for number in range(size)))]


def _denies(size: int, topic: str) -> list[dict[str, Any]]:
    statements = (("deny", f"a/b/{topic}{number}") for number in range(size))
    return [_group(["r"]), _role("r", ("allow", "*/*/*"), *statements)]


def _role_each(size: int, topic: str) -> list[dict[str, Any]]:
    roles = [_role(f"r{number}", ("allow", f"a/b/{topic}{number}")) for number in range(size)]
    return [_group([role["name"] for role in roles]), *roles]


def _denying_role_each(size: int, topic: str) -> list[dict[str, Any]]:
    roles = [_role(f"r{n}", ("deny", f"a/b/{topic}{n}"), ("allow", f"a/b/{topic}{n}")) for n in range(size)]
    return [_group([role["name"] for role in roles]), *roles]


def _repeated(size: int, topic: str) -> list[dict[str, Any]]:
    """The very same statement many times: of each pair one covers the other."""
    return [_group(["r"]), _role("r", *([("allow", f"a/b/{topic}")] * size))]


def _denies_for_every_group(size: int, topic: str) -> list[dict[str, Any]]:
    roles = [_role(f"r{number}", ("allow", f"a/b/{topic}{number}")) for number in range(size)]
    groups = [{**_group([role["name"], "never"]), "name": f"of {role['name']}"} for role in roles]
    return [*groups, *roles, _role("never", *(("deny", f"a/c/{topic}{number}") for number in range(size)))]


def _actions_on_one_topic(size: int, topic: str) -> list[dict[str, Any]]:
    statements = [
        {"effect": "allow", "action": f"kafka:Get{number}", "resource": f"kafka:topic:a/b/{topic}"}
        for number in range(size)
    ]
    return [_group(["r"]), {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": statements}}]


Policies = Callable[[int, str], list[dict[str, Any]]]
POLICIES: list[Policies] = [_one_role, _denies, _role_each, _denying_role_each, _repeated, _actions_on_one_topic]
whatever_is_renamed = pytest.mark.parametrize("policies", POLICIES, ids=lambda policies: policies.__name__.strip("_"))


@whatever_is_renamed
def test_a_diff_of_renamed_statements(policies: Policies) -> None:
    def measure(size: int) -> int:
        old, new = (Snapshot(_store(*policies(size, topic))) for topic in ("old", "new"))
        return work(lambda: compare(old, new))

    assert grows_with_its_input(measure, 20)


@pytest.mark.parametrize("policies", [*POLICIES, _denies_for_every_group], ids=lambda policies: policies.__name__)
def test_lint(policies: Policies) -> None:
    def measure(size: int) -> int:
        store = _store(*policies(size, "old"))
        return work(lambda: lint_documents(store))

    assert grows_with_its_input(measure, 20)


@whatever_is_renamed
def test_what_a_subject_can(policies: Policies) -> None:
    def measure(size: int) -> int:
        snapshot = Snapshot(_store(*policies(size, "old")))
        return work(lambda: what_subject_can(snapshot, "lenses6", {"type": "user", "id": "user:dana"}, 0))

    assert grows_with_its_input(measure, 20)


@whatever_is_renamed
def test_escalations_of_renamed_statements(policies: Policies) -> None:
    def measure(size: int) -> int:
        before, after = (_store(*policies(size, topic)) for topic in ("old", "new"))
        edits = [
            Edit(str(key), said(before.histories[key]), said(document_history))
            for key, document_history in after.histories.items()
        ]
        policy_set = Snapshot(after).policy_sets["lenses6"]
        return work(lambda: analyse(all_systems()["lenses6"], policy_set, edits, 0, Work()))

    assert grows_with_its_input(measure, 20)


def test_versions_of_a_document_in_a_log() -> None:
    """A StreamSets object keeps those since the oldest login."""

    def measure(size: int) -> int:
        store = DocumentStore()
        value = {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": True}}
        return work(lambda: [store.put(value, offset, offset) for offset in range(size)])

    assert grows_with_its_input(measure, 30)


def _object(number: int) -> dict[str, Any]:
    spec = {"type": "job", "owner": "ann", "pipeline": "pipeline:p", "acl": {f"user:u{number}": ["READ"]}}
    return {"system": "streamsets", "kind": "Object", "name": "job:j", "spec": spec}


@pytest.mark.parametrize(
    "document", [_object, lambda number: _role("r", ("allow", f"a/b/t{number}"))], ids=["looked back at", "others"]
)
def test_versions_of_a_document_that_say_when_they_begin(document: Callable[[int], dict[str, Any]]) -> None:
    def measure(size: int) -> int:
        versions = [document(number) | {"effective_at": number + 1} for number in range(size)]
        compile_documents(versions[:1])  # reads the catalogue
        return work(lambda: compile_documents(versions))

    assert grows_with_its_input(measure, 20)


def test_what_a_subject_can_by_versions_of_an_object() -> None:
    """Of each version's grants it is asked which versions of the object count."""
    organization = {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"enforcement": True}}
    ann = {"type": "user", "id": "ann", "properties": {"organization": "o"}}

    def measure(size: int) -> int:
        versions = [_object(number) | {"effective_at": number + 1} for number in range(size)]
        snapshot = compile_documents([organization, *versions])
        return work(lambda: what_subject_can(snapshot, "streamsets", ann, size))

    assert grows_with_its_input(measure, 20)


@pytest.mark.parametrize("name", ["kafka.topic.shwo", "topic", "kakfa.kcipot." * 3, "x" * 1_000_000], ids=len)
def test_a_misspelt_name_is_compared_with_few_others_and_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose it, and a comparison takes longer than a decision."""
    known = [f"kafka.topic.{verb}{number}" for number in range(100) for verb in ("show", "create", "delete")]
    compared: list[str] = []

    class Counting(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append(name)
            return super().ratio()

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    assert [nearest(name, known), nearest(name, known)] == [nearest(name, list(known))] * 2
    assert len(compared) <= COMPARED


def test_the_name_that_difflib_finds_first_is_named() -> None:
    known = list(operations())
    for name in known:
        misspelt = name[:-2] + name[-1] + name[-2]
        if misspelt == name:
            continue
        (close,) = difflib.get_close_matches(misspelt, known, n=1)
        assert nearest(misspelt, known, most=1) == f"; did you mean {close}?"


def test_of_a_document_with_many_misspelt_names_the_first_have_a_hint() -> None:
    roles = {f"job.delte{number}": ["r"] for number in range(3 * HINTED)}
    document = {"system": "streamsets", "kind": "Organization", "name": "o", "spec": {"task_roles": roles}}
    (refused,) = compile_documents([document]).rejected
    assert len(refused.errors) == len(roles)
    assert sum("did you mean" in error for error in refused.errors) == HINTED


@pytest.fixture
def frozen() -> Iterator[None]:
    """What a process has now is frozen, as a server does before it forks."""
    gc.freeze()
    yield
    gc.unfreeze()


def _roles(count: int) -> list[dict[str, Any]]:
    statement = {"effect": "allow", "action": ["kafka:ListTopic"], "resource": ["kafka:topic:a/b/c"]}
    return [
        {"system": "lenses6", "kind": "Role", "name": f"r{n}", "spec": {"statements": [statement]}}
        for n in range(count)
    ]


@pytest.mark.usefixtures("frozen")
def test_few_documents_are_compiled_without_a_walk_over_what_is_frozen() -> None:
    with mock.patch.object(gc, "get_freeze_count") as count:
        assert not compile_documents(_roles(10)).rejected
    assert not count.called


@pytest.mark.usefixtures("frozen")
def test_what_is_frozen_stays_so_while_documents_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.store.snapshot, "MANY_OBJECTS", 100)
    before = gc.get_freeze_count()
    assert not compile_documents(_roles(1000)).rejected
    assert gc.get_freeze_count() > before / 2


def test_many_new_objects_count_as_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.store.snapshot, "MANY_OBJECTS", 100)
    gc.unfreeze()  # the tests are frozen
    with mock.patch.object(gc, "unfreeze", wraps=gc.unfreeze) as unfreeze:
        assert not compile_documents(_roles(1000)).rejected
    assert unfreeze.called
    assert gc.get_freeze_count() == 0

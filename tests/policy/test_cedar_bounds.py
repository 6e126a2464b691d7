"""What Cedar's native parser and evaluator are given is bounded, and what is large is parsed where it may die."""

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import compile_documents, decide, engine_findings
from policy.analysis import lint
from policy.systems.cedar import parser_process, text
from policy.systems.cedar.hierarchy import has_more_pairs, in_cycle
from policy.systems.cedar.uid import Uid
from tests.examples import examples

ASKED = {
    "id": "r",
    "system": "cedar",
    "subject": {"type": "User", "id": "ann"},
    "action": {"name": "read"},
    "resource": {"type": "Doc", "id": "plan"},
}
OPEN = "permit(principal, action, resource);"


def document(policies: str, name: str = "p") -> dict[str, Any]:
    return {"system": "cedar", "kind": "PolicySet", "name": name, "spec": {"policies": policies}}


def schema(written: Any, name: str = "s") -> dict[str, Any]:
    return {"system": "cedar", "kind": "Schema", "name": name, "spec": {"schema": written}}


def when(condition: str) -> str:
    return f"permit(principal, action, resource) when {{ {condition} }};"


def errors(*documents: dict[str, Any]) -> dict[str, str]:
    """The first error of each document that is refused."""
    return {rejected.key: rejected.errors[0] for rejected in compile_documents(list(documents)).rejected}


CHAINS: dict[str, Callable[[int], str]] = {
    "minus": lambda n: when("1 == 1" + " - 1" * n),
    "plus": lambda n: when("1 == 1" + " + 1" * n),
    "times": lambda n: when("1 == 1" + "\n* 1" * n),
    "and": lambda n: when("true" + "&&true" * n),
    "or": lambda n: when("false" + "||false" * n),
    "attributes": lambda n: when("principal" + ".a" * n),
    "indexes": lambda n: when("principal" + '["a"]' * n),
    "calls": lambda n: when("principal" + ".contains(1)" * n),
    "within a set": lambda n: when(f"[1, 1{' - 1' * n}, 1] == 1"),
    "within brackets": lambda n: when(" && (true" * 20 + " && true" * n + ")" * 20).replace("{  &&", "{"),
    "through brackets": lambda n: when(
        ("true && " * (n // 20) + "(") * 20 + "true" + ")" * 20
    ),
    "behind a comment": lambda n: when("1 == 1" + " - // )\n 1" * n),
    "conditions": lambda n: "permit(principal, action, resource)" + " unless {false}" * n + ";",
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_operators_is_bounded_by_cedars_tokens(name: str) -> None:
    """Of 130,000 terms, in 300 kB, the process died: each is one level of the tree, without a bracket."""
    good, bad = document(CHAINS[name](400), "good"), document(CHAINS[name](30_000), "bad")
    found = errors(good, bad, document(OPEN, "other"))
    assert list(found) == ["cedar/PolicySet/bad"]
    assert "operators nested deeper than 1000" in found["cedar/PolicySet/bad"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (when("principal has a" + ".a" * 16), "has with a path of more than 16 attributes"),
        (when("true || principal has\n a" + " //.\n. a" * 50_000), "has with a path of more than 16 attributes"),
        (when('context.a like "' + "*a" * 600 + '"'), "like with a pattern of more than 1000 characters"),
        (when("if true then 1 else " * 101 + "1 == 1"), "101 times if in one policy"),
        (when("(" * 20_000 + "true" + ")" * 20_000), "nested deeper than 32"),
        (when("[" * 33 + "]" * 33 + " == 1"), "nested deeper than 32"),
        (when("{a:" * 33 + "1" + "}" * 33 + " == 1"), "nested deeper than 32"),
        (when("!" * 300_000 + "true"), "operators nested deeper than 1000"),
        (when("-" * 300_000 + "1 == 1"), "operators nested deeper than 1000"),
    ],
)
def test_what_else_is_deep_or_quadratic_is_refused(written: str, message: str) -> None:
    """Cedar writes ``has a.b.c`` out: 100 kB of it took 18 s in each decision."""
    assert message in errors(document(written))["cedar/PolicySet/p"]


def test_what_is_long_but_not_deep_is_accepted() -> None:
    """Lists, paths of names, policies and comments do not nest."""
    names = ", ".join(f'Action::"{number}"' for number in range(3000))
    texts = (
        f"permit(principal, action in [{names}], resource);",
        when("[" + "1, " * 5000 + "1].contains(1)"),
        when("A::" * 2000 + 'B::"c" == principal'),
        when("principal has a" + ".a" * 15),
        OPEN * 3000,
        "// - - - - -\n" * 3000 + OPEN,
        when('"' + "- " * 3000 + '" == "a"'),
    )
    assert errors(*(document(one, f"p{number}") for number, one in enumerate(texts))) == {}


USED_UP = """
import threading
from tests.policy.test_cedar_bounds import used_up
for mib in (2, 8):  # glibc gives a thread the stack of one that ended, if it is large enough
    threading.stack_size(mib << 20)
    thread = threading.Thread(target=used_up)
    thread.start()
    thread.join()
"""


def used_up() -> None:
    """Everything at its bound, in one policy: compiled, decided and linted."""
    deep = "(" * 30 + "true" + ")" * 30
    ifs = "if true then true else " * (text.MAX_IFS - 10) + deep
    chain = "principal has a" + ".a" * 15 + " || true" * (text.MAX_CHAIN - 600) + f" || ({ifs})"
    snapshot = compile_documents([document(when(chain))])
    assert snapshot.rejected == (), snapshot.rejected
    lint([document(when(chain)), schema("entity User, Doc;")])
    print(decide(snapshot, ASKED).outcome)


def test_with_all_bounds_used_up_a_small_stack_is_large_enough() -> None:
    """Of a thread where `ulimit -s` is unlimited: 2 MiB, where Cedar's evaluator fails; others have 8."""
    done = subprocess.run([sys.executable, "-c", USED_UP], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "error\nallow\n"), done.stderr


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Without the bounds on tokens, and with no memory of what was fatal. Returns the calls of processes."""
    calls, answer = list[bytes](), parser_process._answer

    def counted(job: bytes) -> Any:
        calls.append(job)
        return answer(job)

    monkeypatch.setattr(text, "MAX_CHAIN", 10**9)
    monkeypatch.setattr(parser_process, "_fatal", {})
    monkeypatch.setattr(parser_process, "_answer", counted)
    return calls


def test_a_document_with_which_the_parser_dies_is_refused_and_no_other(unbounded: list[bytes]) -> None:
    """And it is not tried again: each start reads every version until compaction."""
    fatal = document(CHAINS["minus"](130_000), "fatal")
    large = document(OPEN + when('"' + "a" * parser_process.SMALL + '" == "a"'), "large")
    for _ in range(2):
        snapshot = compile_documents([fatal, large, document(OPEN, "other")])
        [rejected] = snapshot.rejected
        assert rejected.key == "cedar/PolicySet/fatal"
        assert "Cedar's parser ends with it (signal 11)" in rejected.errors[0]
    assert len(unbounded) == 3  # of the large one twice


def test_a_document_that_takes_too_long_is_refused(unbounded: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "SECONDS", 0.5)
    members = schema("entity User {" + ", ".join(f"a{number}: Long" for number in range(60_000)) + "};")
    assert "more than 0.5 s of the processor" in errors(members)["cedar/Schema/s"]
    assert len(unbounded) == 1


APPLIES = "action a%d"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("entity User {a: " + "Set<" * 20_000 + "Long" + ">" * 20_000 + "};", "nested deeper than 32"),
        ("entity User {a: " + "{a: " * 20_000 + "Long" + "}" * 20_000 + "};", "nested deeper than 32"),
        ("".join(f"entity U{n} in [U{n + 1}];" for n in range(20_000)) + "entity U20000;", "parser ends with it"),
        (
            {"": {"entityTypes": {f"U{n}": {"memberOfTypes": [f"U{n + 1}"]} for n in range(20_000)}, "actions": {}}},
            "failed to resolve type",
        ),
        (
            f"entity U; {APPLIES % 0};" + "".join(f"{APPLIES % n} in [a{n - 1}];" for n in range(1, 700)),
            "actions are in too many groups",
        ),
        (
            f"entity T2500; {APPLIES % 0};" + "".join(f"entity T{n} in [T{n + 1}];" for n in range(2500)),
            "MiB: use fewer levels",
        ),
    ],
)  # fmt: skip
def test_a_schema_is_bounded_and_parsed_where_it_may_die(written: Any, message: str) -> None:
    assert message in errors(schema(written), schema("entity User;", "good"))["cedar/Schema/s"]


def test_what_is_large_is_parsed_as_what_is_small_is() -> None:
    """Also a text that Cedar refuses, and beside small ones."""
    blank = "\n" * parser_process.SMALL
    small, large = (document(f"permit(principal,{gap}action, resource); {OPEN}") for gap in ("", blank))
    facts = [compile_documents([one]).policy_sets["cedar"].facts for one in (small, large)]
    contents = [
        [fact.body.content for name in sorted(side.names("Policy")) for fact in side.versions("Policy", name)]
        for side in facts
    ]
    assert contents[0] == contents[1]
    wrong = errors(document(f"permit(principle,{blank}action, resource); {OPEN}"))
    assert wrong == errors(document(f"permit(principle,action, resource); {OPEN}"))


def _in_process(queue: Any) -> None:
    queue.put(errors(document(f"permit(principal,{' ' * parser_process.SMALL}action, resource);")))


def test_large_documents_are_parsed_in_forked_processes_and_in_threads() -> None:
    """As in the workers of Spark, and in `serve`."""
    fork, found = multiprocessing.get_context("fork"), list[dict[str, str]]()
    queue = fork.Queue()
    process = fork.Process(target=_in_process, args=(queue,))
    process.start()
    found.append(queue.get(timeout=120))
    process.join(120)
    large = document(f"permit(principal,{' ' * parser_process.SMALL}action, resource);")
    threads = [threading.Thread(target=lambda: found.append(errors(large))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [{}] * 5


def test_a_chain_of_parents_is_no_work_and_a_cycle_is_refused() -> None:
    """The library works out every pair: of 17,000 entities in 1 MiB, 150,000,000."""

    def entities(parents: dict[int, int]) -> dict[str, Any]:
        listed = [
            {"uid": {"type": "U", "id": str(one)}, "parents": [{"type": "U", "id": str(above)}]}
            for one, above in parents.items()
        ]
        return {"system": "cedar", "kind": "Entities", "name": "e", "spec": {"entities": listed}}

    chain = {number: number + 1 for number in range(8000)}
    assert errors(entities(chain)) == {}
    assert 'U::"7000" has a cycle among its parents' in errors(entities({**chain, 8000: 7000}))["cedar/Entities/e"]


def test_lint_checks_entities_against_a_schema_where_it_may_die() -> None:
    """The library works out every pair of a chain, also of entities that no request needs."""
    listed = [
        {"uid": {"type": "U", "id": str(one)}, "parents": [{"type": "U", "id": str(one + 1)}]} for one in range(8000)
    ]
    entities = {"system": "cedar", "kind": "Entities", "name": "e", "spec": {"entities": listed}}
    wrong = {**entities, "name": "w", "spec": {"entities": [{**listed[0], "attrs": {"a": "b" * parser_process.SMALL}}]}}
    snapshot = compile_documents([schema("entity U in [U];"), entities, wrong])
    found = {one.document: one.message for one in engine_findings(snapshot)}
    assert "Cedar's parser ends with it" in found["cedar/Entities/e"]
    assert "should not exist according to the schema" in found["cedar/Entities/w"]


def _layers(levels: int, width: int, parents: int) -> dict[str, Any]:
    """Entities in layers, each with parents in the next one."""
    listed = [
        {
            "uid": {"type": "Group", "id": f"{level}-{number}"},
            "parents": [
                {"type": "Group", "id": f"{level + 1}-{above}"}
                for above in sorted({(number * parents + one) % width for one in range(parents)})
                if level + 1 < levels
            ],
        }
        for level in range(levels)
        for number in range(width)
    ]
    return {"system": "cedar", "kind": "Entities", "name": "e", "spec": {"entities": listed}}


def test_a_request_with_very_many_ancestors_is_an_error() -> None:
    """The library works out each pair: of 9,600 entities in 32 levels it took more memory than the machine has."""
    claimed = {**ASKED, "subject": {**ASKED["subject"], "properties": {"groups": ["0-0"]}}}
    for layers, outcome in ((_layers(20, 40, 2), "allow"), (_layers(30, 150, 3), "error")):
        snapshot = compile_documents([document(OPEN), layers])
        assert snapshot.rejected == ()
        decision = decide(snapshot, claimed, trust=frozenset({"groups"}))
        assert decision.outcome == outcome
        assert outcome == "allow" or "more than 500000 ancestors together" in decision.reasons[0].message


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.integers(0, 8), st.lists(st.integers(0, 9), max_size=3)))
def test_ancestors_are_counted_as_they_are(drawn: dict[int, list[int]]) -> None:
    parents = {("U", str(one)): [("U", str(above)) for above in some] for one, some in drawn.items()}

    def reached(uid: Uid) -> set[Uid]:
        found, todo = set[Uid](), [uid]
        while todo:
            new = set(parents.get(todo.pop(), ())) - found
            found |= new
            todo += new
        return found

    pairs = sum(len(reached(uid)) for uid in parents)
    assert not has_more_pairs(parents, pairs)
    assert pairs == 0 or has_more_pairs(parents, pairs - 1)
    assert (in_cycle(parents) is not None) == any(uid in reached(uid) for uid in parents)


def test_a_request_nested_too_deep_never_reaches_the_library() -> None:
    value: Any = 1
    for _ in range(20_000):
        value = {"a": value}
    snapshot = compile_documents([document(OPEN)])
    for part in ({"context": value}, {"subject": {**ASKED["subject"], "properties": value}}):
        assert decide(snapshot, {**ASKED, **part}, trust=frozenset({"facts"})).reasons[0].code == "malformed-request"

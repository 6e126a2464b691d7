"""A draft in the place of documents: as a new store, and on a store in use that is afterwards as it was."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy import Compiler, DocumentStore, Snapshot, decide, drafted, identify, with_drafts
from tests.examples import examples
from tests.policy.test_properties import WRITTEN, documents_of, requests_of
from tests.policy.test_widening import group, role

ASKED = {
    "id": "r",
    "system": "lenses6",
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}


def _store(documents: list[dict[str, Any]], *systems: str) -> DocumentStore:
    store = DocumentStore(systems=systems)
    for number, document in enumerate(documents):
        store.put(document, 1, number)
    return store


@pytest.mark.parametrize("system", WRITTEN)
def test_both_ways_answer_alike_and_the_store_is_as_before(system: str) -> None:
    @settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
    @given(documents_of(system), documents_of(system), st.lists(requests_of(system), max_size=8), st.booleans())
    def check(live: list[Any], draft: list[Any], requests: list[dict[str, Any]], prune: bool) -> None:
        live, drafts = [_undated(one) for one in live], {identify(one): _undated(one) for one in draft}
        store = _store(live, system)
        compiler, before = Compiler(store), Snapshot(store)
        after = Snapshot(with_drafts(store, drafts, prune))
        with drafted(store, compiler, drafts, prune) as snapshot:
            assert snapshot.version == after.version
            assert [decide(snapshot, one).outcome for one in requests] == [
                decide(after, one).outcome for one in requests
            ]
        assert compiler.snapshot.version == before.version == Snapshot(store).version
        assert [decide(compiler.snapshot, one).outcome for one in requests] == [
            decide(before, one).outcome for one in requests
        ]

    check()


def _undated(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "effective_at"}


def test_a_failure_leaves_the_store_as_it_was() -> None:
    store = _store([role("readers", "kafka:topic:prod/*"), group("readers", ["readers"], "user:dana")], "lenses6")
    compiler = Compiler(store)
    frozen = role("readers", "kafka:topic:prod/*", "deny")

    def fail() -> None:
        with drafted(store, compiler, {identify(frozen): frozen}, False) as snapshot:
            assert decide(snapshot, ASKED).outcome == "deny"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert decide(compiler.snapshot, ASKED).outcome == "allow"

"""Nothing grows faster than its input: work is counted at ten times the size (`tests.work`), time is not looked at."""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from policy.decide import decide
from policy.library import Library
from policy.patterns import Glob, Part, Prefix, part_overlaps
from policy.snapshot import Snapshot
from policy.texts import Unreadable, _object, read_json
from tests.work import Compared, comparisons, grows_with_its_input, work


def _look_for_twins(size: int) -> int:
    """A mapping whose last two keys are the same; they are compared, not looked up, as the parser's own text is."""
    pairs = [(Compared(f"key{number}"), 1) for number in range(size)]
    pairs.append((Compared(f"key{size - 1}"), 2))

    def read() -> None:
        with contextlib.suppress(ValueError):
            _object(list(pairs))

    return comparisons(read)


def test_a_late_duplicate_key_is_found_in_one_pass() -> None:
    assert grows_with_its_input(_look_for_twins, 100)


def test_of_several_duplicate_keys_the_first_is_named() -> None:
    with pytest.raises(Unreadable, match="'b' stands twice"):
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


def _documents(system: str, kind: str, specs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"system": system, "kind": kind, "name": name, "spec": spec} for name, spec in specs.items()]


def _library(*documents: dict[str, Any]) -> Library:
    library = Library()
    for document in documents:
        library.put(document)
    return library


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
    snapshot = Snapshot(_library(*entities, *held))
    return work(lambda: decide(snapshot, LIST))


def test_lists_of_cdap_beside_refused_entities() -> None:
    with (
        mock.patch("policy.systems.cdap.below.MAX_RELATED", 50),
        mock.patch("policy.systems.cdap.tree.MAX_RELATED", 50),
    ):
        assert grows_with_its_input(_list_beside_refused, 20)


def test_of_many_refused_entities_the_answer_names_the_first_and_counts_the_others() -> None:
    refused = _documents("cdap", "Entity", {f"application:shop.a{number:03}": {"parent": 5} for number in range(130)})
    answer = decide(Snapshot(_library(*_documents("cdap", "Entity", {"namespace:shop": {}}), *refused)), LIST)
    messages = [reason.message for reason in answer.reasons]
    assert (answer.outcome, len([text for text in messages if "was refused" in text])) == ("error", 100)
    assert "30 more documents of cdap/Entity were refused, so where it lies is not known" in messages

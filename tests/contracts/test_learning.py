"""Schema ids that clients invent do not keep a good new one from being read. No registry runs: it is a dictionary."""

import threading

import pytest

from streaming.records import encodings
from streaming.records.encodings import ASKED_AT_ONCE, SCHEMA_BYTES, Encodings, subject_of
from streaming.records.registry import RegistryDown, RegistryRefused
from streaming.records.schemas import read
from streaming.settings import SchemaRegistry, Settings

REQUEST = read("avro/request.avsc")
GOOD = 5_000
INVENTED = range(1, GOOD)


class Schemas:
    """A registry of these schemas. `down`: how often it does not answer before it does."""

    def __init__(self, by_id: dict[int, str], subjects: dict[str, list[int]], down: int = 0) -> None:
        self._by_id, self._subjects, self._down = by_id, subjects, down
        self.asked: list[int | str] = []

    def _answer(self, asked: int | str) -> None:
        self.asked.append(asked)
        if len(self.asked) <= self._down:
            raise RegistryDown("away")

    def schema(self, id_: int) -> tuple[str, ...]:
        self._answer(id_)
        if id_ not in self._by_id:
            raise RegistryRefused("HTTP 404")
        return (self._by_id[id_],)

    def versions(self, subject: str) -> dict[int, tuple[str, ...]]:
        self._answer(subject)
        if subject not in self._subjects:
            raise RegistryRefused("HTTP 404")
        return {id_: (self._by_id[id_],) for id_ in self._subjects[subject]}


def _encodings(monkeypatch: pytest.MonkeyPatch, schemas: Schemas) -> Encodings:
    monkeypatch.setattr(encodings, "Registry", lambda _settings: schemas)
    monkeypatch.setattr(encodings, "FIRST_PAUSE", 0.001)
    return Encodings(SETTINGS)


SETTINGS = Settings(schema_registry=SchemaRegistry(url="http://localhost:1"))
SUBJECT = subject_of(SETTINGS.topics.requests[0])


def test_a_good_new_id_is_learned_beside_any_number_of_invented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the subject of its topic, the first time it comes; also while the registry is away at first."""
    schemas = Schemas({GOOD: REQUEST}, {SUBJECT: [GOOD]}, down=2)
    learning = _encodings(monkeypatch, schemas)
    assert learning.learn([*INVENTED, GOOD], threading.Event())
    formats = learning.formats()
    assert formats.known.keys() == {GOOD}
    assert formats.unusable.keys() == set(INVENTED)
    assert len(schemas.asked) <= ASKED_AT_ONCE + 2 + len(SETTINGS.topics.requests) + len(SETTINGS.topics.audit)


def test_an_id_that_was_not_asked_for_is_asked_for_with_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered elsewhere it has to wait for its turn; those known not to be there do not take it."""
    good = 2 * ASKED_AT_ONCE
    learning = _encodings(monkeypatch, Schemas({good: REQUEST}, {}))
    for _ in range(2):
        known = learning.formats()
        learning.learn(set(range(1, good + 1)) - known.unusable.keys(), threading.Event())
        learning.learn([], threading.Event())  # the evaluation with what was learned
    assert learning.formats().known.keys() == {good}


def test_a_schema_that_is_too_large_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    large = REQUEST.replace('"type": "record"', f'"type": "record", "aliases": ["{"a" * SCHEMA_BYTES}"]', 1)
    assert len(large) > SCHEMA_BYTES
    learning = _encodings(monkeypatch, Schemas({1: large, 2: REQUEST}, {}))
    learning.learn([1, 2], threading.Event())
    assert learning.formats().known.keys() == {2}
    assert "at most" in learning.formats().unusable[1]

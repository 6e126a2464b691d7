"""What a registry answers one after the other: schemas that refer to others, and answers that something else gave."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from streaming.records import encodings
from streaming.records.encodings import Encodings
from streaming.records.registry import Registry, RegistryDown, RegistryRefused
from streaming.records.schemas import read
from streaming.settings import Settings
from tests.contracts.registry_server import Answer, RegistryServer

REQUEST = {"schema": read("avro/request.avsc")}
PAGE = b"<html>" + 100_000 * b"a"


@contextlib.contextmanager
def _registry(answers: Mapping[str, list[Answer]]) -> Iterator[tuple[Registry, list[str]]]:
    with RegistryServer(answers) as server:
        registry = Registry(server.settings)
        try:
            yield registry, server.asked
        finally:
            registry.close()


def _json(value: Any) -> Answer:
    return 200, json.dumps(value).encode()


@pytest.mark.parametrize("register", [True, False])
def test_our_schemas_have_no_id_by_what_is_no_answer_of_a_registry(register: bool) -> None:
    """All decisions of a job were written by the schema 0."""
    path = "/subjects/decisions-value" + ("/versions" if register else "")
    with RegistryServer({path: [_json({"status": "maintenance"})]}) as server:
        registry = Registry(msgspec.structs.replace(server.settings, register=register))
        with pytest.raises(RegistryDown, match="without an id"):
            registry.id_of("decisions-value", REQUEST["schema"])
        assert server.asked == [path]
        registry.close()


def test_a_job_waits_until_it_is_the_registry_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(encodings, "LONGEST_PAUSE", 0.1)
    answers = [(302, b""), (404, PAGE), _json({"status": "starting"}), _json(REQUEST)]
    with RegistryServer({"/schemas/ids/7": answers}) as server:
        learning, stop = Encodings(Settings(schema_registry=server.settings)), threading.Event()
        late = threading.Timer(20, stop.set)  # ends the waiting with an error
        late.start()
        assert learning.learn([7], stop)
        late.cancel()
        formats = learning.formats()
        learning.close()
    assert formats.known.keys() == {7}
    assert not formats.unusable


def _reference(number: int) -> dict[str, Any]:
    return {"name": f"T{number}", "subject": f"s{number}", "version": 1}


def _referring(text: str, *numbers: int) -> Answer:
    return _json({"schema": text, "id": 1, "version": 1, "references": [_reference(number) for number in numbers]})


def test_a_schema_that_others_refer_to_is_there_once() -> None:
    """Two of a schema's references may share a third, in front of both."""
    answers = {
        "/schemas/ids/7": [_referring("a", 1, 2)],
        "/subjects/s1/versions/1": [_referring("b", 3)],
        "/subjects/s2/versions/1": [_referring("c", 3)],
        "/subjects/s3/versions/1": [_referring("d")],
    }
    with _registry(answers) as (registry, _):
        assert registry.schema(7) == ("d", "b", "c", "a")


def test_references_that_double_with_each_schema_are_asked_for_once() -> None:
    """Producers that may register schemas could else keep the job busy for ever."""
    answers = {f"/subjects/s{n}/versions/1": [_referring(str(n), n + 1, n + 1)] for n in range(40)}
    answers["/subjects/s40/versions/1"] = [_referring("40")]
    with _registry({**answers, "/schemas/ids/7": [_referring("a", 0)]}) as (registry, asked):
        assert registry.schema(7) == (*map(str, range(40, -1, -1)), "a")
        assert len(asked) == 42


@pytest.mark.parametrize("last", [0, 2000])
def test_too_many_references_and_those_in_a_circle_are_refused(last: int) -> None:
    answers = {f"/subjects/s{n}/versions/1": [_referring(str(n), n + 1)] for n in range(2000)}
    if not last:
        answers["/subjects/s5/versions/1"] = [_referring("5", 0)]
    with _registry({**answers, "/schemas/ids/7": [_referring("a", 0)]}) as (registry, asked):
        if last:
            with pytest.raises(RegistryRefused, match="refers to more than"):
                registry.schema(7)
        else:
            registry.schema(7)
        assert len(asked) < 150

"""What a release has promised stays so: its data can be read, its readers can read, its examples stay valid."""

import copy
import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many

from streaming.records.avro import Reader, print_of
from streaming.records.formats import JSON_ALONE
from streaming.records.schemas import KINDS, AvroSchema, Kind, avro_schema, names, releases
from tests.contracts import examples
from tests.contracts.schemas import documents, faults

EXAMPLES = 50
NEWER = {"change", "access-change"}  # kinds that no release has yet
PAIRS = [(kind, release) for release in releases() for kind in KINDS if kind not in NEWER]


def _unreadable(writer: AvroSchema, reader: AvroSchema) -> Iterator[str]:
    """Why data of one schema cannot be read by the other; nothing: it can."""
    written, read = fastavro.parse_schema(writer, {}), fastavro.parse_schema(reader, {})
    for datum in generate_many(written, EXAMPLES):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, written, datum)
        stream.seek(0)
        try:
            fastavro.schemaless_reader(stream, written, read)
        except Exception as error:
            yield str(error)


def test_the_first_release_is_kept() -> None:
    assert "0.1.0" in releases()
    assert {name.rpartition("/")[2] for name in names() if name.startswith("released/0.1.0/avro/")} == {
        f"{kind}.avsc" for kind in KINDS if kind not in NEWER
    }


@pytest.mark.parametrize(("kind", "release"), PAIRS)
def test_data_of_a_release_can_be_read_and_a_release_can_read_todays(kind: Kind, release: str) -> None:
    released, current = avro_schema(kind, release), avro_schema(kind)
    assert list(_unreadable(released, current)) == []
    assert list(_unreadable(current, released)) == []


@pytest.mark.parametrize(("kind", "release"), PAIRS)
def test_the_fingerprint_of_a_release_is_known(kind: Kind, release: str) -> None:
    """Known or not shows in what is wrong with a record that is nothing but a fingerprint."""
    value = b"\xc3\x01" + print_of(fastavro.parse_schema(avro_schema(kind, release), {}))
    with pytest.raises(Exception, match="does not follow its schema"):
        Reader(JSON_ALONE).transcode(kind, value)


def _changed(**field: Any) -> AvroSchema:
    schema = copy.deepcopy(avro_schema("alert"))
    schema["fields"].append({"name": "region", **field})
    return schema


def test_an_optional_field_more_is_compatible_both_ways_and_a_needed_one_is_not() -> None:
    """So the tests above would notice."""
    current = avro_schema("alert")
    optional, needed = _changed(type=["null", "string"], default=None), _changed(type="string")
    for one, other in ((current, optional), (optional, current), (needed, current)):
        assert list(_unreadable(one, other)) == []
    assert "region" in next(_unreadable(current, needed))


@pytest.mark.long
@pytest.mark.parametrize("release", releases())
def test_what_a_release_called_valid_is_valid(release: str) -> None:
    """Requests, decisions, alerts and documents of the cases, and the examples that the released schemas give."""
    more = {
        "request.json": examples.requests(),
        "decision.json": [json.loads(record) for record in examples.decisions()],
        "alert.json": [json.loads(record) for record in examples.alerts()],
        "policy-document.json": [put.document for put in examples.documents()],
    }
    for name, schema in documents(release).items():
        for example in (*more.get(name, ()), *schema.get("examples", ())):
            assert faults(name, example, release=release) or faults(name, example) == []

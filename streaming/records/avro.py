"""Avro records in and out, one function for every kind of record: JSON is what all else works on.

Single-object encoding: C3 01, the schema's CRC-64-AVRO fingerprint (little-endian), the data. Confluent's wire format:
00, the schema's id in the registry (big-endian), the data. No JSON begins with either.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

from streaming.records.avro_values import Reading, Writing
from streaming.records.avro_written import Unreadable, bare, parse_written, with_pairs, with_units
from streaming.records.formats import Formats
from streaming.records.schemas import AvroSchema, Kind, avro_schema, names, releases
from streaming.settings import Encoding

SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = b"\x00"
FINGERPRINT_END = len(SINGLE_OBJECT) + 8
ID_END = len(CONFLUENT) + 4
LARGEST_ID = 2**31 - 1
MARKS = (SINGLE_OBJECT, CONFLUENT)
SCHEMAS_PARSED = 256

_encode = msgspec.json.encode
_decode = msgspec.json.decode

Decode = Callable[[bytes, int], bytes]
"""From a record and where its data begins to JSON."""


class Undecodable(Exception):
    """A record is no Avro that can be read; the message says why, and what would fix it."""


class UnknownSchema(Undecodable):
    """The same of a record by a schema that is not known here: another release, or the registry later, may know it."""


class Unencodable(Exception):
    """A record in JSON does not fit its Avro schema; the message says where."""


def is_avro(value: bytes) -> bool:
    """Whether a record says it is Avro, by its first bytes."""
    return value.startswith(MARKS)


class Reader:
    """Makes JSON of Avro records.

    `needed`: ids of schemas that it met and that were not looked up in the registry yet. Whatever was read while
    there are any must be thrown away, and be read once more when they are known.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self.needed = set[int]()

    def transcode(self, kind: Kind, value: bytes) -> bytes:
        """The record as JSON, whichever schema it was written by; raises Undecodable."""
        if value.startswith(SINGLE_OBJECT):
            return self._by_fingerprint(kind, value[len(SINGLE_OBJECT) : FINGERPRINT_END])(value, FINGERPRINT_END)
        return self._by_id(kind, value)(value, ID_END)

    def _by_fingerprint(self, kind: Kind, print_: bytes) -> Decode:
        if len(print_) < FINGERPRINT_END - len(SINGLE_OBJECT):
            raise Undecodable("Avro in single-object encoding has a fingerprint of 8 bytes; this ends before")
        decode = _own_decoders(kind).get(print_)
        if decode is None:
            raise UnknownSchema(
                f"no release knows the Avro schema with fingerprint {print_[::-1].hex()} for this topic; write by that "
                f"of `lockkeeper contracts avro/{kind}.avsc`, or in the Confluent wire format with a schema registry"
            )
        return decode

    def _by_id(self, kind: Kind, value: bytes) -> Decode:
        id_, formats = int.from_bytes(value[len(CONFLUENT) : ID_END]), self._formats
        if len(value) < ID_END:
            raise Undecodable("Avro in the Confluent wire format has a schema id of 4 bytes; this ends before")
        if id_ > LARGEST_ID:
            raise Undecodable(f"no schema registry has an id as large as {id_}")
        if not formats.registry:
            raise UnknownSchema(
                f"Avro in the Confluent wire format (schema id {id_}) needs a schema registry: "
                "set schema_registry.url, or send JSON or Avro in single-object encoding"
            )
        if id_ in formats.unusable:
            raise Undecodable(f"the Avro schema with id {id_} cannot be read by: {formats.unusable[id_]}")
        if id_ not in formats.known:
            self.needed.add(id_)
            raise UnknownSchema(f"the Avro schema with id {id_} was not asked for yet")
        return _written_decoder(kind, formats.known[id_])


class Writer:
    """Makes records in an encoding of records in JSON. `id_`: of our schema in the registry, for `avro-confluent`."""

    def __init__(self, kind: Kind, encoding: Encoding, id_: int = 0) -> None:
        self._schema, contract = _own_schema(kind), avro_schema(kind)
        self._convert: Any = Writing(contract["namespace"]).of(contract)
        self._begin = (
            CONFLUENT + id_.to_bytes(4) if encoding == "avro-confluent" else SINGLE_OBJECT + print_of(self._schema)
        )

    def encode(self, value: bytes) -> bytes:
        """A record in JSON as Avro; raises Unencodable."""
        stream = io.BytesIO()
        stream.write(self._begin)
        try:
            fastavro.schemaless_writer(stream, self._schema, self._convert(_decode(value)))
        except Exception as error:  # the writer has one of its own for every way not to fit
            raise Unencodable(f"not a record {self._schema['name']}: {error}") from error
        return stream.getvalue()


def print_of(schema: AvroSchema) -> bytes:
    """A schema's CRC-64-AVRO fingerprint, little-endian, as it stands in single-object encoding."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@functools.cache
def _own_schema(kind: Kind, release: str = "", in_pairs: bool = False) -> AvroSchema:
    """`in_pairs`: to read by, see `with_pairs`."""
    plain = bare(avro_schema(kind, release))
    schema = fastavro.parse_schema(with_pairs(plain) if in_pairs else plain, {})
    assert isinstance(schema, dict), "every kind is a record"
    return schema


@functools.cache
def _own_decoders(kind: Kind) -> dict[bytes, Decode]:
    """By the fingerprints of the schema in force and those of every release that had the kind."""
    files = names()
    with_kind = [release for release in releases() if f"released/{release}/avro/{kind}.avsc" in files]
    prints = {print_of(_own_schema(kind, release)): release for release in (*reversed(with_kind), "")}
    return {print_: _decoder(kind, _own_schema(kind, release, in_pairs=True)) for print_, release in prints.items()}


@functools.lru_cache(maxsize=SCHEMAS_PARSED)
def _written_decoder(kind: Kind, texts: tuple[str, ...]) -> Decode:
    """By a schema from the registry; raises Undecodable."""
    try:
        contract, named = avro_schema(kind), dict[str, AvroSchema]()
        units = with_units(contract, parse_written(texts, contract["name"], named=named), named)
        return _decoder(kind, parse_written(texts, contract["name"], in_pairs=True), units)
    except Unreadable as error:
        raise Undecodable(f"the Avro schema cannot be read by: {error}") from error


def _decoder(kind: Kind, writer: AvroSchema, contract: AvroSchema | None = None) -> Decode:
    """Reads by the schema in force what was written by another, as Avro's schema resolution has it.

    `writer`: with pairs. `contract`: the schema in force with the units of the writer's moments; None: its own.
    """
    own: Any = _own_schema(kind, in_pairs=True)
    if contract is not None:
        own = fastavro.parse_schema(with_pairs(bare(contract)), {})
    convert = Reading().of(contract or avro_schema(kind))
    reader = None if to_parsing_canonical_form(writer) == to_parsing_canonical_form(own) else own
    assert convert is not None, "every kind is a record"

    def decode(value: bytes, begin: int) -> bytes:
        stream = io.BytesIO(value)
        stream.seek(begin)
        try:
            encoded = _encode(convert(fastavro.schemaless_reader(stream, writer, reader)))
            if stream.tell() != len(value):
                raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        except Exception as error:  # the reader has one of its own for every way of being broken
            raise Undecodable(_why(own, error)) from error
        return encoded

    return decode


def _why(own: AvroSchema, error: Exception) -> str:
    said = str(error) or "the data ends too early"
    return f"Avro that does not follow its schema, or one that {own['name']} cannot be read from: {said}"

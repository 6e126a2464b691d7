"""The encodings of records by name, their headers, and texts of a bounded length: plain data, which imports little."""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from streaming.records.schemas import Kind
from streaming.settings import Encoding

CONTENT_TYPES: Mapping[Encoding, bytes] = {
    "json": b"application/json",
    "avro-single-object": b"application/vnd.apache.avro; encoding=single-object",
    "avro-confluent": b"application/vnd.apache.avro; encoding=confluent",
}
"""What the header `content-type` says of a record; the parameter names what stands before the data."""


class Formats(msgspec.Struct, frozen=True):
    """`output`: the encoding to write; `ids`: in the registry, of our schemas for it, by kind.

    `registry`: whether one is configured. `known`: schemas read from it by id, each with those before it that it
    refers to; `unusable`: ids that cannot be read by, and why. `asked`: whether the registry has answered; until then
    it may have any schema.
    """

    output: Encoding = "json"
    ids: Mapping[Kind, int] = {}
    registry: bool = False
    known: Mapping[int, tuple[str, ...]] = {}
    unusable: Mapping[int, str] = {}
    asked: bool = True


JSON_ALONE = Formats()
"""JSON out; in also what needs no registry."""


Header = tuple[str, bytes | None]
"""Name and value; None: the null that Kafka allows there, and that is not an empty value."""
Headers = list[Header]

Result = tuple[str, bytes | None, bytes | None, Headers]
"""Topic, key, value (None: a deletion) and headers of a record that the driver writes."""

CONTENT_TYPE = "content-type"


def content_type(encoding: Encoding) -> tuple[str, bytes]:
    """Which encoding a record has."""
    return CONTENT_TYPE, CONTENT_TYPES[encoding]


JSON = content_type("json")
JSON_HEADERS: Headers = [JSON]


def with_content_type(headers: Iterable[Header], content_type: Header) -> Headers:
    """The headers with another content type."""
    return [content_type, *(header for header in headers if header[0] != CONTENT_TYPE)]


ID_CHARACTERS = 1000  # of an id, a longer one is shortened
ID_BEGIN = 200
SHORTENED = "… (shortened from "


def shorten(text: str, most: int) -> str:
    """A text for people, with what is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def shorten_id(text: str) -> str:
    """An id: one that is too long is its beginning and a hash, so that different ones stay different.

    So is one that itself reads like a shortened one: a client may name a document so that it passes for another.
    """
    if len(text) <= ID_CHARACTERS and SHORTENED not in text:
        return text
    hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:ID_BEGIN]}{SHORTENED}{len(text)} characters, sha256:{hashed})"


def key_of(party: object) -> bytes | None:
    """The id of a subject, so that the records of one subject stay in order."""
    name = party.get("id") if isinstance(party, Mapping) else None
    return name.encode("utf-8", "replace") if isinstance(name, str) else None

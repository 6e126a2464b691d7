"""Headers of the records that the job writes."""

from collections.abc import Iterable

from streaming.records.formats import CONTENT_TYPES
from streaming.settings import Encoding

Header = tuple[str, bytes]
Headers = list[Header]

CONTENT_TYPE = "content-type"


def content_type(encoding: Encoding) -> Header:
    """Which encoding a record has."""
    return CONTENT_TYPE, CONTENT_TYPES[encoding]


JSON = content_type("json")
JSON_HEADERS: Headers = [JSON]


def with_content_type(headers: Iterable[Header], content_type: Header) -> Headers:
    """The headers with another content type."""
    return [content_type, *(header for header in headers if header[0] != CONTENT_TYPE)]

"""Headers of the records that the job writes."""

from collections.abc import Iterable

Header = tuple[str, bytes]
Headers = list[Header]

CONTENT_TYPE = "content-type"
JSON: Header = (CONTENT_TYPE, b"application/json")
JSON_ALONE: Headers = [JSON]


def with_content_type(headers: Iterable[Header], content_type: Header) -> Headers:
    """The headers with another content type."""
    return [content_type, *(header for header in headers if header[0] != CONTENT_TYPE)]

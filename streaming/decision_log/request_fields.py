"""Text fields of request records, also of records that are perhaps no requests: the id and the system."""

from typing import Any

import msgspec

from streaming.decision_log.search import json_text
from streaming.records.avro import Undecodable
from streaming.records.registry import Deserializer
from streaming.settings import Settings


class RequestFieldReader:
    """Reads fields of records in JSON or Avro."""

    def __init__(self, settings: Settings) -> None:
        self._documents = Deserializer(settings.schema_registry)

    def field(self, value: bytes, name: str) -> str:
        """A text field of a record that is perhaps no request; "": it has none."""
        try:
            text = msgspec.json.decode(self._documents.json("request", value), type=dict[str, Any]).get(name)
        except (Undecodable, ValueError, RecursionError):
            return ""
        return text if isinstance(text, str) else ""

    def has_id(self, value: bytes, request_id: str) -> bool:
        """Whether a record has an id."""
        if value.startswith(b"{") and json_text(request_id) not in value and b"\\" not in value:
            return False  # without escapes it would be written so
        return self.field(value, "id") == request_id

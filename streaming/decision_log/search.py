"""Past decisions by subject, action, resource, outcome and time, found by Kafka's index of times."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import matches
from streaming.history.ranges import Topics
from streaming.history.records import ConsumerRecord
from streaming.history.span import Span
from streaming.records.avro import Undecodable
from streaming.records.decision import read_plain_decision
from streaming.records.registry import Deserializer
from streaming.settings import Settings

WILDCARD = "*"
NOT_IN_JSON = b"\xff"  # no UTF-8


class Query(msgspec.Struct, frozen=True):
    """What is searched for; an empty text matches all. ``limit``: the newest so many.

    ``outcome``: of the job, or what the caller was answered elsewhere.

    A ``*`` at the end of subject, action, resource, outcome or document matches any characters; with ``exact`` it is
    one, for names may end so. ``document``: a reason names it. ``systems``: that may be found at all; None: all.
    """

    span: Span
    subject: str = ""
    action: str = ""
    resource: str = ""
    outcome: str = ""
    limit: int = 100
    exact: bool = False
    system: str = ""
    document: str = ""
    request_id: str = ""
    systems: frozenset[str] | None = None

    def fits(self, decision: Mapping[str, Any]) -> bool:
        """Whether a decision, or one evaluation of it, is about all that is asked for."""
        parts = (decision, *decision.get("evaluations", ()))
        answered = decision.get("answered") or {}
        given_elsewhere = (answered, *answered.get("evaluations", ()))
        return (
            self.system in ("", decision.get("system"))
            and (self.systems is None or decision.get("system") in self.systems)
            and self.request_id in ("", decision.get("request_id"))
            and (not self.document or any(map(self._names_document, parts)))
            and any(map(self._fits, parts, itertools.chain(given_elsewhere, itertools.repeat({}))))
        )

    def _fits(self, part: Mapping[str, Any], answered: Mapping[str, Any]) -> bool:
        """`answered`: the answer given elsewhere, or nothing: an access that it allowed is found among the allowed."""
        context = part.get("context", {})
        request = context.get("request", {})
        asked = (
            (self.subject, request.get("subject", {}).get("id", "")),
            (self.action, request.get("action", {}).get("name", "")),
            (self.resource, request.get("resource", {}).get("id", "")),
        )
        outcomes = (context.get("outcome", ""), answered.get("outcome", ""))
        has_outcome = not self.outcome or any(self._matches(self.outcome, outcome) for outcome in outcomes)
        return has_outcome and all(not wanted or self._matches(wanted, text) for wanted, text in asked)

    def may_fit(self, value: bytes) -> bool:
        """The same by the bytes of a record in JSON, and so fast that others need not be decoded."""
        asked = (self.subject, self.action, self.resource, self.outcome, self.document)
        texts = [text for text in asked if not self._is_pattern(text)]
        return all(json_text(text) in value for text in (*texts, self.system, self.request_id) if text)

    def _names_document(self, part: Mapping[str, Any]) -> bool:
        documents = (reason.get("document") for reason in part["context"].get("reasons", ()))
        return any(document is not None and self._matches(self.document, document) for document in documents)

    def _is_pattern(self, text: str) -> bool:
        return text.endswith(WILDCARD) and not self.exact

    def _matches(self, wanted: str, text: str) -> bool:
        return wanted == text if self.exact else fits_name(wanted, text)


def fits_name(wanted: str, name: str) -> bool:
    """Whether a name is the one that is wanted; a ``*`` at the end stands for any characters."""
    return matches(wanted, name) if wanted.endswith(WILDCARD) else wanted == name


class Found(msgspec.Struct, frozen=True):
    """A decision and the record that it stands in."""

    record: ConsumerRecord
    decision: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The newest decisions that fit, oldest first. ``more``: how many older ones fit, too.

    ``kept_from``: decisions of the range before then (ms) were deleted by the topic's retention; None: none were.
    ``unreadable``: records that are no decisions.
    """

    found: tuple[Found, ...]
    kept_from: int | None = None
    more: int = 0
    unreadable: int = 0


def search(settings: Settings, admin: AdminClient, query: Query) -> Answer:
    """Read the decisions of the range. Raises KafkaException and TimeoutError when the cluster does not answer."""
    topic, decode, topics = settings.topics.decisions, Decoder(settings), Topics(settings, admin)
    newest: list[tuple[int, int, Found]] = []
    count = 0
    for record in topics.in_span([topic], query.span):
        if (entry := decode.fitting(record, query.may_fit, query.fits)) is not None:
            count += 1
            push = heapq.heappush if len(newest) < query.limit else heapq.heappushpop
            push(newest, (record.at, count, entry))
    entries = tuple(entry for _, _, entry in sorted(newest, key=lambda item: item[:2]))
    kept_from = topics.deleted_before(topic, query.span.start)
    return Answer(entries, kept_from, count - len(entries), decode.unreadable)


class Decoder:
    """Records of decisions as plain data, whatever their encoding. ``unreadable``: how many were none."""

    def __init__(self, settings: Settings) -> None:
        self._documents = Deserializer(settings.schema_registry)
        self.unreadable = 0

    def __call__(self, record: ConsumerRecord) -> dict[str, Any] | None:
        """The decision; None: the record is none."""
        try:
            return read_plain_decision(self._documents.json("decision", record.value))
        except (Undecodable, ValueError, RecursionError):
            self.unreadable += 1
            return None

    def fitting(
        self, record: ConsumerRecord, may_fit: Callable[[bytes], bool], fits: Callable[[dict[str, Any]], bool]
    ) -> Found | None:
        """The decision of a record if it fits. `may_fit`: by the bytes of a record in JSON; those in Avro say nothing.

        Most records fit by neither, and to search their bytes takes a fraction of the time to decode them.
        """
        if record.value.startswith(b"{") and not may_fit(record.value):
            return None
        decision = self(record)
        return Found(record, decision) if decision is not None and fits(decision) else None


def unreadable_text(count: int) -> str:
    """What to add where a decision was not found; "": all records were decisions, or of others."""
    return f"; {count} records cannot be read as decisions" if count else ""


def json_text(text: str) -> bytes:
    """A text as records in JSON have it. Half of a surrogate pair, as an argument that is no UTF-8, is in none."""
    try:
        return msgspec.json.encode(text)[1:-1]
    except UnicodeEncodeError:
        return NOT_IN_JSON

"""Decisions joined with their requests: a decision lacks what the subject claims, and the context."""

from collections.abc import Iterator, Mapping

import msgspec
import structlog
from confluent_kafka.admin import AdminClient

from policy import (
    NO_LONGER_KNOWN,
    MalformedRequest,
    Request,
    StatementId,
    decode_request,
    to_ms,
)
from policy.analysis import Answer, question_of
from streaming.access_changes.following import Decided
from streaming.history.ranges import Range, Topics, widen
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import Partition, existing_topic_ids
from streaming.records.answered import ANSWER_SKEW_MS, read_answer
from streaming.records.avro import Undecodable
from streaming.records.decision import Answer as RecordedAnswer
from streaming.records.decision import DecisionRecord, Place, read_decision
from streaming.records.registry import Deserializer
from streaming.settings import Settings

log = structlog.get_logger()

UNDETERMINED = frozenset({"deadline-exceeded", "policies-behind", "answer-too-large", NO_LONGER_KNOWN})
"""Reasons of an error that say nothing of what the policies answer."""
NO_REQUEST = (MalformedRequest, Undecodable, ValueError, RecursionError)


class Joined(msgspec.Struct):
    """Decisions, and how many could not be used. `lost`: their requests are gone; `dated`: they are about a time of
    their own, which topics that are trusted with `time` may name; `unreadable`: no decision, or no request.
    """

    decided: list[Decided]
    lost: int = 0
    dated: int = 0
    unreadable: int = 0


class DecisionReader:
    """Reads decisions in ranges of offsets, and the requests that they are about."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin, self._topics = settings, admin, Topics(settings, admin)
        self._deserializer = Deserializer(settings.schema_registry)

    def read(self, ranges: Mapping[Partition, Range]) -> Joined:
        """The decisions at these offsets. Raises KafkaException, TimeoutError, RegistryDown."""
        joined = Joined([])
        decisions = list(self._decisions(ranges, joined))
        requests = self._requests([source for source, _ in decisions])
        # Once they are read: where a topic was deleted and created again, another request may stand at the place.
        ids = existing_topic_ids(self._admin, self._settings.topics.asking) if requests else {}
        for source, decision in decisions:
            record = requests.get(source)
            if record is None or not decision.id.startswith(f"{ids.get(source.topic, '?')}-"):
                joined.lost += 1
                continue
            try:
                joined.decided += self._join(decision, record, joined)
            except NO_REQUEST as error:
                joined.unreadable += 1
                log.debug("a decided request cannot be read", place=str(source), error=str(error))
        return joined

    def _decisions(self, ranges: Mapping[Partition, Range], joined: Joined) -> Iterator[tuple[Place, DecisionRecord]]:
        for record in self._topics.at(ranges):
            try:
                decision = read_decision(self._deserializer.json("decision", record.value))
                source = decision.source
            except (Undecodable, ValueError, RecursionError):
                joined.unreadable += 1
                continue
            if decision.answered is None or decision.answered.verified:
                yield source, decision

    def _requests(self, sources: list[Place]) -> dict[Place, ConsumerRecord]:
        """They lie side by side, as a rule: of each partition all between the first and the last are read."""
        wanted, ranges = set(sources), dict[Partition, Range]()
        for source in wanted:
            if source.topic in self._settings.topics.asking:
                widen(ranges, source)
        return {record.source: record for record in self._topics.at(ranges) if record.source in wanted}

    def _join(self, decision: DecisionRecord, record: ConsumerRecord, joined: Joined) -> list[Decided]:
        trust, value = self._settings.trust_of(record.topic), self._deserializer.json("request", record.value)
        parsed = decode_request(value)
        if record.topic in self._settings.topics.answered:
            trust = read_answer(value).claims(trust)
        elif "time" in trust and parsed.time is not None:
            joined.dated += 1
            return []
        context, at = decision.context, to_ms(decision.time)
        if at > record.at + ANSWER_SKEW_MS:  # none of the job's is: it would move the time of all questions
            raise ValueError(f"{decision.time} is later than the request")
        if isinstance(parsed, Request):
            answers = [(parsed, _answer(context))]
        else:
            items = zip(parsed.items, decision.evaluations, strict=False)
            answers = [(item, _answer(evaluation.context)) for item, evaluation in items if isinstance(item, Request)]
        return [
            Decided(question_of(request, trust), at, context.policy_offsets, context.facts_offset, answer)
            for request, answer in answers
        ]


def _answer(result: RecordedAnswer) -> Answer | None:
    if any(reason.code in UNDETERMINED for reason in result.reasons):
        return None
    statements = (StatementId(reason.document, reason.statement) for reason in result.reasons if reason.document)
    return Answer(result.outcome, tuple(dict.fromkeys(statements)))

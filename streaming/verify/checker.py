"""The history checker: records of the request topics, decisions and dead letters in, violations out. Pure.

What a decision must be like is the contract's: one for each request record, in the order of its key, by policies that
are not older than what was acknowledged before the request, the same as the reference evaluator's. Nothing here shares
code with the path of a request in the job, but for the documents' reading and the typing of requests.
"""

import collections
import re
import zlib
from collections.abc import Callable, Mapping

import msgspec
from confluent_kafka import murmur2

from policy import MalformedRequest
from streaming.client.decision import Decision, Unreadable, read_decision
from streaming.history.records import ConsumerRecord
from streaming.kafka.clients import Partition
from streaming.records.answered import ANSWER_SKEW_MS, offsets_in, read_answer
from streaming.records.avro import Undecodable, is_avro
from streaming.records.dead_letter_headers import PREFIX, read_headers, source_of
from streaming.records.decision import Place
from streaming.records.schemas import Kind
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog
from streaming.topics import dead_letters_of, newest_offset
from streaming.verify import Findings, Violation
from streaming.verify.answers import CLOCK_MS, Acknowledged, AnswerChecker, read_request

KEYS_HELD = 100_000  # of each output partition, whose order is looked at; those that were not seen for longest go
LAST_TRANSACTION_MS = 60_000
PARTITIONER = "kafka.partitioner"  # begins settings by which the job's producers place records otherwise
NUMBERS = re.compile(r"\b\d+\b")

Json = Callable[[Kind, bytes], bytes]
"""A record in JSON, whatever its encoding; raises Undecodable."""


class Range(msgspec.Struct, frozen=True):
    """What is looked at of one request partition.

    `start`, `end`: offsets, the end not included; `log_end`: where the partition ends. `decided`: what is below it was
    committed as decided before the ends of the outputs were fetched; None: the group has no committed offset.
    `answers_from`: answers to older requests (ms) may have been deleted by the topics' retention.
    """

    start: int
    end: int
    log_end: int
    decided: int | None = None
    answers_from: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """A decision, or a dead letter (None), and its record."""

    record: ConsumerRecord
    decision: Decision | None


_NO_SUCH_TOPIC = (
    ", a topic that these settings do not have: use the job's --config, or add it to topics.requests or topics.answered"
)


class _Requests:
    """One request partition: which requests are open, and answers that were read before their requests."""

    def __init__(self, offsets: Range) -> None:
        self.range = offsets
        self.position = offsets.start
        self.open: dict[int, ConsumerRecord] = {}
        self.gaps: list[tuple[int, int]] = []  # offsets without a record: markers, and what was aborted
        self.early: dict[int, _Answer] = {}
        self.overtaken: list[tuple[int, int]] = []  # offsets that were answered and when, rising
        self.answered_in: dict[int, int] = {}  # the first offset with a decision in each partition of their topic

    def answered(self, offset: int, at: int) -> None:
        if not self.overtaken or offset >= self.overtaken[-1][0]:
            self.overtaken.append((offset + 1, at))

    def decided(self, newest: int) -> int:
        """Below which offset all must be answered; `newest`: the time of the newest answer of all partitions, ms.

        The last transaction may be visible in part. Without committed offsets, only what it cannot have written counts.
        """
        if self.range.decided is not None:
            return self.range.decided
        return max((offset for offset, at in self.overtaken if at < newest - LAST_TRANSACTION_MS), default=0)

    def add(self, record: ConsumerRecord) -> _Answer | None:
        if record.offset > self.position:
            self.gaps.append((self.position, record.offset))
        self.position = record.offset + 1
        answer = self.early.pop(record.offset, None)
        if answer is None:
            self.open[record.offset] = record
        return answer

    def min_partition_count(self, offset: int) -> int:
        """How many partitions the decisions topic had when this offset was decided, at least: it never gets fewer."""
        return 1 + max((number for number, first in self.answered_in.items() if first <= offset), default=0)

    def is_gap(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.gaps)


class _Output:
    """One partition of the decisions topic: what its records so far have named, by the partition of their requests."""

    def __init__(self) -> None:
        self.named: dict[Partition, tuple[int, str, dict[str, int]]] = {}  # with the offset of the decision
        self.order: collections.OrderedDict[tuple[bytes, str, int], int] = collections.OrderedDict()


class Checker:
    """Takes every record of the topics once, each partition in its order, and all about in the order of time.

    Holds the requests that are not answered yet, and the answers that were read before their requests.

    `ranges`: what to look at, by request partition. `topic_ids`: Kafka's ids of the request topics. `partitions`: of
    the decisions topic, how many. `demanded`: of requests with these ids, the newest offset by topic that was
    acknowledged before they were produced.
    `clocks_ms`: by how much the clocks of two brokers may differ. `json`: see `Json`. `sample`: of which part of the
    decisions the answers are compared with the reference evaluator, which is slow; the other checks cover all.
    """

    def __init__(
        self,
        settings: Settings,
        log: DocumentLog,
        ranges: Mapping[Partition, Range],
        topic_ids: Mapping[str, str],
        partitions: int,
        demanded: Mapping[str, Mapping[str, int]] | None = None,
        clocks_ms: int = 0,
        json: Json = lambda _kind, value: value,
        sample: float = 1.0,
    ) -> None:
        names = settings.topics
        self.findings = Findings()
        self._decisions_topic, self._facts_topic = names.decisions, names.facts
        self._asking = frozenset(names.asking)
        self._dead_letters = {dead_letters_of(topic) for topic in names.asking}
        self._answered_topics, self._skew = names.answered, ANSWER_SKEW_MS
        self._limit, self._newest = settings.limits.record_in, 0
        self._trust_of = settings.trust_of
        self._requests = {partition: _Requests(offsets) for partition, offsets in ranges.items()}
        self._outputs: dict[int, _Output] = collections.defaultdict(_Output)
        self._topic_ids, self._demanded, self._clocks_ms, self._json = topic_ids, demanded or {}, clocks_ms, json
        self._partitions = partitions
        self._is_placed_by_key = not any(name.startswith(PARTITIONER) for name in settings.source)
        self._sampled_below = int(sample * (1 << 32))
        self._answers = AnswerChecker(log, names, settings.trust_of)
        self._acknowledged = {topic: Acknowledged(log.records(topic), log.end(topic)) for topic in log.topics}

    def take(self, record: ConsumerRecord) -> None:
        """Take the next record of a request topic, the decisions topic or a dead-letter topic."""
        if record.topic == self._decisions_topic:
            self._take_decision(record)
        elif record.topic in self._dead_letters:
            self._take_dead_letter(record)
        else:
            self._take_request(record)

    def finish(self) -> Findings:
        """All records were taken: what is left open is lost, or not decided yet."""
        for requests in self._requests.values():
            decided = requests.decided(self._newest)
            for offset, record in requests.open.items():
                if offset >= decided:
                    self.findings.waiting += 1
                elif record.at < requests.range.answers_from:
                    self._unknown("answers of that time may have been deleted")
                else:
                    self._violated("lost", record, "a decision or a dead letter", "none")
            for answer in requests.early.values():
                self._violated("unasked", answer.record, "a request record at its source", "none")
        return self.findings

    def _take_request(self, record: ConsumerRecord) -> None:
        self.findings.requests += 1
        early = self._requests[record.topic, record.partition].add(record)
        if early is not None:
            self._compare(record, early)

    def _take_decision(self, record: ConsumerRecord) -> None:
        self.findings.decisions += 1
        try:
            decision = read_decision(self._json("decision", record.value))
        except (Unreadable, Undecodable) as error:
            self._violated("unreadable", record, "a decision record", str(error))
            return
        self.findings.outcomes[decision.outcome] += 1
        source = decision.source
        if source is None:
            self._violated("unasked", record, "context.source", "none")
            return
        if source.topic in self._topic_ids and not decision.id.startswith(f"{self._topic_ids[source.topic]}-"):
            self._take_of_other_topic(record, decision, source)
            return
        named = _named(decision, self._facts_topic)
        if source.topic not in self._answered_topics:  # answers name the policies that they are by
            deleted = self._deleted_logs(named, record.at)
            for topic in deleted:
                self._check_named(record, source, topic, named[topic])
            if not deleted:
                self._check_output(record, decision, named, source)
        self._match(source, _Answer(record, decision))

    def _take_of_other_topic(self, record: ConsumerRecord, decision: Decision, source: Place) -> None:
        """By its id it is of a request topic before the present one; then none of the present one precedes it."""
        if (source.topic, source.partition) in self._outputs[record.partition].named:
            expected = f"an id that begins with {self._topic_ids[source.topic]}, as those before it"
            self._violated("unasked", record, expected, decision.id)
        else:
            self._unknown("the decision is of a topic that was deleted and created again")

    def _check_named(self, record: ConsumerRecord, source: Place, topic: str, offset: int) -> None:
        """By its offset it is by a topic of documents before the present one; then none by this one precedes it."""
        *_, before = self._outputs[record.partition].named.get((source.topic, source.partition), (0, "", {}))
        documents = self._acknowledged[topic]
        if documents.has_record_up_to(before.get(topic, -1)) and documents.ends_before(offset):
            self._violated("wrong_version", record, f"an offset of {topic}", f"{offset}, beyond its end")

    def _take_dead_letter(self, record: ConsumerRecord) -> None:
        self.findings.dead_letters += 1
        if (source := source_of(read_headers(record.headers))) is None:
            names = sorted(dict(record.headers))
            self._violated("unasked", record, f"headers {PREFIX}topic, partition and offset", str(names))
            return
        if source.topic in self._asking and record.topic != dead_letters_of(source.topic):
            self._violated("unasked", record, f"{dead_letters_of(source.topic)} for {source}", record.topic)
            return
        self._match(source, _Answer(record, None))

    def _match(self, source: Place, answer: _Answer) -> None:
        """Find the request of an answer, which must be its first."""
        self._newest = max(self._newest, answer.record.at)
        requests, offset = self._requests.get((source.topic, source.partition)), source.offset
        if source.topic not in self._asking:
            self._violated("unasked", answer.record, "a request record at its source", f"{source}{_NO_SUCH_TOPIC}")
        elif requests is None or not 0 <= offset < requests.range.log_end:
            self._violated("unasked", answer.record, "a request record at its source", str(source))
        elif not requests.range.start <= offset < requests.range.end:
            return
        elif offset in requests.open:
            self._compare(requests.open.pop(offset), answer)
        elif offset >= requests.position and offset not in requests.early:
            requests.early[offset] = answer
        elif requests.is_gap(offset):
            self._violated("unasked", answer.record, "a request record at its source", str(source))
        else:
            self._violated("doubled", answer.record, "one answer to each request", f"another for {source}")
        if requests is not None and requests.range.decided is None:
            requests.answered(offset, answer.record.at)

    def _check_output(self, record: ConsumerRecord, decision: Decision, named: dict[str, int], source: Place) -> None:
        """The record against those before it in its partition."""
        output = self._outputs[record.partition]
        asked = source.topic, source.partition
        if asked in output.named:
            last, version, before = output.named[asked]
            # Markers of transactions take an offset each: of two neighbours from one partition, a transaction has both.
            # Those of other partitions have transactions of their own, which may be open side by side.
            if record.offset == last + 1 and (version, before) != (decision.policy_version, named):
                self._violated("mixed_snapshots", record, f"{version} {before}", f"{decision.policy_version} {named}")
            if back := {topic: at for topic, at in named.items() if at < before.get(topic, -1)}:
                self._violated("offsets_back", record, f"at least {before}", str(back))
        output.named[asked] = record.offset, decision.policy_version, named
        for topic, offset in named.items():
            if topic in self._acknowledged:
                self._acknowledged[topic].name(offset, record.at)
        if record.key:
            self._check_order(record, output, source)

    def _check_order(self, record: ConsumerRecord, output: _Output, source: Place) -> None:
        key = (record.key, source.topic, source.partition)
        before = output.order.pop(key, -1)
        if source.offset < before:
            self._violated("out_of_order", record, f"after the decision of offset {before}", str(source))
        output.order[key] = max(before, source.offset)
        if len(output.order) > KEYS_HELD:
            output.order.popitem(last=False)

    def _compare(self, request: ConsumerRecord, answer: _Answer) -> None:
        record, decision = answer.record, answer.decision
        try:
            value = self._parsed(request)
        except (MalformedRequest, Undecodable) as error:
            if decision is not None:
                self._violated("unlike_reference", record, f"a dead letter ({error})", decision.outcome)
            return
        if decision is not None:
            self._check_copies(request, record, decision)
            self._check_partition(request, record)
            self._compare_decision(request, value, record, decision)
        elif is_avro(request.value):
            self._unknown("the schema registry may not have known the schema of a request in Avro")
        else:
            self._violated("unlike_reference", record, "a decision: the record is a request", "a dead letter")

    def _parsed(self, request: ConsumerRecord) -> bytes:
        """A request record as JSON. Raises MalformedRequest or Undecodable for what must become a dead letter."""
        value = self._json("request", request.value)
        if len(request.value) + len(request.key) > self._limit:
            raise MalformedRequest(f"more than {self._limit} bytes")
        read_request(value, request.at, self._trust_of(request.topic))
        if request.topic in self._answered_topics:
            offsets_in(read_answer(value).policy_offsets)
        return value

    def _check_copies(self, request: ConsumerRecord, record: ConsumerRecord, decision: Decision) -> None:
        """Whether the record has its request's key, and the id that names its request alone."""
        topic_id = self._topic_ids.get(request.topic)
        id_ = decision.id if topic_id is None else f"{topic_id}-{request.partition}-{request.offset}"
        if (record.key, decision.id) != (request.key, id_):
            expected, actual = (request.key, id_), (record.key, decision.id)
            self._violated("unlike_reference", record, f"key and id {expected}", str(actual))

    def _check_partition(self, request: ConsumerRecord, record: ConsumerRecord) -> None:
        """Whether those who read one partition get all decisions with the record's key."""
        if not (request.key and self._is_placed_by_key):
            return
        requests = self._requests[request.topic, request.partition]
        expected = murmur2(request.key, self._partitions)
        if record.partition != expected:
            counts = range(requests.min_partition_count(request.offset), self._partitions)
            if all(murmur2(request.key, count) != record.partition for count in counts):
                self._violated("misplaced", record, f"partition {expected}", f"partition {record.partition}")
                return
        first = requests.answered_in.get(record.partition, request.offset)
        requests.answered_in[record.partition] = min(first, request.offset)

    def _compare_decision(
        self, request: ConsumerRecord, value: bytes, record: ConsumerRecord, decision: Decision
    ) -> None:
        is_answered = request.topic in self._answered_topics
        named = _named(decision, self._facts_topic)
        deleted = self._deleted_logs(named, max(record.at, request.at))
        why = "got the named offset later; was the topic deleted and created again?"
        unknown = {topic: f"{topic} {why}" for topic in deleted}
        missing = named.keys() - self._acknowledged.keys()
        unknown |= {topic: f"{topic}: not among the policy topics of the settings" for topic in missing}
        if not (is_answered or deleted):
            self._check_freshness(request, record, decision)
        if zlib.crc32(decision.id.encode()) >= self._sampled_below:
            return
        if is_answered:
            checked = self._answers.check_again(request, value, decision, self._skew, unknown)
        else:
            checked = self._answers.check(request, value, decision, record.at, unknown)
        sound = True
        for problem in checked:
            sound = False
            if isinstance(problem, str):
                self._unknown(problem)
            else:
                self._violated(problem.check, record, problem.expected, problem.found)
        self.findings.verified += sound

    def _deleted_logs(self, named: Mapping[str, int], written: int) -> list[str]:
        """The topics of documents that cannot have had the offsets that a decision names: they got them later, if at
        all. `written`: the decision, ms.
        """
        logs = self._acknowledged.items()
        return [t for t, log in logs if t in named and not log.had_offset(named[t], written + CLOCK_MS)]

    def _check_freshness(self, request: ConsumerRecord, record: ConsumerRecord, decision: Decision) -> None:
        named, demanded = _named(decision, self._facts_topic), self._demanded.get(decision.request_id, {})
        for topic, documents in self._acknowledged.items():
            least = max(documents.before(request.at, self._clocks_ms, CLOCK_MS), demanded.get(topic, -1))
            if named.get(topic, -1) < least:
                expected = f"{topic} up to offset {least}, acknowledged before the request"
                self._violated("judged_by_older_policy", record, expected, f"up to {named.get(topic, -1)}")

    def _violated(self, check: str, record: ConsumerRecord, expected: str, actual: str) -> None:
        self.findings.violated(Violation(check, record.topic, record.partition, record.offset, expected, actual))

    def _unknown(self, reason: str) -> None:
        self.findings.unknown[NUMBERS.sub("#", reason)] += 1


def _named(decision: Decision, facts_topic: str) -> dict[str, int]:
    """The newest offset of each topic that a decision names."""
    return {topic: newest_offset(decision.policy_offsets, topic) for topic in decision.policy_offsets} | {
        facts_topic: decision.facts_offset
    }

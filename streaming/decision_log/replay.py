"""A past decision evaluated again: its request, the snapshot at the offsets that it names, and the same evaluator.

What may prevent it is said, never guessed: compaction took what was in force then, retention took the request with its
claims and context, or the request topic is trusted otherwise now.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import (
    CLAIMS,
    NO_LONGER_KNOWN,
    Batch,
    Decision,
    MalformedRequest,
    Reason,
    Request,
    Snapshot,
    all_systems,
    answer,
    parse_request,
    to_ms,
)
from policy.analysis import Nearest, Node, draw_trees, error_tree, nearest_grants
from streaming.client.decision import Decision as Stored
from streaming.client.decision import Unreadable, read_decision
from streaming.decision_log.dead_letters import SeenSystem, dead_letter_of
from streaming.decision_log.search import Decoder, Found, json_text
from streaming.enforcer.answers import TIME
from streaming.enforcer.requests import staleness
from streaming.history.ranges import CLOCKS_MS, DISORDER_MS, Topics
from streaming.history.records import ConsumerRecord, record_of
from streaming.kafka.clients import (
    PartitionOffsets,
    existing_topic_ids,
    first_offsets,
    last_stable_offsets,
    offsets_since,
    partitions_of,
)
from streaming.kafka.committed import records_between
from streaming.pdp.reading import lacking
from streaming.records.answered import read_answer
from streaming.records.avro import Undecodable
from streaming.records.decision import Place
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog, read_document_log
from streaming.topics import Offsets

NOT_REPLAYED = {
    "deadline-exceeded": "the request was evaluated after its deadline, by the job's clock; shown is it without one",
    "answer-too-large": "the answer was too large for a record; shown is the answer without that limit",
}
"""Codes of errors that rest on more than request and policies."""
ENVELOPE = frozenset({"id", "request_id", "system", "time"})


class Replay(msgspec.Struct, frozen=True):
    """A decision that was evaluated again, by `snapshot`, `request` and `trust`.

    `differences`: in which of outcome, code, rule, document and statement it is not the stored one. `equal` None: it
    cannot be compared. `notes`: what is to be known of it. `behind`: why the policies were older than the request asks
    for, which makes it an error; "": they were not.
    """

    equal: bool | None
    snapshot: Snapshot
    request: dict[str, Any]
    trust: frozenset[str]
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    behind: str = ""

    def explanation(self) -> tuple[list[Node], list[Nearest | None]]:
        """The tree of the request, of a batch one for each evaluation, and what each lacks. Raises MalformedRequest."""
        of_then = self.snapshot, self.request, self.trust | TIME
        trees = draw_trees(*of_then)
        if self.behind:
            return [error_tree(tree, self.behind) for tree in trees], [None] * len(trees)
        return trees, list(nearest_grants(*of_then))


def stored_decision(entry: Found) -> Stored:
    """The decision in a record. Raises Unreadable where it contradicts itself, or lacks what all of the job's have."""
    stored = read_decision(msgspec.json.encode(entry.decision))
    if missing := sorted(ENVELOPE - entry.decision.keys()):
        raise Unreadable(f"not a decision: {', '.join(missing)}: missing")
    try:
        to_ms(stored.time)
    except ValueError as error:
        raise Unreadable(f"not a decision: time: {error}") from error
    return stored


class Replays:
    """Evaluates decisions of one cluster again. Documents are read once, up to their ends of now.

    Raises KafkaException and TimeoutError when the cluster does not answer.
    """

    def __init__(self, settings: Settings, admin: AdminClient, log: DocumentLog | None = None) -> None:
        self._settings, self._admin = settings, admin
        self._log = log or read_document_log(settings)
        self._documents = Deserializer(settings.schema_registry)
        self._ids = existing_topic_ids(admin, settings.topics.asking)

    def replay(self, entry: Found) -> Replay:
        """Evaluate a decision again. Raises NoLongerKnown; Unreadable, see `stored_decision`."""
        stored = stored_decision(entry)
        record = self.request_of(stored)
        return self.replay_request(entry, stored, record)

    def request_of(self, stored: Stored) -> ConsumerRecord | None:
        """The record of a decision's request; None: it is no longer there, or of a topic that was re-created."""
        source = stored.source
        if source is None or not stored.id.startswith(f"{self._ids.get(source.topic, '?')}-"):
            return None
        return Topics(self._settings, self._admin).record(source)

    def replay_request(self, entry: Found, stored: Stored, record: ConsumerRecord | None) -> Replay:
        """The same where the request's record was read already. Raises as `replay`."""
        replay = self._replay_request(entry, stored, record)
        behind = lacking(replay.request, self._offsets(stored))
        return msgspec.structs.replace(replay, behind=behind or "")

    def _replay_request(self, entry: Found, stored: Stored, record: ConsumerRecord | None) -> Replay:
        topic = stored.source.topic if stored.source else ""
        request = self._whole(record) if record else None
        trust = self._trust(topic, request)
        dated = None if "time" in trust else to_ms(stored.time)
        snapshot = self._snapshot(stored, record.at if record else dated)
        request = {**(request or _repeated(entry.decision)), "time": to_ms(stored.time)}
        request.pop("deadline", None)
        notes = list(_notes(stored, record, snapshot))
        differences = self._compare(stored, snapshot, request, trust)
        why = NOT_REPLAYED.get(stored.code)
        if why is None and stored.code == NO_LONGER_KNOWN and topic in self._settings.topics.answered and differences:
            why = "the job did not know the policies that the answer names; shown is the request by the newest of then"
        if why is not None:
            return Replay(None, snapshot, request, trust, (), (*notes, why))
        if differences and record is None:
            return Replay(None, snapshot, request, trust, differences, tuple(notes))
        if differences and (other := self._other_trust(stored, snapshot, request, trust)) is not None:
            was, now = _listed(other), _listed(trust)
            notes.append(f"equal if {topic} was trusted for {was} then, as shown; it is trusted for {now} now")
            return Replay(True, snapshot, request, other, (), tuple(notes))
        return Replay(not differences, snapshot, request, trust, differences, tuple(notes))

    def _trust(self, topic: str, request: Mapping[str, Any] | None) -> frozenset[str]:
        """What counts of a request; of one that was answered elsewhere, what its caller might claim, too."""
        trust = self._settings.trust_of(topic)
        if request is None or topic not in self._settings.topics.answered:
            return trust
        try:
            return read_answer(msgspec.json.encode(request)).claims(trust)
        except MalformedRequest:
            return trust

    def _snapshot(self, stored: Stored, moment: int | None) -> Snapshot:
        system = all_systems().get(stored.system)
        facts_offset = stored.facts_offset if system is not None and system.has_facts else None
        return self._log.snapshot_at(stored.policy_offsets, facts_offset, moment)

    def _whole(self, record: ConsumerRecord) -> dict[str, Any] | None:
        try:
            return msgspec.json.decode(self._documents.json("request", record.value), type=dict[str, Any])
        except (Undecodable, ValueError):
            return None

    def _compare(
        self, stored: Stored, snapshot: Snapshot, request: dict[str, Any], trust: frozenset[str]
    ) -> tuple[str, ...]:
        try:
            parsed = parse_request(request)
        except MalformedRequest as malformed:
            return (str(malformed),)
        return tuple(_differences(stored, _answer(snapshot, parsed, trust, self._offsets(stored))))

    def _offsets(self, stored: Stored) -> Offsets:
        """The newest offsets of policies and facts that were read."""
        return {**stored.policy_offsets, self._settings.topics.facts: {"0": stored.facts_offset}}

    def _other_trust(
        self, stored: Stored, snapshot: Snapshot, request: dict[str, Any], trust: frozenset[str]
    ) -> frozenset[str] | None:
        """The trust that is most like the present one and gives the stored decision."""
        sizes = range(len(CLAIMS) + 1)
        every = (frozenset(claims) for size in sizes for claims in itertools.combinations(sorted(CLAIMS), size))
        closest = sorted(every, key=lambda other: (len(other ^ trust), sorted(other)))
        return next((other for other in closest if not self._compare(stored, snapshot, request, other)), None)


DECISION_ID = re.compile(r"(?P<topic_id>[\w-]{22})-(?P<partition>\d+)-(?P<offset>\d+)")


class DecisionLookup(msgspec.Struct, frozen=True):
    """What came of the search for an id. `entry`: the decision; None: it is not among those that were read.

    `is_whole`: all were read among which it can be. `is_dated`: the time of its request is known. `dead_letter`: of
    the record that the id names, which is no request. `unreadable`: records that were read, may be it, and are no
    decision.
    """

    entry: Found | None
    is_whole: bool
    is_dated: bool
    dead_letter: ConsumerRecord | None = None
    unreadable: int = 0


def find_by_id(
    settings: Settings,
    admin: AdminClient,
    id_: str,
    most: int | None = None,
    is_seen: SeenSystem = lambda _system: True,
) -> DecisionLookup:
    """The decision with an id: as that names the request's record, decisions before it need not be read.

    `most`: about so many records are read on either side of the request's time, or so many of the newest where it is
    not known, and so many dead letters. `is_seen`: what is of any other system ("": of none) is not there. Raises
    KafkaException and TimeoutError when the cluster does not answer.
    """
    request, decoder, text = _request_of(settings, admin, id_), Decoder(settings), json_text(id_)
    since, is_whole = 0 if request is None else request.at, True
    for newest, (starts, ends) in _stretches(settings, admin, since):
        read = _bounded(starts, ends, most, newest)
        is_whole = is_whole and read == (starts, ends)
        for record in map(record_of, records_between(settings, *read)):
            entry = decoder.fitting(record, lambda value: text in value, lambda decision: decision.get("id") == id_)
            if entry is not None and is_seen(str(entry.decision.get("system", ""))):
                return DecisionLookup(entry, is_whole, since > 0)
    dead_letter = None if request is None else dead_letter_of(settings, admin, request, most, is_seen)
    return DecisionLookup(None, is_whole, since > 0, dead_letter, decoder.unreadable)


Stretch = tuple[PartitionOffsets, PartitionOffsets]
"""From which offsets up to which, of each partition of the decisions."""


def _stretches(settings: Settings, admin: AdminClient, since: int) -> Iterator[tuple[bool, Stretch]]:
    """Where a decision may stand whose request has a time (ms; 0: not known), and whether the newest there come first.

    The job dates a decision and the broker its request: where the job's clock is late, it stands before that time.
    """
    ends = last_stable_offsets(admin, partitions_of(admin, [settings.topics.decisions]))
    if not since:
        yield True, (first_offsets(admin, ends), ends)
        return
    starts = offsets_since(admin, ends, since - CLOCKS_MS)
    yield False, (starts, ends)
    yield True, (offsets_since(admin, starts, since - CLOCKS_MS - DISORDER_MS), starts)


def _bounded(starts: PartitionOffsets, ends: PartitionOffsets, most: int | None, newest: bool) -> Stretch:
    """A stretch with about `most` records at most: the newest, or the oldest."""
    if most is None:
        return starts, ends
    each = max(most // max(len(ends), 1), 1)
    if newest:
        return {partition: max(start, ends[partition] - each) for partition, start in starts.items()}, ends
    return starts, {partition: min(end, starts[partition] + each) for partition, end in ends.items()}


def _request_of(settings: Settings, admin: AdminClient, id_: str) -> ConsumerRecord | None:
    """The record that the id of a decision names; None where that is no longer there."""
    named = DECISION_ID.fullmatch(id_)
    ids = existing_topic_ids(admin, settings.topics.asking)
    topic = next((topic for topic, topic_id in ids.items() if named and topic_id == named["topic_id"]), None)
    if named is None or topic is None:
        return None
    return Topics(settings, admin).record(Place(topic, int(named["partition"]), int(named["offset"])))


def _repeated(decision: Mapping[str, Any]) -> dict[str, Any]:
    """As much of a request as its decision repeats: all but its context and the subject's properties."""
    envelope = {"id": decision["request_id"], "system": decision["system"]}
    items = [item.get("context", {}).get("request", {}) for item in decision.get("evaluations", ())]
    return {**envelope, "evaluations": items} if items else {**envelope, **decision["context"].get("request", {})}


def _notes(stored: Stored, record: ConsumerRecord | None, snapshot: Snapshot) -> Iterator[str]:
    if record is None:
        yield (
            f"the request's record is no longer there ({stored.source}): shown is what the decision repeats of it, "
            "without its context and the subject's properties, claims among them"
        )
        if stored.claims:
            yield f"the decision rests on what the request claimed ({_listed(stored.claims)}), so it may differ here"
    if snapshot.version != stored.policy_version:
        yield "policy_version differs: it counts older versions of documents, of which the job knew others"


def _answer(snapshot: Snapshot, request: Request | Batch, trust: frozenset[str], read: Offsets) -> Decision:
    """As the job answers: the time of evaluation is no claim."""
    behind = staleness(request, read)
    if behind is not None:
        return Decision("error", (Reason("policies-behind", behind),))
    return answer(snapshot, request, trust | TIME)


def _differences(stored: Decision, replayed: Decision, where: str = "") -> Iterator[str]:
    if stored.outcome != replayed.outcome:
        yield f"{where}outcome {stored.outcome}, now {replayed.outcome}"
    was, now = (sorted(map(_place, decision.reasons)) for decision in (stored, replayed))
    if was != now:
        yield f"{where}reasons {'; '.join(was) or 'none'}, now {'; '.join(now) or 'none'}"
    if len(stored.evaluations) != len(replayed.evaluations):
        yield f"{where}{len(stored.evaluations)} evaluations, now {len(replayed.evaluations)}"
    for number, (recorded, other) in enumerate(zip(stored.evaluations, replayed.evaluations, strict=False)):
        yield from _differences(recorded, other, f"evaluation {number}: ")


def _place(reason: Reason) -> str:
    """Code, rule, document and statement: what a decision rests on, however it is worded."""
    parts = (reason.code, reason.rule, reason.document, reason.statement)
    return " ".join(str(part) for part in parts if part is not None)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"

"""What the console reads from Kafka: decisions, and the documents that were in force when one was made."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import Compiler, MalformedRequest, Snapshot, to_text
from policy.analysis import Nearest, Node, draw_trees
from policy.testing import NAMED
from streaming.client.decision import Decision, Unreadable
from streaming.console.documents import Statement, key_of_shown_document, statement_in, text_at
from streaming.console.past_requests import PastRequest, newest_requests
from streaming.console.viewer import Viewer
from streaming.decision_log.dead_letters import dead_letters_by_request_id, describe_dead_letter
from streaming.decision_log.newest import NewestDecisions, newest
from streaming.decision_log.replay import DECISION_ID, DecisionLookup, Replay, Replays, find_by_id, stored_decision
from streaming.decision_log.search import Found, Query, unreadable_text
from streaming.settings import Settings
from streaming.snapshots.at_offsets import (
    DocumentLog,
    NoLongerKnown,
    read_document_log,
    read_further,
)
from streaming.topics import newest_offset


class Explained(msgspec.Struct, frozen=True):
    """A decision with why. ``unknown``: why its policies are no longer known; "": they are.

    ``trees``, ``nearest``: under the policies of its moment; ``today``: under those of now, at the moment ``now`` (ms).
    """

    found: Found
    stored: Decision
    unknown: str = ""
    equal: bool | None = None
    notes: tuple[str, ...] = ()
    trees: tuple[Node, ...] = ()
    nearest: tuple[Nearest | None, ...] = ()
    statements: tuple[Statement, ...] = ()
    today: tuple[Node, ...] = ()
    now: int = 0


MOST_BY_ID = 1_000_000  # decisions that are read to find one: other pages wait meanwhile
NEWEST_SECONDS = 0.8  # for which the newest decisions are read, about


class NoSuchDecision(Exception):
    """No decision of this id that the viewer may see was found; the message says why, and what was not searched."""


class Records:
    """The decisions of a cluster. For several threads: one reads documents at a time.

    Its methods raise KafkaException and TimeoutError where the cluster does not answer.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._settings, self._admin = settings, admin
        self._lock = threading.Lock()
        self._log: DocumentLog | None = None
        self._compiled: Compiler | None = None
        self._read: dict[tuple[str, int], int] = {}

    def share(self, compiler: Compiler) -> None:
        """Take over what the reader of the policies in force has read and compiled: see `DocumentLog.share`."""
        self._compiled, log = compiler, self._log
        if log is not None:
            log.share(compiler)

    def prepare(self) -> None:
        """Read and compile the documents: the first page that needs them would wait for it."""
        with contextlib.suppress(NoLongerKnown):  # that page says so
            self.documents().newest()

    def newest(self, query: Query) -> NewestDecisions:
        """The newest decisions that fit."""
        return newest(self._settings, self._admin, query, NEWEST_SECONDS)

    def refused(self, request_id: str, viewer: Viewer) -> list[str]:
        """Why records with an id of a request became no decision: of a few of the newest dead letters."""
        letters = dead_letters_by_request_id(self._settings, request_id, viewer.may_see)
        return [f"{to_text(letter.at)}, {describe_dead_letter(letter)}" for letter in letters]

    def newest_requests(self, is_wanted: Callable[[str], bool]) -> list[PastRequest]:
        """The newest requests of the systems that are wanted."""
        return newest_requests(self._settings, self._admin, is_wanted)

    def text_of(self, document: str) -> str:
        """The newest version of `SYSTEM/KIND/NAME`, whole or as changes show a long one, as YAML; "": there is none."""
        system = document.partition("/")[0]
        topic = self._settings.topics.policy_topics().get(system)
        if topic is None:
            return ""
        log = self.documents()
        return text_at(log, topic, key_of_shown_document(log, topic, system, document), log.end(topic)) or ""

    def explained(self, id_: str, today: Snapshot, viewer: Viewer) -> Explained:
        """A decision with why. Raises NoSuchDecision; MalformedRequest where it repeats no request."""
        if DECISION_ID.fullmatch(id_) is None:  # one of a request, perhaps: the whole topic would be read in vain
            raise NoSuchDecision(NO_DECISION)
        # One that the viewer may not see is looked for as long as one that is not there.
        lookup = find_by_id(self._settings, self._admin, id_, MOST_BY_ID, viewer.may_see)
        if (decided := lookup.entry) is None:
            raise NoSuchDecision(_not_found(lookup, id_))
        try:
            stored = stored_decision(decided)
        except Unreadable as unreadable:
            raise NoSuchDecision(str(unreadable)) from None
        log = self.documents()
        try:
            replay = Replays(self._settings, self._admin, log).replay(decided)
        except NoLongerKnown as unknown:
            return Explained(decided, stored, str(unknown))
        trees, nearest = replay.explanation()
        now = time.time_ns() // 1_000_000
        return Explained(
            decided,
            stored,
            "",
            replay.equal,
            (*replay.notes, *(f"differs from the recorded decision: {text}" for text in replay.differences)),
            tuple(trees),
            tuple(nearest),
            tuple(self._statements(stored, log)),
            _today(today, replay, now),
            now,
        )

    def documents(self) -> DocumentLog:
        """All documents of the topics, read on to their ends of now."""
        with self._lock:
            if self._log is None:
                self._log = read_document_log(self._settings)
                if self._compiled is not None:
                    self._log.share(self._compiled)
                self._read = {(topic, 0): self._log.end(topic) for topic in self._log.topics}
            else:  # from where it was read to: a record that is added twice would stand behind newer ones
                self._read = read_further(self._settings, self._log, self._read)
            return self._log

    def _statements(self, stored: Decision, log: DocumentLog) -> Iterator[Statement]:
        topics = self._settings.topics.policy_topics()
        every = (*stored.reasons, *(reason for item in stored.evaluations for reason in item.reasons))
        for reason in {(reason.document, reason.statement): reason for reason in every}.values():
            system, _, key = (reason.document or "").partition("/")
            offset = newest_offset(stored.policy_offsets, topics.get(system, ""))
            text = text_at(log, topics[system], key.encode(), offset) if system in topics and key else None
            yield Statement(reason) if text is None else statement_in(reason, text)


NO_DECISION = "there is no such decision: it was deleted by retention, or is not made yet, or the id is wrong"


def _not_found(lookup: DecisionLookup, id_: str) -> str:
    if lookup.dead_letter is not None:
        refused = describe_dead_letter(lookup.dead_letter)
        return f"there is no decision, for the record is no request. It was refused, {refused}"
    if lookup.is_whole:
        return f"{NO_DECISION}{unreadable_text(lookup.unreadable)}"
    if lookup.is_dated:
        why = f"there is no such decision among the {MOST_BY_ID:,} next to its request; others"
    else:
        why = f"its request is no longer there, and it is not among the newest {MOST_BY_ID:,} decisions; older ones"
    return f"{why} were not searched: `lockkeeper explain --decision {id_}` reads them"


def _today(today: Snapshot, replay: Replay, now: int) -> tuple[Node, ...]:
    try:
        return tuple(draw_trees(today, {**replay.request, "time": now}, replay.trust | {"time"}))
    except MalformedRequest:
        return ()


def requested_parts(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Subject, action and resource, as a decision's record repeats them; of a batch those of its first evaluation."""
    answers = (decision, *(decision.get("evaluations") or ()))
    requests = (answer.get("context", {}).get("request") for answer in answers)
    return next((request for request in requests if request), {})


def request_of(decision: Mapping[str, Any]) -> dict[str, str]:
    """Who asked for what on what, of a decision's record: the names of these parts."""
    return names_in_parts(requested_parts(decision))


def names_in_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    """The names of a subject, an action and a resource; `?` for what is not there."""
    return {part: str((parts.get(part) or {}).get(name, "?")) for part, name in NAMED.items()}

"""Alerts by episode, with what they are about: the decisions behind them, and the change that opened them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import to_ms, to_text
from streaming.alert_kinds import MONITORED, AlertKind
from streaming.console.addresses import address, decisions_address
from streaming.console.reading import Locked, Tail
from streaming.console.viewer import Viewer
from streaming.history.records import ConsumerRecord, record_of
from streaming.records.alert import Alert
from streaming.records.avro import Undecodable
from streaming.records.formats import SHORTENED
from streaming.records.registry import Deserializer
from streaming.report import read_alert
from streaming.report.incidents import evidence_text
from streaming.settings import Settings
from streaming.settings.console import page_path

MOST_RECORDS, MOST_EPISODES = 20_000, 5_000  # that are read at first, and that are kept, the newest
BEFORE_MS, AFTER_MS = 300_000, 60_000  # around an episode, in which decisions behind it are looked for
MOST_EVIDENCE = 50
OF_SUBJECTS = frozenset(kind for kind, raised in MONITORED.items() if raised.about_subject)
"""Kinds whose subject is that of requests, rather than a document, a topic or a server."""
DECISION = re.compile(r"\(decision ([\w-]{22}-\d+-\d+)\)$")


class Episode(msgspec.Struct, frozen=True):
    """The newest alert of an episode, which is the most complete. `first`, `at`: when its alerts came, ms.

    `system`: whose policies it is about; "" where it does not say, or is about several.
    """

    alert: Alert
    at: int
    first: int
    system: str
    alerts: int = 1

    @property
    def address(self) -> str:
        """Its page."""
        return page_path("alerts", self.alert.id)

    @property
    def subject(self) -> str:
        """Whom or what it is about, as a text."""
        subject = self.alert.subject
        return subject if isinstance(subject, str) else msgspec.json.encode(subject).decode()

    @property
    def evidence(self) -> list[Any]:
        """The first pieces of it."""
        listed = self.alert.evidence if isinstance(self.alert.evidence, list) else [self.alert.evidence]
        return [item for item in listed if item is not None][:MOST_EVIDENCE]


class AlertLog:
    """The episodes on the topic of alerts. For several threads. Raises KafkaException and TimeoutError.

    `unreadable`: records that were read and are no alerts.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._episodes: dict[str, Episode] = {}  # the one with the newest alert is the last
        self._tail = Tail(settings, admin, settings.topics.alerts, MOST_RECORDS, MOST_RECORDS, self._episodes.clear)
        self._lock = Locked()
        self._topics = {topic: system for system, topic in settings.topics.policy_topics().items()}
        self._deserializer = Deserializer(settings.schema_registry)
        self.unreadable = 0

    def episodes(self) -> list[Episode]:
        """All of them until now, the newest first."""
        with self._lock:
            for record in map(record_of, self._tail.records()):
                self._take(record)
            return list(reversed(self._episodes.values()))

    @property
    def is_cut(self) -> bool:
        """Whether older ones are not shown."""
        return self._tail.is_cut or len(self._episodes) >= MOST_EPISODES

    def _take(self, record: ConsumerRecord) -> None:
        try:
            alert = read_alert(self._deserializer.json("alert", record.value))
        except Undecodable:
            alert = None
        if alert is None:
            self.unreadable += 1
            return
        id_ = alert.id or f"{record.topic}-{record.partition}-{record.offset}"
        before = self._episodes.pop(id_, None)
        system = system_of(alert, self._topics)
        first, alerts = (record.at, 1) if before is None else (before.first, before.alerts + 1)
        alert = msgspec.structs.replace(alert, id=id_)
        self._episodes[id_] = Episode(alert, record.at, first, system, alerts)
        while len(self._episodes) > MOST_EPISODES:
            del self._episodes[next(iter(self._episodes))]


def seen_by(viewer: Viewer, episodes: list[Episode]) -> list[Episode]:
    """Those that a viewer may see. What is of no system may name any: it is for viewers of all of them."""
    return [episode for episode in episodes if viewer.may_see(episode.system)]


def system_of(alert: Alert, systems: Mapping[str, str]) -> str:
    """The system whose policies an alert is about; "" unless all that it names is of one. `systems`: by topic."""
    named = set(_systems(alert, systems))
    return named.pop() if len(named) == 1 else ""


def _systems(alert: Alert, systems: Mapping[str, str]) -> Iterator[str]:
    listed = alert.evidence if isinstance(alert.evidence, list) else []
    for item in listed:
        fields = item if isinstance(item, Mapping) else {}
        if isinstance(fields.get("system"), str):
            yield fields["system"]
        if isinstance(fields.get("document"), str):
            yield fields["document"].partition("/")[0]
        for name in ("documents", "causes"):
            documents = fields.get(name)
            named = documents if isinstance(documents, list) else ()
            yield from (str(document).partition("/")[0] for document in named)
        if "topic" in fields:
            yield systems.get(str(fields["topic"]), "")


class Piece(msgspec.Struct, frozen=True):
    """A piece of evidence in words. `decision`, `document`: of what it names; `topic`, `offset`: of a record."""

    text: str
    decision: str = ""
    document: str = ""
    topic: str = ""
    offset: int = -1

    @property
    def decision_address(self) -> str:
        """The page of the decision that it names."""
        return page_path("decisions", self.decision)


def pieces(episode: Episode) -> list[Piece]:
    """The evidence of an episode."""
    return [_piece(item) for item in episode.evidence]


def _piece(item: Any) -> Piece:
    text = evidence_text(item)
    fields = item if isinstance(item, Mapping) else {}
    named = DECISION.search(str(fields.get("what", "")))
    topic, offset, document = fields.get("topic"), fields.get("offset"), fields.get("document")
    return Piece(
        text,
        named[1] if named else "",
        document if isinstance(document, str) else "",
        topic if isinstance(topic, str) else "",
        offset if isinstance(offset, int) else -1,
    )


def decisions_behind(episode: Episode) -> str:
    """The address of the decisions about its subject around it; "" where it is about none, such as a document."""
    extent = next((item for item in episode.evidence if isinstance(item, Mapping) and "first" in item), None)
    if extent is None or not isinstance(episode.alert.subject, str) or episode.alert.kind not in OF_SUBJECTS:
        return ""
    try:
        begin, end = (to_ms(extent.get(name, "")) for name in ("first", "last"))
    except (ValueError, TypeError):
        return ""
    fields = {
        "subject": episode.subject,
        "system": episode.system,
        "outcome": "deny" if episode.alert.kind == AlertKind.DENIAL_BURST else "",
        "since": to_text(max(begin - BEFORE_MS, 0)),
        "until": to_text(end + AFTER_MS),
    }
    beginning, is_shortened, _ = episode.subject.partition(SHORTENED)
    if is_shortened:  # decisions have the name whole: those of all names that begin so are the nearest there is
        return address("/decisions", {**fields, "subject": f"{beginning}*"})
    return decisions_address(fields)

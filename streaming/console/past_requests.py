"""The newest requests that are decided, each with the id of its decision, to be decided again by other policies."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from policy import to_text
from policy.testing import NAMED
from streaming.decision_log.past_requests import NO_REQUEST, as_decided
from streaming.decision_log.status import committed_of
from streaming.history.records import record_of
from streaming.kafka.clients import existing_topic_ids, partitions_of
from streaming.kafka.committed import committed_records
from streaming.records.registry import Deserializer
from streaming.settings import Settings
from streaming.settings.console import page_path

MOST = 500  # of each partition that are read, and of all that are returned


class PastRequest(msgspec.Struct, frozen=True):
    """A request as the job decided it, at a moment (ms) that is its time. `trust`: what counts of it, with the time."""

    decision: str
    at: int
    trust: frozenset[str]
    asked: dict[str, Any]

    def row(self, turned: Sequence[int] = ()) -> dict[str, str]:
        """As it is listed. `turned`: of a batch, the evaluations that are answered otherwise; the first is shown."""
        items = self.asked.get("evaluations")
        evaluations = items if isinstance(items, list) else []
        number = turned[0] if turned else 0
        parts = [part for part in (*evaluations[number : number + 1], self.asked) if isinstance(part, dict)]
        which = f"evaluation {number + 1} of {len(evaluations)}" if turned else ""
        more = len(turned) - 1
        others = f", and {more} other{'' if more == 1 else 's'}" if more > 0 else ""
        return {
            "address": page_path("decisions", self.decision),
            "time": to_text(self.at),
            **{part: _named(parts, part, field) for part, field in NAMED.items()},
            "evaluation": f"{which}{others}",
        }


def _named(parts: Iterable[dict[str, Any]], part: str, field: str) -> str:
    """Of the first that has such a part."""
    values = (evaluation.get(part) for evaluation in parts)
    return next((str(value.get(field, "")) for value in values if isinstance(value, dict)), "")


def newest_requests(settings: Settings, admin: AdminClient, is_wanted: Callable[[str], bool]) -> list[PastRequest]:
    """The newest decided requests of the systems that are wanted, newest first.

    Raises KafkaException and TimeoutError; CannotStart where the job's committed offsets cannot be read.
    """
    ids, deserializer = existing_topic_ids(admin, settings.topics.asking), Deserializer(settings.schema_registry)
    decided = committed_of(settings, partitions_of(admin, ids))  # rule 2: what lies beyond has no decision yet
    requests = list[tuple[tuple[int, int], PastRequest]]()
    for record in map(record_of, committed_records(settings, list(ids), MOST)):
        committed = decided.get((record.topic, record.partition))
        if committed is None or record.offset >= committed.offset:
            continue
        with contextlib.suppress(*NO_REQUEST):
            asked, trust = as_decided(settings, record, deserializer)
            if is_wanted(str(asked.get("system", ""))):
                decision = f"{ids[record.topic]}-{record.partition}-{record.offset}"
                requests.append(((record.at, record.offset), PastRequest(decision, asked["time"], trust, asked)))
    return [past for _, past in sorted(requests, key=lambda request: request[0], reverse=True)[:MOST]]

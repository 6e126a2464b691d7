"""The alerts of the monitor as records (contracts, "Alert")."""

from typing import Any

import msgspec

from policy import to_text
from streaming.monitor.episodes import evidence_of
from streaming.monitor.state import Raised
from streaming.monitor_settings import (
    CONTRADICTION,
    DENIAL_BURST,
    DENIED,
    MALFORMED_BURST,
    UNAUTHORIZED,
    UNREQUESTED,
)
from streaming.records.size_gate import shorten_alert

MESSAGES = {
    UNAUTHORIZED: "{name} did what the policy in force denied ({times})",
    UNREQUESTED: "{name} acted without an allowed request ({times})",
    DENIED: "{name} did what had been denied ({times})",
    DENIAL_BURST: "{count} requests of {name} were denied in a short time",
    MALFORMED_BURST: "{count} records came to {name} in a short time",
    CONTRADICTION: "requests about {name} contradict the documents ({times})",
}


def alert_of(raised: Raised) -> dict[str, Any]:
    """The alert's fields. All alerts of one episode have one id; the newest is the most complete. Bounded in size."""
    episode, key = raised.episode, raised.key
    alert = {
        "id": episode.id,
        "kind": raised.kind,
        "severity": episode.severity,
        "time": to_text(episode.first),
        "subject": key.name,
        "message": MESSAGES[raised.kind].format(name=key.name, count=episode.count, times=_times(episode.count)),
        "evidence": evidence_of(episode, key.system),
    }
    return shorten_alert(alert)


def _times(count: int) -> str:
    return f"{count} time" if count == 1 else f"{count} times"


def encode_alert(raised: Raised) -> bytes:
    """The alert as the record's value."""
    return msgspec.json.encode(alert_of(raised))

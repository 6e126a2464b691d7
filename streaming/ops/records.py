"""What the job's own records say, as far as metrics and log need it."""

import msgspec

from streaming.ops.tally import OTHER
from streaming.records.avro import Undecodable, own_json


class _Alert(msgspec.Struct):
    kind: str


class _Context(msgspec.Struct):
    outcome: str


class Decision(msgspec.Struct):
    """The part of a decision record that no client wrote."""

    id: str
    context: _Context


_alert = msgspec.json.Decoder(_Alert).decode
_decision = msgspec.json.Decoder(Decision).decode


def kind_of(alert: bytes) -> str:
    """An alert's kind; `other` when it cannot be read."""
    try:
        return _alert(alert).kind
    except msgspec.DecodeError:
        return OTHER


def read_decision(record: bytes) -> Decision | None:
    """A decision's id and outcome; None when they cannot be read."""
    try:
        return _decision(own_json("decision", record))
    except (msgspec.DecodeError, Undecodable):
        return None

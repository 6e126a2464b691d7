"""Verdicts: what the enforcer reports to the monitor about audit events. Internal to the job (contracts, "Topics")."""

from typing import Any, Literal

import msgspec

from policy import Outcome, Reason

VerdictOutcome = Outcome | Literal["unknown"]
"""The policies' answer, or that they are not known any more."""


class Named(msgspec.Struct, frozen=True):
    """An action."""

    name: str


class Thing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subject or resource."""

    type: str
    id: str
    properties: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="access"):
    """An access that happened (or failed), with its evaluation. `time`: ms, when it happened.

    `id`: of the record, `event_id`: as its producer called it. `outcome`: the policy's answer at that time; `unknown`
    where the policies or facts of that time are not known any more. `by_oldest`: written by versions before 0.2, which
    evaluated under the oldest policies held what is older than them.
    """

    id: str
    event_id: str
    system: str
    subject: Thing
    action: Named
    resource: Thing
    time: int
    result: Literal["success", "failure"]
    outcome: VerdictOutcome
    reasons: tuple[Reason, ...]
    policy_version: str
    decision_id: str | None = None
    by_oldest: bool = False


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lifecycle"):
    """A login, logout, start or end of a job. `time`: ms. `groups`, `roles`: at the login; None: not given."""

    id: str
    event_id: str
    system: str
    event: str
    time: int
    subject: str | None = None
    resource: str | None = None
    groups: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="tick"):
    """All events up to `time` (ms) are written: time advances where no records come."""

    time: int


AnyVerdict = Verdict | Lifecycle | Heartbeat

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyVerdict] = msgspec.json.Decoder(AnyVerdict)


def encode_verdict(verdict: AnyVerdict) -> bytes:
    """A verdict as the record's value."""
    return _encoder.encode(verdict)


def decode_verdict(value: bytes) -> AnyVerdict:
    """The reverse; raises msgspec.DecodeError."""
    return _decoder.decode(value)

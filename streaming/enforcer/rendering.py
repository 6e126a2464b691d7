"""Decisions as JSON."""

import msgspec

from policy import Batch, Decision, Missing, Outcome, Reason, Request
from streaming.enforcer.answers import RenderedDecision, pieces_of
from streaming.ops.tally import label

_encode = msgspec.json.encode


class Context(msgspec.Struct, gc=False):
    """The part of a decision record that says why."""

    outcome: Outcome
    reasons: tuple[Reason, ...]
    missing: tuple[Missing, ...]
    claims: tuple[str, ...]


def to_json(decision: Decision) -> bytes:
    """A decision as its record has it, up to and with `claims`."""
    # The same fields as Decision.to_record, without the plain data in between.
    context = _encode(Context(decision.outcome, decision.reasons, decision.missing, decision.claims))
    return b'"decision":%b,"context":%b' % (b"true" if decision.allowed else b"false", context[:-1])


def echo(request: Request) -> bytes:
    """The request as its decision repeats it. Properties of a subject may be secrets, and are left out."""
    subject = {"type": request.subject.type, "id": request.subject.id}
    return b',"request":' + _encode({"subject": subject, "action": request.action, "resource": request.resource})


def evaluations(batch: Batch, decision: Decision) -> bytes:
    """The answers to the items that were decided, each with its own request."""
    answered = zip(batch.items, decision.evaluations, strict=False)
    parts = (
        b"{%b%b}}" % (to_json(given), echo(item) if isinstance(item, Request) else b"") for item, given in answered
    )
    return b',"evaluations":[%b]' % b",".join(parts)


def render(request: Request, decision: Decision, shared: bool) -> tuple[RenderedDecision, int]:
    """A decision as answers are kept, and its bytes."""
    text, name = to_json(decision) + echo(request), label(request.system, decision.outcome)
    rendered = RenderedDecision(_encode(request.system), pieces_of(text, shared), name)
    return rendered, len(text) + len(rendered.system)


class DecisionEnvelope(msgspec.Struct, frozen=True):
    """What all decisions on records of one partition in one batch begin and end with."""

    head: bytes
    tail: bytes

    def write(
        self, offset: int, request_id: bytes, system: bytes, at: bytes, text: bytes, evaluations: bytes = b""
    ) -> bytes:
        """A decision record. `request_id`, `system`: as JSON; `at`: its time; `text`: answer and request."""
        return b'%b%d","request_id":%b,"system":%b,"time":"%b",%b%b%d}}%b}' % (
            *(self.head, offset, request_id, system, at, text),
            *(self.tail, offset, evaluations),
        )

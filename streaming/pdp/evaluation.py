"""A request decided outside of the job, by policies as they were read: what servers and applications answer."""

from collections.abc import Mapping
from typing import Any

from policy import Decision, MalformedRequest, Reason, decide, parse_request
from streaming.enforcer.answers import TIME
from streaming.pdp.deadlines import is_late
from streaming.pdp.reading import AnswerContext, lacking

LATE = Decision("error", (Reason("deadline-exceeded", "the request was judged after its deadline"),))


def evaluate(request: Mapping[str, Any], answer_context: AnswerContext) -> Decision:
    """The decision, at the time of the answer: `error` after the request's deadline, and for offsets not read yet.

    What the job would not take for a request is `malformed-request`, before anything else is said of it.
    """
    if (behind := lacking(request, answer_context.read.all_offsets)) is not None:
        return Decision("error", (Reason("policies-behind", behind),))
    late = is_late(request.get("deadline"), answer_context.time)
    if late or request.get("time") is not None:  # others are checked as they are decided
        try:
            parse_request(request)
        except MalformedRequest as malformed:
            return Decision("error", (Reason("malformed-request", str(malformed)),))
    if late:  # the job does not go through the items of a batch either
        return LATE
    timed = {**request, "time": answer_context.time}
    return decide(answer_context.read.snapshot, timed, trust=answer_context.trust | TIME)

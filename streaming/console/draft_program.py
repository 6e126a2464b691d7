"""The program of a process that evaluates drafts; see `sandbox`. A line of JSON in, a line of JSON out, until it ends.

It imports `policy` alone. What it evaluates comes from anybody, so it may die or be killed with each of them.
"""

import contextlib
import functools
import resource
import sys
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from policy import MalformedRequest, Unreadable
from policy.testing import CaseFileError, Draft, DraftPolicies, Problem, evaluate_draft

MEMORY = 2 << 30  # bytes of address space

Result = dict[str, Any]


class Job(msgspec.Struct, frozen=True):
    """`number`: of the request that is opened."""

    does: Literal["evaluate", "open", "save"]
    draft: Draft
    number: int = 0


# While somebody types a request, the documents stay the same.
_compiled = functools.lru_cache(1)(DraftPolicies)


def answer(line: bytes) -> Result:
    """`{"result": …}`, or `{"problem": …}` where the draft is none."""
    job = msgspec.json.decode(line, type=Job)
    draft, does = job.draft, job.does
    try:
        policies = _compiled(draft.system, draft.documents, draft.at)
        if does == "evaluate":
            return {"result": evaluate_draft(draft, policies)}
        if does == "open":
            return {"result": policies.detail(draft.requests[job.number])}
        return {"result": {"text": policies.case_file(draft.requests)}}
    except Unreadable as error:
        return {"problem": unreadable(draft.documents, error)}
    except (CaseFileError, MalformedRequest) as error:
        return {"problem": Problem("error", str(error))}


def unreadable(documents: str, error: Unreadable) -> Problem:
    """What is wrong with a text that is no YAML: one that is not whole is wrong beyond its end."""
    last = documents.rstrip().count("\n") + 1
    return Problem("error", error.message, None if error.line is None else min(error.line, last))


def run(answer: Callable[[bytes], Result]) -> None:
    """Answer each line of standard input until it ends, within a bound of memory."""
    with contextlib.suppress(ValueError, OSError):  # macOS has no bound of the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(answer(line)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    run(answer)

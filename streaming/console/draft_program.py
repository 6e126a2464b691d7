"""The program of a process that evaluates drafts; see `sandbox`. A line of JSON in, a line of JSON out, until it ends.

It imports `policy` alone. What it evaluates comes from anybody, so it may die or be killed with each of them.
"""

import contextlib
import functools
import resource
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from policy import MalformedRequest, Unreadable
from policy.testing import CaseFileError, Draft, DraftPolicies, Problem, evaluate_draft

MEMORY = 2 << 30  # bytes of address space

Result = dict[str, Any]


class Job(msgspec.Struct, frozen=True):
    """`does`: one of `JOBS`. `number`: of the request that is opened."""

    does: str
    draft: Draft
    number: int = 0


class _Compiled:
    """The documents that were compiled last: while somebody types a request, they stay the same."""

    def __init__(self) -> None:
        self._key: tuple[str, str, str] | None = None
        self._policies: DraftPolicies | None = None

    def policies(self, draft: Draft) -> DraftPolicies:
        """Of this draft. Raises Unreadable and CaseFileError."""
        key = (draft.system, draft.documents, draft.at)
        if self._policies is None or key != self._key:
            self._policies, self._key = DraftPolicies(*key), key
        return self._policies


def _evaluate(job: Job, compiled: _Compiled) -> Result:
    evaluation: Result = msgspec.to_builtins(evaluate_draft(job.draft, compiled.policies(job.draft)))
    return evaluation


def _open(job: Job, compiled: _Compiled) -> Result:
    detail: Result = msgspec.to_builtins(compiled.policies(job.draft).detail(job.draft.requests[job.number]))
    return detail


def _save(job: Job, compiled: _Compiled) -> Result:
    return {"text": compiled.policies(job.draft).case_file(job.draft.requests)}


JOBS: dict[str, Callable[[Job, _Compiled], Result]] = {"evaluate": _evaluate, "open": _open, "save": _save}


def answer(line: bytes, compiled: _Compiled) -> Result:
    """`{"result": …}`, or `{"problem": …}` where the draft is none."""
    job = msgspec.json.decode(line, type=Job)
    try:
        return {"result": JOBS[job.does](job, compiled)}
    except Unreadable as error:
        return {"problem": unreadable(job.draft.documents, error)}
    except (CaseFileError, MalformedRequest) as error:
        return {"problem": msgspec.to_builtins(Problem("error", str(error)))}


def unreadable(documents: str, error: Unreadable) -> Result:
    """What is wrong with a text that is no YAML: one that is not whole is wrong beyond its end."""
    last = documents.rstrip().count("\n") + 1
    line = None if error.line is None else min(error.line, last)
    problem: Result = msgspec.to_builtins(Problem("error", error.message, line))
    return problem


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
    run(functools.partial(answer, compiled=_Compiled()))

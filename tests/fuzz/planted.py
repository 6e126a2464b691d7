"""Bugs to plant, one at a time, and the most inputs within which the fuzzer has to report each."""

import importlib
import marshal
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import policy.core.pattern
import policy.core.plain_data
import policy.core.request
import policy.evaluation.answers
import policy.matching.trie
import policy.systems.cedar.parser_process
import policy.systems.cedar.policies
import policy.systems.cedar.text
import streaming.enforcer.answers
import streaming.enforcer.auditing
import streaming.enforcer.evaluator
import streaming.enforcer.worker
import streaming.monitor.intake
import streaming.records.dead_letter
import streaming.serve.connections
import streaming.serve.protocol
from policy.core.caching import BUDGET
from policy.core.decision import Decision
from policy.core.model import Grant
from policy.core.pattern import Glob
from policy.core.request import CLAIMS
from policy.core.times import to_ms
from policy.evaluation.answers import AnswerCache
from policy.evaluation.evaluate import by_statement
from policy.evaluation.trace import ExpressionResult
from streaming.records.formats import JSON

Patch = pytest.MonkeyPatch
_ENGINE = importlib.import_module("policy.evaluation.evaluate")


class Plant(msgspec.Struct, frozen=True):
    """A bug: what it is, the target that finds it, the sort (empty: any) and start of the finding, and within how many
    inputs."""

    bug: str
    target: str
    finding: tuple[str, str]
    inputs: int
    plant: Callable[[Patch], None]


def _deny_ignored(patch: Patch) -> None:
    """Where other grants match, too."""

    def first(matching: Sequence[Grant]) -> tuple[Grant, ...]:
        return tuple(sorted(matching, key=by_statement))

    for module in (_ENGINE, policy.evaluation.answers):
        patch.setattr(module, "deny_overrides", first)


def _deny_taken_for_an_allow(patch: Patch) -> None:
    """Where no answer is shared by resources."""
    patch.setattr(_ENGINE, "leaf", lambda atom, grants: ExpressionResult(atom, bool(grants), grants))


def _case_ignored(patch: Patch) -> None:
    def descend(self: Any, text: str, found: list[Any]) -> None:
        for head, node in self.prefixes.items():
            if text.lower().startswith(head.lower()):
                found.append(node)
        for globs in self.globs.values():
            found += (node for glob, (_, node) in globs.items() if policy.core.pattern.match_part(glob, text))

    patch.setattr(policy.matching.trie.Wildcards, "descend", descend)


def _glob_off_by_one(patch: Patch) -> None:
    right = policy.core.pattern._match_glob

    def match(glob: Glob, text: str) -> bool:
        return right(glob, text) or right(glob, text[:-1])

    patch.setattr(policy.core.pattern, "_match_glob", match)


def _error_is_an_allow(patch: Patch) -> None:
    patch.setattr(_ENGINE, "error", lambda reason: Decision("allow", (reason,)))


def _answers_unbounded(patch: Patch) -> None:
    patch.setattr(streaming.enforcer.evaluator, "record_size", lambda *_: 0)
    patch.setattr(streaming.enforcer.worker, "fits", lambda *_: True)


def _nesting_unbounded(patch: Patch) -> None:
    patch.setattr(policy.core.plain_data, "MAX_NESTING", 10_000)
    patch.setattr(policy.core.plain_data, "check_nesting", lambda *_: None)


def _duplicate_keys_quadratic(patch: Patch) -> None:
    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            # Of all, wherever the one that stands twice is; and not by list.count, which a fast machine does in time.
            counts = [sum(other == name for other in names) for name in names]
            twice = next(name for name, count in zip(names, counts, strict=True) if count > 1)
            raise ValueError(f"duplicate key {twice!r} in one mapping: remove one")
        return dict(pairs)

    patch.setattr(policy.core.plain_data, "unique_members", object_of)


def _secret_shown(patch: Patch) -> None:
    hints = tuple(hint for hint in streaming.records.dead_letter._HINTS if hint not in (b"pass", b"secret"))
    patch.setattr(streaming.records.dead_letter, "_HINTS", hints)


def _secret_header_shown(patch: Patch) -> None:
    patch.setattr(streaming.records.dead_letter, "_mask_header", lambda _name, value: value)


def _cache_grows(patch: Patch) -> None:
    patch.setattr(BUDGET, "spend", lambda _weight: None)


def _header_crashes(patch: Patch) -> None:
    def carried(headers: list[dict[str, Any]]) -> list[Any]:
        return [
            JSON,
            *((h["key"], h["value"]) for h in headers if h["key"] == "traceparent" and len(h["value"]) < 1000),
        ]

    patch.setattr(streaming.enforcer.evaluator, "carried", carried)


def _claims_trusted(patch: Patch) -> None:
    init: Any = AnswerCache.__init__

    def init_with_all_claims(cache: Any, policy_sets: Any, _trust: Any, *more: Any) -> None:
        init(cache, policy_sets, CLAIMS, *more)

    patch.setattr(AnswerCache, "__init__", init_with_all_claims)


def _claims_of_logins_trusted(patch: Patch) -> None:
    right = streaming.enforcer.auditing._lifecycle
    patch.setattr(
        streaming.enforcer.auditing, "_lifecycle", lambda event, id_, at, _trust: right(event, id_, at, CLAIMS)
    )


def _untrusted_events_become_facts(patch: Patch) -> None:
    right = streaming.monitor.intake._of_lifecycle

    def of_lifecycle(event: Any, at: int) -> Any:
        return right(msgspec.structs.replace(event, untrusted=()), at)

    patch.setattr(streaming.monitor.intake, "_of_lifecycle", of_lifecycle)


def _times_of_logins_trusted(patch: Patch) -> None:
    right = streaming.enforcer.auditing.AuditEvaluator._passed_on

    def passed_on(self: Any, event: Any, key: Any, id_: str, at: int) -> bytes:
        return right(self, event, key, id_, at if event.time is None else min(at, to_ms(event.time)))

    patch.setattr(streaming.enforcer.auditing.AuditEvaluator, "_passed_on", passed_on)


def _deadline_ignored(patch: Patch) -> None:
    patch.setattr(importlib.import_module("policy.evaluation.authorize"), "_check_deadline", lambda *_: None)


def _context_left_out_of_keys(patch: Patch) -> None:
    """Of the answers that a worker and the audit events keep."""
    content_of = streaming.enforcer.answers.content_of

    def content_without_context(parts: Any) -> tuple[bytes, bool]:
        context, parts.context = parts.context, msgspec.Raw()
        try:
            return content_of(parts)
        finally:
            parts.context = context

    for module in (streaming.enforcer.evaluator, streaming.enforcer.auditing):
        patch.setattr(module, "content_of", content_without_context)


def _context_left_out_of_plain_keys(patch: Patch) -> None:
    """The same in `policy.decide`, the server and the client."""

    def dumps(parts: Any, version: int) -> bytes:
        *others, _, has_parts = parts
        return marshal.dumps((*others, has_parts), version)

    patch.setattr(importlib.import_module("policy.evaluation.authorize"), "marshal", SimpleNamespace(dumps=dumps))


def _crash_while_a_document_is_refused(patch: Patch) -> None:
    def read_json(text: str) -> Any:
        return msgspec.json.decode(text)

    patch.setattr(policy.core.plain_data, "read_json", read_json)


def _trailers_unbounded(patch: Patch) -> None:
    patch.setattr(streaming.serve.protocol, "FRAMING_BYTES", 1 << 40)


def _pipelines_unbounded(patch: Patch) -> None:
    patch.setattr(streaming.serve.protocol, "PIPELINED", 1 << 40)


def _slow_readers_unbounded(patch: Patch) -> None:
    patch.setattr(streaming.serve.connections.Connections, "look", lambda _self: None)


def _pipelines_out_of_order(patch: Patch) -> None:
    """The newest of the requests that wait is answered first."""

    class Pipeline(deque[Any]):
        pop = deque.popleft

    init = streaming.serve.protocol.Protocol.__init__

    def init_with_pipeline(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.pipeline = Pipeline()

    patch.setattr(streaming.serve.protocol.Protocol, "__init__", init_with_pipeline)


def _cedar_chains_unbounded(patch: Patch) -> None:
    """And nothing parsed in a process of its own."""
    patch.setattr(policy.systems.cedar.text, "MAX_CHAIN", 10**9)
    patch.setattr(policy.systems.cedar.parser_process, "SMALL", 10**9)


def _cedar_compared_by_text(patch: Patch) -> None:
    """With one blank for several."""
    patch.setattr(
        policy.systems.cedar.policies.Policy, "content", property(lambda policy: " ".join(policy.text.split()))
    )


# What an input is follows from the seed and the case files, so a case that is added changes the draws. So bounds are
# five times and more what the slowest of four seeds needed (2026-11-28); only a bug that is not found takes so many.
PLANTS = (
    Plant("a deny is ignored", "requests", ("wrong", "allow"), 40_000, _deny_ignored),
    Plant("a deny is taken for an allow", "decisions", ("wrong", "allow"), 60_000, _deny_taken_for_an_allow),
    Plant("prefixes match whatever the case", "patterns", ("wrong", "match"), 500, _case_ignored),
    Plant("a glob matches one character too many", "patterns", ("wrong", "match"), 2000, _glob_off_by_one),
    Plant("an error is an allow", "decisions", ("wrong", "allow"), 100, _error_is_an_allow),
    Plant("answers have no limit", "requests", ("wrong", "size"), 30_000, _answers_unbounded),
    Plant("nesting has no limit", "texts", ("crash", ""), 1000, _nesting_unbounded),
    Plant("a key that occurs twice is looked for twice", "texts", ("slow", ""), 4000, _duplicate_keys_quadratic),
    Plant("a password is not masked", "dead-letters", ("wrong", "secret"), 500, _secret_shown),
    Plant("secrets in headers are not masked", "dead-letters", ("wrong", "secret"), 200, _secret_header_shown),
    Plant("a cache is unbounded", "memory", ("memory", ""), 10_000, _cache_grows),
    # Where the answer is known, headers are carried outside of what catches the error of one record: any may be first.
    Plant("a header without a value crashes", "requests", ("", ""), 8000, _header_crashes),
    Plant("claims count though they are not trusted", "requests", ("wrong", ""), 8000, _claims_trusted),
    Plant("claims of a login count on every topic", "derived-facts", ("wrong", "fact"), 300, _claims_of_logins_trusted),
    Plant("every login becomes a fact", "derived-facts", ("wrong", "fact"), 300, _untrusted_events_become_facts),
    # The fact of a login, or which of a job's is the newest.
    Plant("the time of a login counts on every topic", "derived-facts", ("wrong", ""), 300, _times_of_logins_trusted),
    # An allow or a deny, whichever comes first, where the reference errs.
    Plant("a deadline is ignored", "decisions", ("wrong", ""), 8000, _deadline_ignored),
    Plant("a key leaves the context out", "pairs", ("wrong", ""), 8000, _context_left_out_of_keys),
    Plant("a key of plain data leaves it out", "pairs", ("wrong", ""), 8000, _context_left_out_of_plain_keys),
    Plant("trailers have no bound", "http", ("wrong", "answers"), 400, _trailers_unbounded),
    Plant("pipelined requests have no bound", "http", ("wrong", "held"), 60, _pipelines_unbounded),
    Plant("slow readers are waited for", "http", ("wrong", "open"), 60, _slow_readers_unbounded),
    Plant("pipelined requests are answered in reverse", "http", ("wrong", "answers"), 60, _pipelines_out_of_order),
    Plant("JSON that is none ends in another error", "texts", ("crash", ""), 200, _crash_while_a_document_is_refused),
    Plant("chains of Cedar's operators are unbounded", "cedar-texts", ("wrong", "died"), 300, _cedar_chains_unbounded),
    Plant("Cedar's statements are compared by text", "cedar-texts", ("wrong", ""), 60, _cedar_compared_by_text),
)

"""`lockkeeper verify`: whether the topics of a cluster keep the promises of the job. Here: what it finds."""

import collections
from typing import Any

import msgspec

from policy import OUTCOMES

CHECKS = {
    "lost": "a request without a decision or dead letter",
    "doubled": "a second decision or dead letter of one request",
    "unasked": "a decision or dead letter of no request",
    "unreadable": "a decision that is none, or contradicts itself",
    "out_of_order": "a decision before that of an earlier request with the same key and partition",
    "misplaced": "a decision in another partition of its topic than its key leads to",
    "mixed_snapshots": "decisions of one transaction by different policies or facts",
    "offsets_back": "a decision by older offsets than the one before it",
    "unlike_reference": "an answer other than the reference evaluator's at the offsets it names",
    "wrong_version": "a policy_version that is not that of the offsets it names",
    "judged_by_older_policy": "a decision by policies or facts older than what was acknowledged before its request",
}
"""The checks by name, each with what a violation of it is."""

VIOLATIONS_KEPT = 20  # of each check


class Violation(msgspec.Struct, frozen=True):
    """One record that breaks a promise: of which topic, and what was expected and found."""

    check: str
    topic: str
    partition: int
    offset: int
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.check}: {self.topic}-{self.partition} offset {self.offset}: {self.found}; expected {self.expected}"
        )


class Findings:
    """Counts everything and keeps the first violations of each check.

    `waiting`: requests that are not decided yet. `unknown`: what could not be checked, by reason.
    """

    def __init__(self) -> None:
        self.requests = self.decisions = self.dead_letters = self.verified = self.waiting = 0
        self.counts = dict.fromkeys(CHECKS, 0)
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.unknown: collections.Counter[str] = collections.Counter()
        self.violations: list[Violation] = []

    def violated(self, violation: Violation) -> None:
        """Count a violation."""
        self.counts[violation.check] += 1
        if self.counts[violation.check] <= VIOLATIONS_KEPT:
            self.violations.append(violation)

    @property
    def ok(self) -> bool:
        """Whether no promise was found broken."""
        return not any(self.counts.values())

    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "ok": self.ok,
            "requests": self.requests,
            "decisions": self.decisions,
            "dead_letters": self.dead_letters,
            "verified": self.verified,
            "waiting": self.waiting,
            "unknown": dict(sorted(self.unknown.items())),
            "outcomes": {outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            "checks": self.counts,
            "violations": [msgspec.to_builtins(violation) for violation in self.violations],
        }

"""The kinds of alerts, each with its severity, thresholds and sentence: the only list of them.

Metrics, settings, the monitor, the console, the reference and the tests of schemas and guides take them from here.
"""

import enum
from typing import Annotated, Self

import msgspec

from policy import SEVERITIES, Severity

MOST_NUMBER = (1 << 31) - 1
"""Java's largest int: Spark and Kafka take many settings as one."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_NUMBER)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBER)]
MOST_SECONDS = 100 * 366 * 24 * 3600.0
"""A hundred years: the longest time that a setting may be. In milliseconds it has a place wherever it is written."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]


class KindRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one kind of alert is raised.

    `more_than`: occurrences within `within_seconds` that are still no burst (of the bursts alone). `severity`: to begin
    with; `escalate`: from which count of an episode on it is another one.
    """

    severity: Severity
    enabled: bool = True
    escalate: dict[Severity, Positive] = {}
    more_than: Count = 0
    within_seconds: Seconds = 60.0

    def severity_of(self, count: int) -> Severity:
        """The severity of an episode with so many occurrences."""
        reached = [name for name, least in self.escalate.items() if count >= least]
        return max((self.severity, *reached), key=SEVERITIES.index)


class Monitored(msgspec.Struct, frozen=True):
    """How the monitor raises alerts of a kind. `rule`: what holds unless settings say otherwise.

    `sentence`: the alert's message; `{name}` is whom or what it is about, `{count}` and `{times}` say how often it
    occurred. `about_subject`: whether `{name}` is the subject of requests, rather than a topic or a server.
    """

    sentence: str
    rule: KindRule
    about_subject: bool = True


class AlertKind(enum.StrEnum):
    """What an alert is about, as `kind` of its record.

    Beside the name: how the monitor raises it, or the severity of what the enforcer raises; without, each alert has its
    own.
    """

    raised: Monitored | Severity | None

    def __new__(cls, name: str, raised: Monitored | Severity | None = None) -> Self:
        """The value is the name alone."""
        kind = str.__new__(cls, name)
        kind._value_, kind.raised = name, raised
        return kind

    UNAUTHORIZED_ACCESS = (
        "unauthorized-access",
        Monitored("{name} did what the policy in force denied ({times})", KindRule("high", escalate={"critical": 100})),
    )
    UNREQUESTED_ACCESS = (
        "unrequested-access",
        Monitored("{name} acted without an allowed request ({times})", KindRule("medium", escalate={"high": 100})),
    )
    DENIED_BUT_DONE = (
        "denied-but-done",
        Monitored("{name} did what had been denied ({times})", KindRule("high", escalate={"critical": 10})),
    )
    DENIAL_BURST = (
        "denial-burst",
        Monitored(
            "{count} requests of {name} were denied in a short time",
            KindRule("medium", escalate={"high": 100, "critical": 1000}, more_than=20),
        ),
    )
    PRIVILEGE_ESCALATION = "privilege-escalation"
    POLICY_REJECTED = "policy-rejected", "high"
    POLICY_STALE = "policy-stale", "critical"
    TOPIC_RECREATED = "topic-recreated", "high"
    ENFORCEMENT_DISABLED = "enforcement-disabled", "critical"
    MALFORMED_BURST = (
        "malformed-burst",
        Monitored(
            "{count} records came to {name} in a short time",
            KindRule("medium", escalate={"high": 1000}, more_than=50),
            about_subject=False,
        ),
    )
    FACT_CONTRADICTION = (
        "fact-contradiction",
        Monitored(
            "requests about {name} contradict the documents ({times})", KindRule("low", escalate={"medium": 100})
        ),
    )
    ANSWER_CONTRADICTED = (
        "answer-contradicted",
        Monitored(
            "{name} answered otherwise than the policies that it named ({times})",
            KindRule("high", escalate={"critical": 10}),
            about_subject=False,
        ),
    )
    ANSWER_STALE = (
        "answer-stale",
        Monitored(
            "{name} answered by older policies than its freshness allows ({times})",
            KindRule("high", escalate={"critical": 100}),
            about_subject=False,
        ),
    )
    ANSWER_MISDATED = (
        "answer-misdated",
        Monitored(
            "{name} dates its answers otherwise than Kafka ({times})",
            KindRule("medium", escalate={"high": 1000}),
            about_subject=False,
        ),
    )


MONITORED: dict[AlertKind, Monitored] = {kind: kind.raised for kind in AlertKind if isinstance(kind.raised, Monitored)}
"""Those of the monitor, which the settings may change."""

FIXED_SEVERITIES: dict[AlertKind, Severity] = {kind: kind.raised for kind in AlertKind if isinstance(kind.raised, str)}
"""Of the enforcer's. An escalation is as severe as what it opens."""

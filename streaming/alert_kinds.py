"""The kinds of alerts: the only list of them, with the severity of those that have one.

Metrics, settings, the reference and the tests of schemas and guides take them from here.
"""

import enum
from typing import Literal

Severity = Literal["info", "low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high", "critical")


class AlertKind(enum.StrEnum):
    """What an alert is about, as `kind` of its record."""

    UNAUTHORIZED_ACCESS = "unauthorized-access"
    UNREQUESTED_ACCESS = "unrequested-access"
    DENIED_BUT_DONE = "denied-but-done"
    DENIAL_BURST = "denial-burst"
    PRIVILEGE_ESCALATION = "privilege-escalation"
    POLICY_REJECTED = "policy-rejected"
    POLICY_STALE = "policy-stale"
    TOPIC_RECREATED = "topic-recreated"
    ENFORCEMENT_DISABLED = "enforcement-disabled"
    MALFORMED_BURST = "malformed-burst"
    FACT_CONTRADICTION = "fact-contradiction"
    ANSWER_CONTRADICTED = "answer-contradicted"
    ANSWER_STALE = "answer-stale"
    ANSWER_MISDATED = "answer-misdated"


FIXED_SEVERITIES: dict[AlertKind, Severity] = {
    AlertKind.POLICY_REJECTED: "high",
    AlertKind.POLICY_STALE: "critical",
    AlertKind.TOPIC_RECREATED: "high",
    AlertKind.ENFORCEMENT_DISABLED: "critical",
}
"""Of alerts about policies. Those about accesses have rules: see `streaming.settings.monitor.DEFAULTS`; an escalation
is as severe as what it opens.
"""

"""The demo's books: what was sent when, what came back, and which alerts. What must hold, `streaming.verify` checks."""

import collections
import statistics
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from policy import OUTCOMES
from streaming.terminal import one_line
from streaming.topics import newest_offset
from streaming.verify import CHECKS as VERIFIED
from streaming.verify import Findings

NEWEST = 5

CHECKS = {
    **VERIFIED,
    "incidents_missed": "a planted incident (eve twice, mallory, trent) without its alert",
    "alerts_invented": "an alert without a planted incident",
}
"""The checks by name, each with what it counts."""


class Change(msgspec.Struct, frozen=True):
    """The policy change: where it was written, and when that was acknowledged."""

    topic: str
    offset: int
    acknowledged_at: float


class Answer(msgspec.Struct, frozen=True):
    """One decision as it was read; ``read_at`` by the monotonic clock."""

    request_id: str
    record: dict[str, Any]
    read_at: float

    @property
    def outcome(self) -> str:
        """allow, deny or error."""
        return str(self.record["context"]["outcome"])


class RequestTracker:
    """Written by the sender's and the readers' threads, read by the view. `planted`: the alerts that must come.

    `demanded`: by request id, the newest policy offset that was acknowledged before the request was sent.
    """

    def __init__(self, planted: Set[tuple[str, str]] = frozenset()) -> None:
        self._lock = threading.Lock()
        self._change: Change | None = None
        self._sent: dict[str, tuple[dict[str, Any], float]] = {}
        self._answered: set[str] = set()
        self.demanded: dict[str, dict[str, int]] = {}
        self._order: list[Answer] = []
        self._planted, self._alerts = planted, dict[str, dict[str, Any]]()
        self._measured_from: float | None = None

    def measure(self) -> None:
        """End the warm-up: latencies are those of requests sent from now on."""
        self._measured_from = time.monotonic()

    @property
    def measuring(self) -> bool:
        """Whether the warm-up is over."""
        return self._measured_from is not None

    def send(self, request: dict[str, Any]) -> None:
        """Note a request just before it is produced."""
        with self._lock:
            self._sent[request["id"]] = (request, time.monotonic())
            if self._change is not None:
                self.demanded[request["id"]] = {self._change.topic: self._change.offset}

    def read(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Book a decision just after it was read; returns its request."""
        answer = Answer(record["request_id"], record, time.monotonic())
        with self._lock:
            self._answered.add(answer.request_id)
            self._order.append(answer)
            sent = self._sent.get(answer.request_id)
        return sent[0] if sent else None

    def alert(self, record: dict[str, Any]) -> None:
        """Book an alert just after it was read; several with one id are one alert."""
        with self._lock:
            self._alerts[record["id"]] = record

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts, each in its newest form."""
        with self._lock:
            return list(self._alerts.values())

    @property
    def alarmed(self) -> bool:
        """Whether every planted incident has its alert."""
        return self._planted <= self._raised()

    def _raised(self) -> set[tuple[str, str]]:
        return {(alert["kind"], alert["subject"]) for alert in self.alerts()}

    def change(self, change: Change) -> None:
        """Book the policy change, once it is acknowledged."""
        with self._lock:
            self._change = change

    @property
    def complete(self) -> bool:
        """Whether every request sent so far has an answer."""
        with self._lock:
            return self._sent.keys() <= self._answered

    def answers(self) -> list[Answer]:
        """All decisions in the order they were read."""
        with self._lock:
            return list(self._order)

    def latencies_ms(self, answers: Sequence[Answer]) -> list[float]:
        """From produce to read, of the answers to requests sent after the warm-up."""
        start = self._measured_from
        if start is None:
            return []
        with self._lock:
            known = [(answer, self._sent.get(answer.request_id)) for answer in answers]
        return [(answer.read_at - sent[1]) * 1000 for answer, sent in known if sent and sent[1] >= start]

    def change_in_force_ms(self) -> float | None:
        """From the acknowledgement of the change to the first decision under it; 0: that came before."""
        change = self._change
        if change is None:
            return None
        under = (answer.read_at for answer in self.answers() if _offset(answer.record, change.topic) >= change.offset)
        first = next(under, None)
        return None if first is None else max(0.0, first - change.acknowledged_at) * 1000

    def summary(self, found: Findings) -> dict[str, Any]:
        """Counts and checks, those of `found` among them; ``ok`` when every check holds."""
        answers, counts = self.answers(), collections.Counter(answer.outcome for answer in self.answers())
        checks = {
            **found.counts,
            "lost": found.counts["lost"] + found.waiting,
            "incidents_missed": len(self._planted - self._raised()),
            "alerts_invented": len(self._raised() - self._planted),
        }
        in_force = self.change_in_force_ms()
        return {
            "ok": bool(answers) and not any(checks.values()) and (self._change is None or in_force is not None),
            "sent": len(self._sent),
            "decided": len(answers),
            "alerts": len(self.alerts()),
            **checks,
            "unknown": dict(found.unknown),
            "outcomes": {outcome: counts[outcome] for outcome in OUTCOMES},
            "latency_ms": percentiles(self.latencies_ms(answers)),
            "policy_change_in_force_ms": None if in_force is None else round(in_force),
        }


def _offset(record: Mapping[str, Any], topic: str) -> int:
    return newest_offset(record["context"]["policy_offsets"], topic)


def percentiles(latencies: Sequence[float]) -> dict[str, float | None]:
    """p50 and p99, None without a sample."""
    if len(latencies) < 2:
        return {"p50": None, "p99": None}
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1)}


WINDOW_SECONDS = 2.0
ALERT_WIDTH = 120
COLOURS = {"allow": "green", "deny": "red", "error": "yellow"}
ALARM = {"info": "dim", "low": "cyan", "medium": "yellow", "high": "red", "critical": "bold red"}


class View:
    """Shows a tracker; ``say`` shows what the demo is doing. Use in a ``with``."""

    def __init__(self, tracker: RequestTracker, console: Console) -> None:
        self._tracker = tracker
        self._console = console
        self._doing = ""
        self._last_line = 0.0
        self._shown = 0
        self._alarmed: set[str] = set()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not console.quiet else None

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def print_participants(self, participants: Mapping[str, str]) -> None:
        """Print who acts, each with what they do."""
        for who, does in participants.items():
            self._console.print(f"{who:22}{does}", markup=False, highlight=False, soft_wrap=True)

    def say(self, doing: str) -> None:
        """Show what happens now."""
        self._doing = doing
        if self._live is None:
            self._console.print(one_line(doing), markup=False, soft_wrap=True)
        self.refresh()

    def refresh(self) -> None:
        """Show the tracker as it is now; cheap to call often."""
        if self._live:
            self._live.update(self._screen())
        else:
            self._print_alerts()
            answers = self._tracker.answers()
            if len(answers) > self._shown and time.monotonic() - self._last_line >= 1:
                self._last_line, self._shown = time.monotonic(), len(answers)
                self._console.print(_line(self._tracker, answers))

    def _print_alerts(self) -> None:
        """A line for each alert that is new."""
        for alert in self._tracker.alerts():
            if alert["id"] not in self._alarmed:
                self._alarmed.add(alert["id"])
                line = f"ALERT  {alert['severity']}  {alert['kind']}: {alert['message']}"
                shown = textwrap.shorten(one_line(line), ALERT_WIDTH, placeholder=" …")
                self._console.print(shown, markup=False, soft_wrap=True)

    def _screen(self) -> Panel:
        answers = self._tracker.answers()
        parts = [Text(self._doing, style="bold")]
        if answers:
            parts += [Text(_line(self._tracker, answers)), Text(f"policies {_version(answers[-1])}"), Text("")]
        return Panel(Group(*parts, _denials(answers), Text(""), _alerts(self._tracker)), title="lockkeeper")


def _line(tracker: RequestTracker, answers: Sequence[Answer]) -> str:
    recent = [answer for answer in answers if answer.read_at > time.monotonic() - WINDOW_SECONDS]
    counts = collections.Counter(answer.outcome for answer in answers)
    latency = percentiles(tracker.latencies_ms(recent))
    outcomes = "  ".join(f"{outcome} {counts[outcome]}" for outcome in COLOURS)
    latencies = "" if tracker.measuring else "  (warm-up)"
    if latency["p50"] is not None:
        latencies = f"  p50 {latency['p50']:.0f} ms  p99 {latency['p99']:.0f} ms"
    return f"{len(recent) / WINDOW_SECONDS:6.0f} decisions/s  {outcomes}{latencies}"


def _version(answer: Answer) -> str:
    context: dict[str, Any] = answer.record["context"]
    offsets = ((topic, at) for topic, parts in context["policy_offsets"].items() for at in parts.values())
    written = ", ".join(f"{topic} up to offset {at}" for topic, at in offsets if at >= 0)
    return f"{context['policy_version'][:19]}… ({written})"


def _denials(answers: Sequence[Answer]) -> Table:
    """The newest denials, each with its reason."""
    table = Table("request", "outcome", "because", expand=True, box=None)
    refused = [answer for answer in answers[-200:] if answer.outcome != "allow"][-NEWEST:]
    for answer in reversed(refused):
        reason = answer.record["context"]["reasons"][0]["message"]
        outcome = Text(answer.outcome, COLOURS[answer.outcome])
        table.add_row(_text(answer.request_id), outcome, _text(reason))  # a plain str would be markup of rich
    return table


def _alerts(tracker: RequestTracker) -> Table:
    """The newest alerts."""
    table = Table("alert", "severity", "because", expand=True, box=None)
    for alert in reversed(tracker.alerts()[-NEWEST:]):
        table.add_row(_text(alert["kind"]), Text(alert["severity"], ALARM[alert["severity"]]), _text(alert["message"]))
    return table


def _text(untrusted: str) -> Text:
    """What records say, without markup and in one line."""
    return Text(one_line(untrusted))


def show_summary(console: Console, summary: dict[str, Any]) -> None:
    """The end of the demo, for people."""
    table = Table("check", "counts each …", "found", "", title="Summary")
    for name, counted in CHECKS.items():
        table.add_row(name.replace("_", " "), counted, str(summary[name]), _check_mark(summary[name] == 0))
    console.print(table)
    for line in _figures(summary):
        console.print(line, soft_wrap=True)
    console.print(Text("all checks hold", "bold green") if summary["ok"] else Text("A CHECK FAILED", "bold red"))


def _figures(summary: Mapping[str, Any]) -> list[str]:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    latency, in_force = summary["latency_ms"], summary["policy_change_in_force_ms"]
    return [
        "The reference evaluator decides each request again: nested loops, no index, no cache.",
        f"{summary['sent']} requests sent, {summary['decided']} decisions read: {outcomes}",
        f"latency after the warm-up, from produce to decision read: p50 {latency['p50']} ms, p99 {latency['p99']} ms",
        f"the policy change was in force {in_force} ms after it was acknowledged",
    ]


def _check_mark(good: bool) -> Text:
    return Text("✓", "green") if good else Text("✗", "bold red")

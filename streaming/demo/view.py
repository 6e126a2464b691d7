"""The demo's live view: a screen in a terminal, a line a second elsewhere, nothing where machines read."""

import collections
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streaming.demo.ledger import CHECKS, NEWEST, Answer, Ledger, percentiles

WINDOW_SECONDS = 2.0
ALERT_WIDTH = 120
COLOURS = {"allow": "green", "deny": "red", "error": "yellow"}
ALARM = {"info": "dim", "low": "cyan", "medium": "yellow", "high": "red", "critical": "bold red"}


class View:
    """Shows a ledger; ``say`` shows what the demo is doing. Use in a ``with``."""

    def __init__(self, ledger: Ledger, console: Console, quiet: bool = False) -> None:
        self._ledger = ledger
        self._console = console
        self._quiet = quiet
        self._doing = ""
        self._last_line = 0.0
        self._shown = 0
        self._alarmed: set[str] = set()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def print_participants(self, participants: Mapping[str, str]) -> None:
        """Print who acts, each with what they do."""
        if not self._quiet:
            for who, does in participants.items():
                self._console.print(f"{who:22}{does}", markup=False, highlight=False, soft_wrap=True)

    def say(self, doing: str) -> None:
        """Show what happens now."""
        self._doing = doing
        if not self._quiet and self._live is None:
            self._console.print(doing, markup=False, soft_wrap=True)
        self.refresh()

    def refresh(self) -> None:
        """Show the ledger as it is now; cheap to call often."""
        if self._live:
            self._live.update(self._screen())
        elif not self._quiet:
            self._tell_alerts()
            answers = self._ledger.answers()
            if len(answers) > self._shown and time.monotonic() - self._last_line >= 1:
                self._last_line, self._shown = time.monotonic(), len(answers)
                self._console.print(_line(self._ledger, answers))

    def _tell_alerts(self) -> None:
        """A line for each alert that is new."""
        for alert in self._ledger.alerts():
            if alert["id"] not in self._alarmed:
                self._alarmed.add(alert["id"])
                line = f"ALERT  {alert['severity']}  {alert['kind']}: {alert['message']}"
                self._console.print(textwrap.shorten(line, ALERT_WIDTH, placeholder=" …"), markup=False, soft_wrap=True)

    def _screen(self) -> Panel:
        answers = self._ledger.answers()
        parts = [Text(self._doing, style="bold")]
        if answers:
            parts += [Text(_line(self._ledger, answers)), Text(f"policies {_version(answers[-1])}"), Text("")]
        return Panel(Group(*parts, _denials(answers), Text(""), _alerts(self._ledger)), title="lockkeeper")


def _line(ledger: Ledger, answers: Sequence[Answer]) -> str:
    recent = [answer for answer in answers if answer.read_at > time.monotonic() - WINDOW_SECONDS]
    counts = collections.Counter(answer.outcome for answer in answers)
    latency = percentiles(ledger.latencies_ms(recent))
    outcomes = "  ".join(f"{outcome} {counts[outcome]}" for outcome in COLOURS)
    latencies = "" if ledger.measuring else "  (warm-up)"
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
        table.add_row(answer.request_id, Text(answer.outcome, COLOURS[answer.outcome]), reason)
    return table


def _alerts(ledger: Ledger) -> Table:
    """The newest alerts."""
    table = Table("alert", "severity", "because", expand=True, box=None)
    for alert in reversed(ledger.alerts()[-NEWEST:]):
        table.add_row(Text(alert["kind"]), Text(alert["severity"], ALARM[alert["severity"]]), Text(alert["message"]))
    return table


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

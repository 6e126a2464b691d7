"""A run of the fuzzer: each target in a process of its own, watched from outside, measured, one report each.

An input is a function of the seed, the target and its number; most of them are deep, see `harness.Target`.
"""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec

from tests.fuzz.harness import Checked, Finding, Target, check, encode, smaller
from tests.fuzz.samples import all_documents, all_requests, samples, words

HANG_SECONDS = 60.0  # of the processor, without an input done: the process is ended
STUCK_SECONDS = 900.0  # the same by the clock, for a process that waits; others use the machine
WARM = 0.5  # of the inputs, after which memory has to be flat
SHALLOW = 3  # one input of so many is broken as bytes
GROWTH_MIB = 48.0
FINDINGS = 5  # of a target; then it ends
PAGE = os.sysconf("SC_PAGE_SIZE")


class Make(Protocol):
    """Makes a target of a seed."""

    name: str
    share: int
    records: int

    def __call__(self, seed: str) -> Target:
        """The target."""


class Report(msgspec.Struct, kw_only=True):
    """What a target's inputs led to. `past`: inputs beyond the first decoder; `rejected`: inputs that were refused as
    documented; `allows`: those compared with the reference. `slowest_ms`: by the processor's time. `rss_mib`: of the
    process when it was warm, and at its end.
    """

    target: str
    seed: str
    inputs: int = 0
    past: int = 0
    rejected: int = 0
    allows: int = 0
    slowest_ms: float = 0.0
    slowest_bytes: int = 0
    slowest_number: int = 0
    rss_mib: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    per_second: int = 0
    findings: list[dict[str, Any]] = []


def plan(makes: tuple[Make, ...], inputs: int) -> list[tuple[Make, int]]:
    """How many of all inputs each target gets, by its share; at least two."""
    total = sum(make.share for make in makes)
    return [(make, max(3, inputs * make.share // total // make.records)) for make in makes]


def draw(target: Target, seed: str, number: int) -> Any:
    """The input of a target with this number."""
    return target.draw(Random(f"{seed} {target.name} {number}"), number, deep=number % SHALLOW != 0)


def fuzz(
    target: Target,
    seed: str,
    numbers: range,
    note: Callable[[int], None] = lambda _number: None,
    most: int = FINDINGS,
    minimal: bool = True,
) -> Report:
    """Run the inputs with these numbers, until there are `most` findings.

    `note` is called before each. `minimal`: whether the inputs of findings are reduced.
    """
    report = Report(target=target.name, seed=seed)
    began, warm_at = time.monotonic(), numbers.start + int(WARM * len(numbers))
    warm, number = rss_mib(), numbers.start
    for number in numbers:
        if number == warm_at:
            warm = rss_mib()
        note(number)
        given = draw(target, seed, number)
        _count(report, number, target.records, checked := check(target, given))
        if checked.finding is not None:
            report.findings.append(_describe(target, number, given, checked.finding, minimal))
            if len(report.findings) >= most:
                break
    end = rss_mib()
    # One input alone warms nothing up, nor do those before the last finding of a campaign that it ended.
    if numbers.start < warm_at <= number and end - warm > GROWTH_MIB:
        report.findings.append(
            {"sort": "memory", "where": "", "message": f"{warm:.0f} MiB when warm, {end:.0f} MiB at the end"}
        )
    report.rss_mib = round(warm, 1), round(end, 1)
    report.seconds = round(time.monotonic() - began, 1)
    report.per_second = round(report.inputs / max(report.seconds, 0.1))
    return report


def _count(report: Report, number: int, records: int, checked: Checked) -> None:
    report.inputs += records
    report.past += checked.execution.past
    report.rejected += checked.execution.rejected
    report.allows += checked.execution.allows
    if 1000 * checked.seconds > report.slowest_ms:
        report.slowest_ms = round(1000 * checked.seconds, 1)
        report.slowest_bytes, report.slowest_number = checked.size, number


def _describe(target: Target, number: int, given: Any, finding: Finding, minimal: bool) -> dict[str, Any]:
    """A finding with the smallest input for it, as it is kept in `corpus`."""
    given = target.portable(given)
    given = smaller(target, given, finding) if minimal else given
    return {"number": number, **finding._asdict(), "input": encode({"target": target.name, "input": given})}


def rss_mib() -> float:
    """The resident memory of this process, garbage collected."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / (1 << 20)


def run(makes: tuple[Make, ...], seed: str, inputs: int) -> Iterator[Report]:
    """The reports of all targets, one after the other, each from a process of its own."""
    samples(), all_documents(), all_requests(), words("lenses6"), words("cdap")  # once for all processes
    for make, count in plan(makes, inputs):
        yield _in_a_process(make, seed, range(count))


def _in_a_process(make: Make, seed: str, numbers: range) -> Report:
    context = multiprocessing.get_context("fork")
    current = context.Value("q", -1)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(make, seed, numbers, current, there))
    process.start()
    there.close()
    report = _await(process, here, current)
    process.join()
    if report is None:
        why = f"the process ended with {process.exitcode} in this input, or took {HANG_SECONDS:.0f} s for it"
        finding = {"number": current.value, "sort": "hang", "where": "", "message": why}
        report = Report(target=make.name, seed=seed, inputs=current.value, findings=[finding])
    return report


def _child(make: Make, seed: str, numbers: range, current: Any, there: Connection) -> None:
    def note(number: int) -> None:
        current.value = number

    there.send_bytes(msgspec.json.encode(fuzz(make(seed), seed, numbers, note)))
    there.close()


def _await(process: Any, here: Connection, current: Any) -> Report | None:
    """The report; None: the process ended without one, or was ended as it went on no more."""
    seen, used, since = current.value, _processor_seconds(process.pid), time.monotonic()
    while not here.poll(0.2):
        if current.value != seen:
            seen, used, since = current.value, _processor_seconds(process.pid), time.monotonic()
        elif _processor_seconds(process.pid) - used > HANG_SECONDS or time.monotonic() - since > STUCK_SECONDS:
            process.kill()
            return None
        elif not process.is_alive() and not here.poll(0):
            return None
    return _received(here)


def _processor_seconds(pid: int) -> float:
    """The processor's time that a process has used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _received(here: Connection) -> Report | None:
    try:
        return msgspec.json.decode(here.recv_bytes(), type=Report)
    except EOFError:
        return None

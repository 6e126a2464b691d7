"""The console's benchmark: each page over a day of decisions and many policies, and decisions beside open consoles.

    python -m tests.bench.console --decisions 1000000 --statements 100000
    python -m tests.bench.console --beside 20 --requests 400000 --rounds 3

Pages are asked for over HTTP, from `lockkeeper console` as users run it, on a broker of its own. The decisions are
written by a producer: they are what `policy.decide` answers to generated requests, and the newest of them have their
requests on the topic, so that they are evaluated again as a job's are. With `--beside`, a job decides a backlog, in
turn with and without so many viewers: each holds the overview's stream open and loads a page every few seconds.
"""

import contextlib
import random
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from policy import to_text
from streaming.broker import EmbeddedBroker
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from tests.bench import commit, machine, stamped, stream
from tests.bench.console_day import DAY_MS, SYSTEM, Day, write_day
from tests.bench.console_process import Opened, opened

ROUNDS = 3
PAUSE_SECONDS = 5.0  # about, between two pages of a viewer
IDLE_SECONDS = 10.0  # in which the console's CPU is counted without a job
BATCH = 20_000


def main(
    decisions: Annotated[int, typer.Option(min=1000, help="Decisions of the day.")] = 1_000_000,
    statements: Annotated[int, typer.Option(min=5, help="Policy statements.")] = 100_000,
    beside: Annotated[int, typer.Option(min=0, help="Instead: decisions beside so many viewers.")] = 0,
    requests: Annotated[int, typer.Option(help="With --beside: requests to decide in a round.")] = 400_000,
    rounds: Annotated[int, typer.Option(min=1, help="With --beside: rounds of each.")] = ROUNDS,
    output: Annotated[Path | None, typer.Option(help="Append the result to this file, too.")] = None,
) -> None:
    """Measure, and print what was found as lines of JSON."""
    commit()
    _print({"progress": "start", **machine()})
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as folder:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, monitor=MonitorSettings(mode="none"))
        if beside:
            row = stamped({"benchmark": "console-beside", "viewers": beside, "requests": requests})
            row |= decisions_beside(settings, Path(folder), beside, requests, rounds)
        else:
            row = stamped({"benchmark": "console", "decisions": decisions, "statements": statements})
            row |= pages(settings, Path(folder), decisions, statements)
        row["load_after"] = machine()["load"]
    _print(row)
    if output is not None:
        with output.open("a") as file:
            file.write(msgspec.json.encode(row).decode() + "\n")


def pages(settings: Settings, folder: Path, decisions: int, statements: int) -> dict[str, Any]:
    """Each page's first and median time (ms), and the memory of the console's process (MiB)."""
    stream.create(settings)
    day = write_day(settings, decisions, statements)
    _print({"progress": "written"})
    began = time.monotonic()
    with opened(settings, folder) as console:
        ready, ready_mib = time.monotonic() - began, console.memory()["rss_mib"]
        found = {name: _times(console, address) for name, address in _addresses(day).items()}
        found["a change"] = _times(console, console.first_link("/changes", "/changes/"))
        found["a change, compared"] = _times(console, f"{console.first_link('/changes', '/changes/')}?compare=1")
        found["an alert"] = _times(console, console.first_link("/alerts", "/alerts/"))
        found["a draft, compared"] = _drafted(console, day)
        memory = console.memory()
    return {"ready_seconds": round(ready, 1), "ready_mib": ready_mib, "pages_ms": found, **memory}


def _addresses(day: Day) -> dict[str, str]:
    asked = {"system": SYSTEM, "subject": day.subject, "action": day.action, "resource": day.resource}

    def address(path: str, **fields: str) -> str:
        return f"{path}?{urllib.parse.urlencode(fields)}"

    return {
        "overview": "/overview",
        "decisions": "/decisions",
        "decisions of a subject": address("/decisions", subject=day.subject),
        "decisions by a document": address("/decisions", document=day.document),
        "decisions of nobody": address("/decisions", subject="user:nobody-at-all"),
        "decisions of noon": address("/decisions", until=to_text(time.time_ns() // 1_000_000 - DAY_MS // 2)),
        "a decision": f"/decisions/{day.decision}",
        "alerts": "/alerts",
        "changes": "/changes",
        "ask": address("/ask", **asked),
        "ask, who else": address("/ask", who="1", **asked),
        "access of a subject": address("/access", subject=day.subject),
        "access to a resource": address("/access", resource=day.resource),
        "statements": address("/access", system=SYSTEM),
        "draft": address("/draft", document=day.document),
        "playground": "/playground",
    }


def _times(console: Opened, address: str) -> dict[str, int]:
    """The first time, how long it takes until the page is whole, and the median of those after that, ms."""
    first, whole = console.until_whole(address)
    times = [console.milliseconds(address) for _ in range(ROUNDS)]
    return {"first": round(first), "whole": round(whole), "median": round(statistics.median(times))}


def _drafted(console: Opened, day: Day) -> dict[str, int]:
    """The same of a draft that takes a document's statements away."""
    kind, name = day.document.split("/", 2)[1:]
    draft = msgspec.json.encode({"kind": kind, "name": name, "spec": {"statements": []}}).decode()
    (first, whole), *later = [console.post_draft(draft) for _ in range(1 + ROUNDS)]
    return {"first": round(first), "whole": round(whole), "median": round(statistics.median(time for time, _ in later))}


# Decisions beside it.


def decisions_beside(settings: Settings, folder: Path, viewers: int, requests: int, rounds: int) -> dict[str, Any]:
    """The rates of a job with and without viewers, in turn; the first pair is cold and does not count."""
    settings = msgspec.structs.replace(settings, max_records=BATCH)
    stream.prepare(settings, 1000, requests, True)
    alone, beside, cpu = list[float](), list[float](), list[tuple[float, float]]()
    with opened(settings, folder) as console, stream.own_process() as job:
        for number in range(rounds + 1):
            unwatched = _cpu(console, lambda: alone.append(_rate(job, settings, folder, requests)))
            with watching(console, viewers) as loaded:
                cpu.append((unwatched, _cpu(console, lambda: beside.append(_rate(job, settings, folder, requests)))))
            progress = {"progress": f"round {number}", "alone": alone[-1], "beside": beside[-1], "pages": loaded[0]}
            _print({**progress, "console_cpu": cpu[-1]})
        quiet = [_cpu(console, lambda: time.sleep(IDLE_SECONDS))]
        with watching(console, viewers):
            quiet.append(_cpu(console, lambda: time.sleep(IDLE_SECONDS)))
        memory = console.memory()
    ratios = [round(with_them / without, 3) for without, with_them in zip(alone[1:], beside[1:], strict=True)]
    found = {"ratio": statistics.median(ratios), "ratios": ratios, "alone": alone, "beside": beside, **memory}
    return {**found, "console_cpu": cpu, "console_cpu_open": quiet}


def _cpu(console: Opened, work: Callable[[], None]) -> float:
    """What the console takes of a core while something is done."""
    before, began = console.cpu_seconds(), time.monotonic()
    work()
    return round((console.cpu_seconds() - before) / (time.monotonic() - began), 3)


def _rate(job: Any, settings: Settings, folder: Path, requests: int) -> float:
    fresh = stream.fresh(settings, str(folder))
    return float(round(job.submit(stream.decide_backlog, fresh, requests).result().rate))


@contextlib.contextmanager
def watching(console: Opened, viewers: int) -> Iterator[list[int]]:
    """So many viewers, until it ends. How many pages they have loaded."""
    stop, loaded = threading.Event(), [0]

    def watch(number: int) -> None:
        dice = random.Random(number)
        while not stop.is_set():
            console.get(dice.choice(("/overview", "/decisions", "/alerts", "/changes", "/decisions?outcome=deny")))
            loaded[0] += 1
            stop.wait(PAUSE_SECONDS * (0.5 + dice.random()))

    def stay() -> None:
        while not stop.is_set():
            with urllib.request.urlopen(f"{console.url}/overview/events", timeout=90) as events:
                while not stop.is_set() and events.readline():
                    pass

    threads = [threading.Thread(target=watch, args=(number,), daemon=True) for number in range(viewers)]
    threads += [threading.Thread(target=stay, daemon=True) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    try:
        yield loaded
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)


def _print(found: dict[str, Any]) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    typer.run(main)

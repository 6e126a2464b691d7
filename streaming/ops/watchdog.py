"""Logs what the job waits for: each step that takes long, and records that wait while none is decided.

Threads of its own look, as the thread that waits cannot. `Watchdog.during` names a step of the calling thread.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from streaming.ops.health import Health

log = structlog.get_logger()

SLOW_SECONDS = 10.0  # of one step; again after twice as long, and so on
LOOK_SECONDS = 1.0
LAG_SECONDS = 5.0  # between two requests for what waits, while nothing is decided
END_SECONDS = 5.0  # it may just ask Kafka, or Java
PRESSURE = Path("/proc/pressure")
PRESSED_PERCENT = 10.0  # of the time of the last 10 s some process waited for this resource
OWN_CODE = "streaming."
DESCRIBE_SECONDS = 2.0  # a Java that collects garbage without end, or is stopped, must not stop the watchdog, too

NOTHING_DECIDED = "records wait, and none is decided"
NOTHING_READ = "records wait, and the monitor reads none"

Waiting = Callable[[], int | None]
"""How many records wait to be decided; None: it is not known now."""

Describe = Callable[[], Mapping[str, Any]]
"""What else is known of where the job stands, as fields of the log."""


class _Step:
    """A step under way. `began`: of the monotonic clock, s; `logged`: after how many seconds it was logged last."""

    def __init__(self, name: str, fields: Mapping[str, Any], began: float) -> None:
        self.name, self.fields, self.began = name, fields, began
        self.logged = 0.0


class Watchdog:
    """What each thread of the job does now, and since when records wait while none is decided.

    `clock`: monotonic, s. `stalled`: the event of the log for records that wait.
    """

    def __init__(
        self, health: Health, clock: Callable[[], float] = time.monotonic, stalled: str = NOTHING_DECIDED
    ) -> None:
        self._health, self._clock, self._stalled = health, clock, stalled
        self._steps: dict[int, list[_Step]] = {}  # by thread, the innermost last
        self._describe: Describe = dict
        self._waiting: Waiting = lambda: None
        self._asked_at = -LAG_SECONDS
        self._logged = 0.0  # after how many seconds without a decision it was logged last
        self._describing: threading.Thread | None = None

    def follow(self, waiting: Waiting, describe: Describe) -> None:
        """From now on: how many records wait, and what else to log of where the job stands."""
        self._waiting, self._describe = waiting, describe

    def unfollow(self) -> None:
        """Neither is known any more."""
        self.follow(lambda: None, dict)
        self.decided()

    @contextlib.contextmanager
    def during(self, name: str, **fields: Any) -> Iterator[None]:
        """A step of this thread; steps may hold others, of which the innermost is logged."""
        steps = self._steps.setdefault(threading.get_ident(), [])
        step = _Step(name, fields, self._clock())
        steps.append(step)
        try:
            yield
        finally:
            steps.remove(step)
            if not steps:
                self._steps.pop(threading.get_ident(), None)
            if step.logged:
                log.info("a slow step has ended", step=name, **fields, seconds=round(self._clock() - step.began, 1))

    def decided(self) -> None:
        """Records were decided, or none is left."""
        self._health.decided()
        self._logged = 0.0
        self._asked_at = self._clock()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at it while the context is open: in two threads, for Kafka may be slow to say what waits."""
        over = threading.Event()
        looks = {"watchdog-steps": self.look_at_steps, "watchdog-records": self.look_at_records}
        threads = [
            threading.Thread(target=_repeat, args=(look, over), name=name, daemon=True) for name, look in looks.items()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(END_SECONDS)

    def look_at_steps(self) -> None:
        """Log the steps that take long. Asks neither Kafka nor, for longer than a moment, Java."""
        if self._health.waits_since is None:  # else the log says already what it waits for, and that it is Kafka
            for thread, step in self._innermost():
                self._log_slow(thread, step)

    def look_at_records(self) -> None:
        """Note now and then whether records wait, which Kafka is asked for."""
        if self._clock() - self._asked_at >= LAG_SECONDS:
            self._ask()

    def _log_slow(self, thread: int, step: _Step) -> None:
        seconds = self._clock() - step.began
        if seconds >= max(SLOW_SECONDS, 2 * step.logged):
            step.logged = seconds
            log.warning(
                "a step takes long",
                step=step.name,
                **step.fields,
                seconds=round(seconds, 1),
                at=place_of(sys._current_frames().get(thread)),
                **self._described(),
            )

    def _ask(self) -> None:
        self._asked_at = self._clock()
        waiting = self._waiting()
        if waiting is None:
            return
        if not waiting:
            self.decided()
            return
        self._health.undecided_now()
        if self._health.waits_since is None and self._health.undecided() >= max(
            self._health.progress_deadline, 2 * self._logged
        ):
            self._logged = self._health.undecided()
            steps = [f"{step.name} ({self._clock() - step.began:.0f} s)" for _, step in self._innermost()]
            log.error(
                self._stalled,
                records=waiting,
                seconds=round(self._logged, 1),
                steps=steps,
                **self._described(),
            )

    def _innermost(self) -> list[tuple[int, _Step]]:
        """Of each thread that is in one, which it may end meanwhile."""
        return [(thread, step) for thread, steps in list(self._steps.items()) for step in steps[-1:]]

    def _described(self) -> dict[str, Any]:
        description: dict[str, Any] = {}

        def describe() -> None:
            with contextlib.suppress(Exception):  # such as of a Java that has ended
                description.update(self._describe())
            description.setdefault("spark", "")

        if self._describing is None or not self._describing.is_alive():
            self._describing = threading.Thread(target=describe, name="watchdog-describe", daemon=True)
            self._describing.start()
            self._describing.join(DESCRIBE_SECONDS)
        return {**machine(), **(description or {"spark": f"does not answer within {DESCRIBE_SECONDS:g} s"})}


def _repeat(look: Callable[[], None], over: threading.Event) -> None:
    while not over.wait(LOOK_SECONDS):
        try:
            look()
        except Exception as failure:  # what watches must not end before what it watches
            log.error("the watchdog failed; please report it", error=f"{type(failure).__name__}: {failure}")


def place_of(frame: FrameType | None) -> str:
    """Where a thread stands in the job's own code, as module.function:line; "": it has ended."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(OWN_CODE):
            return f"{module}.{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def machine() -> dict[str, Any]:
    """How busy the machine is: its load, and which of CPU, memory and disks processes wait for (%, Linux's PSI)."""
    state: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
    for resource in ("cpu", "memory", "io"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # an older kernel, or another system
            average = (PRESSURE / resource).read_text().split("avg10=", 1)[1].split()[0]
            if float(average) >= PRESSED_PERCENT:
                state[f"waits_for_{resource}_percent"] = float(average)
    return state

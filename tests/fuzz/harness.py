"""One input of a target: made, run under checks, made smaller when something is wrong, kept."""

import base64
import json
import time
import traceback
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

FIXED_SECONDS = 1.0  # of the processor, for an input and the checks of its result
BATCHED = 4  # records of an input take as long as one: a batch of 20 Cedar requests takes 0.1 s, warm and cold
SECONDS_A_BYTE = 1e-5
TRIES = 400  # to make an input smaller


class Violation(Exception):
    """What a target promises does not hold; the message says what."""


class Execution(NamedTuple):
    """The result of an input, or of each of its records. `past`: it passed the first decoder; `rejected`: it was
    rejected as documented; `allows`: how many allows were compared with the reference.
    """

    past: int = 1
    rejected: int = 0
    allows: int = 0


class Target(Protocol):
    """Something that takes hostile inputs. Inputs are plain data (and bytes), so that they can be kept.

    `share`: of all inputs, relative to other targets. `records`: that are drawn together, each of them an input.
    """

    name: str
    share: int
    records: int

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """An input; `deep`: valid but for parts that the first decoder does not look at."""

    def run(self, given: Any) -> Execution:
        """Take an input. Raises Violation, or anything at all: that is a crash."""


class Finding(NamedTuple):
    """What is wrong. `sort`: `crash`, `wrong` or `slow`; `where`: equal for findings that have one cause."""

    sort: str
    where: str
    message: str


class Checked(NamedTuple):
    """An input that was run: what it reported or what is wrong, its size, and the processor's time it took."""

    execution: Execution
    finding: Finding | None
    size: int
    seconds: float


def check(target: Target, given: Any) -> Checked:
    """Run an input. One that is too slow is run once more: the faster run counts, for others use the machine."""
    size = size_of(given)
    execution, finding, seconds = _run(target, given)
    most = allowed(size, target.records)
    if finding is None and seconds > most:
        seconds = min(seconds, _run(target, given)[2])
        if seconds > most:
            finding = Finding("slow", "", f"{seconds:.2f} s for {size} bytes; at most {most:.2f} s")
    return Checked(execution, finding, size, seconds)


def allowed(size: int, records: int = 1) -> float:
    """The seconds of the processor that an input of so many bytes and records may take."""
    return FIXED_SECONDS * max(1, records / BATCHED) + SECONDS_A_BYTE * size


def _run(target: Target, given: Any) -> tuple[Execution, Finding | None, float]:
    began, execution, finding = time.thread_time(), Execution(), None
    try:
        execution = target.run(given)
    except Violation as violation:
        finding = Finding("wrong", str(violation).partition(":")[0], str(violation)[:2000])
    except Exception as error:
        finding = Finding("crash", _where(error), f"{type(error).__name__}: {error}"[:2000])
    return execution, finding, time.thread_time() - began


def _where(error: Exception) -> str:
    """The error's type and the function that raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    code = frames[-1][0].f_code
    return f"{type(error).__name__} in {code.co_filename.rpartition('/')[2]}:{code.co_name}"


def size_of(given: Any) -> int:
    """About how many bytes an input has."""
    total, todo = 0, [given]
    while todo:
        part = todo.pop()
        if isinstance(part, str | bytes):
            total += len(part)
        elif isinstance(part, dict):
            todo += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            todo += part
        total += 8
    return total


def smaller(target: Target, given: Any, finding: Finding) -> Any:
    """An input with the same sort of finding from which no part can be left out, as far as the tries go."""
    tries = TRIES if finding.sort != "slow" else TRIES // 80

    def fails(candidate: Any) -> bool:
        nonlocal tries
        tries -= 1
        found = check(target, candidate).finding
        return found is not None and found[:2] == finding[:2]

    if not fails(given):
        return given  # it takes what came before it: the seed and the number are all there is
    return _reduced(given, fails, lambda: tries > 0)


def _reduced(value: Any, fails: Callable[[Any], bool], goes_on: Callable[[], bool]) -> Any:
    """The value with parts left out for as long as it fails."""
    if isinstance(value, str | bytes):
        return _shorter(value, fails, goes_on)
    if isinstance(value, list):
        value = _shorter(value, fails, goes_on)
    elif isinstance(value, dict):
        for name in list(value):
            without = {other: part for other, part in value.items() if other != name}
            if goes_on() and fails(without):
                value = without
    else:
        return value
    for step in range(len(value)) if isinstance(value, list) else list(value):

        def put(part: Any, step: Any = step, whole: Any = value) -> Any:
            copied = whole.copy()
            copied[step] = part
            return copied

        if goes_on():
            value = put(_reduced(value[step], lambda part, put=put: fails(put(part)), goes_on))
    return value


def _shorter(value: Any, fails: Callable[[Any], bool], goes_on: Callable[[], bool]) -> Any:
    size = len(value) // 2
    while size and goes_on():
        at = 0
        while at < len(value) and goes_on():
            without = value[:at] + value[at + size :]
            if fails(without):
                value = without
            else:
                at += size
        size //= 2
    return value


def encode(given: Any) -> str:
    """An input as JSON, bytes in base64."""
    return json.dumps(_marked(given), indent=1)


def _marked(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _marked(part) for name, part in value.items()}
    return [_marked(part) for part in value] if isinstance(value, list | tuple) else value


def decode(text: str) -> Any:
    """The reverse."""
    return json.loads(
        text, object_hook=lambda value: base64.b64decode(value["$bytes"]) if value.keys() == {"$bytes"} else value
    )

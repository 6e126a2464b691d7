"""The evaluator alone, without Spark and Kafka, beside other engines with the same policies: one thread each.

    python -m tests.bench.evaluator --statements 1000 --output evaluator.jsonl

Every engine runs in a process of its own, one at a time. `cold`: each request once, with nothing cached by an earlier
one; `warm`: the same requests again. Times are the thread's CPU time. Answers are compared with those of
policy.evaluation.authorize.
"""

import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tests.bench import commit, opa, private_memory, stamped, traffic
from tests.bench.engines import ENGINES, Request, referenced

SIZES = (100, 1_000, 10_000, 100_000)
OPA = "OPA"
MIX = "policy.decide, five systems"
REFERENCE = "reference, five systems"
SHAPED = {
    f"{engine}, {shape}": (engine, shape) for shape in traffic.SHAPES for engine in ("policy.decide", "plain loop")
}
"""Policies that an index may be slow for: the engine, and their shape."""

NOW = 1_795_000_000_000
CACHE = Path.home() / ".cache/lockkeeper/bench"


class Measured(msgspec.Struct, frozen=True):
    """An engine with one set of policies. `prepare`: CPU seconds to compile the documents; memory in MiB for them."""

    prepare: float
    memory: float | None
    passes: list[opa.Pass]


def main(
    statements: Annotated[list[int] | None, typer.Option(help="Policy statements; may be given several times.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests, each decided once cold and once warm.")] = 6_000,
    seconds: Annotated[float, typer.Option(help="CPU time after which a pass of an engine ends.")] = 20.0,
    engines: Annotated[str, typer.Option(help="Only the engines whose name contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Of policies and requests.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Append the lines to this file, too.")] = None,
) -> None:
    """Measure, print a line of JSON for each engine and size, and fail when answers differ."""
    commit()
    differing = 0
    for size in statements or SIZES:
        for row in compare(size, requests, seconds, seed, engines):
            differing += row["differences"]
            line = msgspec.json.encode(stamped(row)).decode()
            print(line, flush=True)
            if output is not None:
                with output.open("a") as file:
                    file.write(line + "\n")
    if differing:
        print(f"{differing} answers differ from those of policy.decide", file=sys.stderr)
        raise typer.Exit(1)


def compare(size: int, requests: int, seconds: float, seed: int = 1, engines: str = "") -> Iterator[dict[str, Any]]:
    """A row for each engine with so many statements, as soon as it is measured."""
    shaped = [[name for name in SHAPED if SHAPED[name][1] == shape] for shape in traffic.SHAPES]
    for names, mix in (((*ENGINES, OPA), False), ((MIX, REFERENCE), True), *((names, False) for names in shaped)):
        chosen = [name for name in names if engines in name]
        expected: list[bool] = []
        for name in (
            dict.fromkeys((names[0], *chosen)) if chosen else ()
        ):  # answers are compared with those of the first
            found = _measure_apart(name, size, requests, seconds, seed, mix)
            if found is None:
                continue
            expected = expected or found.passes[0].allowed
            if name in chosen:
                yield _row(name, size, found, expected)


def _measure_apart(name: str, size: int, requests: int, seconds: float, seed: int, mix: bool) -> Measured | None:
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(measure, name, size, requests, seconds, seed, mix).result()
    except opa.Unavailable as why:
        print(why, file=sys.stderr)
        return None


def measure(name: str, size: int, requests: int, seconds: float, seed: int, mix: bool) -> Measured:
    """One engine with so many statements, in this process. Raises opa.Unavailable."""
    kind, shape = SHAPED.get(name, (name, ""))
    if shape:
        documents, queries = traffic.shaped(shape, size, requests, seed)
    else:
        documents, queries = traffic.policies_and_requests(size, requests, seed, mix)
    queries = [{**request, "time": NOW, "deadline": NOW + 5_000} for request in queries]
    if name == OPA:
        found = opa.measure(opa.build(CACHE), documents, queries, 2, seconds)
        return Measured(found.prepare_seconds, None, found.passes)
    gc.collect()
    before, begun = private_memory("self"), time.thread_time()
    engine = {**ENGINES, MIX: ENGINES["policy.decide"], REFERENCE: referenced}[kind]
    decide = engine(documents, queries)
    prepare = time.thread_time() - begun
    gc.collect()
    memory = round(private_memory("self") - before, 1)
    _load(decide, queries)
    return Measured(prepare, memory, [decide_all(decide, queries, seconds) for _ in range(2)])


def _load(decide: Callable[[Request], bool], queries: Sequence[Request]) -> None:
    """Decide for a principal without groups: what an engine loads at its first decision is no part of `cold`."""
    systems = {request["system"]: request for request in queries}
    for request in systems.values():
        subject = {**request["subject"], "properties": {}}
        decide({**request, "subject": subject})


def decide_all(decide: Callable[[Request], bool], queries: Sequence[Request], seconds: float) -> opa.Pass:
    """Each request once, in order, for at most so many seconds of CPU time."""
    times, allowed, end = [], [], time.thread_time() + seconds
    for request in queries:
        begun = time.thread_time_ns()
        answer = decide(request)
        times.append(time.thread_time_ns() - begun)
        allowed.append(answer)
        if time.thread_time() > end:
            break
    return opa.Pass(times, allowed)


def _row(name: str, size: int, found: Measured, expected: Sequence[bool]) -> dict[str, Any]:
    cold, warm = found.passes
    return {
        "benchmark": "evaluator",
        "engine": name,
        "statements": size,
        "requests": len(cold.allowed),
        "allowed": sum(cold.allowed),
        "differences": differences(expected, [one.allowed for one in found.passes]),
        "prepare_seconds": round(found.prepare, 3),
        "memory_mib": found.memory,
        "cold": quantiles(cold.nanoseconds),
        "warm": quantiles(warm.nanoseconds),
    }


def differences(expected: Sequence[bool], answers: Sequence[Sequence[bool]]) -> int:
    """How many answers are not those that `expected` has at the same index; a pass may have ended early."""
    return sum(a != b for some in answers for a, b in zip(expected, some, strict=False))


def quantiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Microseconds."""
    ordered = sorted(nanoseconds)
    found = {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (50, 99)}
    return {name: round(value / 1000, 2) for name, value in {**found, "mean": statistics.fmean(ordered)}.items()}


if __name__ == "__main__":
    typer.run(main)

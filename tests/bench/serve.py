"""`lockkeeper serve` over HTTP, beside OPA's server, with a broker of its own: `make bench-serve`.

    python -m tests.bench.serve --statements 1000 --output serve.jsonl

All answers are recorded (`serve.record: all`), as OPA logs all decisions on its console. The load generator, the broker
and the servers share the machine.

- `latency`: an open loop, that sends so many requests a second whatever comes back, with the job stopped, and with it
  deciding the records. The job has caught up with all records before.
- `single` and `batch`: a closed loop of so many connections, in turn on each server; rates are medians of the rounds.
  OPA has no API for batches. Its batch is one query over an array of inputs, `opa/batch.rego`: as many decisions, one
  request, one line in its log. Rates of batches are of evaluations.
- `change`: from the acknowledgement of a changed role by Kafka to the first answer under it, one after the other.
- `memory`: with more statements, after some requests: of one process, and of each of two workers.

Answers of both servers to the same requests are compared. vegeta and OPA are built by Go; without Go what needs them is
left out, and said so. A line of JSON at the end, progress before it.
"""

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from streaming.serve.authzen import EVALUATION, EVALUATIONS
from tests.bench import commit, machine, stamped, stream, traffic
from tests.bench.load import Attack, Connection, attack, vegeta, write_targets
from tests.bench.opa import Unavailable
from tests.bench.opa import server as opa
from tests.bench.servers import Cluster, Server, cluster

DISTINCT = 20_000
BATCH = 50
COMPARED = 300
WARM_UP_SECONDS = 3.0
CHANGE_SECONDS = 10.0
PARTS = ("subject", "action", "resource")

Request = traffic.Request


class Plan(msgspec.Struct, frozen=True):
    """What is measured. `seconds`: of each attack."""

    statements: int
    rounds: int
    seconds: float
    rate: float
    connections: int
    changes: int
    memory_statements: int
    job: bool


def main(
    statements: Annotated[int, typer.Option(min=5, help="Policy statements.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Of each load; medians are reported.")] = 3,
    seconds: Annotated[float, typer.Option(help="How long a round lasts.")] = 10.0,
    rate: Annotated[float, typer.Option(help="Requests a second while latencies are measured.")] = 1000.0,
    connections: Annotated[int, typer.Option(help="Connections while throughput is measured.")] = 16,
    changes: Annotated[int, typer.Option(help="Policy changes; 0: none.")] = 60,
    memory_statements: Annotated[
        int, typer.Option(help="Statements when memory is measured; 0: not at all.")
    ] = 100_000,
    job: Annotated[bool, typer.Option(help="Measure latency beside the job, too.")] = True,
    output: Annotated[Path | None, typer.Option(help="Append the result to this file, too.")] = None,
) -> None:
    """Measure, and print what was found as lines of JSON. Fails when answers of the two servers differ."""
    plan = Plan(statements, rounds, seconds, rate, connections, changes, memory_statements, job)
    commit()
    _print({"progress": "start", **machine()})
    row = stamped({"benchmark": "serve", **msgspec.to_builtins(plan), "batch_size": BATCH})
    row |= measure(plan)
    row["load_after"] = machine()["load"]
    _print(row)
    if output is not None:
        with output.open("a") as file:
            file.write(msgspec.json.encode(row).decode() + "\n")
    if row.get("differences"):
        print(f"{row['differences']} answers differ from those of OPA", file=sys.stderr)
        raise typer.Exit(1)


def measure(plan: Plan) -> dict[str, Any]:
    """Everything the plan says, each on an empty cluster."""
    found: dict[str, Any] = {}
    documents, draw = traffic.policies(plan.statements, mix=False)
    dice = random.Random("serve")
    requests = [{part: request[part] for part in PARTS} for request in (draw(dice) for _ in range(DISTINCT))]
    with cluster(documents) as there, there.serve() as ours:
        with _without(found, "vegeta"):
            found |= _under_load(plan, there, ours, documents, requests)
        if plan.changes:
            found["change"] = changes(there, ours, plan.changes)
            _print({"progress": "policy changes", **found["change"]})
    if plan.memory_statements:
        found["memory"] = memory(plan.memory_statements)
        _print({"progress": "memory", **found["memory"]})
    return found


@contextlib.contextmanager
def _without(found: dict[str, Any], what: str) -> Iterator[None]:
    """Go on without what cannot be run here."""
    try:
        yield
    except Unavailable as why:
        print(why, file=sys.stderr)
        found.setdefault("left_out", []).append(what)


def _under_load(
    plan: Plan, there: Cluster, ours: Server, documents: Sequence[traffic.Document], requests: Sequence[Request]
) -> dict[str, Any]:
    """Latencies, and rates beside OPA's. Raises Unavailable without vegeta."""
    vegeta()
    found: dict[str, Any] = {}
    single = write_targets(there.folder / "single", f"{ours.url}{EVALUATION}", requests)
    batches = write_targets(there.folder / "batch", f"{ours.url}{EVALUATIONS}", map(_batch, _batches(requests)))
    found["latency"] = {"job stopped": _latency(plan, single, "job stopped")}
    with _without(found, "OPA"), opa.serving(documents, there.folder) as url:
        inputs = list(map(opa.input_of, requests))
        found["differences"] = differences(ours.url, url, requests[:COMPARED])
        theirs = write_targets(there.folder / "opa-single", f"{url}{opa.SINGLE}", ({"input": i} for i in inputs))
        found["single"] = _beside(plan, single, theirs, 1)
        queries = ({"input": {"evaluations": some}} for some in _batches(inputs))
        theirs = write_targets(there.folder / "opa-batch", f"{url}{opa.BATCH}", queries)
        found["batch"] = _beside(plan, batches, theirs, BATCH)
    found["recorded"] = there.recorded()
    if plan.job:
        with there.job():
            found["latency"]["job running"] = _latency(plan, single, "job running")
    return found


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    yield from (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _batch(requests: Sequence[Request]) -> dict[str, Any]:
    return {"evaluations": requests}


def _latency(plan: Plan, targets: Path, name: str) -> dict[str, Any]:
    """Of the rounds, the medians of their quantiles."""
    attack(targets, WARM_UP_SECONDS, plan.rate, plan.connections)
    rounds = [attack(targets, plan.seconds, plan.rate, plan.connections) for _ in range(plan.rounds)]
    found = {**_medians(rounds, 1), "p99s_ms": [one.p99_ms for one in rounds]}
    _print({"progress": f"latency, {name}", **found})
    return found


def _beside(plan: Plan, ours: Path, theirs: Path, evaluations: int) -> dict[str, Any]:
    """Evaluations a second of both, in turn."""
    for targets in (ours, theirs):
        attack(targets, WARM_UP_SECONDS, 0, plan.connections)
    rounds = [[attack(one, plan.seconds, 0, plan.connections) for one in (ours, theirs)] for _ in range(plan.rounds)]
    ratios = [mine.rate / other.rate for mine, other in rounds]
    found = {
        "serve": _medians([mine for mine, _ in rounds], evaluations),
        "opa": _medians([other for _, other in rounds], evaluations),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }
    _print({"progress": f"evaluations a second, {evaluations} in a request", **found})
    return found


def _medians(rounds: Sequence[Attack], evaluations: int) -> dict[str, Any]:
    of: Callable[[str], float] = lambda field: statistics.median(getattr(one, field) for one in rounds)  # noqa: E731
    return {
        "a_second": round(of("rate") * evaluations),
        "p50_ms": of("p50_ms"),
        "p99_ms": of("p99_ms"),
        "failed": sum(one.failed for one in rounds),
    }


def differences(ours: str, theirs: str, requests: Sequence[Request]) -> int:
    """How many of the answers differ, as single requests and as batches; an error differs from every answer."""
    mine, other = Connection(ours), Connection(theirs)
    inputs, found = list(map(opa.input_of, requests)), 0
    for request, input_ in zip(requests, inputs, strict=True):
        found += _known(mine.post(EVALUATION, request)) is not other.post(opa.SINGLE, {"input": input_})["result"]
    for some, queries in zip(_batches(requests), _batches(inputs), strict=True):
        answers = map(_known, mine.post(EVALUATIONS, _batch(some))["evaluations"])
        results = other.post(opa.BATCH, {"input": {"evaluations": queries}})["result"]
        found += sum(a is not b for a, b in zip(answers, results, strict=True))
    mine.close()
    other.close()
    return found


def _known(answer: dict[str, Any]) -> bool | None:
    """The answer, None for an error."""
    return None if answer["context"]["outcome"] == "error" else answer["decision"]


def changes(there: Cluster, ours: Server, count: int) -> dict[str, float]:
    """From the acknowledgement of a change to the first answer under it, ms."""
    asked = {
        "subject": {"type": "user", "id": "user:bench"},
        "action": {"name": "kafka:ListTopic"},
        "resource": {"type": "lrn", "id": "kafka:topic:bench/main/changed"},
    }
    there.publish("Group", "bench-changed", {"roles": ["bench-changed"], "members": ["user:bench"]})
    statement = {"effect": "allow", "action": asked["action"]["name"], "resource": asked["resource"]["id"]}
    connection, took = Connection(ours.url), list[float]()
    for number in range(count):
        allowed = number % 2 == 0
        there.publish("Role", "bench-changed", {"statements": [statement] if allowed else []})
        acknowledged = time.perf_counter()
        while connection.post(EVALUATION, asked)["decision"] is not allowed:
            if time.perf_counter() > acknowledged + CHANGE_SECONDS:
                raise TimeoutError(f"a change was not in force within {CHANGE_SECONDS:g} s")
        took.append(time.perf_counter() - acknowledged)
    connection.close()
    return {**stream.quantiles(took), "max_ms": round(1000 * max(took), 1)}


def memory(statements: int) -> dict[str, Any]:
    """Of one process (resident set size), and of each of two workers (proportional set size), MiB."""
    documents, draw = traffic.policies(statements, mix=False)
    dice = random.Random("serve")
    requests = [{part: request[part] for part in PARTS} for request in (draw(dice) for _ in range(COMPARED))]
    with cluster(documents) as there:
        with there.serve() as alone:
            _send(alone, requests)
            resident = alone.resident()
        with there.serve(workers=2) as both:
            _send(both, requests)
            proportional = both.proportional()
    return {"statements": statements, "resident_mib": resident, "workers_proportional_mib": proportional}


def _send(server: Server, requests: Sequence[Request], connections: int = 8) -> None:
    """By several connections, so that every worker has some."""
    for _ in range(connections):
        connection = Connection(server.url)
        for request in requests:
            connection.post(EVALUATION, request)
        connection.close()


def _print(found: dict[str, Any]) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    typer.run(main)

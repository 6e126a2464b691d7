"""The job's benchmark: decisions beside a Spark job that only copies, in one run on a broker of its own.

    python -m tests.bench --traffic mix --statements 1000 --output stream.jsonl

Requests are records as `streaming.client` sends them: with deadline, key and headers. Each is a new draw, or with
`--distinct` the same ones come again, so that a job has decided requests like them before ("all warm"). Both jobs
have a process and a Java of their own and take turns; the first round of each is cold and does not count for the
rates, which are medians of the others. Then latencies at a steady rate, with the monitor and without, beside the
copy's; the time until a policy change is in force; and the private memory of a worker. A line of JSON at the end,
rounds and progress before it.

`--changes-topic` measures instead what the changes topic costs: the job with and without it in turn, while policies
change.
"""

import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import structlog
import typer

from streaming.broker import EmbeddedBroker
from streaming.settings import Settings
from streaming.settings.monitor import MonitorSettings
from streaming.topics import TopicNames
from tests.bench import changes_topic, commit, machine, stamped, stream, traffic
from tests.bench.stream import Round, fresh, own_process

Traffic = Literal["mix", "lenses6"]
IDLE_STATEMENTS = 5


class Plan(msgspec.Struct, frozen=True):
    """What is measured."""

    traffic: Traffic
    statements: int
    requests: int
    distinct: int
    new_resources: bool
    by_others: bool
    rounds: int
    rate: float
    seconds: float
    changes: int

    @property
    def policies(self) -> tuple[int, bool]:
        """Statements, and whether all five systems have a share of them."""
        return self.statements, self.traffic == "mix"


def main(
    traffic_: Annotated[str, typer.Option("--traffic", help="mix: all five systems; lenses6: that alone.")] = "mix",
    statements: Annotated[int, typer.Option(min=5, help="Policy statements.")] = 1000,
    requests: Annotated[int, typer.Option(help="Requests to decide and to copy in a round.")] = 1_000_000,
    distinct: Annotated[
        int, typer.Option(min=0, help="Of these, so many differ and come again and again; 0: every request is new.")
    ] = 0,
    new_resources: Annotated[
        bool, typer.Option("--new-resources", help="With --distinct: each that comes again is for a new resource.")
    ] = False,
    by_others: Annotated[
        bool,
        typer.Option(
            "--by-others",
            help="As services in other languages write them: moments as text, an address in the context, more headers.",
        ),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Warm rounds; their medians are reported.")] = 3,
    batch: Annotated[int, typer.Option(help="Records of a micro-batch.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="How long each latency is measured; 0: not at all.")] = 30.0,
    rate: Annotated[float, typer.Option(help="Requests a second while latencies are measured.")] = 100.0,
    changes: Annotated[int, typer.Option(help="Policy changes under that load; 0: none.")] = 100,
    with_and_without: Annotated[
        bool, typer.Option("--changes-topic", help="Instead: the job with and without the changes topic.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Append the result to this file, too.")] = None,
) -> None:
    """Measure, and print what was found as lines of JSON."""
    if requests % batch or requests < 2 * batch:
        raise typer.BadParameter(f"--requests must be at least two times --batch ({batch}), and a multiple of it")
    if traffic_ not in ("mix", "lenses6"):
        raise typer.BadParameter("--traffic is mix or lenses6")
    plan = Plan(
        traffic_,  # type: ignore[arg-type]
        statements,
        requests,
        distinct,
        new_resources,
        by_others,
        rounds,
        rate,
        seconds,
        changes,
    )
    commit()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    _print({"progress": "start", **machine()})
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="lockkeeper-bench-") as folder:
        without_monitor = MonitorSettings(mode="none")
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, max_records=batch, monitor=without_monitor)
        benchmark = "changes-topic" if with_and_without else "stream"
        row = stamped({"benchmark": benchmark, **msgspec.to_builtins(plan), "batch": batch})
        row |= costs_of_changes_topic(settings, plan, folder) if with_and_without else measure(settings, plan, folder)
        row["load_after"] = machine()["load"]
    _print(row)
    if output is not None:
        with output.open("a") as file:
            file.write(msgspec.json.encode(row).decode() + "\n")


def costs_of_changes_topic(settings: Settings, plan: Plan, folder: str) -> dict[str, Any]:
    """The job with and without the changes topic, while policies change; on an empty cluster."""

    def new_job(own_topic: bool) -> Settings:
        return fresh(_with_own_topics(settings) if own_topic else settings, folder)

    stream.prepare(settings, plan.statements, plan.requests, plan.traffic == "mix", plan.distinct or None)
    costs = changes_topic.Costs(plan.requests, plan.policies, plan.rounds, plan.rate, plan.seconds)
    with own_process() as process:
        return {"changes_topic": changes_topic.measure(costs, process, new_job, _print)}


def measure(settings: Settings, plan: Plan, folder: str) -> dict[str, Any]:
    """Everything the plan says, on an empty cluster."""
    stream.prepare(
        settings,
        plan.statements,
        plan.requests,
        plan.traffic == "mix",
        plan.distinct or None,
        plan.new_resources,
        plan.by_others,
    )
    found: dict[str, Any] = {}
    with own_process() as copier, own_process() as decider:
        found |= _throughput(settings, plan, folder, copier, decider)
        if plan.seconds:
            found["latency"] = _latencies(settings, plan, folder, copier, decider)
        if plan.changes:
            slow = fresh(_with_own_topics(settings), folder)
            found["change_latency"] = _in(decider, stream.change_latency, slow, plan, plan.changes)
            _print({"progress": "policy changes", **found["change_latency"]})
    with own_process() as idle:
        found["idle_memory"] = _idle_memory(settings, folder, idle)
    found["worker_memory_above_idle"] = round(found["worker_memory"] - found["idle_memory"], 1)
    return found


def _throughput(settings: Settings, plan: Plan, folder: str, copier: Executor, decider: Executor) -> dict[str, Any]:
    """Both jobs in turn. The first round of each starts Java and is the cold one."""
    copies, decisions = list[Round](), list[Round]()
    for number in range(plan.rounds + 1):
        copies.append(copier.submit(stream.copy_backlog, fresh(settings, folder), plan.requests).result())
        decisions.append(decider.submit(stream.decide_backlog, fresh(settings, folder), plan.requests).result())
        both = {"copy": _rounded(copies[-1]), "decisions": _rounded(decisions[-1])}
        _print({"progress": "cold round" if not number else f"round {number}", **both, "load": machine()["load"]})
    rates = {"copies_a_second": _median(copies, "rate"), "decisions_a_second": _median(decisions, "rate")}
    ratios = [ours.rate / theirs.rate for ours, theirs in zip(decisions[1:], copies[1:], strict=True)]
    return {
        **{name: round(rate) for name, rate in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "cold": {"copy": _rounded(copies[0]), "decisions": _rounded(decisions[0])},
        "first_warm": {"copy": round(_median(copies, "first"), 2), "decisions": round(_median(decisions, "first"), 2)},
        "worker_memory": max(one.memory for one in decisions),
    }


def _median(rounds: Sequence[Round], field: str) -> float:
    """Of the warm ones."""
    values: list[float] = [getattr(one, field) for one in rounds[1:]]
    return statistics.median(values)


def _rounded(one: Round) -> dict[str, float]:
    return {"start": round(one.start, 2), "first": round(one.first, 2), "rate": round(one.rate)}


def _latencies(
    settings: Settings, plan: Plan, folder: str, copier: Executor, decider: Executor
) -> dict[str, dict[str, float]]:
    """Of the copy and of decisions, in ms."""
    watched = msgspec.structs.replace(settings, monitor=MonitorSettings())
    runs: dict[str, tuple[Executor, Callable[..., dict[str, float]], Settings]] = {
        "copy": (copier, stream.copy_latency, settings),
        "decisions": (decider, stream.decision_latency, settings),
        "decisions with monitor": (decider, stream.decision_latency, watched),
    }
    found = {}
    for name, (process, measured, chosen) in runs.items():
        found[name] = _in(process, measured, fresh(_with_own_topics(chosen), folder), plan, plan.seconds)
        _print({"progress": f"latency of {name}", **found[name]})
    return found


def _in(
    process: Executor, measured: Callable[..., dict[str, float]], settings: Settings, plan: Plan, much: float
) -> dict[str, float]:
    return process.submit(measured, settings, plan.policies, plan.rate, much).result()


def _with_own_topics(settings: Settings) -> Settings:
    """With empty topics of requests and decisions: each job begins at the first request, its ids have not been seen
    before, and the monitor does not first read the decisions of the rounds.
    """
    name = f"bench.{uuid.uuid4().hex[:8]}"
    own = {"decisions": f"{name}.decisions", "verdicts": f"{name}.verdicts"}
    topics = msgspec.structs.replace(settings.topics, requests=(name,), **own)
    chosen = msgspec.structs.replace(settings, topics=topics)
    stream.create(chosen)
    return chosen


def _idle_memory(settings: Settings, folder: str, process: Executor) -> float:
    """Of a job with few policies, on topics of its own."""
    names = TopicNames()
    idle = TopicNames(
        requests=("bench.idle",),
        policies={system: f"bench.idle.{system}" for system in names.policy_topics()},
        facts="bench.idle.facts",
        history="bench.idle.history",
    )
    chosen = msgspec.structs.replace(settings, topics=idle)
    stream.create(chosen)
    documents, _ = traffic.policies(IDLE_STATEMENTS, mix=False)
    producer = stream.client_producer(chosen)
    stream.produce_documents(producer, chosen, documents)
    stream.flush(producer)
    return process.submit(stream.idle_memory, fresh(chosen, folder), (IDLE_STATEMENTS, False)).result()


def _print(found: dict[str, Any]) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    typer.run(main)

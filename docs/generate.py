"""The reference pages, generated from the code when the site is built: what is not in the code cannot be in them.

A hook of mkdocs (`hooks:` in mkdocs.yml), and importable without mkdocs: `PAGES` maps each page's path to a function
that returns its Markdown.
"""

import importlib.resources
import importlib.util
import json
import re
import statistics
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer.main
import yaml

from policy.systems import packages
from streaming.alert_kinds import FIXED_SEVERITIES, MONITORED, MOST_NUMBER, AlertKind, KindRule
from streaming.cli import register_commands
from streaming.cli.app import app
from streaming.ops.watch import Watch
from streaming.records import schemas as contracts
from streaming.report.page import REASONS, drawing, to_svg
from streaming.settings import Settings, variables
from streaming.topics import REPLICATED, TopicNames, durability_rules, topic_specs

ROOT = Path(__file__).parent.parent
ALERT_RULES = ROOT / "deploy/prometheus/alerts.yml"
SAMPLE_SETTINGS = ROOT / "deploy/lockkeeper.yaml"
CASES = ROOT / "tests/cases"
MEASURED = ROOT / "docs/measured"
EXPLAINED = ROOT / "docs/settings.yaml"
MESSAGES = ROOT / "docs/messages.yaml"
HELP_WIDTH = 100
WIDE = ("---", "hide: [toc]", "---", "")
"""The front matter of a page with a wide table."""

OPEN = (
    "Questions that the platform's documentation leaves open, by number. The cases show the implemented interpretation."
)

BUILT_IN = {name: package for name, package in packages().items() if package.startswith("policy.")}


def _data_of(system: str, file: str) -> Any:
    """A file of a system's package that is YAML."""
    return yaml.safe_load(importlib.resources.files(BUILT_IN[system]).joinpath(file).read_text(encoding="utf-8"))


NAMES: dict[str, str] = {system: _data_of(system, "catalogue.yaml")["documentation"]["title"] for system in BUILT_IN}


def settings() -> str:
    """Every setting: path, environment variable, default, and what its class says of it."""
    explained: dict[str, str] = yaml.safe_load(_read(EXPLAINED))
    by_struct: dict[tuple[str, ...], list[Sequence[str]]] = defaultdict(list)
    for name, (path, kind) in variables().items():
        default = Settings()
        for part in path:
            default = getattr(default, part)
        row = (
            _code(".".join(path)),
            explained.get(".".join(path), ""),
            _type(kind),
            _code(_value(default)),
            _code(name),
        )
        by_struct[path[:-1]].append(row)
    lines = [
        *WIDE,
        *_head(
            "Settings", "The settings are in a YAML file, given with `--config`. Environment variables take precedence."
        ),
    ]
    for above, rows in by_struct.items():
        struct = _struct_at(above)
        lines += [f"## {'.'.join(above) or 'The job'}", "", _prose((struct.__doc__ or "").partition("\n\n")[0]), ""]
        lines += [*_table(("setting", "explanation", "type", "default", "environment variable"), rows), ""]
    kinds = typing.cast(type[msgspec.Struct], KindRule)
    lines += ["## monitor.rules.kinds", "", _prose(kinds.__doc__), ""]
    lines += ["## All of them as a file", "", "`deploy/lockkeeper.yaml`:", "", *_fenced("yaml", _read(SAMPLE_SETTINGS))]
    return "\n".join(lines)


def metrics() -> str:
    """Every metric on the job's registry."""
    about = (
        "The job serves these metrics at `/metrics` if `metrics.port` is set. "
        "A histogram has the series `_bucket`, `_sum` and `_count`."
    )
    families = sorted(Watch(Settings()).metrics.registry.collect(), key=lambda family: family.name)
    rows = [(_code(_series(family)), family.type, family.documentation) for family in families]
    return "\n".join([*_head("Metrics", about), *_table(("metric", "type", "description"), rows)])


def _series(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def commands() -> str:
    """The help of every command."""
    lines = _head("Commands", "The `--help` text of each command.")
    for path, command in walk_commands():
        title = f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}"
        lines += [title, "", *_fenced("text", command.get_help(_context(path))), ""]
    return "\n".join(lines)


def walk_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, `lockkeeper` itself first."""
    register_commands()
    yield from _below(("lockkeeper",), typer.main.get_command(app))


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _below((*path, name), inner)


def _context(path: Sequence[str]) -> Any:
    """As the command line makes it: each command below the one before, so that the usage line has all the words."""
    command, context = typer.main.get_command(app), None
    for place, name in enumerate(path):
        command = command if place == 0 else command.commands[name]  # type: ignore[attr-defined]
        more = {**command.context_settings, "terminal_width": HELP_WIDTH}
        context = command.context_class(command, parent=context, info_name=name, **more)
    return context


def alerts() -> str:
    """Every kind of alert with its thresholds, and every alert rule for Prometheus."""
    lines = _head(
        "Alerts", "The alerts on the alerts topic. [The guide](../guides/alerts.md) describes what each means."
    )
    head = ("kind", "raised by", "severity", "escalates", "burst")
    lines += ["## Kinds", "", *_table(head, map(_kind, AlertKind)), ""]
    lines += ["## Rules for Prometheus", "", "These rules are in `deploy/prometheus/alerts.yml`.", ""]
    for group in yaml.safe_load(_read(ALERT_RULES))["groups"]:
        for rule in group["rules"]:
            lines += _alert_rule(rule)
    return "\n".join(lines)


def _kind(kind: AlertKind) -> Sequence[str]:
    if kind not in MONITORED:
        severity = FIXED_SEVERITIES.get(kind, "that of the most severe permission that the change allows")
        return _code(kind), "enforcer", severity, "", ""
    rule = MONITORED[kind].rule
    escalates = ", ".join(f"{severity} from {count}" for severity, count in rule.escalate.items())
    burst = f"more than {rule.more_than} in {rule.within_seconds:g} s" if rule.more_than else ""
    return _code(kind), "monitor", rule.severity, escalates, burst


def _alert_rule(rule: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {rule['alert']}", "", f"{rule['labels']['severity']}; after `{rule.get('for', '0m')}`.", "")
    yield from (*_fenced("promql", rule["expr"].strip()), "", _plain(rule["annotations"]["description"]), "")


def topics() -> str:
    """Every topic with the settings the job relies on, and what breaks without."""
    lines = _head(
        "Topics",
        "`lockkeeper topics create` creates the topics, and `topics check` compares them. "
        "`run` does not start with other settings.",
    )
    for spec in topic_specs(TopicNames()):
        partitions = f"One partition: {spec.single}." if spec.single else f"Partitions: {spec.partitions or 'any'}."
        rows = [(_code(r.setting), ("at least " if r.at_least else "") + _code(r.value), r.why) for r in spec.rules]
        rows += [
            (_code(r.setting), f"at least {_code(r.value)}", f"{r.why} ({REPLICATED} replicas or more; `run` warns)")
            for r in durability_rules(REPLICATED)
        ]
        rows += [
            (_code(name), _code(value), "not checked: the value for a new topic")
            for name, value in spec.settings.items()
        ]
        lines += [
            f"## {spec.name}",
            "",
            partitions,
            "",
            *_table(("setting", "value", "effect of another value"), rows),
            "",
        ]
    return "\n".join(lines)


def schemas() -> str:
    """The contracts: every schema in force as it is."""
    lines = _head(
        "Schemas", "The schemas of the records, in JSON Schema and Avro. `lockkeeper contracts` writes them to files."
    )
    for kind in contracts.KINDS:
        schema = json.loads(contracts.read(f"json/{kind}.json"))
        lines += [f"## {kind}", "", _plain(schema.get("description", "")), ""]
        lines += [*_details(f"json/{kind}.json", "json"), *_details(f"avro/{kind}.avsc", "json")]
    lines += [
        "## Shared definitions, topics and HTTP API",
        "",
        *_details("json/common.json", "json"),
        *_details("asyncapi.yaml", "yaml"),
        "",
        *_details("openapi.yaml", "yaml"),
    ]
    return "\n".join(lines)


def _details(name: str, language: str) -> list[str]:
    body = (f"    {line}".rstrip() for line in _fenced(language, contracts.read(name).rstrip()))
    return [f'??? note "{name}"', "", *body, ""]


def troubleshooting() -> str:
    """Every message that ends a command or a job, and every reason code, with cause and fix."""
    lines = _head("Troubleshooting", TROUBLESHOOTING)
    for section, rows in messages().items():
        cells = [(_code(row["message"].replace("`", "'")), row["cause"], row["fix"]) for row in rows]
        lines += [f"## {section}", "", *_table(("message", "cause", "fix"), map(_linked, cells)), ""]
    lines += ["## Reason codes", "", REASON_CODES, ""]
    codes = ((_code(code), one["words"], one["fix"]) for code, one in REASONS.items())
    lines += [*_table(("code", "meaning", "what to do"), map(_linked, codes)), "", "## Alerts", ""]
    lines += [
        f"[Alerts](alerts.md) describes what each alert means and what to do: {', '.join(map(_code, AlertKind))}.",
        "",
    ]
    return "\n".join(lines)


TROUBLESHOOTING = """\
This page lists the messages that end a command or a job. Search it for the words of a message; `…` stands for names
and numbers. A command exits with 1 if it fails, and with 2 for a usage or configuration error. When a job stops, all
its decisions are committed. It continues there when it is started again. See the [exit codes of the
job](operate.md#exit-codes)."""

REASON_CODES = """\
A decision has these codes in `context.reasons[].code`. An `error` is never an allow; its reason names what is
missing. [Why was a request denied?](denied.md) shows how to find the determining statement."""


def messages() -> dict[str, list[dict[str, str]]]:
    """By section, each with `message`, `cause` and `fix`."""
    loaded: dict[str, list[dict[str, str]]] = yaml.safe_load(_read(MESSAGES))
    return loaded


def actions() -> str:
    """The actions of every system, from the catalogues."""
    lines = _head(
        "Actions",
        "The valid values of a request's `action.name`, by system. They are generated from the catalogues in the code.",
    )
    for system, title in NAMES.items():
        lines += [f"## {title}", "", _data_of(system, "catalogue.yaml")["documentation"]["actions"], ""]
        rows = [(_code(about), ", ".join(map(_code, names))) for about, names in sorted(actions_of(system).items())]
        lines += [*_table(("resource", "actions"), rows), ""] if rows else []
    return "\n".join(lines)


def actions_of(system: str) -> dict[str, list[str]]:
    """The actions of a system, by what they are about; none where its policies define them."""
    grouped: dict[str, list[str]] = defaultdict(list)
    module = f"{BUILT_IN[system]}.catalogue"
    if importlib.util.find_spec(module) is not None:
        for about, action in importlib.import_module(module).documented_actions():
            grouped[about].append(action)
    return {about: sorted(names) for about, names in grouped.items()}


def rules(system: str) -> str:
    """The rules of a system, and how its open questions are read, each with the cases that show it."""
    shown = _cases_by_rule(system)
    lines = _head(
        f"{NAMES[system]}: rules", f"The rules, with the number of test cases for each in `tests/cases/{system}*.yaml`."
    )
    rows = [(_code(rule["id"]), rule["text"], str(len(shown.get(rule["id"], ())))) for rule in _rules_of(system)]
    lines += [*_table(("rule", "implementation", "cases"), rows), "", "## Open questions", "", OPEN, ""]
    for question in sorted((rule for rule in shown if "-Q" in rule), key=_by_number):
        lines += [f"### {question}", "", *(f"- {_escaped(case)}" for case in shown[question]), ""]
    return "\n".join(lines)


def _rules_of(system: str) -> list[dict[str, str]]:
    loaded: list[dict[str, str]] = _data_of(system, "rules.yaml")
    return loaded


def _cases_by_rule(system: str) -> dict[str, list[str]]:
    """What the cases of a system are called, by the rules they name."""
    shown: dict[str, list[str]] = defaultdict(list)
    for file in sorted(CASES.glob(f"{system}*.yaml")):
        for case in yaml.safe_load(_read(file))["cases"]:
            for rule in dict.fromkeys(_named(case)):
                shown[rule].append(case["case"])
    return shown


def _named(case: dict[str, Any]) -> Iterator[str]:
    yield from case.get("rules", ())
    for stage in case["stages"]:
        for expectation in stage.get("expect", ()):
            yield from expectation.get("rules") or ()


def _by_number(rule: str) -> tuple[str, int]:
    name, _, number = rule.rpartition("Q")
    return name, int(number) if number.isdecimal() else 0


def faults() -> str:
    """What faults, hostile records and a soak showed: the lines that `make chaos` and `make soak` wrote."""
    rows = _measured("faults.jsonl")
    lines = _head("Faults and hostile input", FAULTS.format(measured=_measured_where(rows)))
    head = ("place", "fault or input", *COUNTS, "seconds until decisions continue", "longest silence, s", "command")
    by_scenario: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_scenario[PLACES.index(_place(row)), row["scenario"]].append(row)
    lines += [*_table(head, (_scenario(name, runs) for (_, name), runs in sorted(by_scenario.items()))), ""]
    failed = [f"- `{row['scenario']}`, seed {row['seed']}: {_plain(row['why'])}" for row in rows if not row["ok"]]
    lines += ["## Failed runs", "", *(failed or ["None."]), "", *_soak(), ""]
    return "\n".join(lines)


PLACES = ("one broker", "three brokers", "standalone cluster", "compose")


def _place(row: dict[str, Any]) -> str:
    """Where a scenario ran. Earlier lines have it in the words of the fault alone."""
    return next((place for place in PLACES if row["fault"].startswith(place)), row.get("place", PLACES[0]))


FAULTS = """\
Each scenario causes a fault or sends hostile records, while the checker sends 50 requests and one policy change per
second. The scenario then waits until all requests are decided, and [`lockkeeper verify`](../guides/verify.md) checks
every record.

```bash
make chaos
make chaos ARGS="--minutes 60 --seed 7"
```

Without `--minutes` each scenario runs once. Each run prints its result as a line of JSON. The exit code is 1 if a run
failed.

- `wrong` counts the violations of all other checks of `verify`.
- A job that ends is started again after a second.
- The seconds are measured from the end of the fault to the decision of a request that was produced at that time. The
  table has the median, and the maximum of several runs. Other programs on the machine increase them.
- The silence is the longest time between two decisions that a consumer of committed records sees under traffic, with
  the fault. Earlier runs did not measure it.
- Places: one broker and three brokers with Spark in one process (`master: local[4,8]`); a standalone cluster of Spark
  with one broker; the stack of docker compose.
- Three brokers are one cluster: replication 3, `min.insync.replicas` 2, each broker a controller, too.
- The standalone cluster has a master that recovers its applications, and two workers with a core each, which have Java
  and Python alone.

{measured}"""


COUNTS = ("runs", "requests", "lost", "doubled", "wrong")


def _scenario(name: str, runs: Sequence[dict[str, Any]]) -> Sequence[str]:
    failed = sum(not run["ok"] for run in runs)
    times = [run["seconds"] for run in runs if run["seconds"] is not None]
    seconds = f"{statistics.median(times):.1f}" if times else "none within the limit"
    longest = f", {max(times):.1f} at most" if len(times) > 1 else ""
    silences = [run["silence"] for run in runs if run.get("silence") is not None]
    counts = [f"{sum(run[count] for run in runs):,}" for count in COUNTS[1:]]
    place, fault = _place(runs[-1]), runs[-1]["fault"]
    return (
        place,
        re.sub(rf"^{place}(?: with ACLs)?: ", lambda found: "with ACLs: " if "ACLs" in found[0] else "", fault),
        f"{len(runs)}, {failed} failed" if failed else str(len(runs)),
        *counts,
        seconds + longest,
        f"{max(silences):.1f}" if silences else "",
        _code(f'make compose-test ARGS="-k {name}"' if place == "compose" else f'make chaos ARGS="--only {name}"'),
    )


def performance() -> str:
    """What the benchmarks showed: the lines that `make bench` and the others wrote with `--output`."""
    engines, jobs = _measured("evaluator.jsonl"), _measured("stream.jsonl")
    lines = _head("Performance", PERFORMANCE)
    lines += ["## The job", "", JOB]
    if jobs:
        lines += [_measured_where(jobs), "", *_table(("measure", *map(_job_name, jobs)), _job_rows(jobs)), ""]
        lines += [_job_panels(jobs), ""]
    if (MEASURED / "changes-topic.jsonl").exists():
        lines += _changes_topic(_measured("changes-topic.jsonl"))
    lines += _many(_measured("many.jsonl"))
    servers = _measured("serve.jsonl")
    lines += ["## Over HTTP", "", SERVE]
    if servers:
        head = ("measure", *(f"{row['statements']:,} statements ({row['commit']})" for row in servers))
        lines += [_measured_where(servers), "", *_table(head, _serve_rows(servers)), ""]
    lines += ["## The evaluator alone", "", EVALUATOR, _measured_where(engines), ""]
    columns = (
        "engine",
        "statements",
        "cold p50",
        "cold p99",
        "warm p50",
        "warm p99",
        "compiled in",
        "memory",
        "requests",
    )
    lines += [*_table((*columns, "different answers"), map(_engine_row, engines)), "", _engine_panels(engines), ""]
    cedar = _measured("cedar.jsonl")
    lines += ["## Cedar policies", "", CEDAR, _measured_where(cedar), ""]
    head = ("compared", "policies", "entities", "decisions a second", "different answers")
    lines += [*_table(head, _cedar_rows(cedar)), ""]
    return "\n".join(lines)


PERFORMANCE = """\
The [job](#the-job) is compared with a Spark job that only copies the same records from Kafka to Kafka. Both are
measured in one run, because their ratio depends less on the machine than the rates do. [`lockkeeper serve`](#over-http)
is compared with OPA's server. The [evaluator](#the-evaluator-alone) is compared with other engines under the same
policies and requests, without Spark and Kafka."""

JOB = """\
```bash
make bench                                              # five systems, 1,000 statements
make bench ARGS="--traffic lenses6 --statements 100000"
```

- **Requests** are the records that the [client](../guides/client.md) sends, with deadline, key and headers.
  `five systems` is a mix of Lenses 6 (40 %), Lenses 5, Ververica, StreamSets and CDAP. Each is a new draw; with
  `--distinct` the same ones come again, with other ids, deadlines and traces, so their answers are known. With
  `--new-resources` each of these is for a resource that no request has named before.
- **Machine**: the broker, the load and both jobs share it. Each job has a separate process and JVM. The jobs run
  alternately.
- **Rates** are medians over the rounds after the first, in which Java is cold. Each round counts the second half of
  its batches.
- **Latency** is measured from producing a request to reading its decision or copy.
- **Policy changes** are measured from the acknowledgement by Kafka to reading the first decision under the change.
- **Memory** of a Python worker is its private memory (`Private_*` of `smaps_rollup`), minus that of a worker with
  almost no policies.
"""

SERVE = """\
```bash
make bench-serve
make bench-serve ARGS="--seconds 5 --no-job"
```

- [`lockkeeper serve`](../guides/serve.md) runs as one process, and records all answers on Kafka. OPA's server has the
  same policies and requests, and its decision log on, to a file. OPA and the load generator, vegeta, are built by Go.
- **Machine**: the load, the broker, the job and both servers share it.
- **Latency** is that of requests sent at a steady rate, whatever comes back, with the job stopped, and with the job
  deciding each recorded answer.
- **Evaluations a second** are those of 16 connections, each of which sends its next request after a response. Both
  servers are measured in turn.
- **Batches** have 50 evaluations. OPA has no API for batches: one query over an array of inputs decides as many.
- **Policy changes** are measured from the acknowledgement by Kafka to the first answer under the change.
- **Memory** is the resident set size of one process, and the proportional set size of each of two workers.

Rates, latencies and ratios are medians of the rounds.

"""

EVALUATOR = """\
```bash
make bench-evaluator
make bench-evaluator ARGS="--statements 100000 --engines OPA"
```

The times are the CPU time of the thread for a decision, in µs.

- `cold`: each request for the first time. `warm`: the same requests for the second time. A pass ends after some
  seconds, so slow engines decide fewer requests.
- `policy.decide` also explains its decisions. The other engines only allow or deny.
- `plain loop` is a loop in Python over the statements of the principal's groups.
- `cedarpy, sliced` gets only the policies of the principal's roles, parsed at their first use. `casbin`, `OPA` and
  `cedarpy, whole` get all policies.
- OPA runs in a Go program that is built for the benchmark if Go is installed.
- With `five systems`, `policy.decide` is compared with the reference evaluator, which has no index.

"""


CEDAR = """\
```bash
make bench-cedar
make bench-cedar ARGS="--stream"
```

The policies are those of a document store. All engines get the same requests in one run; rates are medians of three
rounds.

- `cedarpy, whole` gets all policies and entities, parsed once. `cedarpy, sliced by hand` gets those that a request
  needs, selected by code that knows the document store.
- `first`: each request for the first time. `again`: the same requests for the second time.
- `job` decides the requests of a topic and writes complete decisions exactly once. `plain loop` is a Python process
  that consumes the same requests, decides them with cedarpy, all policies and all entities, and produces the answers.

"""


CHANGES_TOPIC = """\
```bash
make bench ARGS="--changes-topic --rounds 4"
```

The job writes each policy change to `authz.changes.v1`, and then what it widens. The benchmark runs the job with and
without this topic in turn, while a role changes twice a second. Values are medians of the rounds.

"""
COSTS = {
    "throughput": "decisions a second",
    "latency_p50_ms": "latency, p50, ms",
    "latency_p90_ms": "latency, p90, ms",
    "latency_p99_ms": "latency, p99, ms",
}


def _changes_topic(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["### The changes topic", "", CHANGES_TOPIC, _measured_where(rows), ""]
    return [*lines, *_table(("measure", "statements", "with", "without", "ratio"), _changes_topic_rows(rows)), ""]


def _changes_topic_rows(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for row in rows:
        for name, found in row["changes_topic"].items():
            yield (
                COSTS[name],
                f"{row['statements']:,}",
                f"{found['with']:,}",
                f"{found['without']:,}",
                f"{found['ratio']}",
            )


def _cedar_rows(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for row in rows:
        for name, rate in row["decisions_a_second"].items():
            compared = row.get("compared", row["requests"])
            different = f"{row['differences']} of {compared:,}"
            yield name, f"{row['policies']:,}", f"{row['entities']:,}", f"{rate:,}", different


def _job_name(row: dict[str, Any]) -> str:
    traffic = "five systems" if row["traffic"] == "mix" else NAMES[row["traffic"]]
    again = f", {row['distinct']:,} requests again and again" if row.get("distinct") else ""
    again += ", of new resources" if row.get("new_resources") else ""
    return f"{traffic}, {row['statements']:,} statements{again} ({row['commit']})"


def _memory_above_idle(row: dict[str, Any]) -> str:
    """Not known where a worker of the idle job had more."""
    above = row["worker_memory_above_idle"]
    return f"{above} MiB" if above > 0 else "not known"


def _job_rows(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    measures: dict[str, Callable[[dict[str, Any]], str]] = {
        "decisions a second, warm": lambda row: f"{row['decisions_a_second']:,}",
        "copies a second, warm": lambda row: f"{row['copies_a_second']:,}",
        "ratio, median (each round)": lambda row: f"{row['ratio']} ({', '.join(map(str, row['ratios']))})",
        "start to the end of the first batch, Java cold": lambda row: f"{row['cold']['decisions']['start']} s",
        "its first batch, Java cold": lambda row: f"{row['cold']['decisions']['first']} s",
        "the copy's first batch, Java cold": lambda row: f"{row['cold']['copy']['first']} s",
        "the first batch after a start, Java warm": lambda row: f"{row['first_warm']['decisions']} s",
        "memory of a worker above an idle one": _memory_above_idle,
    }
    for name, of in measures.items():
        yield name, *map(of, rows)
    for name in LATENCIES:
        yield f"latency of {name}, p50 / p99", *(_quantiles(row.get("latency", {}).get(name)) for row in rows)
    yield "policy change in force, p50 / p99", *(_quantiles(row.get("change_latency")) for row in rows)
    yield (
        "policy change in force, maximum and number of changes",
        *(_of_changes(row.get("change_latency")) for row in rows),
    )


def _serve_rows(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for name in ("job stopped", "job running"):
        rate = f"{rows[0]['rate']:,.0f} requests a second"
        yield f"latency at {rate}, {name}, p50 / p99", *(_precise(row.get("latency", {}).get(name)) for row in rows)
    for field, name in (("single", "single evaluations"), ("batch", "evaluations in batches")):
        for server, label in (("serve", "`lockkeeper serve`"), ("opa", "OPA")):
            found = [row[field][server] if field in row else None for row in rows]
            yield f"{name} a second, {label}", *("" if one is None else f"{one['a_second']:,}" for one in found)
            yield f"latency of their requests, {label}, p50 / p99", *map(_precise, found)
        yield f"ratio of {name}, median (each round)", *(_ratios(row.get(field)) for row in rows)
    compared = ("" if row.get("differences") is None else str(row["differences"]) for row in rows)
    yield "answers that differ from OPA's", *compared
    yield "policy change to the first answer, p50 / p99", *(_quantiles(row.get("change")) for row in rows)
    yield "maximum and number of changes", *(_of_changes(row.get("change")) for row in rows)
    yield "memory", *(_memory(row.get("memory")) for row in rows)


def _precise(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['p50_ms']:.2f} / {found['p99_ms']:.1f} ms"


def _ratios(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['ratio']} ({', '.join(map(str, found['ratios']))})"


def _memory(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    workers = " and ".join(f"{mib:.0f}" for mib in found["workers_proportional_mib"])
    return f"{found['resident_mib']:.0f} MiB; two workers: {workers} MiB; {found['statements']:,} statements"


LATENCIES = ("copy", "decisions", "decisions with monitor")


def _quantiles(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['p50_ms']:.0f} / {found['p99_ms']:.0f} ms"


def _of_changes(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['max_ms']:.0f} ms of {found['count']}"


def _engine_name(row: dict[str, Any]) -> str:
    """Of the evaluator here with its commit: several stand side by side."""
    return f"{row['engine']} ({row['commit']})" if row["engine"].startswith("policy") else str(row["engine"])


def _engine_row(row: dict[str, Any]) -> Sequence[str]:
    times = (f"{row[temper][quantile]:,.1f}" for temper in ("cold", "warm") for quantile in ("p50", "p99"))
    memory = "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f} MiB"
    compiled = f"{row['prepare_seconds']:.2f} s"
    counts = (f"{row['requests']:,}", f"{row['differences']:,}")
    return _engine_name(row), f"{row['statements']:,}", *times, compiled, memory, *counts


def _job_panels(rows: Sequence[dict[str, Any]]) -> str:
    with drawing(9.6, 0.9 + 0.7 * len(rows)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        left.barh(range(len(rows)), [row["ratio"] for row in rows], height=0.5, color="#009E73")
        left.set_yticks(range(len(rows)), [_job_name(row).replace(" (", "\n(") for row in rows])
        left.set_title("decisions, as a share of copies", loc="left", fontsize=10)
        left.set_xlim(0, 1)
        for number, (name, color) in enumerate(zip(LATENCIES, ("#999999", "#009E73", "#D55E00"), strict=True)):
            for place, found in enumerate(row.get("latency", {}).get(name) for row in rows):
                if found is None:
                    continue
                ends, heights = (found["p50_ms"], found["p99_ms"]), [place + 0.22 * (number - 1)] * 2
                right.plot(ends, heights, color=color, marker="o", markersize=4)
            right.plot([], [], color=color, marker="o", markersize=4, label=name)
        right.set_title("latency, p50 to p99, ms", loc="left", fontsize=10)
        right.set_xlim(left=0)
        right.invert_yaxis()
        right.legend(fontsize=8, frameon=False)
        svg = to_svg(figure, "jobs", "Throughput and latency of the job; the table has the values")
    return " ".join(svg.split("\n"))


def _engine_panels(rows: Sequence[dict[str, Any]]) -> str:
    by_engine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_engine[_engine_name(row)].append(row)
    with drawing(9.6, 4.2) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, temper in zip(panels, ("cold", "warm"), strict=True):
            for engine, some in by_engine.items():
                sizes, times = [row["statements"] for row in some], [row[temper]["p50"] for row in some]
                ours = engine.startswith("policy")
                axes.loglog(sizes, times, marker="o", markersize=3, linewidth=2.5 if ours else 1, label=engine)
            axes.set_title(f"{temper}: p50, µs", loc="left", fontsize=10)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel("statements")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        svg = to_svg(
            figure, "engines", "Time of a decision by engine and number of statements; the table has the values"
        )
    return " ".join(svg.split("\n"))


def _measured_where(rows: Sequence[dict[str, Any]]) -> str:
    days = sorted({row["at"][:10] for row in rows})
    machines = {(row["machine"]["cores"], row["machine"]["memory_gib"], row["machine"]["cpu"]) for row in rows}
    where = " and ".join(f"{cores} cores and {memory} GiB ({cpu})" for cores, memory, cpu in sorted(machines))
    loads = [row["machine"]["load"] for row in rows]
    load = f"at load averages of {min(loads):.0f} to {max(loads):.0f}"
    return f"Measured on {' and '.join(days)} with {where}, {load}."


MANY = """\
`make many` starts a broker and a job with default settings for each table. `start` is the time until `/readyz`
succeeds, in seconds. Latencies are those of 20 requests a second, from producing a request to reading its decision, in
ms. Memory is the largest private memory of the processes, in MiB. [Sizing](../guides/operate.md#sizing) describes what
follows."""


def _many(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What many partitions, tenants, facts and statements take; one table for each."""
    if rows:
        yield from ("## Many partitions, tenants, facts, statements", "", MANY, "", _measured_where(rows), "")
    for row in rows:
        shown = {name: value for name, value in row.items() if name not in ("benchmark", "what", "machine", "at")}
        yield from (f"### Many {row['what']}, {row['at']}", "", *_table(("measure", "value"), _flat(shown)), "")


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        text = ", ".join(f"{key} {one:,}" for key, one in value.items()) if isinstance(value, dict) else value
        yield name.replace("_", " "), f"{text:,}" if isinstance(text, int | float) else str(text)


SOAK = """\
The load is one policy change and 50 requests per second. Sizes are in MiB. Processes are measured by their
proportional set size. `heap` and `blocks` (which include broadcasts) are Spark's metrics. `files` are Spark's
temporary files.

The table has the medians of the last two quarters. In the first half Java compiles, and the checkpoints grow to their
steady size: the batches that Spark keeps, and the 15 minutes of decisions that the monitor keeps. `files` and
`blocks` decrease with each full garbage collection, which Spark requests every 30 minutes by default. `descriptors`
grow by one for each task of the monitor, because of [a defect of Spark 4.2.0](../guides/operate.md#open-files)."""


def _soak() -> Iterator[str]:
    """The samples of a soak as panels, and as a table."""
    *samples, row = _measured("soak.jsonl")
    minutes = samples[-1]["seconds"] / 60
    yield from ("## Soak", "", f"`make soak MINUTES={minutes:.0f}`. {_measured_where([row])}", "", SOAK, "")
    changes, requests = samples[-1]["changes"], samples[-1]["requests"]
    found = ", ".join(f"{row[name]:,} {name}" for name in ("lost", "doubled", "wrong"))
    yield from (f"{changes:,} policy changes, {requests:,} requests: {found}.", "")
    measures = [name for name in samples[0] if name not in ("seconds", "changes", "requests")]
    rows = ([name, *_medians([sample[name] for sample in samples])] for name in measures)
    yield from _table(("measure", "third quarter", "last quarter"), rows)
    yield from ("", _soak_panels(samples, measures))


def _medians(values: Sequence[float]) -> Iterator[str]:
    """Of the third quarter and the last."""
    quarter = len(values) // 4
    for part in (values[-2 * quarter : -quarter], values[-quarter:]):
        yield f"{statistics.median(part):,.1f}"


def _soak_panels(samples: Sequence[dict[str, Any]], measures: Sequence[str]) -> str:
    minutes = [sample["seconds"] / 60 for sample in samples]
    with drawing(9.6, 1.3 * -(-len(measures) // 2)) as figure:
        panels = figure.subplots(-(-len(measures) // 2), 2, sharex=True, squeeze=False).ravel()
        for axes, name in zip(panels, measures, strict=False):
            axes.plot(minutes, [sample[name] for sample in samples], color="#009E73", linewidth=1)
            axes.set_title(name, loc="left", fontsize=10)
            axes.set_ylim(bottom=0)
        for axes in panels[len(measures) :]:
            axes.set_visible(False)
        figure.supxlabel("minutes", fontsize=10)
        svg = to_svg(figure, "soak", "Resources of the job over time; the table has the values")
    return " ".join(svg.split("\n"))


def _measured(name: str) -> list[dict[str, Any]]:
    """The rows of a file, none where nothing has been measured yet."""
    if not (MEASURED / name).exists():
        return []
    return [json.loads(line) for line in _read(MEASURED / name).splitlines()]


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/commands.md": commands,
    "reference/alerts.md": alerts,
    "reference/topics.md": topics,
    "reference/schemas.md": schemas,
    "reference/actions.md": actions,
    "guides/troubleshooting.md": troubleshooting,
    "explanation/faults.md": faults,
    "explanation/performance.md": performance,
    **{f"explanation/rules/{system}.md": lambda system=system: rules(system) for system in NAMES},  # type: ignore[misc]
}


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the pages."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


def _struct_at(path: Iterable[str]) -> type[msgspec.Struct]:
    struct: type[Any] = Settings
    for name in path:
        struct = next(field.type for field in msgspec.structs.fields(struct) if field.name == name)
    return struct


def _value(default: Any) -> str:
    return json.dumps(msgspec.to_builtins(default), ensure_ascii=False)


TYPES = {int: "number", float: "number", str: "text", bool: "true or false"}


def _type(kind: Any) -> str:
    """A type in plain words: what bounds it, what it holds."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return ", ".join(filter(None, (_type(inner[0]), *map(_bound, inner[1:]))))
    if origin is typing.Literal:
        return ", ".join(map(_code, inner))
    if origin is dict:
        return "mapping"
    return TYPES.get(kind, "list")


def _bound(meta: msgspec.Meta) -> str:
    """In words, but for what no number of Java may exceed."""
    words = {"at least": meta.ge, "over": meta.gt, "at most": meta.le}
    return ", ".join(f"{word} {bound:,.0f}" for word, bound in words.items() if bound not in (None, MOST_NUMBER))


def _head(title: str, about: str) -> list[str]:
    return [f"# {title}", "", about, ""]


def _prose(doc: str | None) -> str:
    """A docstring as a paragraph or several."""
    return "\n".join(line.strip() for line in (doc or "").strip().splitlines())


def _plain(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Text in which Markdown has no meaning, but for code between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]{}])", r"\\\1", part) for part in parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _cell(text: str) -> str:
    escaped = _escaped(" ".join(text.split())).replace("|", "&#124;")
    return escaped.replace("\0", "[").replace("\1", "](").replace("\2", ")")


def _linked(cells: Sequence[str]) -> Sequence[str]:
    """Cells in which links stay links: `_cell` escapes brackets."""
    return [LINK.sub(lambda found: f"\0{found[1]}\1{found[2]}\2", cell) for cell in cells]


LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def _fenced(language: str, text: str) -> list[str]:
    return [f"````{language}", *text.splitlines(), "````"]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")

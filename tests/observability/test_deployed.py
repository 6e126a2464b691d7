"""Dashboard and rules ask for what the code exposes, all of it: a metric that is renamed or added fails here."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from streaming.access_changes.decisions import Joined
from streaming.access_changes.metrics import AccessChangesMetrics
from streaming.alert_kinds import AlertKind
from streaming.ops.health import Health
from streaming.ops.watch import Watch
from streaming.pdp.recording import Recorder
from streaming.records.access_change import AccessChange
from streaming.serve.metrics import ServeMetrics
from streaming.settings import Settings
from streaming.topics import TopicNames
from tests.observability.promql import names_in

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "lockkeeper.json").read_text(encoding="utf-8"))
RULES = DEPLOY / "prometheus" / "alerts.yml"
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
OF_PROMETHEUS = {"up"}
NOT_SHOWN = {
    "process_virtual_memory_bytes": "says little beside the resident memory",
    "process_open_fds": "the library's own",
    "process_max_fds": "the library's own",
}
ANNOUNCED_OTHERWISE = {
    AlertKind.POLICY_REJECTED: "LockkeeperDocumentsRefused",
    AlertKind.POLICY_STALE: "LockkeeperPoliciesStale",
    AlertKind.ANSWER_CONTRADICTED: "LockkeeperAnswersContradicted",
    AlertKind.MALFORMED_BURST: "LockkeeperDeadLetters",
}
TOO_LOW = {AlertKind.FACT_CONTRADICTION}  # of low severity: it is for who looks through the alerts


def _load(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _rules() -> list[dict[str, Any]]:
    return [rule for group in _load(RULES)["groups"] for rule in group["rules"]]


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Every series' name that a job exposes, with its labels."""
    watch = Watch(Settings())
    watch.add_consumer_group("job", lambda: {("topic", 0): 1})
    watch.partition_committed("executor_localhost_1", 0.1)
    server = ServeMetrics(Settings().systems, Health(0))
    recorder = Recorder(msgspec.structs.replace(Settings(), topics=TopicNames(answered=("answered",))))
    server.recording(recorder)
    recorder.close()
    access_changes = AccessChangesMetrics(Settings().policy_stale_seconds)
    access_changes.joined(Joined([]))
    access_changes.committed([_access_change()], [])
    families = [*watch.metrics.registry.collect(), *server.registry.collect(), *access_changes.registry.collect()]
    samples = [sample for family in families for sample in family.samples]
    return {s.name: set(s.labels) for s in samples if not s.name.endswith("_created")}


def _access_change() -> AccessChange:
    who = {"type": "user", "id": "user:dana"}
    states = {"before": {"outcome": "allow"}, "after": {"outcome": "deny"}}
    asked = {"system": "lenses6", "subject": who, "action": {"name": "kafka:ListTopic"}, "resource": who, **states}
    made = {"id": "c", "time": "2026-11-22T00:00:00Z", "policy_version": "", "policy_offsets": {}, "facts_offset": -1}
    return msgspec.convert({**asked, **made}, AccessChange)


def _expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and the expression."""
    for panel in _panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"])
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for rule in _rules():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "expression"), list(_expressions()))
def test_every_expression_names_metrics_and_labels_that_there_are(
    where: str, expression: str, exposed: dict[str, set[str]]
) -> None:
    metrics, listed = names_in(expression)
    assert metrics, where
    assert metrics.keys() <= exposed.keys() | OF_PROMETHEUS
    for metric, labels in metrics.items():
        assert labels <= exposed.get(metric, set()) | SCRAPED, metric
    assert listed <= SCRAPED.union(*(exposed.get(metric, set()) for metric in metrics))


def test_every_metric_has_a_panel_or_a_rule_or_a_reason_for_none(exposed: dict[str, set[str]]) -> None:
    asked = {_family(name) for _, expression in _expressions() for name in names_in(expression)[0]}
    assert {_family(name) for name in exposed} - asked == set(NOT_SHOWN)


def _family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize(
    ("expression", "metrics", "listed"),
    [
        ("up", {"up": set()}, set()),
        ('a{x="1", y=~"b,{}|c"} / b', {"a": {"x", "y"}, "b": set()}, set()),
        ('sum by (le, x) (rate(a_bucket{job=~"$job"}[$__rate_interval])) > 0.5', {"a_bucket": {"job"}}, {"le", "x"}),
        ("time() - (a > 0) and on (x) absent(b)", {"a": set(), "b": set()}, {"x"}),
        ("deriv(a[10m:1m] offset 5m) or a == bool 1e3", {"a": set()}, set()),
    ],
)
def test_expressions_are_read(expression: str, metrics: dict[str, set[str]], listed: set[str]) -> None:
    """What holds the others to account is held itself."""
    assert names_in(expression) == (metrics, listed)


def test_panels_leave_out_a_time_that_is_not_known_yet(watched_at_its_start: set[str]) -> None:
    """A metric of a moment is 0 until there is one, and `time() - 0` is half a century."""
    shown = [target["expr"] for panel in _panels() for target in panel["targets"]]
    unguarded = {name for expression in shown for name in re.findall(r"^time\(\) - (\w+)", expression)}
    assert unguarded
    assert not unguarded & watched_at_its_start


@pytest.fixture
def watched_at_its_start() -> set[str]:
    """The series that are 0 when a job starts."""
    families = Watch(Settings()).metrics.registry.collect()
    return {sample.name for family in families for sample in family.samples if sample.value == 0}


def test_every_panel_says_what_it_shows_in_which_unit_from_the_chosen_source() -> None:
    for panel in _panels():
        assert len(panel["description"]) > 30, panel["title"]
        axis = panel["options"].get("yAxis", {})
        assert panel["fieldConfig"]["defaults"].get("unit") or axis.get("unit"), panel["title"]
        sources = {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])}
        assert sources == {"${datasource}"}, panel["title"]
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def _headings() -> dict[str, list[dict[str, Any]]]:
    """The panels under each heading, by where they stand."""
    found: dict[str, list[dict[str, Any]]] = {}
    for panel in sorted(DASHBOARD["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"])):
        if panel["type"] == "row":
            under = found.setdefault(panel["title"], [])
        else:
            under.append(panel)
    return found


def test_panels_stand_under_the_heading_of_what_they_show() -> None:
    """Further headings have their metrics' prefix; what the requests were answered stands with the decisions."""
    asked = {
        heading: {name for panel in panels for target in panel["targets"] for name in names_in(target["expr"])[0]}
        for heading, panels in _headings().items()
    }
    assert {name.partition("_")[0] for name in asked["Driver's process"]} == {"process"}
    assert all(name.startswith("lockkeeper_monitor_") for name in asked["Monitor of audit events"])
    assert all(name.startswith("lockkeeper_serve_") for name in asked["lockkeeper serve"])
    assert all(name.startswith("lockkeeper_access_changes_") for name in asked["lockkeeper access-changes"])
    for heading, names in asked.items():
        if heading not in ("At a glance", "Decisions", "lockkeeper serve", "lockkeeper access-changes"):
            assert not [name for name in names if "decision" in name], heading


def test_panels_come_in_the_file_in_the_order_in_which_they_are_shown() -> None:
    """A heading that is folded takes along the panels after it in the file."""
    shown = [panel["title"] for panels in _headings().values() for panel in panels]
    assert [panel["title"] for panel in _panels()] == shown


def test_every_rule_says_what_is_wrong_and_what_to_do() -> None:
    for rule in _rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert len(rule["annotations"]["summary"]) > 20, rule["alert"]
        assert len(rule["annotations"]["description"]) > 80, rule["alert"]


def test_every_kind_of_alert_has_a_rule_but_those_of_low_severity() -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in _rules()}
    [kinds] = re.findall(r'kind=~"([^"]+)"', expressions["LockkeeperSecurityAlert"])
    assert sorted(kinds.split("|")) == sorted(set(AlertKind) - ANNOUNCED_OTHERWISE.keys() - TOO_LOW)
    assert set(ANNOUNCED_OTHERWISE.values()) <= expressions.keys()


def test_labels_that_annotations_show_are_there_when_a_rule_fires(exposed: dict[str, set[str]]) -> None:
    for rule in _rules():
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        metrics, listed = names_in(rule["expr"])
        there = listed or SCRAPED.union(*(exposed.get(metric, set()) for metric in metrics))
        assert shown <= there, rule["alert"]


def test_labels_that_absent_cannot_give_are_shown_only_where_there_are_some() -> None:
    """`absent(up{job="x"})` has the label job and no other: an instance that is not there has no name."""
    with_absent = [rule for rule in _rules() if "absent(" in rule["expr"]]
    assert with_absent
    for rule in with_absent:
        given = set(re.findall(r'(\w+)="', " ".join(re.findall(r"absent\((.*?)\)", rule["expr"]))))
        for text in rule["annotations"].values():
            unguarded = re.sub(r"{{ *with \$labels\.\w+ *}}.*?{{ *end *}}", "", text, flags=re.DOTALL)
            assert set(re.findall(r"\$labels\.(\w+)", unguarded)) <= given, rule["alert"]


def test_a_job_that_moves_raises_nothing_in_the_half_minute_that_takes() -> None:
    [fenced] = [rule for rule in _rules() if rule["alert"] == "LockkeeperFenced"]
    assert "half a minute" in fenced["annotations"]["description"]
    assert fenced.get("for") == "1m"


def test_prometheus_and_grafana_find_each_other_and_the_job() -> None:
    """In docker-compose.yml: by the names of services, ports and mounted files."""
    services = _load(ROOT / "docker-compose.yml")["services"]
    environment = services["enforcer"]["environment"]
    scraped = _load(DEPLOY / "prometheus" / "prometheus.yml")
    assert {config["job_name"]: config["static_configs"][0]["targets"] for config in scraped["scrape_configs"]} == {
        "lockkeeper": [f"enforcer:{environment['LOCKKEEPER_METRICS_PORT']}"],
        **{
            f"lockkeeper-{name}": [f"{name}:{services[name]['environment']['LOCKKEEPER_METRICS_PORT']}"]
            for name in ("serve", "access-changes")
        },
    }
    for name in ("enforcer", "serve", "access-changes"):
        assert services[name]["environment"]["LOCKKEEPER_METRICS_ADDRESS"] == "0.0.0.0"
    [source] = _load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    [provider] = _load(DEPLOY / "grafana" / "provisioning" / "dashboards" / "lockkeeper.yml")["providers"]
    mounted = {name: dict(_mounts(services[name])) for name in ("prometheus", "grafana")}
    assert mounted["prometheus"]["/etc/prometheus"] == "deploy/prometheus"
    assert mounted["grafana"]["/etc/grafana/provisioning"] == "deploy/grafana/provisioning"
    assert mounted["grafana"][f"{provider['options']['path']}/lockkeeper.json"] == "deploy/grafana/lockkeeper.json"
    assert all((ROOT / source).exists() for mounts in mounted.values() for source in mounts.values())


def _mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for volume in service["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("./"):  # the others are volumes with names
            yield target, source.removeprefix("./")


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on this machine (Debian: the package prometheus)"
)


@needs_promtool
def test_prometheus_takes_configuration_and_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_rules_fire_when_they_should_and_only_then() -> None:
    tested = subprocess.run(
        ["promtool", "test", "rules", Path(__file__).with_name("alerts_test.yml")], capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_rule_has_a_case_in_which_it_fires() -> None:
    tests = _load(Path(__file__).with_name("alerts_test.yml"))["tests"]
    fired = {sample["labels"] for test in tests for case in test["promql_expr_test"] for sample in case["exp_samples"]}
    assert fired == {f'{{alertname="{rule["alert"]}"}}' for rule in _rules()}

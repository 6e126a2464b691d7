"""The generated pages have everything that is in the code, and the site builds without a warning."""

import importlib.resources
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from docs import generate
from policy.systems import all_systems, packages
from streaming.ops.metrics import ALERT_KINDS
from streaming.ops.watch import Watch
from streaming.records import schemas as contracts
from streaming.settings import Settings, load_settings, variables
from streaming.topics import TopicNames, topic_specs
from tests.chaos.scenarios import SCENARIOS
from tests.docs.pages import ROOT


def test_every_setting_is_there_with_its_variable_and_default() -> None:
    page = generate.settings()
    for name, (path, _) in variables().items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{'.'.join(path)}` ")]
        assert f"| `{name}` |" in row
    assert "| `max_records` | `LOCKKEEPER_MAX_RECORDS` | `200000` | number, at least 1 |" in page
    assert '| `log.level` | `LOCKKEEPER_LOG_LEVEL` | `"info"` | `debug`, `info`, `warning`, `error` |' in page


def test_what_a_class_says_of_its_settings_is_there() -> None:
    page = generate.settings()
    for struct in (Settings, type(Settings().limits), type(Settings().monitor.rules)):
        assert (struct.__doc__ or "").splitlines()[0] in page


def test_the_sample_settings_are_there_and_are_the_defaults() -> None:
    assert generate.SAMPLE_SETTINGS.read_text() in generate.settings()
    assert load_settings(generate.SAMPLE_SETTINGS, {}).max_records == Settings().max_records


def test_every_metric_is_there() -> None:
    page = generate.metrics()
    families = list(Watch(Settings()).metrics.registry.collect())
    assert len(families) > 20
    for family in families:
        assert f"| `{family.name}" in page
    assert "| `lockkeeper_decisions_total` | counter |" in page


def test_every_command_is_there_with_its_help() -> None:
    page = generate.commands()
    paths = [path for path, _ in generate.walk_commands()]
    assert ("lockkeeper", "policy", "apply") in paths
    for path in paths:
        assert f"# {' '.join(path)}\n" in page
    shown = subprocess.run(
        [sys.executable, "-m", "streaming.cli", "policy", "apply", "--help"], capture_output=True, text=True, check=True
    )
    for line in shown.stdout.splitlines():
        assert " ".join(line.split())[:40] in " ".join(page.split())


def test_every_kind_of_alert_and_every_rule_is_there() -> None:
    page, guide = generate.alerts(), (ROOT / "docs/pages/guides/alerts.md").read_text()
    for kind in ALERT_KINDS:
        assert f"| `{kind}` |" in page
        assert f"| `{kind}` |" in guide
    for group in yaml.safe_load(generate.ALERT_RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert f"### {rule['alert']}\n" in page
    assert "| `policy-stale` | enforcer | critical |" in page
    assert "| `denial-burst` | monitor | medium | high from 100, critical from 1000 | more than 20 in 60 s |" in page


def test_every_topic_is_there_with_its_settings() -> None:
    page = generate.topics()
    for spec in topic_specs(TopicNames()):
        section = page.split(f"## {spec.name}\n", 1)[1].split("\n## ", 1)[0]
        for setting in (*(rule.setting for rule in spec.rules), *spec.settings):
            assert f"| `{setting}` |" in section


def test_every_schema_in_force_is_there_as_it_is() -> None:
    page = generate.schemas()
    for name in contracts.names():
        if not name.startswith("released/"):
            assert f'"{name}"' in page
            first = contracts.read(name).splitlines()[1]
            assert f"    {first}" in page


@pytest.mark.parametrize("system", sorted(all_systems()))
def test_every_rule_and_every_open_question_is_there(system: str) -> None:
    page = generate.PAGES[f"explanation/rules/{system}.md"]()
    rules = yaml.safe_load(importlib.resources.files(packages()[system]).joinpath("rules.yaml").read_text())
    for rule in rules:
        assert rule.keys() == {"id", "text"}
        assert f"| `{rule['id']}` |" in page
    questions = [line for line in page.splitlines() if line.startswith("### ")]
    assert questions
    assert len(questions) == len(set(questions))


def test_the_faults_page_has_a_row_for_each_scenario_that_was_measured() -> None:
    """The table is made of the lines that `make chaos` wrote: `--output docs/measured/faults.jsonl` adds to them."""
    page = generate.faults()
    measured = {json.loads(line)["scenario"] for line in (generate.MEASURED / "faults.jsonl").read_text().splitlines()}
    assert measured <= SCENARIOS.keys(), "delete the lines of scenarios that are no more"
    for name in measured:
        assert page.count(f'"--only {name}"') == 1
    assert "<svg" in page


def test_a_setting_that_is_new_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page follows the code: nothing is listed by hand."""
    newer = msgspec.defstruct("Newer", [("patience", float, 1.5)], bases=(Settings,), kw_only=True, frozen=True)
    monkeypatch.setattr("streaming.settings.Settings", newer)
    monkeypatch.setattr(generate, "Settings", newer)
    assert "| `patience` | `LOCKKEEPER_PATIENCE` | `1.5` |" in generate.settings()


def test_the_site_builds_strictly_and_asks_nobody_else(tmp_path: Path) -> None:
    config = ROOT / "docs/mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    home = (tmp_path / "index.html").read_text()
    assert "lockkeeper is a streaming authorization enforcer" in home
    assert "fonts.googleapis" not in home
    for path in generate.PAGES:
        assert (tmp_path / path).with_suffix(".html").exists()

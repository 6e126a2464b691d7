"""The generated pages have everything that is in the code, and the site builds without a warning."""

import importlib.resources
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from docs import generate
from policy import compile_documents, decide
from policy.systems import all_systems, packages
from streaming.alert_kinds import AlertKind
from streaming.ops.watch import Watch
from streaming.records import schemas as contracts
from streaming.settings import DEFAULT_TRUST, Settings, load_settings, variables
from streaming.topics import DEFAULT_SYSTEMS, TopicNames, topic_specs
from tests.chaos.scenarios import SCENARIOS
from tests.deploy.test_stack import FAULTS
from tests.docs.pages import ROOT
from tests.report.browser import Browser, find_browser


def test_every_setting_is_there_with_its_variable_and_default() -> None:
    page = generate.settings()
    for name, (path, _) in variables().items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{'.'.join(path)}` ")]
        assert row.endswith(f"| `{name}` |")
    explained = yaml.safe_load(generate.EXPLAINED.read_text())["max_records"]
    assert f"| `max_records` | {explained} | number, at least 1 | `200000` | `LOCKKEEPER_MAX_RECORDS` |" in page
    assert '| `debug`, `info`, `warning`, `error` | `"info"` | `LOCKKEEPER_LOG_LEVEL` |' in page


def test_every_setting_has_an_explanation_and_no_other_has() -> None:
    explained = yaml.safe_load(generate.EXPLAINED.read_text())
    assert explained.keys() == {".".join(path) for path, _ in variables().values()}
    assert all(text.endswith((".", ";")) for text in explained.values())


@pytest.mark.parametrize("system", generate.NAMES)
def test_every_action_of_a_system_is_there_and_known_to_it(system: str) -> None:
    """The first of each sort is asked for: none of them is unknown."""
    page = generate.actions()
    for about, names in generate.actions_of(system).items():
        assert f"| `{about}` | " in page
        asked = {"subject": {"type": "user", "id": "user:x"}, "action": {"name": names[0]}}
        resource = {"type": "lrn", "id": "x"}
        answer = decide(compile_documents([]), {"id": "1", "system": system, **asked, "resource": resource})
        assert answer.reasons[0].code != "unknown-action", names[0]


def test_what_a_class_says_of_its_settings_is_there() -> None:
    page = generate.settings()
    for struct in (Settings, type(Settings().limits), type(Settings().monitor.rules)):
        assert (struct.__doc__ or "").splitlines()[0] in page


def test_the_sample_settings_are_there_and_are_the_defaults() -> None:
    assert generate.SAMPLE_SETTINGS.read_text() in generate.settings()
    warnings = list[str]()
    sample = load_settings(generate.SAMPLE_SETTINGS, {}, warnings.append)
    named = msgspec.structs.replace(Settings().topics, policies=sample.topics.policies, answered=sample.topics.answered)
    defaults = Settings(topics=named, trust={"authz.requests.v1": DEFAULT_TRUST})
    assert (sample, warnings) == (defaults, [])


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
    for kind in AlertKind:
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
    assert len(questions) >= {"kafka-acls": 2, **dict.fromkeys(DEFAULT_SYSTEMS, 9)}.get(system, 0)
    assert len(questions) == len(set(questions))


def test_the_faults_page_has_a_row_for_each_scenario_that_was_measured() -> None:
    """The table is generated from what `make chaos` wrote: `--output docs/measured/faults.jsonl` adds to them; and from
    the rows of `make compose-test`."""
    page = generate.faults()
    measured = {json.loads(line)["scenario"] for line in (generate.MEASURED / "faults.jsonl").read_text().splitlines()}
    assert measured <= SCENARIOS.keys() | FAULTS.keys(), "delete the lines of scenarios that are no more"
    for name in measured:
        assert page.count(f'"--only {name}"' if name in SCENARIOS else f'"-k {name}"') == 1
    assert "<svg" in page


def test_a_setting_that_is_new_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page follows the code: nothing is listed by hand."""
    newer = msgspec.defstruct("Newer", [("patience", float, 1.5)], bases=(Settings,), kw_only=True, frozen=True)
    monkeypatch.setattr("streaming.settings.sources.Settings", newer)
    monkeypatch.setattr(generate, "Settings", newer)
    assert "| `patience` |  | number | `1.5` | `LOCKKEEPER_PATIENCE` |" in generate.settings()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    config, folder = ROOT / "docs/mkdocs.yml", tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
def test_the_site_builds_strictly_and_loads_nothing_from_other_hosts(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert "lockkeeper is a streaming authorization enforcer" in home
    assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//', home)
    assert not re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(?:https?:)?//', home)
    assert 'class="md-footer__inner' in home, "next and previous"
    assert "pre-wrap" in (site / "stylesheets/wrap.css").read_text()
    for path in generate.PAGES:
        assert (site / path).with_suffix(".html").exists()


@pytest.mark.long
@pytest.mark.skipif(
    find_browser() is None, reason="no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER"
)
def test_the_search_finds_a_reason_code_in_pages_opened_as_files(site: Path, tmp_path: Path) -> None:
    browser = Browser(find_browser() or "", tmp_path / "profile")
    results = browser.dom(site / "index.html", "?q=deadline-exceeded").partition('class="md-search-result__list"')[2]
    assert "guides/troubleshooting.html" in results.partition("</ol>")[0]

"""Variables named `LOCKKEEPER_…`: those that are no settings are refused, since the default would apply unnoticed."""

import re
from pathlib import Path

import pytest

from streaming.settings import OTHER_VARIABLES, TEST_PREFIX, SettingsError, load_settings, variables
from tests.cli.lockkeeper import Command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LOCKKEEPER_MOD", "LOCKKEEPER_MODE"),
        ("LOCKKEEPER_BOOTSTRAP_SERVER", "LOCKKEEPER_BOOTSTRAP_SERVERS"),
        ("LOCKKEEPER_TOPIC_DECISIONS", "LOCKKEEPER_TOPICS_DECISIONS"),
        ("LOCKKEEPER_mode", "LOCKKEEPER_MODE"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}: .*did you mean .*{meant}\b") as refused:
        load_settings(None, {name: "s3cret"})
    assert "s3cret" not in str(refused.value)


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"(?s)LOCKKEEPER_MOD.*LOCKKEEPER_ZZZZZZ"):
        load_settings(None, {"LOCKKEEPER_ZZZZZZ": "", "LOCKKEEPER_MOD": "shadow"})


def test_a_command_ends_with_exit_code_2(lockkeeper: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_MOD", "shadow")
    shown = lockkeeper("topics", "manifest")
    assert shown.code == 2
    assert "LOCKKEEPER_MODE" in shown.err


def test_other_variables_are_left_alone() -> None:
    others = dict.fromkeys((*OTHER_VARIABLES, f"{TEST_PREFIX}CHANGES", "JAVA_HOME", "KAFKA_BOOTSTRAP_SERVERS"), "x")
    assert load_settings(None, others) == load_settings(None, {})


def test_what_kubernetes_says_of_a_service_is_left_alone() -> None:
    """Pods get it for each Service of their namespace, those whose names begin with lockkeeper- among them."""
    of_services = {
        "LOCKKEEPER_SERVICE_HOST": "10.0.0.1",
        "LOCKKEEPER_SERVICE_PORT": "9464",
        "LOCKKEEPER_PORT_9464_TCP_ADDR": "10.0.0.1",
        "LOCKKEEPER_GRAFANA_SERVICE_HOST": "10.0.0.2",
        "LOCKKEEPER_GRAFANA_SERVICE_PORT_WEB": "3000",
        "LOCKKEEPER_GRAFANA_PORT": "tcp://10.0.0.2:3000",
    }
    assert load_settings(None, {**of_services, "LOCKKEEPER_MODE": "shadow"}).mode == "shadow"
    with pytest.raises(SettingsError, match="LOCKKEEPER_PORT_9464_TCP_ADDR"):
        load_settings(None, {"LOCKKEEPER_PORT_9464_TCP_ADDR": "10.0.0.1"})


def test_every_variable_that_the_code_and_the_deployment_name_is_known() -> None:
    files = [
        file
        for folder in ("streaming", "deploy")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    ]
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in (*files, ROOT / "docker-compose.yml"))
    named = set(re.findall(r"\bLOCKKEEPER(?:_[A-Z]+)+\b", text))
    assert {"LOCKKEEPER_CONFIG", "LOCKKEEPER_IVY_SETTINGS", "LOCKKEEPER_METRICS_PORT"} <= named
    assert named - variables().keys() - OTHER_VARIABLES == set()

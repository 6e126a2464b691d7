"""Variables named `LOCKKEEPER_…`: those that are no settings are refused, since the default would apply unnoticed."""

import re
import traceback
from pathlib import Path

import pytest

from streaming.cli.common_options import KafkaOptions
from streaming.client import Connection
from streaming.settings import (
    OTHER_VARIABLES,
    TEST_PREFIX,
    Settings,
    SettingsError,
    check_settings,
    load_settings,
    monitor_settings,
    variables,
)
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


@pytest.mark.parametrize(
    "text",
    [
        '{"sasl.username": "dana", "sasl.password": "hun"ter2"}',
        "{sasl.password: 'hun'ter2'}",
        "{sasl.password: *hunter2}",
        "{sasl.password: !hunter2 x}",
        "{sasl.password: 0x_, a: hunter2}",
        "{sasl.password: hun\x00ter2}",
        "sasl.password=hunter2",
        "[hunter2]",
        "{sasl.password: [hunter2]}",
        "[" * 10_000 + "hunter2",
    ],
)
@pytest.mark.parametrize("name", ["LOCKKEEPER_KAFKA", "LOCKKEEPER_SOURCE", "LOCKKEEPER_SPARK"])
def test_a_value_that_is_refused_is_not_shown(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {name: text})
    _assert_not_shown(refused.value)
    path = tmp_path / "lockkeeper.yaml"
    path.write_text(f"{name.removeprefix('LOCKKEEPER_').lower()}: {text}")
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {})
    _assert_not_shown(refused.value)


def _assert_not_shown(error: SettingsError) -> None:
    shown = "".join(traceback.format_exception(error))
    assert "ter2" not in shown


def test_a_value_that_is_no_yaml_is_located(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"LOCKKEEPER_KAFKA: not YAML at line 1, column \d+: .*quote"):
        load_settings(None, {"LOCKKEEPER_KAFKA": '{"sasl.password": "hun"ter2"}'})
    path = tmp_path / "lockkeeper.yaml"
    path.write_text("mode: shadow\nkafka: {sasl.password: 'hun'ter2'}\n")
    with pytest.raises(SettingsError, match=rf"{path}: not YAML at line 2, column \d+"):
        load_settings(path, {})


@pytest.mark.parametrize(
    "text", ["[sasl.password: hunter2]", "hunter2", "job_name: {sasl.password: hunter2}", "\x80ter2"]
)
def test_a_file_of_another_shape_is_refused_without_what_it_holds(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lockkeeper.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {})
    _assert_not_shown(refused.value)


def test_a_group_of_settings_that_is_none_is_refused_though_a_variable_sets_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "lockkeeper.yaml"
    path.write_text("schema_registry: http://dana:hunter2@registry\n")
    with pytest.raises(SettingsError, match="schema_registry") as refused:
        load_settings(path, {"LOCKKEEPER_SCHEMA_REGISTRY_USER": "dana"})
    _assert_not_shown(refused.value)


def test_settings_show_no_value_that_may_be_secret() -> None:
    hidden = {"sasl.username": "hunter2", "sasl.password": "hunter2", "some.callback": "hunter2"}
    settings = check_settings(
        {
            "kafka": hidden,
            "source": hidden,
            "spark": hidden,
            "schema_registry": {"url": "http://registry:8081", "user": "dana", "password": "hunter2"},
            "tracing": {"endpoint": "http://dana:hunter2@collector:4318/v1/traces"},
        }
    )
    rich = [*settings.__rich_repr__(), *settings.schema_registry.__rich_repr__(), *settings.tracing.__rich_repr__()]
    for shown in (repr(settings), str(settings), f"{settings}", repr(Connection.of(settings)), repr(rich)):
        assert "hunter2" not in shown
    for shown in (repr(settings), repr(monitor_settings(settings))):
        assert "'sasl.password': '***'" in shown
        assert "encoding='json'" in shown
        assert "registry:8081" in shown


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"(?s)LOCKKEEPER_MOD.*LOCKKEEPER_ZZZZZZ"):
        load_settings(None, {"LOCKKEEPER_ZZZZZZ": "", "LOCKKEEPER_MOD": "shadow"})


def test_a_command_ends_with_exit_code_2(lockkeeper: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_MOD", "shadow")
    shown = lockkeeper("topics", "manifest")
    assert shown.code == 2
    assert "LOCKKEEPER_MODE" in shown.err


def test_a_setting_that_was_removed_is_accepted_with_a_warning(tmp_path: Path) -> None:
    path, warnings = tmp_path / "lockkeeper.yaml", list[str]()
    path.write_text("job_name: mine\ncandidate: drafts\n")
    assert load_settings(path, {}, warnings.append).job_name == "mine"
    assert load_settings(None, {"LOCKKEEPER_CANDIDATE": "drafts"}, warnings.append) == Settings()
    assert len(warnings) == 2
    assert all("candidate" in warning and "replay" in warning for warning in warnings)


def test_a_command_warns_of_a_setting_that_was_removed(lockkeeper: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_CANDIDATE", "drafts")
    assert "warning: candidate is no setting any more" in lockkeeper("topics", "manifest").err


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


@pytest.mark.parametrize("part", ["serve", "console", "metrics"])
def test_the_address_of_a_service_is_not_the_port_that_a_setting_of_its_name_has(part: str) -> None:
    """The job in the namespace of the Service lockkeeper-serve ended, for LOCKKEEPER_SERVE_PORT was tcp://… there."""
    name = f"LOCKKEEPER_{part.upper()}"
    link = {f"{name}_SERVICE_HOST": "10.0.0.1", f"{name}_PORT": "tcp://10.0.0.1:8443"}
    assert load_settings(None, link) == load_settings(None, {})
    own = load_settings(None, {**link, f"{name}_PORT": "8443"})  # the pod's own takes precedence over Kubernetes'
    assert getattr(own, part).port == 8443
    for alone in ({f"{name}_PORT": "tcp://10.0.0.1:8443"}, {**link, f"{name}_PORT": "tcp:8443"}):
        with pytest.raises(SettingsError, match=f"{part}.port"):
            load_settings(None, alone)


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


def test_the_command_line_takes_precedence_over_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "lockkeeper.yaml"
    config.write_text("master: local[1]\nbootstrap_servers: file:1\n")
    assert KafkaOptions(config).settings().master == "local[1]"
    monkeypatch.setenv("LOCKKEEPER_MASTER", "local[2]")
    assert KafkaOptions(config).settings().master == "local[2]"
    settings = KafkaOptions(config, "kafka:9092").settings("spark://spark-master:7077")
    assert (settings.bootstrap_servers, settings.master) == ("kafka:9092", "spark://spark-master:7077")

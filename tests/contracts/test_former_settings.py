"""Settings of the version before: each is accepted with a warning that names it, from the file and the environment."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from streaming.settings import Settings, SettingsError, load_settings, variable
from streaming.settings.former import REMOVED, REPLACED, TRACES


def _load(tmp_path: Path, data: Any, **environment: str) -> tuple[Settings, list[str]]:
    """The settings of a file and variables, and what was warned of."""
    file, warnings = tmp_path / "lockkeeper.yaml", list[str]()
    file.write_text(yaml.safe_dump(data))
    return load_settings(file, environment, warnings.append), warnings


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize("path", REMOVED, ids=".".join)
def test_a_removed_one_has_no_effect_and_is_warned_of_by_name(path: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever its value is, also one that was never accepted."""
    for settings, warnings in (
        _load(tmp_path, _nested(path, ["anything"])),
        _load(tmp_path, {}, **{variable(path): "{"}),
    ):
        assert settings == Settings()
        [warning] = warnings
        assert warning.startswith(f"{'.'.join(path)} is no setting any more and has no effect: ")


ON = "true"


@pytest.mark.parametrize(
    ("former", "successor"),
    [
        ({"monitor": {"enabled": False}}, {"monitor": {"mode": "none"}}),
        ({"monitor": {"enabled": True}}, {"monitor": {"mode": "job"}}),
        ({"monitor": {"separate": True}}, {"monitor": {"mode": "separate"}}),
        ({"monitor": {"separate": False}}, {"monitor": {"mode": "job"}}),
        ({"monitor": {"enabled": True, "separate": True}}, {"monitor": {"mode": "separate"}}),
        ({"monitor": {"enabled": False, "separate": True}}, {"monitor": {"mode": "none"}}),
        ({"policy": {"require_author": True}}, {"policy": {"require": ["author"]}}),
        (
            {"policy": {"require_author": False, "require_commit": True, "require_reason": True}},
            {"policy": {"require": ["commit", "reason"]}},
        ),
        ({"policy": {"require_author": False}}, {}),
        ({"serve": {"record_systems": {}}}, {}),
        ({"serve": {"record_systems": {"cdap": "none"}}}, {"serve": {"record": {"cdap": "none"}}}),
        ({"serve": {"record": "none", "record_systems": {}}}, {"serve": {"record": "none"}}),
        ({"tracing": {"enabled": True}}, {"tracing": {"endpoint": TRACES}}),
        ({"tracing": {"enabled": True, "endpoint": "http://a:1/"}}, {"tracing": {"endpoint": "http://a:1/"}}),
        ({"tracing": {"enabled": False, "endpoint": "http://a:1/"}}, {}),
        ({"tracing": {"enabled": False}}, {}),
    ],
)
def test_a_replaced_one_has_its_effect_and_is_warned_of_with_its_successor(
    former: dict[str, dict[str, Any]], successor: Any, tmp_path: Path
) -> None:
    expected, none = _load(tmp_path, successor)
    given = [(section, name) for section, fields in former.items() for name in fields if (section, name) in REPLACED]
    environment = {
        variable((section, name)): value if isinstance(value, str) else yaml.safe_dump(value)
        for section, fields in former.items()
        for name, value in fields.items()
    }
    for settings, warnings in (_load(tmp_path, former), _load(tmp_path, {}, **environment)):
        assert _effects(settings) == _effects(expected)
        assert sorted(warning.partition(" ")[0] for warning in warnings) == sorted(map(".".join, given))
        assert all(" is replaced, and has its effect in this version alone. Set " in warning for warning in warnings)
    assert none == []


def _effects(settings: Settings) -> Any:
    modes = {system: settings.serve.record_of(system) for system in settings.systems}
    return modes, settings.monitor, settings.policy, settings.tracing


@pytest.mark.parametrize("others", ["all", "durable", "denials", "none"])
def test_what_was_recorded_of_the_other_systems_still_is(others: str, tmp_path: Path) -> None:
    data = {"systems": ["cdap", "lenses6", "cedar"], "serve": {"record": others, "record_systems": {"cdap": "durable"}}}
    settings, _ = _load(tmp_path, data)
    modes = {system: settings.serve.record_of(system) for system in settings.systems}
    assert modes == {"cdap": "durable", "lenses6": others, "cedar": others}
    assert settings.records_answers


def test_the_environment_takes_precedence_and_a_successor_over_the_mode_that_it_replaces(tmp_path: Path) -> None:
    settings, _ = _load(tmp_path, {"monitor": {"separate": False}}, LOCKKEEPER_MONITOR_SEPARATE=ON)
    assert settings.monitor.mode == "separate"
    settings, _ = _load(tmp_path, {"monitor": {"mode": "job", "separate": True}, "policy": {"require": ["reason"]}})
    assert (settings.monitor.mode, settings.policy.require) == ("job", ("reason",))
    settings, _ = _load(tmp_path, {"policy": {"require": ["reason"]}}, LOCKKEEPER_POLICY_REQUIRE_AUTHOR=ON)
    assert settings.policy.require == ("reason", "author"), "nothing that is required is lifted"


@pytest.mark.parametrize("path", [path for path in REPLACED if path[-1] != "record_systems"], ids=".".join)
def test_a_replaced_one_takes_no_other_value_than_before(path: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{'.'.join(path)}: must be true or false. It is replaced by "):
        _load(tmp_path, _nested(path, "no"))


@pytest.mark.parametrize("value", [["cdap"], {"cdap": "sometimes"}, {"nonesuch": "none"}, 5])
def test_wrong_systems_whose_answers_are_recorded_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"serve\.record"):
        _load(tmp_path, {"serve": {"record_systems": value}})


@pytest.mark.parametrize(
    "data",
    [{"serve": {"recod": "all"}}, {"monitor": {"separated": True}}, {"limits": {"max_claims": 1}}, {"polcy": {}}],
)
def test_what_never_was_a_setting_is_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown field"):
        _load(tmp_path, data)
    with pytest.raises(SettingsError, match="there is no such setting"):
        _load(tmp_path, {}, LOCKKEEPER_MONITOR_SEPARATED=ON)

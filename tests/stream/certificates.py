"""Certificates for tests of TLS: an authority, the broker's, and one for each client, as PEM files."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streaming.broker import HOST

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate and its private key, in a file each and both in one, as Java wants them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Issues certificates into a folder. `ca`: the file with its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _name("lockkeeper-test-ca")
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder("lockkeeper-test-ca", self._key).add_extension(constraints, critical=True)
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str) -> Pem:
        """A certificate with this common name, for the tests' host."""
        key = ec.generate_private_key(ec.SECP256R1())
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        certificate = _pem(
            self._builder(name, key).add_extension(host, critical=False).sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        made = Pem(*(self._folder / f"{name}.{ending}" for ending in ("crt", "key", "pem")))
        made.certificate.write_bytes(certificate)
        made.key.write_bytes(private)
        made.both.write_bytes(private + certificate)
        return made

    def _builder(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, _name(name), key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(now - DAY).not_valid_after(now + DAY)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

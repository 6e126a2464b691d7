"""An issuer of tokens: keys, its JWK Set, tokens of any form, also of those that nobody should accept."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.jwk import ECKey, Key, RSAKey
from joserfc.jws import JWSRegistry

ISSUER, AUDIENCE = "https://issuer.example.com", "lockkeeper"


class Issuer:
    """`rsa`, `ec`: its keys, with the ids "rsa" and "ec"."""

    def __init__(self) -> None:
        self.rsa = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
        self.ec = ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"})

    def jwks(self, *keys: Key) -> bytes:
        """The set of its public keys, or of these."""
        return json.dumps({"keys": [key.as_dict(private=False) for key in keys or (self.rsa, self.ec)]}).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Those of a token that is valid; a change to None leaves one out."""
        now = int(time.time())
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "checkout", "iat": now, "nbf": now, "exp": now + 300, **changes}
        return {name: value for name, value in given.items() if value is not None}

    def token(self, key: Key | None = None, header: dict[str, Any] | None = None, **changes: Any) -> bytes:
        """A signed token, by the RSA key unless another is given."""
        key = key or self.rsa
        algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
        full = {"alg": algorithm, "kid": key.kid, **(header or {})}
        signed = b".".join([encoded(full), encoded(self.claims(**changes))])
        signature = JWSRegistry.algorithms[full["alg"]].sign(signed, key)  # whatever the header says
        return signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")

    def unsigned(self, **header: Any) -> bytes:
        """A token of the algorithm `none`."""
        return b".".join([encoded({"alg": "none", **header}), encoded(self.claims()), b""])

    def by_hmac(self, secret: bytes, **header: Any) -> bytes:
        """A token of HS256, such as with the public key for a secret."""
        signed = b".".join([encoded({"alg": "HS256", "kid": "rsa", **header}), encoded(self.claims())])
        return signed + b"." + base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=")

    def public_pem(self) -> bytes:
        """The RSA key as verifiers have it."""
        return self.rsa.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def encoded(value: Any) -> bytes:
    """A part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

"""The settings of who may ask `lockkeeper serve`: TLS, client certificates, bearer tokens. Plain data."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures by an asymmetric key alone: with HS256, each service that can verify a token can also issue one."""

MAX_LEEWAY_SECONDS = 300
LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})  # as written: `localhost.` is what a name server says
PLAIN_URL = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?(/[a-z0-9/._~!$&'()*+,;=:@%-]*)?(\?[a-z0-9/._~!$&'()*+,;=:@%?-]*)?",
    re.IGNORECASE | re.ASCII,
)
"""RFC 3986 without a user (`http://localhost:80@evil.example/`), a fragment, spaces and backslashes."""


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM. `certificate`: with the chain; `key`: its private key, without a password; "": no TLS.

    `client_ca`: the authorities whose client certificates are accepted; "": callers are not named by certificates.
    `client_certificate`: whether a client must have one to connect; `optional`: a bearer token will do.
    """

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    client_certificate: Literal["required", "optional"] = "required"


class JwtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON Web Tokens, RFC 7519. `issuer`: that `iss` must be; "": none are accepted. `audience`: that `aud` must hold.

    `jwks`: the issuer's keys, a JWK Set (RFC 7517): a file, or an https URL. `algorithms`: that tokens may be signed
    with. `leeway_seconds`: by which clocks may differ. `claim`: that names the caller.
    """

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = ("RS256", "ES256")
    leeway_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_LEEWAY_SECONDS)] = 30
    claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"


def tls_problem(tls: TlsSettings) -> str | None:
    """What is wrong with the settings of TLS, with the fix; None: nothing."""
    if bool(tls.certificate) != bool(tls.key):
        return "serve.tls: certificate and key go together; set both, or none"
    if tls.client_ca and not tls.certificate:
        return "serve.tls.client_ca: client certificates need TLS; set serve.tls.certificate and serve.tls.key"
    return None


def jwt_problem(jwt: JwtSettings) -> str | None:
    """What is wrong with the settings of tokens, with the fix; None: nothing."""
    given = {"issuer": jwt.issuer, "audience": jwt.audience, "jwks": jwt.jwks}
    missing = [name for name, value in given.items() if not value]
    if missing and len(missing) < len(given):
        return f"serve.jwt: issuer, audience and jwks go together; {' and '.join(missing)} is not set"
    if jwt.jwks and is_url(jwt.jwks) and not is_trustworthy(jwt.jwks):
        return (
            "serve.jwt.jwks: must be a file or an https URL, without a user: with other keys, anybody could sign tokens"
        )
    return None


def is_url(source: str) -> bool:
    """Whether it is a URL, of any scheme, rather than a file."""
    return "://" in source


def is_trustworthy(url: str) -> bool:
    """Whether it is of https, or of this machine, whatever reads it: parsers differ about URLs of other forms."""
    if not PLAIN_URL.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if not parts.hostname or port == 0:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOCAL_HOSTS)

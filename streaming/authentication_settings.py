"""The settings of who may ask `lockkeeper serve`: TLS, client certificates, bearer tokens. Plain data."""

from typing import Annotated, Literal

import msgspec

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures by an asymmetric key alone: with HS256, each service that can verify a token can also issue one."""

MAX_LEEWAY_SECONDS = 300


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
    scheme, separator, rest = jwt.jwks.partition("://")
    if not separator or scheme == "https":
        return None
    host = rest.partition("/")[0].rpartition(":")[0] or rest.partition("/")[0]
    if scheme == "http" and host in ("127.0.0.1", "[::1]", "localhost"):
        return None
    return "serve.jwt.jwks: must be a file or an https URL: with other keys, anybody could sign tokens"

"""The settings of `lockkeeper serve`, and what must hold between them."""

from typing import Annotated, Literal

import msgspec

from policy import CLAIMS
from streaming.alert_kinds import MOST_SECONDS
from streaming.settings.errors import SettingsError
from streaming.settings.urls import is_address, is_loopback, is_trustworthy, is_url

RecordMode = Literal["all", "durable", "denials", "none"]
CLAIMABLE = CLAIMS - {"time"}
"""What callers without credentials may be trusted for: the time is the server's."""


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

    `jwks`: the issuer's keys, a JWK Set (RFC 7517): a file, or an https URL. `claim`: that names the caller.
    """

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lockkeeper serve`. Without `callers` only this machine may ask.

    `callers`: a YAML file of who may ask, by which credentials, what; "": callers need none. `tls`, `jwt`: see there.
    `allow_plaintext`: an address that other machines reach without TLS, where a proxy or service mesh encrypts. `port`:
    0 takes a free one. `url`: at which callers reach it, for `/.well-known/authzen-configuration`; "": address and
    port. `default_system`: of the paths that name none; "": they need `context.system`. `trust`: what callers may
    claim; `search`: whether they may search who may do what. `max_staleness_seconds`: policies that could not be read
    for so long decide nothing. `drain_seconds`: how long it goes on answering, while it is not ready, once it is asked
    to stop. `access_log`: a line per response. `record`: which answers are recorded, `durable`: and given once Kafka
    has them; one for all systems, or one for each, `all` for those not listed. `ext_authz`: a YAML file of routes for
    Envoy's external authorization; "": there is none.
    """

    address: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    callers: str = ""
    tls: TlsSettings = TlsSettings()
    jwt: JwtSettings = JwtSettings()
    allow_plaintext: bool = False
    url: str = ""
    default_system: str = ""
    trust: frozenset[str] = frozenset()
    max_staleness_seconds: Annotated[float, msgspec.Meta(ge=1, le=MOST_SECONDS)] = 15.0
    search: bool = True
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = 0.0
    access_log: bool = False
    ext_authz: str = ""
    record: RecordMode | dict[str, RecordMode] = "all"

    def record_of(self, system: str) -> RecordMode:
        """Which answers of a system are recorded."""
        return self.record.get(system, "all") if isinstance(self.record, dict) else self.record


def check_serve(serve: ServeSettings, systems: tuple[str, ...]) -> None:
    """Raise SettingsError for what does not fit together. `systems`: those with topics."""
    if unknown := serve.trust - CLAIMABLE:
        raise SettingsError(f"serve.trust: {sorted(unknown)} are not among {sorted(CLAIMABLE)}")
    if serve.default_system and serve.default_system not in systems:
        raise SettingsError(f"serve.default_system: {serve.default_system!r} is not one of systems: {systems}")
    if serve.url and not is_address(serve.url):
        raise SettingsError("serve.url: not an address such as https://pdp.example.com")
    if problem := _tls_problem(serve.tls) or _jwt_problem(serve.jwt):
        raise SettingsError(problem)
    _check_callers(serve)
    if not is_loopback(serve.address):
        _check_reachable(serve)


def _check_callers(serve: ServeSettings) -> None:
    if serve.callers and serve.trust:
        raise SettingsError("serve.trust: leave it out, as serve.callers gives each caller its own")
    if serve.ext_authz and not serve.callers:
        raise SettingsError("serve.ext_authz: needs serve.callers: Envoy is one of them, and names subjects")
    if not serve.callers and (serve.jwt.issuer or serve.tls.client_ca):
        raise SettingsError("serve.callers: must name a file that says who may ask, with these credentials")


def _check_reachable(serve: ServeSettings) -> None:
    """Other machines ask with credentials alone, and send them with encryption."""
    if not serve.callers:
        raise SettingsError(
            f"serve.address: {serve.address} lets other machines ask, without credentials. Use 127.0.0.1, or "
            "say who may ask in a file that serve.callers names (LOCKKEEPER_SERVE_CALLERS)"
        )
    if not serve.tls.certificate and not serve.allow_plaintext:
        raise SettingsError(
            f"serve.address: at {serve.address} credentials would be sent without encryption. Set "
            "serve.tls.certificate and serve.tls.key; where a proxy or service mesh on the way encrypts, set "
            "serve.allow_plaintext (LOCKKEEPER_SERVE_ALLOW_PLAINTEXT=true)"
        )


def _tls_problem(tls: TlsSettings) -> str | None:
    """What is wrong with the settings of TLS, with the fix; None: nothing."""
    if bool(tls.certificate) != bool(tls.key):
        return "serve.tls: certificate and key go together; set both, or none"
    if tls.client_ca and not tls.certificate:
        return "serve.tls.client_ca: client certificates need TLS; set serve.tls.certificate and serve.tls.key"
    return None


def _jwt_problem(jwt: JwtSettings) -> str | None:
    """What is wrong with the settings of tokens, with the fix; None: nothing."""
    needed = {"issuer": jwt.issuer, "audience": jwt.audience, "jwks": jwt.jwks}
    missing = [name for name, value in needed.items() if not value]
    if missing and len(missing) < len(needed):
        return f"serve.jwt: issuer, audience and jwks go together; {' and '.join(missing)} is not set"
    if jwt.jwks and is_url(jwt.jwks) and not is_trustworthy(jwt.jwks):
        return (
            "serve.jwt.jwks: must be a file or an https URL, without a user: with other keys, anybody could sign tokens"
        )
    return None

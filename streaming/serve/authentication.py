"""The caller that a request's credentials name. Without valid ones there is no caller, and no decision.

A bearer token (RFC 6750) counts before a client certificate: on a connection of a service mesh, whose certificate names
a proxy, it names who asks. A token that is not valid is refused whatever the certificate says.
"""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import structlog

from streaming.serve.callers import Caller, Callers, load_callers, rules_of
from streaming.serve.files import Changes
from streaming.serve.keys import IssuerKeys, KeysUnavailable
from streaming.serve.tls import PEER, Peer
from streaming.serve.tokens import InvalidToken, Tokens
from streaming.settings import Settings, SettingsError
from streaming.settings.urls import host_of, is_url

log = structlog.get_logger()

__all__ = ["Authentication", "KeysUnavailable", "Unauthorized"]

TOKEN_BYTES = 8192
BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

Scope = dict[str, Any]


class Unauthorized(Exception):
    """There is no caller. `status`, and `challenge`, the value of `WWW-Authenticate`, as RFC 6750 has them.

    The message is sent to the client: it holds nothing of the credentials.
    """

    def __init__(self, message: str, error: str = "", status: int = 401) -> None:
        super().__init__(message)
        self.status = status
        detail = f', error="{error}", error_description="{message}"' if error else ""
        self.challenge = f'Bearer realm="lockkeeper"{detail}'.encode("ascii")


class Authentication:
    """Names the caller of a request. `reread` takes what changed in the files. `clock`: Unix time, s.

    Raises SettingsError where a file cannot be used.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        serve = settings.serve
        self._settings, self._clock = settings, clock
        self._callers: Callers | None = load_callers(settings) if serve.callers else None
        self._anyone = Caller("", rules_of(settings, settings.systems, serve.trust))
        self._hosts = LOCAL | {urlsplit(serve.url).hostname or "localhost"}
        self._tokens: Tokens | None = None
        self._keys: IssuerKeys | None = None
        if serve.jwt.issuer:
            self._keys = IssuerKeys(serve.jwt.jwks)
            self._keys.load()
            self._tokens = Tokens(serve.jwt, self._keys, clock)
        self._changes = Changes([serve.callers] if serve.callers else [])
        self._key_changes = Changes([serve.jwt.jwks] if serve.jwt.jwks and not is_url(serve.jwt.jwks) else [])

    async def caller(self, scope: Scope) -> Caller:
        """The caller. Raises Unauthorized, and KeysUnavailable while that cannot be determined."""
        if self._callers is None:
            return self._local(scope)
        authorizations = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(authorizations) > 1:
            raise Unauthorized("there are several Authorization headers", "invalid_request", 400)
        caller = (
            await self._by_token(_bearer(authorizations[0]), self._callers)
            if authorizations
            else self._by_certificate(scope)
        )
        if caller is None:
            raise Unauthorized("credentials are needed: a bearer token or a client certificate of a known caller")
        return caller

    def _local(self, scope: Scope) -> Caller:
        """Programs of this machine ask it; a web page that had its name resolved to this machine must not."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or host_of(hosts[0].decode("latin-1")) not in self._hosts:
            raise Unauthorized("the Host header must name this machine, or the host of serve.url", status=403)
        return self._anyone

    async def _by_token(self, token: bytes, callers: Callers) -> Caller:
        caller = callers.by_token(token)
        if caller is None and self._tokens is not None:
            try:
                caller = callers.by_subject(await self._tokens.subject(token))
            except InvalidToken as invalid:
                raise Unauthorized(str(invalid), "invalid_token") from None
            if caller is None:
                raise Unauthorized("the token is of no known caller", "invalid_token")
        if caller is None:
            raise Unauthorized("the token is not known", "invalid_token")
        return caller

    def _by_certificate(self, scope: Scope) -> Caller | None:
        peer: Peer | None = scope.get(PEER)
        if peer is None or self._callers is None or self._clock() >= peer.until:
            return None
        return self._callers.by_certificate(peer.names)

    def reread(self) -> None:
        """Take changed files; where one cannot be used, what it had before stays in force."""
        if self._changes.seen():
            try:
                self._callers = load_callers(self._settings)
                log.info("callers were read again")
            except SettingsError as error:
                log.error("callers stay as they were: their file cannot be used", error=str(error))
        if self._key_changes.seen() and self._keys is not None:
            self._keys.reread()


def _bearer(value: bytes) -> bytes:
    if len(value) > TOKEN_BYTES:
        raise Unauthorized(f"the Authorization header is too long; at most {TOKEN_BYTES} bytes", "invalid_token")
    match = BEARER.fullmatch(value)
    if match is None:
        raise Unauthorized("the Authorization header must be: Bearer TOKEN", "invalid_token")
    return match[1]

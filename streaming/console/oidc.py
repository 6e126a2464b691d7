"""OpenID Connect: the authorization code flow with PKCE (RFC 7636), by the endpoints of the issuer's metadata."""

import asyncio
import base64
import math
import secrets
import time
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import structlog

from streaming.console.sessions import MOST_GROUPS, Session, SignIn
from streaming.serve.keys import IssuerKeys, KeysUnavailable, fetch_url
from streaming.serve.tokens import InvalidToken, Tokens
from streaming.settings.console import OidcSettings
from streaming.settings.serve import JwtSettings
from streaming.settings.urls import is_trustworthy

log = structlog.get_logger()

METADATA_SECONDS, RETRY_SECONDS = 3600.0, 5.0
SIGN_IN_SECONDS = 600.0
SESSION_SECONDS = 3600  # after which viewers sign in again
MOST_CODE = 4096


class SignInFailed(Exception):
    """Nobody signed in; the message says why, and holds nothing of code, token or secret."""


class IssuerUnavailable(Exception):
    """The issuer does not answer, or not as its kind does."""


class _Metadata(msgspec.Struct, frozen=True):
    """OpenID Connect Discovery 1.0, as far as it is needed."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class _Answer(msgspec.Struct, frozen=True):
    """The answer of the token endpoint."""

    id_token: str


class Issuer:
    """Signs viewers in. `callback`: the redirect URI."""

    def __init__(self, settings: OidcSettings, callback: str) -> None:
        self._settings, self._callback = settings, callback
        self._metadata: _Metadata | None = None
        self._read_at = self._failed_at = -math.inf
        self._tokens: Tokens | None = None

    async def begin(self, path: str) -> tuple[SignIn, str]:
        """A sign-in, and where the browser is sent for it. Raises IssuerUnavailable."""
        metadata = await self._known()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        digest = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._callback,
            "scope": "openid",
            "state": state,
            "nonce": nonce,
            "code_challenge": digest,
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        address = f"{metadata.authorization_endpoint}{separator}{urlencode(asked)}"
        return SignIn(state, nonce, verifier, path, time.time() + SIGN_IN_SECONDS), address

    async def finish(self, begun: SignIn, code: str, issuer: str) -> Session:
        """The session of who signed in. Raises SignInFailed, and IssuerUnavailable.

        `issuer`: what the answer names, "" where it does not (RFC 9207).
        """
        metadata = await self._known()
        if issuer and issuer != metadata.issuer:
            raise SignInFailed("the answer is of another issuer")
        claims = await self._claims(await self._id_token(metadata, begun, code))
        if claims.get("nonce") != begun.nonce:
            raise SignInFailed("the token is of another sign-in")
        audience = claims.get("aud")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id or (
            isinstance(audience, list) and len(audience) > 1 and "azp" not in claims
        ):
            raise SignInFailed("the token was issued to another client")
        groups = claims.get(self._settings.groups_claim)
        named = [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else []
        until = time.time() + SESSION_SECONDS
        subject = str(claims[self._settings.claim])
        return Session(secrets.token_urlsafe(16), subject, tuple(named[:MOST_GROUPS]), until)

    async def _id_token(self, metadata: _Metadata, begun: SignIn, code: str) -> str:
        if not code or len(code) > MOST_CODE:
            raise SignInFailed("the issuer sent no code")
        settings = self._settings
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": settings.client_id,
            "code_verifier": begun.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if settings.client_secret:  # RFC 6749, 2.3.1
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            body = await asyncio.to_thread(fetch_url, metadata.token_endpoint, urlencode(fields).encode(), headers)
            return msgspec.json.decode(body, type=_Answer).id_token
        except (OSError, ValueError) as error:
            log.warning("the issuer gave no token for a code", error=type(error).__name__)
            raise SignInFailed("the issuer gave no token for the code: sign in again") from None

    async def _claims(self, token: str) -> dict[str, Any]:
        assert self._tokens is not None
        try:
            await self._tokens.renew()
            return await self._tokens.claims(token.encode())
        except InvalidToken as invalid:
            log.warning("the issuer's token is not valid", error=str(invalid))
            raise SignInFailed("the issuer's token is not valid") from None
        except KeysUnavailable as error:
            raise IssuerUnavailable(str(error)) from None

    async def _known(self) -> _Metadata:
        """The issuer's metadata. Raises IssuerUnavailable."""
        if self._metadata is None or time.monotonic() - self._read_at > METADATA_SECONDS:
            if time.monotonic() - self._failed_at < RETRY_SECONDS:  # anybody may ask, and would wait for the issuer
                raise IssuerUnavailable("the issuer does not answer")
            try:
                self._take(await asyncio.to_thread(self._read))
            except IssuerUnavailable:
                self._failed_at = time.monotonic()
                raise
        assert self._metadata is not None
        return self._metadata

    def _read(self) -> _Metadata:
        issuer = self._settings.issuer
        try:
            body = fetch_url(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            metadata = msgspec.json.decode(body, type=_Metadata)
        except (OSError, ValueError) as error:
            log.warning("the issuer's metadata cannot be read", error=str(error))
            raise IssuerUnavailable("the issuer does not answer") from None
        endpoints = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri)
        if metadata.issuer != issuer or not all(map(is_trustworthy, endpoints)):
            raise IssuerUnavailable("the issuer's metadata are of another issuer, or name endpoints without https")
        return metadata

    def _take(self, metadata: _Metadata) -> None:
        settings = self._settings
        if self._metadata is None or metadata.jwks_uri != self._metadata.jwks_uri:
            verified = JwtSettings(
                issuer=metadata.issuer,
                audience=settings.client_id,
                jwks=metadata.jwks_uri,
                claim=settings.claim,
            )
            self._tokens = Tokens(verified, IssuerKeys(metadata.jwks_uri))
        self._metadata, self._read_at = metadata, time.monotonic()

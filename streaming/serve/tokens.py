"""JSON Web Tokens (RFC 7519): whether one was signed by the issuer for this server, and whom it names.

joserfc verifies them: its keys are typed, so that a public key cannot be used as the secret of HS256, and
confluent-kafka's schema registry client brings it anyway. The algorithms are asymmetric ones alone. Keys are found by
`kid` among the issuer's own: those that a token carries or points to (`jwk`, `jku`, `x5c`) do not count.
"""

import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from joserfc import jws
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from policy import decode_json
from streaming.serve.keys import IssuerKeys
from streaming.settings.serve import JwtSettings

LEEWAY_SECONDS = 30  # by which clocks may differ: RFC 7519, 4.1.4 has "a few minutes" at the most
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""By an asymmetric key alone: with HS256, each service that can verify a token can also issue one. Which of these
counts is the issuer's choice, by its keys: see `streaming.serve.keys`."""
KEPT = 10_000  # verified tokens
HEADER_BYTES = 4096
warnings.filterwarnings("ignore", message="EdDSA is deprecated")  # for Ed25519, which issuers do not write yet


class InvalidToken(Exception):
    """The token counts for nothing. The message says why, and holds nothing of the token."""


class _Registry(JWSRegistry):
    max_header_length = HEADER_BYTES


class Tokens:
    """Verifies tokens, and keeps those that were for as long as they and the keys are valid. `clock`: Unix time, s."""

    def __init__(self, settings: JwtSettings, keys: IssuerKeys, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._keys, self._clock = settings, keys, clock
        # Headers that joserfc does not know, such as those of Entra ID, do not matter; `crit` is refused.
        self._registry = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)
        text = {"essential": True, "allow_blank": False}
        self._claims = JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            **{settings.claim: text},  # type: ignore[arg-type]
        )
        self._verified: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._kept_under = 0

    async def subject(self, token: bytes) -> str:
        """Whom a token names. Raises InvalidToken, or KeysUnavailable where the issuer's keys cannot be had."""
        digest = sha256(token).digest()
        await self.renew()
        if self._kept_under != self._keys.version:
            self._verified.clear()
            self._kept_under = self._keys.version
        cached = self._verified.get(digest)
        if cached is not None and self._clock() < cached[0]:
            return cached[1]
        claims = await self.claims(token)
        until, subject = claims["exp"] + LEEWAY_SECONDS, str(claims[self._settings.claim])
        if self._kept_under == self._keys.version:
            self._verified[digest] = until, subject
            if len(self._verified) > KEPT:
                self._verified.popitem(last=False)
        return subject

    async def renew(self) -> None:
        """Fetch the issuer's keys where they are old. Raises KeysUnavailable."""
        await self._keys.renew()

    async def claims(self, token: bytes) -> dict[str, Any]:
        """All that a token says, once it is verified: that which names the caller is a text. Raises as `subject`."""
        try:
            signed = jws.extract_compact(token, registry=self._registry)
            header = signed.headers()
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:  # before any key is looked for
                raise InvalidToken("the token is not signed with an accepted algorithm")
            if "crit" in header or "b64" in header:
                raise InvalidToken("the token has critical headers")
            key = await self._key(algorithm, kid)
            if not jws.validate_compact(signed, key, registry=self._registry):
                raise InvalidToken("the signature is not one of the issuer")
            claims = decode_json(signed.payload or b"")
            if not isinstance(claims, dict):
                raise InvalidToken("the token has no claims")
            self._claims.validate(claims)
            if not isinstance(claims[self._settings.claim], str):
                raise InvalidToken("the claim that names the caller is not a text")
            return claims
        except ExpiredTokenError:
            raise InvalidToken("the token is expired") from None
        except ClaimError as error:
            raise InvalidToken(f"the claim {_known(error.claim)} is missing or not as it must be") from None
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise InvalidToken("not a signed JWT of the issuer") from None

    async def _key(self, algorithm: str, kid: object) -> Key:
        if kid is not None and not isinstance(kid, str):
            raise InvalidToken("kid: must be a text")
        key = self._keys.find(algorithm, kid) or await self._keys.find_newer(algorithm, kid)
        if key is None:
            raise InvalidToken("the key that the token names is not one of the issuer")
        return key


def _known(claim: str) -> str:
    """The name of a claim, if it is a usual one: others are the token's."""
    names = [name for name in claim.split(",") if name in ("iss", "aud", "exp", "nbf", "iat", "sub", "jti")]
    return " and ".join(names) or "that names the caller"

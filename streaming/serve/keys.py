"""The public keys of the issuer of tokens: a JWK Set (RFC 7517) from a file or a URL, fetched off the event loop."""

import asyncio
import contextlib
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import structlog
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from streaming.settings import SettingsError
from streaming.settings.urls import is_trustworthy, is_url

log = structlog.get_logger()

REFRESH_SECONDS = 300.0  # so that a key that the issuer withdrew ends
MAX_AGE_SECONDS = 3600.0  # of keys that cannot be fetched again
QUIET_SECONDS = 30.0  # in which no token has had them fetched: the next one waits for that
RETRY_SECONDS = 10.0  # between two fetches at least: unknown callers choose the `kid`
FETCH_SECONDS = 5.0
MAX_BYTES = 1 << 20
MAX_KEYS = 1000
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 16384  # with a longer one, each signature takes long

MAX_MEMBER = 4096  # characters of a modulus or coordinate
PUBLIC = ("kty", "kid", "alg", "use", "key_ops", "n", "e", "crv", "x", "y")

TYPES: dict[str, type[Key]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""By the first letters of an algorithm."""
ALGORITHMS = {
    "RSA": ("RS256",),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
}
"""Of a key that names none in `alg`, by its curve or type: a key must verify one algorithm alone (RFC 8725, 3.1).
Issuers that name none sign with RS256, the default of OpenID Connect; the two of Ed25519 are names of one."""

NO_KEY = "the JWK Set has no public key for signatures (RSA of 2048 bits or more, EC or OKP)"


class KeysUnavailable(Exception):
    """The issuer's keys cannot be had: no token can be verified, valid or not."""


class IssuerKeys:
    """Keys by id. `source`: a path or URL. `clock`: monotonic, s. `version` grows when they change."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._keys: list[Key] = []
        self._fetched: float | None = None
        self._tried: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.version = 0

    def load(self) -> None:
        """Fetch them before anything is answered. Raises SettingsError where a file has none; a URL may come later."""
        try:
            keys = read_keys(self._source)
            if not keys:
                raise ValueError(NO_KEY)
            self._take(keys)
        except (OSError, ValueError) as error:
            if not is_url(self._source):
                raise SettingsError(f"serve.jwt.jwks: {self._source}: {error}") from None
            log.warning("the keys of the issuer cannot be fetched; trying again", error=str(error))

    def reread(self) -> None:
        """Take what a file has now; where it cannot be used, the keys stay until they are too old."""
        try:
            self._take(read_keys(self._source))
            log.info("the keys of the issuer were read again")
        except (OSError, ValueError) as error:
            log.error("the keys of the issuer stay as they were: their file cannot be used", error=str(error))

    def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key with this id that fits the algorithm. Without an id, the only key."""
        if kid is None:
            fitting = [key for key in self._keys if _fits(key, algorithm)]
            return fitting[0] if len(self._keys) == 1 and fitting else None
        return next((key for key in self._keys if key.kid == kid and _fits(key, algorithm)), None)

    async def find_newer(self, algorithm: str, kid: str | None) -> Key | None:
        """The same, after they were fetched again, unless that was done a moment ago."""
        await self._fetch()
        return self.find(algorithm, kid)

    async def renew(self) -> None:
        """Begin to fetch them where they are old. Raises KeysUnavailable where they are too old.

        After a time without tokens it waits for the fetch: a key that was withdrawn meanwhile would count. Else nobody
        waits for an issuer that does not answer.
        """
        age, tried = self._age(), self._fetched if self._tried is None else self._tried
        is_quiet = age > REFRESH_SECONDS + QUIET_SECONDS and (tried is None or self._clock() - tried > QUIET_SECONDS)
        if is_quiet or age > MAX_AGE_SECONDS:
            await self._fetch()
            if self._age() > MAX_AGE_SECONDS:
                raise KeysUnavailable("the keys of the issuer of tokens cannot be fetched")
        elif age > REFRESH_SECONDS:
            self._begin()

    def _age(self) -> float:
        return float("inf") if self._fetched is None else self._clock() - self._fetched

    async def _fetch(self) -> None:
        task = self._begin()
        if task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), FETCH_SECONDS)  # others wait for it too

    def _begin(self) -> "asyncio.Task[None] | None":
        """The fetch that is under way, or a new one; None: the last was a moment ago."""
        if self._task is not None and not self._task.done():
            return self._task
        if self._tried is not None and self._clock() - self._tried < RETRY_SECONDS:
            return None
        self._tried = self._clock()
        self._task = asyncio.get_running_loop().create_task(self._fetch_once())
        return self._task

    async def _fetch_once(self) -> None:
        try:
            self._take(await asyncio.to_thread(read_keys, self._source))
        except (OSError, ValueError) as error:
            log.warning("the keys of the issuer cannot be fetched; keeping those that there are", error=str(error))

    def _take(self, keys: list[Key]) -> None:
        if not keys:
            log.warning("the issuer has withdrawn all keys: no token is valid")
        changed = [key.as_dict() for key in keys] != [key.as_dict() for key in self._keys]
        self._keys, self._fetched = keys, self._clock()
        self.version += changed


def _fits(key: Key, algorithm: str) -> bool:
    named = key.get("alg")
    allowed = (named,) if named else ALGORITHMS.get(str(key.get("crv", key.key_type)), ())
    return key.key_type == KEY_TYPES[algorithm[:2]] and algorithm in allowed


def read_keys(source: str) -> list[Key]:
    """The public signing keys of a JWK Set; others are left out. Without any, the issuer has withdrawn all.

    Raises OSError or ValueError: it is no JWK Set.
    """
    text = fetch_url(source) if is_url(source) else Path(source).read_bytes()
    try:
        jwk_set = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    keys = jwk_set.get("keys") if isinstance(jwk_set, dict) else None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f"not a JWK Set: must be an object with `keys`, at most {MAX_KEYS}")
    usable = [key for jwk in keys if (key := _import(jwk)) is not None]
    if len(usable) < len(keys):
        log.info(
            "keys of the issuer were left out: none for signatures, malformed, or too short",
            count=len(keys) - len(usable),
        )
    return usable


class _Use(msgspec.Struct, frozen=True):
    """What a JWK is for (RFC 7517, 4)."""

    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str = "sig"
    key_ops: tuple[str, ...] = ("verify",)


def _import(jwk: Any) -> Key | None:
    """The key, None where it cannot verify signatures or is malformed: the others of the set still count."""
    try:
        intent = msgspec.convert(jwk, _Use)
        if intent.use != "sig" or "verify" not in intent.key_ops or intent.kty not in TYPES:
            return None
        # Without private members: they are not needed, and checking them takes time that the sender chooses.
        public = {name: jwk[name] for name in PUBLIC if name in jwk}
        if any(len(value) > MAX_MEMBER for value in public.values()):
            return None
        key = TYPES[intent.kty].import_key(public)
        if isinstance(key, RSAKey) and not MIN_RSA_BITS <= key.public_key.key_size <= MAX_RSA_BITS:
            return None
        key.as_dict(private=False)
    except Exception:  # of joserfc and cryptography: each kind of malformed key ends in another kind of error
        return None
    return key


def fetch_url(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """The body of a response; with a `body`, to a POST. Raises OSError, also for a status of an error, or ValueError.

    For a thread without an event loop. A redirect is an error: it could lead to a URL that is not encrypted.
    """
    if not is_trustworthy(url):
        raise ValueError("must be an https URL")
    try:
        return asyncio.run(_fetch(url, body, {**(headers or {}), "accept-encoding": "identity"}))
    except TimeoutError:
        raise TimeoutError("timed out") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, ImportError) as error:  # the last for a SOCKS proxy
        raise OSError(str(error) or type(error).__name__) from None


async def _fetch(url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    # The timeout is of the whole response: httpx2's are of each part, and with one byte at a time none would end it.
    async with (
        asyncio.timeout(FETCH_SECONDS),
        httpx2.AsyncClient(
            verify=ssl.create_default_context(), timeout=None, trust_env=False, proxy=_proxy_for(httpx2.URL(url))
        ) as client,
        client.stream("GET" if body is None else "POST", url, content=body, headers=headers) as response,
    ):
        response.raise_for_status()
        received = bytearray()
        async for part in response.aiter_raw():
            received += part
            if len(received) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
        return bytes(received)


def _proxy_for(url: httpx2.URL) -> str | None:
    """A proxy of the environment may carry https alone: it could change plain HTTP."""
    proxy = urllib.request.getproxies().get("https")
    if proxy is None or url.scheme == "http" or urllib.request.proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"

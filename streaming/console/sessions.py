"""Sessions of viewers who signed in: in a signed cookie, so that nothing is stored but those that ended early."""

import base64
import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

MOST_BYTES = 4000  # of a cookie: browsers keep no longer ones
MOST_GROUPS = 100
ENDED = 100_000  # sessions that were ended early and are known


class Session(msgspec.Struct, frozen=True):
    """Who signed in. `until`: Unix time, s."""

    id: str
    subject: str
    groups: tuple[str, ...]
    until: float


class SignIn(msgspec.Struct, frozen=True):
    """A sign-in that is under way. `path`: where its viewer wanted to go; `verifier`: of PKCE."""

    state: str
    nonce: str
    verifier: str
    path: str
    until: float


Kind = TypeVar("Kind", Session, SignIn)


class Cookie(Generic[Kind]):
    """A cookie with data that only this process can write. Its key ends with the process, and so do all sessions.

    `secure`: whether browsers reach the console by https, without which it is sent to this machine alone.
    """

    def __init__(self, name: str, type_: type[Kind], secure: bool, clock: Callable[[], float] = time.time) -> None:
        self.name = f"__Host-{name}" if secure else name
        self._type: type[Kind] = type_
        self._secure, self._clock = secure, clock
        self._key = secrets.token_bytes(32)
        self._ended: dict[str, float] = {}

    def read(self, request: HTTPConnection) -> Kind | None:
        """What the cookie of a request holds; None: there is none, or it is over, or of somebody else."""
        text, dot, signature = request.cookies.get(self.name, "").partition(".")
        if not dot or not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(text).encode()):
            return None
        value = msgspec.json.decode(base64.urlsafe_b64decode(text), type=self._type)
        is_over = value.until <= self._clock() or self._id(value) in self._ended
        return None if is_over else value

    def write(self, response: Response, value: Kind) -> None:
        """Have the browser keep it. Raises ValueError for what is too long to be kept."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(value)).decode()
        if len(text) > MOST_BYTES:
            raise ValueError("too long for a cookie")
        seconds = max(int(value.until - self._clock()), 0)
        self._set(response, f"{text}.{self._sign(text)}", seconds)

    def end(self, response: Response, value: Kind | None = None) -> None:
        """Have the browser forget it; `value` counts no longer, whoever kept it."""
        self._set(response, "", 0)
        if value is not None:
            now = self._clock()
            self._ended = {id_: until for id_, until in self._ended.items() if until > now}
            if len(self._ended) >= ENDED:  # each needs a sign-in of its own
                self._key = secrets.token_bytes(32)
                self._ended.clear()
            self._ended[self._id(value)] = value.until

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), sha256).hexdigest()

    def _set(self, response: Response, text: str, seconds: int) -> None:
        # Lax: a browser that the issuer sends back must have it. A POST is checked by its origin and its token.
        response.set_cookie(
            self.name, text, max_age=seconds, path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    @staticmethod
    def _id(value: Session | SignIn) -> str:
        return value.id if isinstance(value, Session) else value.state

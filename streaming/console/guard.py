"""What every request passes first: its host, its rate, its origin; and the headers that every response has.

The console shows what others must not see, and a browser sends requests for any page that asks it to. So: names that
resolve to this machine are refused unless they are its own (DNS rebinding), a POST comes from a page of the console
alone (Origin, and a token that only such a page has), and no other page may frame, script or read one.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streaming.serve.connections import network_of
from streaming.settings.urls import host_of

TOKEN_HEADER = "x-lockkeeper-token"
TOKEN_FIELD = "token"
MOST_BODY = 1 << 20  # bytes
MOST_CLIENTS = 10_000  # whose rates are known
RATE, BURST = 40.0, 120.0  # requests a second, and at once: a page with its files is six, typing is 20 a second

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With `no-referrer`, browsers send `Origin: null` with the forms of the console itself.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
NOT_KEPT = "no-store"


class Rates:
    """How often each client asks: buckets of tokens. `clock`: monotonic, s."""

    def __init__(self, rate: float = RATE, burst: float = BURST, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, client: str) -> bool:
        """Whether a client may ask now."""
        now = self._clock()
        left, since = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        admitted = left >= 1
        self._buckets[client] = (left - 1 if admitted else left, now)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return admitted


class Tokens:
    """Tokens of pages, which a POST must repeat. Each is of one session; without sessions all share one."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, session: str = "") -> str:
        """The token of a session."""
        return hmac.new(self._key, session.encode(), sha256).hexdigest()

    def check(self, token: str, session: str = "") -> None:
        """Raise HTTPException where a token is not that of the session."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.of(session).encode()):
            raise HTTPException(403, "this page is of an earlier start of the console: load it again")


class Guard:
    """The outermost application. `hosts`: the names by which it may be asked, without ports."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], rates: Rates | None = None) -> None:
        self._app, self._hosts, self._rates = app, frozenset(hosts), rates or Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        app = self._app if refused is None else refused
        await app(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._hosts:
            return PlainTextResponse("the Host header does not name this console", 403)
        if not self._rates.admit(network_of(scope.get("client"))):
            return PlainTextResponse("too many requests", 429, {"retry-after": "1"})
        if scope["method"] not in ("GET", "HEAD") and not _same_origin(headers, hosts[0]):
            return PlainTextResponse("a page of another origin has sent this", 403)
        return None


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether a page of the console itself sends the request; a browser says so in two ways, the second since 2023."""
    origins = headers.getlist("origin")
    if len(origins) != 1 or origins[0] not in (f"http://{host}", f"https://{host}"):
        return False
    return headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("cache-control", NOT_KEPT)
        await send(message)

    return sending


async def body_of(request: Request, tokens: Tokens, session: str = "") -> bytes:
    """The body of a POST whose header has the token of its session. Raises HTTPException."""
    tokens.check(request.headers.get(TOKEN_HEADER, ""), session)
    return await _body(request)


async def form_and_token(request: Request) -> tuple[dict[str, str], str]:
    """The fields of a posted form, and its token, which is not checked yet. Raises HTTPException."""
    try:
        fields = dict(parse_qsl((await _body(request)).decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None
    return fields, fields.pop(TOKEN_FIELD, "")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise HTTPException(413, f"larger than {MOST_BODY >> 20} MiB")
    return bytes(body)

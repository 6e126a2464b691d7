"""What every request passes after the guard: who its viewer is. Without one, only the files of pages are answered.

On the machine itself nobody signs in. Else a proxy names the viewer, or the viewer signs in at an issuer.
"""

import ipaddress
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from streaming.console.guard import Tokens, form_and_token
from streaming.console.health import LIVE, READY
from streaming.console.oidc import Issuer, IssuerUnavailable, SignInFailed
from streaming.console.pages import Pages
from streaming.console.sessions import Cookie, Session, SignIn
from streaming.console.viewer import EVERYTHING, VIEWER, Viewer
from streaming.console.viewers import Viewers
from streaming.settings import Settings
from streaming.settings.console import ProxySettings

SIGN_IN, CALLBACK, SIGN_OUT = "/sign-in", "/sign-in/callback", "/sign-out"
STATIC = "/static/"
MOST_PATH = 1000  # characters of where a viewer wanted to go
MOST_HEADER = 4096
SENT_AGAIN = "your session is over: sign in in another tab, then load this page again, which sends the form again"
UNKNOWN = "you may see nothing here: ask the operators to name you in the file of console.access"


class Unseen(Exception):
    """There is no viewer. `may_sign_in`: so ask the browser to sign in."""

    def __init__(self, message: str, may_sign_in: bool = False) -> None:
        super().__init__(message)
        self.may_sign_in = may_sign_in


class SignInMethod(Protocol):
    """A way to sign in. `routes`: that need no viewer."""

    routes: list[BaseRoute]

    def viewer(self, request: HTTPConnection) -> Viewer:
        """The viewer of a request. Raises Unseen."""


class Local:
    """Nobody signs in: only this machine reaches the console."""

    routes: list[BaseRoute] = []

    def viewer(self, _request: HTTPConnection) -> Viewer:
        """Anybody who reaches it."""
        return EVERYTHING


class ByProxy:
    """A proxy at one of the addresses names the viewer in a header, which it takes from nobody else."""

    def __init__(self, settings: ProxySettings, viewers: Viewers) -> None:
        self.routes: list[BaseRoute] = []
        self._settings, self._viewers = settings, viewers
        self._networks = [ipaddress.ip_network(text) for text in settings.addresses]

    def viewer(self, request: HTTPConnection) -> Viewer:
        """The viewer. Raises Unseen."""
        if request.client is None or not self._is_proxy(request.client.host):
            raise Unseen("only the proxy of console.proxy may ask")
        subject = self._header(request, self._settings.header)
        groups = self._header(request, self._settings.groups_header) if self._settings.groups_header else ""
        viewer = self._viewers.find(subject, (name.strip() for name in groups.split(",")))
        if viewer is None:
            raise Unseen(UNKNOWN if subject else "the proxy names no viewer")
        return viewer

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:  # of a Unix socket
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)

    @staticmethod
    def _header(request: HTTPConnection, name: str) -> str:
        values = request.headers.getlist(name)
        if len(values) > 1 or any(len(value) > MOST_HEADER for value in values):
            raise Unseen("the proxy names several viewers")
        return values[0].strip() if values else ""


class ByIssuer:
    """OpenID Connect: sessions of those who signed in."""

    def __init__(self, settings: Settings, viewers: Viewers, tokens: Tokens, pages: Pages) -> None:
        console, self._pages = settings.console, pages
        secure = urlsplit(console.url).scheme == "https"
        self._issuer = Issuer(console.oidc, f"{console.url.rstrip('/')}{CALLBACK}")
        self._sessions = Cookie("lockkeeper", Session, secure)
        self._begun = Cookie("lockkeeper-sign-in", SignIn, secure)
        self._viewers, self._tokens = viewers, tokens
        self.routes: list[BaseRoute] = [
            Route(SIGN_IN, self._begin),
            Route(CALLBACK, self._finish),
            Route(SIGN_OUT, self._end, methods=["POST"]),
        ]

    def viewer(self, request: HTTPConnection) -> Viewer:
        """The viewer of a session. Raises Unseen."""
        session = self._sessions.read(request)
        if session is None:
            raise Unseen("sign in to see this", may_sign_in=True)
        viewer = self._viewers.find(session.subject, session.groups)
        if viewer is None:
            raise Unseen(UNKNOWN)
        return Viewer(viewer.name, viewer.systems, session.id)

    async def _begin(self, request: Request) -> Response:
        try:
            begun, address = await self._issuer.begin(_own_path(request.query_params.get("next", "")))
        except IssuerUnavailable as error:
            raise HTTPException(503, str(error)) from None
        response = RedirectResponse(address, 303)
        self._begun.write(response, begun)
        return response

    async def _finish(self, request: Request) -> Response:
        begun, asked = self._begun.read(request), request.query_params
        if begun is None or asked.get("state") != begun.state:
            raise HTTPException(400, "this sign-in did not begin in this browser, or took too long: begin again")
        if "error" in asked:
            raise HTTPException(403, "the issuer did not sign you in")
        try:
            session = await self._issuer.finish(begun, asked.get("code", ""), asked.get("iss", ""))
            response = RedirectResponse(begun.path, 303)
            self._sessions.write(response, session)
        except IssuerUnavailable as error:
            raise HTTPException(503, str(error)) from None
        except SignInFailed as error:
            raise HTTPException(403, str(error)) from None
        except ValueError:
            raise HTTPException(403, "the issuer names too many groups: have it name fewer") from None
        self._begun.end(response, begun)  # a code and its state are used once
        return response

    async def _end(self, request: Request) -> Response:
        session = self._sessions.read(request)
        _, token = await form_and_token(request)
        self._tokens.check(token, "" if session is None else session.id)
        response = self._pages.respond("signed_out.html.j2")
        self._sessions.end(response, session)
        return response


def _own_path(text: str) -> str:
    """Where a viewer goes after signing in: to a page of the console, never elsewhere."""
    is_own = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if is_own and len(text) <= MOST_PATH else "/"


class SignedIn:
    """The application for those who are signed in."""

    def __init__(self, app: ASGIApp, sign_in: SignInMethod, pages: Pages) -> None:
        self._app, self._sign_in, self._pages = app, sign_in, pages
        self._open = {LIVE, READY, *(route.path for route in sign_in.routes if isinstance(route, Route))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put the viewer into the scope, whatever is there, or answer for the application."""
        request = HTTPConnection(scope)
        path, inner = str(scope["path"]), {**scope, VIEWER: None}
        app = self._app
        if path not in self._open and not path.startswith(STATIC):
            try:
                inner[VIEWER] = self._sign_in.viewer(request)
            except Unseen as unseen:
                app = self._refusal(scope, request, unseen)
        await app(inner, receive, send)

    def _refusal(self, scope: Scope, request: HTTPConnection, unseen: Unseen) -> Response:
        is_page = scope["method"] == "GET" and "text/html" in request.headers.get("accept", "")
        if unseen.may_sign_in and is_page:
            query, path = (scope[part].decode("latin-1") for part in ("query_string", "raw_path"))
            target = f"{path}{'?' if query else ''}{query}"
            return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': target})}", 303)
        status = 401 if unseen.may_sign_in else 403
        message = SENT_AGAIN if unseen.may_sign_in and scope["method"] == "POST" else str(unseen)
        return self._pages.respond("error.html.j2", status, message=message, code=status)


def sign_in_method(settings: Settings, tokens: Tokens, pages: Pages) -> SignInMethod:
    """How viewers sign in, by the settings. Raises SettingsError where the file of who sees what cannot be used."""
    console = settings.console
    if console.oidc.issuer:
        return ByIssuer(settings, Viewers(settings), tokens, pages)
    if console.proxy.addresses:
        return ByProxy(console.proxy, Viewers(settings))
    return Local()

"""The web applications, and the process that serves one: the HTTP server of `lockkeeper serve`, on a socket."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from streaming.console.guard import Guard, Rates, Tokens
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import PATH, Playground
from streaming.console.sandbox import Sandbox
from streaming.console.signing_in import Local, SignedIn
from streaming.console.viewer import VIEWER, Viewer
from streaming.errors import JobStopped
from streaming.serve.authentication import LOCAL
from streaming.serve.connections import Connections
from streaming.serve.http_server import HttpServer

MOST_CONNECTIONS = 200
REQUEST_SECONDS = 10.0
LOOK_SECONDS = 0.1
FAILURES = (400, 401, 403, 404, 405, 413, 503)


def application(
    routes: Iterable[BaseRoute],
    pages: Pages,
    static: StaticFiles,
    text_for: Callable[[Viewer, str], str] = lambda _viewer, text: text,
) -> Starlette:
    """An application with these routes, the static files and pages for errors. `text_for`: what a viewer may read."""

    def failed(request: Request, error: Exception) -> Response:
        status, message = getattr(error, "status_code", 500), getattr(error, "detail", "internal error")
        viewer = request.scope.get(VIEWER)
        message = message if viewer is None else text_for(viewer, message)
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"problem": {"level": "error", "message": message, "line": None}}, status)
        return pages.respond("error.html.j2", status, message=message, code=status)

    served = Route("/static/{digest}/{name}", static.respond)
    handlers = dict.fromkeys((*FAILURES, Exception), failed)
    return Starlette(routes=[*routes, served], exception_handlers=handlers)


@contextlib.contextmanager
def playground(hosts: Iterable[str] = LOCAL, rates: Rates | None = None) -> Iterator[ASGIApp]:
    """The playground alone, for browsers of this machine."""
    static, sandbox = StaticFiles(), Sandbox()
    pages = Pages(static)
    try:
        first = Route("/", lambda _request: RedirectResponse(PATH))
        app = application([first, *Playground(pages, Tokens(), sandbox).routes], pages, static)
        yield Guard(SignedIn(app, Local(), pages), hosts, rates)
    finally:
        sandbox.close()


def serve(app: ASGIApp, bound: socket.socket, stop: threading.Event, on_ready: Callable[[], None]) -> None:
    """Answer on a bound socket until `stop` is set. Raises JobStopped where the server ends by itself."""
    http = HttpServer(app, bound, Connections(MOST_CONNECTIONS, REQUEST_SECONDS))
    thread = threading.Thread(target=http.run, name="http", daemon=True)
    bound.listen()
    thread.start()
    on_ready()
    while not stop.wait(LOOK_SECONDS) and thread.is_alive():
        pass
    http.stop()
    thread.join()
    if not stop.is_set():
        raise JobStopped("the HTTP server ended by itself; start it again")

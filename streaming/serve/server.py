"""The HTTP server: AuthZEN's paths over `streaming.serve.authzen`, under the snapshot of a follower.

ASGI by uvicorn. Its loop runs in a thread of its own: signals are the main thread's.
"""

import asyncio
import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streaming.errors import JobStopped
from streaming.ops.health import serving
from streaming.serve import authzen, search
from streaming.serve.authzen import (
    EVALUATION,
    EVALUATIONS,
    SEARCH,
    WELL_KNOWN,
    BadRequest,
    EvaluationRequest,
    Read,
    Rules,
)
from streaming.serve.follower import Follower
from streaming.serve.metrics import ServeMetrics
from streaming.settings import Settings, SettingsError

log = structlog.get_logger()

DRAIN_SECONDS = 5
IDLE_SECONDS = 75  # of a connection between two requests, as with nginx
HEADER_BYTES = 64 << 10
ID_BYTES = 256
WATCH_SECONDS = 0.1
SEARCHES = 4  # at once; the fifth is refused
JSON = b"application/json"
BUSY = authzen.message("too many connections")
CLOSING = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\n" + CLOSING % (len(BUSY), BUSY)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Parse = Callable[[bytes, str, str, Rules], EvaluationRequest]


class Refused(Exception):
    """A request that is answered with a status of HTTP and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Stale(Exception):
    """There are no policies that are new enough to decide by: status 503."""


class Application:
    """The ASGI application. `clock`: monotonic, s, the one of the follower's readings."""

    def __init__(
        self, settings: Settings, metrics: ServeMetrics, ask: Callable[[], None], stuck: Callable[[], int]
    ) -> None:
        serve = settings.serve
        self._rules = Rules(
            settings.systems, serve.default_system, serve.trust, settings.limits, settings.mode == "enforce"
        )
        self._settings, self._metrics, self._ask, self._stuck = serve, metrics, ask, stuck
        self._read: Read | None = None
        self._waiting: list[tuple[float, asyncio.Future[Read]]] = []
        self.url = serve.url
        parsers: dict[str, Parse] = {EVALUATION: authzen.parse_evaluation, EVALUATIONS: authzen.parse_evaluations}
        systems = ("", *settings.systems)
        self._kinds = search.KINDS if serve.search else ()
        self._searches = {
            _path(system, f"{SEARCH}{kind}"): (system, kind) for kind in self._kinds for system in systems
        }
        self._searching = asyncio.Semaphore(SEARCHES)
        self._searchers = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._posts = {_path(system, path): (system, parse) for path, parse in parsers.items() for system in systems}
        self._gets = {f"{WELL_KNOWN}/{system}".rstrip("/"): system for system in systems}

    def take(self, read: Read | None) -> None:
        """Decide by another reading from now on; in the loop's thread. None: there is none, and will be none."""
        self._read = read
        if read is None:
            return
        due = [waiting for waiting in self._waiting if waiting[0] <= read.at]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > read.at]
        for _, future in due:
            if not future.done():
                future.set_result(read)

    def close(self) -> None:
        """End the searches that wait."""
        self._searchers.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Whatever goes wrong, the answer is JSON and no allow."""
        if scope["type"] != "http":
            return
        began, id_ = time.perf_counter(), _request_id(scope)
        try:
            status, body = await self._respond(scope, receive, id_.decode("latin-1"))
        except (BadRequest, Refused) as refused:
            status, body = getattr(refused, "status", 400), authzen.message(str(refused))
        except Stale as stale:
            status, body = 503, authzen.stale(str(stale))
        except Exception as failure:
            log.error("a request could not be answered; please report it", error=type(failure).__name__)
            status, body = 500, authzen.message("internal error")
        self._metrics.answered(status, time.perf_counter() - began)
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), (b"x-request-id", id_)]
        if status == 413:  # what is left of its body is not read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Scope, receive: Receive, id_: str) -> tuple[int, bytes]:
        path, method = scope["path"], scope["method"]
        if path in self._gets:
            _check_method(method, "GET")
            return 200, authzen.encode(authzen.metadata(self.url, self._gets[path], self._kinds))
        if path in self._searches:
            _check_method(method, "POST")
            return 200, await self._search(*self._searches[path], await self._body(scope, receive), id_)
        if path not in self._posts:
            raise Refused(404, "no such path: there are those that the configuration names, and its own")
        _check_method(method, "POST")
        system, parse = self._posts[path]
        request = parse(await self._body(scope, receive), id_, system, self._rules)
        read = await self._wait(request)
        age = time.monotonic() - read.at
        now, bound = time.time_ns() // 1_000_000, self._settings.max_staleness_seconds
        decision, body = authzen.answer(request, read, self._rules, now, age, bound)
        self._metrics.decided(request.body["system"], decision)
        return 200, body

    async def _search(self, system: str, kind: search.Kind, body: bytes, id_: str) -> bytes:
        """Search in a thread, one at a time: it may take long, and decisions must not wait for it."""
        if self._searching.locked():
            raise Refused(503, f"{SEARCHES} searches are under way already; try again")
        async with self._searching:
            searched = search.parse_search(kind, body, id_, system, self._rules)
            read = await self._wait(searched.evaluation)
            now, age = time.time_ns() // 1_000_000, time.monotonic() - read.at
            arguments = (searched, read, self._rules, now, age, self._settings.max_staleness_seconds)
            return await asyncio.get_running_loop().run_in_executor(self._searchers, search.answer, *arguments)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, of bounded size. Raises Refused."""
        most, parts, size = self._rules.limits.record_in, list[bytes](), 0
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON:
            raise Refused(415, "content-type: must be application/json")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 15 or int(length) > most:
            raise Refused(413, f"the body is too large; at most {most} bytes")
        more = True
        while more:  # `protocol` bounds the time
            part = await receive()
            if part["type"] == "http.disconnect":
                raise Refused(400, "the connection ended before the request")
            size += len(part.get("body", b""))
            if size > most:
                raise Refused(413, f"the body is too large; at most {most} bytes")
            parts.append(part.get("body", b""))
            more = part.get("more_body", False)
        return b"".join(parts)

    async def _wait(self, request: EvaluationRequest) -> Read:
        """The reading that a request is decided by. Raises Stale."""
        if request.freshness == "full":
            return await self._newer()
        read = self._current()
        if request.freshness == "min_policy_offsets" and authzen.lacking(request, read) is not None:
            return await self._newer()
        return read

    def _current(self) -> Read:
        """The newest reading, if it is new enough."""
        read, bound = self._read, self._settings.max_staleness_seconds
        if read is None:
            raise Stale("the policies have not been read up to their end yet")
        if time.monotonic() - read.at > bound:
            raise Stale(f"the policies could not be read for more than {bound:g} s: does Kafka answer?")
        if self._stuck():
            raise Stale("policies or facts cannot be read on: a transaction on their topics is not ended")
        return read

    async def _newer(self) -> Read:
        """A reading up to ends that are asked for from now on."""
        waiting = time.monotonic(), asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._ask()
        try:
            async with asyncio.timeout(self._settings.wait_seconds):
                await waiting[1]
        except TimeoutError:
            seconds = self._settings.wait_seconds
            raise Stale(f"the policies could not be read within {seconds:g} s: does Kafka answer?") from None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return self._current()


def _path(system: str, path: str) -> str:
    return f"/{system}{path}" if system else path


def _check_method(method: str, allowed: str) -> None:
    if method != allowed:
        raise Refused(405, f"this path takes {allowed}")


def _request_id(scope: Scope) -> bytes:
    """The caller's `X-Request-ID`, which the response repeats, or a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given if 0 < len(given) <= ID_BYTES else uuid.uuid4().hex.encode()


def protocol(seconds: float, most: int) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with bounds on what untrusted callers hold: connections, headers, and time to send them."""

    class Protocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _size, _heading = 0, True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(REFUSED)
                transport.close()
                return
            self._begin()

        def _begin(self) -> None:
            self._end()
            self._size, self._heading = 0, True
            self._timer = self.loop.call_later(seconds, self.transport.close)

        def _end(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._begin()

        def data_received(self, data: bytes) -> None:
            # httptools holds a header until it is complete: the bytes have to be counted as they come.
            if self._heading and self._size > HEADER_BYTES:
                self.send_400_response("the headers are too large")
                return
            self._size += len(data)
            super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            body = authzen.message(msg)
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + CLOSING % (len(body), body))
            self.transport.close()

        def on_headers_complete(self) -> None:
            self._size = 0
            self._heading = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._end()
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            super().connection_lost(exc)

    return Protocol


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the main thread."""
        yield


class Server:
    """One process that follows the topics and answers. Raises SettingsError when the address cannot be bound."""

    def __init__(self, settings: Settings) -> None:
        serve = settings.serve
        self._settings, self._stop = settings, threading.Event()
        self._metrics = ServeMetrics(settings.systems, serve.max_staleness_seconds)
        self._follower = Follower(settings, self._stop, self._on_read, self._on_failure, self._metrics.compiled)
        self._app = Application(settings, self._metrics, self._follower.ask, lambda: self._follower.stuck)
        config = uvicorn.Config(
            self._app,
            host=serve.address,
            port=serve.port,
            http=protocol(serve.request_seconds, serve.max_connections),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        self._config, self._server, self._loop = config, _Server(config), config.get_loop_factory()
        self._socket = _bind(serve.address, serve.port)
        self.port: int = self._socket.getsockname()[1]
        host = f"[{serve.address}]" if ":" in serve.address else serve.address
        self._app.url = self._app.url or f"http://{host}:{self.port}"
        self.url = f"http://{host}:{self.port}"
        self._running: asyncio.AbstractEventLoop | None = None

    def run(self, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Answer until `stop` is set, then finish what is under way. `on_ready`: the policies were read first.

        Raises what ended the follower: topics that were re-created, a newer format. Nothing is decided from then on.
        JobStopped: the HTTP server ended.
        """
        thread = threading.Thread(target=self._serve, name="http", daemon=True)
        with serving(self._settings.metrics, self._metrics.registry, self._metrics.health):
            thread.start()
            self._follower.start()
            is_ready = False
            while not stop.wait(WATCH_SECONDS) and self._follower.failure is None and thread.is_alive():
                self._metrics.looked_at(self._follower)
                if self._follower.read is not None and not is_ready:
                    is_ready = True
                    on_ready()
            self._metrics.health.running = False
            self._server.should_exit = True
            thread.join()
            self._app.close()
            self._stop.set()
            self._follower.close()
        if self._follower.failure is not None:
            raise self._follower.failure
        if not stop.is_set():
            raise JobStopped("the HTTP server ended by itself; the log says why. Start it again")

    def _serve(self) -> None:
        async def serve() -> None:
            self._running = asyncio.get_running_loop()
            await self._server.serve([self._socket])

        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(serve())

    def _on_read(self, read: Read) -> None:
        self._metrics.read(read)
        self._hand_over(read)

    def _on_failure(self) -> None:
        self._hand_over(None)

    def _hand_over(self, read: Read | None) -> None:
        loop = self._running
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._app.take, read)


def _bind(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
    except OSError as error:
        found.close()
        raise SettingsError(
            f"serve: {address} port {port} cannot be listened on: {error.strerror}. Choose another port or address "
            "(LOCKKEEPER_SERVE_PORT, LOCKKEEPER_SERVE_ADDRESS)"
        ) from error
    return found

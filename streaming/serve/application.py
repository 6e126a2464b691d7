"""AuthZEN's paths over `streaming.serve.authzen`, as an ASGI application, under the snapshot of a follower."""

import asyncio
import functools
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import structlog

from policy import Decision
from streaming.pdp.deadlines import is_late
from streaming.pdp.reading import AnswerContext, Read, lacking, suspend_aware_clock, why_stale
from streaming.pdp.recording import WAIT_SECONDS, NotRecorded, Recorder, RecordTooLarge, answered_record
from streaming.serve import authzen, search
from streaming.serve.access_log import CALLER, REQUEST_ID, AccessLog
from streaming.serve.admission import MOST_REQUESTS, Admission
from streaming.serve.authentication import Authentication, KeysUnavailable, Unauthorized
from streaming.serve.authzen import (
    EVALUATION,
    EVALUATIONS,
    SEARCH,
    WELL_KNOWN,
    BadRequest,
    EvaluationRequest,
    Rules,
)
from streaming.serve.callers import Caller
from streaming.serve.connections import Connections, network_of
from streaming.serve.ext_authz import PREFIX, Denied, Routes, load_routes
from streaming.serve.metrics import ServeMetrics
from streaming.serve.tracing import RequestTracing
from streaming.settings import Settings

log = structlog.get_logger()

ID = re.compile(rb"[!-~]{1,256}")  # visible ASCII: it goes into logs and decisions
SEARCHES = 4  # at once; the fifth is refused, and of one caller the fourth
JSON = b"application/json"
CLOSE = (b"connection", b"close")
RETRY = (b"retry-after", b"1")
BODY_READ = "lockkeeper.body_read"  # of a request's scope

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Parse = Callable[[bytes, str, str, Rules], EvaluationRequest]
PARSERS: dict[str, Parse] = {EVALUATION: authzen.parse_evaluation, EVALUATIONS: authzen.parse_evaluations}


class Endpoint(NamedTuple):
    """The method that a path takes, its template in openapi.yaml, and what makes the body of the response."""

    method: str
    template: str
    respond: Callable[[Scope, Receive, str], Awaitable[bytes]]


class Refused(Exception):
    """A request that is answered with a status of HTTP and a message."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Stale(Exception):
    """There are no policies that are new enough to decide by: status 503."""


class Application:
    """The ASGI application."""

    def __init__(
        self,
        settings: Settings,
        metrics: ServeMetrics,
        authentication: Authentication,
        connections: Connections,
        ask: Callable[[], None],
        stuck: Callable[[], int],
        access_log: AccessLog | None = None,
        tracing: RequestTracing | None = None,
        recorder: Recorder | None = None,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        serve = settings.serve
        self._recorder, self._connections = recorder, connections
        self._admission = Admission(most_requests)
        self.refusals = self._admission.refusals
        self._most_bytes, self._authentication = settings.limits.record_in, authentication
        self._settings, self._metrics, self._ask, self._stuck = serve, metrics, ask, stuck
        self._access_log, self._tracing, self._routes = access_log, tracing, load_routes(settings)
        self.draining = False
        self._read: Read | None = None
        self._waiting: list[tuple[float, asyncio.Future[Read]]] = []
        self.url = serve.url
        self._kinds = search.KINDS if serve.search else ()
        self.endpoints = {
            path: endpoint for system in ("", *settings.systems) for path, endpoint in self._endpoints_of(system)
        }
        self._searches = Admission(SEARCHES)
        self._searchers = ThreadPoolExecutor(1, thread_name_prefix="search")

    def _endpoints_of(self, system: str) -> Iterator[tuple[str, Endpoint]]:
        """The paths for one system; "": for those that the requests name."""
        prefix, metadata = ("/{system}", f"{WELL_KNOWN}/{{system}}") if system else ("", WELL_KNOWN)
        yield f"{WELL_KNOWN}/{system}".rstrip("/"), Endpoint("GET", metadata, functools.partial(self._metadata, system))
        for path, parse in PARSERS.items():
            respond = functools.partial(self._evaluate, system, parse)
            yield _path(system, path), Endpoint("POST", prefix + path, respond)
        for kind in self._kinds:
            respond = functools.partial(self._search_for, system, kind)
            yield _path(system, SEARCH + kind), Endpoint("POST", f"{prefix}{SEARCH}{kind}", respond)

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
        scope[REQUEST_ID] = id_.decode("ascii")
        self._admission.begin()
        try:
            status, body, headers = await self._answer(scope, receive, scope[REQUEST_ID])
        finally:
            self._admission.end(scope.get(CALLER))
        self._answered(scope, status, time.perf_counter() - began)
        length = (b"content-length", b"%d" % len(body))
        closing = [CLOSE] if self.draining and CLOSE not in headers else []
        closing += [RETRY] if status == 503 else []
        headers = [(b"content-type", JSON), length, (b"x-request-id", id_), *headers, *closing]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answered(self, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.answered(status, seconds)
        if self._access_log is not None:
            self._access_log.add(scope, status, seconds)
        if self._tracing is not None:
            path = _plain_path(scope)
            self._tracing.answered(scope, path if path in self.endpoints else "", status, seconds)

    async def _answer(self, scope: Scope, receive: Receive, id_: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        try:
            return *await self._respond(scope, receive, id_), []
        except Unauthorized as unauthorized:
            challenge = (b"www-authenticate", unauthorized.challenge)
            return unauthorized.status, authzen.message(str(unauthorized)), [challenge, CLOSE]
        except Refused as refused:
            # What is left of its body is not read.
            closing = [] if scope.get(BODY_READ) else [CLOSE]
            return refused.status, authzen.message(str(refused)), [*refused.headers, *closing]
        except BadRequest as bad:
            return 400, authzen.message(str(bad)), []
        except Stale as stale:
            return 503, authzen.stale(str(stale)), []
        except RecordTooLarge as large:
            return 413, authzen.message(str(large)), []
        except NotRecorded as unrecorded:
            return 503, authzen.stale(str(unrecorded), "not-recorded"), []
        except KeysUnavailable as unavailable:
            return 503, authzen.stale(str(unavailable)), [CLOSE]
        except Exception as failure:
            log.error("a request could not be answered; please report it", error=type(failure).__name__)
            return 500, authzen.message("internal error"), [CLOSE]

    async def _respond(self, scope: Scope, receive: Receive, id_: str) -> tuple[int, bytes]:
        path = _plain_path(scope)
        endpoint = self.endpoints.get(path)
        if endpoint is not None:
            _check_method(scope["method"], endpoint.method)
            return 200, await endpoint.respond(scope, receive, id_)
        if self._routes is not None and path.startswith(f"{PREFIX}/"):
            return await self._check_route(self._routes, scope, id_)
        raise Refused(404, "no such path: there are those that the configuration names, and its own")

    async def _metadata(self, system: str, _scope: Scope, _receive: Receive, _id: str) -> bytes:
        """The metadata of the decision point, which needs no credentials."""
        return authzen.encode(authzen.metadata(self.url, system, self._kinds))

    async def _evaluate(self, system: str, parse: Parse, scope: Scope, receive: Receive, id_: str) -> bytes:
        """The decision on a request, or on several."""
        caller = await self._identified(scope, system)
        request = parse(await self._body(scope, receive), id_, system, caller.rules)
        return (await self._decide(caller, request))[1]

    async def _search_for(self, system: str, kind: search.Kind, scope: Scope, receive: Receive, id_: str) -> bytes:
        caller = await self._identified(scope, system)
        if not caller.may_search:
            raise Refused(403, "this caller may not search")
        return await self._search(caller, system, kind, await self._body(scope, receive), id_)

    async def _decide(self, caller: Caller, request: EvaluationRequest) -> tuple[Decision, bytes]:
        """The decision, and the body of a response. Raises Refused, Stale, BadRequest."""
        _check_system(caller, request.body["system"])
        answer_context = await self._answer_context(caller, request)
        decision, body = authzen.answer(request, answer_context, caller.rules)
        if self._recorder is not None:
            await self._record(self._recorder, request, decision, answer_context)
            if is_late(request.body.get("deadline"), time.time_ns() // 1_000_000):  # a durable record takes a while
                decision, body = authzen.late_answer(request, answer_context, caller.rules)
        self._metrics.decided(request.body["system"], decision)
        return decision, body

    async def _check_route(self, routes: Routes, scope: Scope, id_: str) -> tuple[int, bytes]:
        """Envoy's request: 200 for an allow, else 403, whatever the reason."""
        try:
            caller = await self._identified(scope, routes.system)
            question = routes.request(scope["method"], scope["path"][len(PREFIX) :], scope["headers"])
            body = authzen.encode(question)
            request = authzen.parse_evaluation(body, id_, routes.system, caller.rules)
            decision, _ = await self._decide(caller, request)
        except Denied as denied:
            return 403, authzen.message(str(denied))
        except (Unauthorized, Refused, KeysUnavailable, Stale, NotRecorded, BadRequest):
            return 403, authzen.message("denied")  # the reason is not for Envoy's clients
        except Exception as failure:
            log.error("a request of Envoy could not be answered; please report it", error=type(failure).__name__)
            return 403, authzen.message("denied")
        passes = decision.allowed and caller.rules.enforced  # as in the client library: shadow mode allows nothing
        return (200, authzen.message("allowed")) if passes else (403, authzen.message("denied"))

    async def _record(
        self, recorder: Recorder, request: EvaluationRequest, decision: Decision, answer_context: AnswerContext
    ) -> None:
        """Record an answer before it is given. Raises NotRecorded."""
        system = request.body["system"]
        if not recorder.is_recorded(system, decision):
            return
        value = answered_record(request.body, decision, answer_context, recorder.by)
        if recorder.awaits_delivery(system):
            await recorder.durable(request.body, value)
        else:
            recorder.send(request.body, value)

    async def _identified(self, scope: Scope, system: str) -> Caller:
        """The caller, before anything of a body is read. `system`: of the path. Raises Unauthorized, Refused."""
        if not self._admission.has_room():
            self._connections.relieve(sending=True)
            raise Refused(503, "too many requests are under way; try again")
        caller = await self._authentication.caller(scope)
        if not self._admission.admit(caller.name):
            raise Refused(503, "too many requests of this caller are under way; try again")
        scope[CALLER] = caller.name
        if system:
            _check_system(caller, system)
        return caller

    async def _search(self, caller: Caller, system: str, kind: search.Kind, body: bytes, id_: str) -> bytes:
        """Search in a thread, one at a time: it may take long, and decisions must not wait for it."""
        admitted = None
        self._searches.begin()
        try:
            if not self._searches.has_room():
                raise Refused(503, f"{SEARCHES} searches are under way already; try again")
            if not self._searches.admit(caller.name):
                raise Refused(503, "too many searches of this caller are under way; try again")
            admitted = caller.name
            searched = search.parse_search(kind, body, id_, system, caller.rules)
            _check_system(caller, searched.evaluation.body["system"])
            arguments = searched, await self._answer_context(caller, searched.evaluation), caller.rules
            return await asyncio.get_running_loop().run_in_executor(self._searchers, search.answer, *arguments)
        finally:
            self._searches.end(admitted)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, of bounded size. Raises Refused."""
        most, parts, size = self._most_bytes, list[bytes](), 0
        headers = dict(scope["headers"])
        _check_encoding(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 15 or int(length) > most:
            raise Refused(413, f"the body is too large; at most {most} bytes")
        more, waited = True, False
        while more:  # `protocol` bounds the time
            part = await receive()
            if part["type"] == "http.disconnect":
                raise Refused(400, "the connection ended before the request")
            size += len(part.get("body", b""))
            if size > most:
                raise Refused(413, f"the body is too large; at most {most} bytes")
            parts.append(part.get("body", b""))
            more = part.get("more_body", False)
            waited |= more
        if waited:  # it has begun long ago: its work has not
            await self._connections.turns.turn(scope.get(CALLER) or network_of(scope.get("client")))
        scope[BODY_READ] = True
        return b"".join(parts)

    async def _answer_context(self, caller: Caller, request: EvaluationRequest) -> AnswerContext:
        """What an answer of now rests on, once policies are read that are new enough. Raises Stale."""
        read, bound = await self._wait(caller, request), self._settings.max_staleness_seconds
        return AnswerContext.of_now(read, request.freshness, bound, caller.rules.trust)

    async def _wait(self, caller: Caller, request: EvaluationRequest) -> Read:
        """The reading that a request is decided by. Raises Stale."""
        if request.freshness == "full":
            return await self._newer()
        read = self._current()
        if request.freshness == "min_policy_offsets":
            seen = read.without_topics(caller.rules.unseen)
            return read if lacking(request.body, seen.all_offsets) is None else await self._newer()
        return read

    def _current(self) -> Read:
        """The newest reading, if it is new enough."""
        read = self._read
        if (why := why_stale(read, self._settings.max_staleness_seconds, bool(self._stuck()))) is not None:
            raise Stale(why)
        assert read is not None, "else it is stale"
        return read

    async def _newer(self) -> Read:
        """A reading up to ends that are asked for from now on."""
        waiting = suspend_aware_clock(), asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._ask()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await waiting[1]
        except TimeoutError:
            raise Stale(f"the policies could not be read within {WAIT_SECONDS:g} s: does Kafka answer?") from None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return self._current()


def _path(system: str, path: str) -> str:
    return f"/{system}{path}" if system else path


def _plain_path(scope: Scope) -> str:
    """The path, "" where it is written with `%`: what is in front of the server may have read it otherwise."""
    path: str = scope["path"]
    return path if scope["raw_path"] == path.encode() else ""


def _check_system(caller: Caller, system: str) -> None:
    """Without credentials, a system that is not known is an error of the decision, as in the stream."""
    if caller.name and system not in caller.rules.systems:
        raise Refused(403, "this caller may not ask about this system")


def _check_method(method: str, allowed: str) -> None:
    if method != allowed:
        raise Refused(405, f"this path takes {allowed}", (b"allow", allowed.encode()))


def _check_encoding(headers: list[tuple[bytes, bytes]]) -> None:
    """Raises Refused: 400 for another content type, as AuthZEN's certification asks; 415 for a content coding."""
    is_json = False
    for name, value in headers:
        if name == b"content-type":
            is_json = value.partition(b";")[0].strip().lower() == JSON
            if not is_json:
                break
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Refused(415, "content-encoding: send the body as it is", (b"accept-encoding", b"identity"))
    if not is_json:
        raise Refused(400, "content-type: must be application/json")


def _request_id(scope: Scope) -> bytes:
    """The caller's `X-Request-ID`, which the response repeats, or a new one."""
    header = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return header if ID.fullmatch(header) else uuid.uuid4().hex.encode()

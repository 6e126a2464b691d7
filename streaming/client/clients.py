"""The two clients: `Client` for threads, `AsyncClient` for asyncio. One thread reads for both."""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from streaming.client.base import BaseClient, SentRequest
from streaming.client.decision import Decision, NotReported
from streaming.client.guarding import Call, Guard, Unread, check_guard, refuse_what_is_no_function, runs_later
from streaming.client.records import RequestFields
from streaming.records.decision import Place

P = ParamSpec("P")
R = TypeVar("R")


class Allowed(Unread):
    """A block that is entered only when it is allowed."""

    what = "write `with client.allowed(…):`, or `if client.authorize(…):`"

    def __init__(self, enter: Callable[[], Decision]) -> None:
        self._enter = enter

    def __enter__(self) -> Decision:
        return self._enter()

    def __exit__(self, *_: object) -> None:
        return None


class Client(BaseClient):
    """Requests decisions and waits for them; for any number of threads at once. `AsyncClient` is for asyncio."""

    def authorize(
        self, request: Mapping[str, Any] | None = None, timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> Decision:
        """The decision on a whole request (contracts, "Access request"), or on one in short.

        Never an allow but when the job decided so in time: what goes wrong is an answer with the outcome `error`.
        Raises TypeError for fields that make no request, and NotDecided for an error where `raise_on_error` is set.
        """
        return self._answer(self._send(request, timeout, fields))

    def authorize_many(
        self, questions: Iterable[Mapping[str, Any]], timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> list[Decision]:
        """The decisions on many requests in short, in their order, all on their way at once, each a record of its own.

        `fields` are the defaults. Raises as `authorize`. Several questions in one record: `authorize(evaluations=…)`.
        """
        begun: list[SentRequest] = []
        try:
            begun.extend(self._send(None, timeout, {**fields, **query}) for query in questions)
            return [self._answer(request) for request in begun]
        finally:
            self._give_up(begun)

    def _answer(self, request: SentRequest) -> Decision:
        left = request.began + request.timeout - time.monotonic()
        try:
            decision = request.pending.future.result(max(left, 0))
        except TimeoutError:
            decision = self._exchange.late(request.pending, request.timeout)
        except BaseException:  # Ctrl-C while it waited
            self._exchange.forget(request.pending)
            raise
        return self._concluded(request, decision)

    def ready(self, timeout: float | None = None) -> bool:
        """Whether Kafka has answered and questions go out at once; waits so long for it. For a service's start."""
        return self._exchange.await_ready(timeout or self._timeout)

    def allowed(
        self, request: Mapping[str, Any] | None = None, timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> Allowed:
        """`with client.allowed(…) as decision:` runs its block when allowed; else it raises AccessDenied.

        The request is sent when the block is entered. Takes what `authorize` takes.
        """
        return Allowed(lambda: self._guard(self.authorize(request, timeout, **fields)))

    def requires(self, **guard: Unpack[Guard]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: the function runs when the call is allowed; else AccessDenied is raised.

            @client.requires(system="lenses6", action="kafka:DeleteTopic", resource=lambda call: lrn(call["topic"]))
            def delete(topic: str) -> None: …

        Raises TypeError at once for a guard without a request, and for what is no plain function.
        """
        check_guard(guard)

        def guarded(function: Callable[P, R]) -> Callable[P, R]:
            refuse_what_is_no_function(function)
            if runs_later(function):
                raise TypeError(f"requires: {function!r} is asynchronous: guard it with an AsyncClient")
            call = Call(function, guard)

            @functools.wraps(function)
            def ask_first(*args: P.args, **kwargs: P.kwargs) -> R:
                query: Any = call.query(args, kwargs)
                self._guard(self.authorize(timeout=guard.get("timeout"), **query))
                return function(*args, **kwargs)

            return ask_first

        return guarded

    def report(self, event: Mapping[str, Any], decision_id: str | None = None, timeout: float | None = None) -> Place:
        """Publish an audit event (contracts, "Audit event") and return its place once Kafka has it.

        Raises ValueError for what is no audit event, and NotReported.
        """
        future, seconds = self._report(event, decision_id), timeout or self._timeout
        try:
            return future.result(seconds)
        except TimeoutError:
            raise NotReported(f"Kafka did not confirm within {seconds:g} s; it may yet be published") from None

    def close(self) -> None:
        """Answer all who still wait with an error, and wait a moment for records on their way."""
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Awaited(Unread, Coroutine[Any, Any, R]):
    """A coroutine that cannot be taken for its result: `if client.authorize(…):` without await raises TypeError."""

    what = "write `await client.authorize(…)`"

    def __init__(self, inner: Coroutine[Any, Any, R]) -> None:
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, R]:
        return self._inner.__await__()

    def send(self, value: Any) -> Any:
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()


class AllowedLater(Unread):
    """A block that is entered only when it is allowed."""

    what = "write `async with client.allowed(…):`, or `if await client.authorize(…):`"

    def __init__(self, enter: Callable[[], Coroutine[Any, Any, Decision]]) -> None:
        self._enter = enter

    async def __aenter__(self) -> Decision:
        return await self._enter()

    async def __aexit__(self, *_: object) -> None:
        return None


class AsyncClient(BaseClient):
    """Requests decisions and awaits them; many may be on their way at once. `Client` is for threads."""

    def authorize(
        self, request: Mapping[str, Any] | None = None, timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> Awaited[Decision]:
        """The decision on a whole request (contracts, "Access request"), or on one in short: see `Client.authorize`."""
        return Awaited(self._authorize(request, timeout, fields))

    async def _authorize(
        self, request: Mapping[str, Any] | None, timeout: float | None, fields: Mapping[str, Any]
    ) -> Decision:
        return await self._answer(self._send(request, timeout, fields))

    def authorize_many(
        self, questions: Iterable[Mapping[str, Any]], timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> Awaited[list[Decision]]:
        """The decisions on many requests in short, in their order: see `Client.authorize_many`."""
        return Awaited(self._authorize_many(questions, timeout, fields))

    async def _authorize_many(
        self, questions: Iterable[Mapping[str, Any]], timeout: float | None, fields: Mapping[str, Any]
    ) -> list[Decision]:
        begun: list[SentRequest] = []
        try:
            begun.extend(self._send(None, timeout, {**fields, **query}) for query in questions)
            return list(await asyncio.gather(*map(self._answer, begun)))
        finally:
            self._give_up(begun)

    async def _answer(self, request: SentRequest) -> Decision:
        try:
            async with asyncio.timeout(request.timeout):
                decision = await asyncio.wrap_future(request.pending.future)
        except TimeoutError:
            decision = self._exchange.late(request.pending, request.timeout)
        finally:  # also when the awaiting task was cancelled
            self._exchange.forget(request.pending)
        return self._concluded(request, decision)

    async def ready(self, timeout: float | None = None) -> bool:
        """Whether Kafka has answered and questions go out at once: see `Client.ready`."""
        return await asyncio.to_thread(self._exchange.await_ready, timeout or self._timeout)

    def allowed(
        self, request: Mapping[str, Any] | None = None, timeout: float | None = None, **fields: Unpack[RequestFields]
    ) -> AllowedLater:
        """`async with client.allowed(…) as decision:` runs its block when allowed; else it raises AccessDenied."""

        async def enter() -> Decision:
            return self._guard(await self._authorize(request, timeout, fields))

        return AllowedLater(enter)

    def requires(
        self, **guard: Unpack[Guard]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator for `async def`: it runs when the call is allowed; else AccessDenied is raised.

        See `Client.requires`. Raises TypeError at once for a guard without a request, and for a function that
        is not asynchronous: it could not wait for the answer.
        """
        check_guard(guard)

        def guarded(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            refuse_what_is_no_function(function)
            if not inspect.iscoroutinefunction(function):
                hint = "an async generator: guard what it calls" if runs_later(function) else "not `async def`"
                raise TypeError(f"requires: {function!r} is {hint}; a plain function is guarded with a Client")
            call = Call(function, guard)

            @functools.wraps(function)
            async def ask_first(*args: P.args, **kwargs: P.kwargs) -> R:
                query = call.query(args, kwargs)
                self._guard(await self._authorize(None, guard.get("timeout"), query))
                return await function(*args, **kwargs)

            return ask_first

        return guarded

    async def report(
        self, event: Mapping[str, Any], decision_id: str | None = None, timeout: float | None = None
    ) -> Place:
        """Publish an audit event and return its place once Kafka has it: see `Client.report`."""
        future, seconds = self._report(event, decision_id), timeout or self._timeout
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise NotReported(f"Kafka did not confirm within {seconds:g} s; it may yet be published") from None

    async def close(self) -> None:
        """Answer all who still wait with an error, and wait a moment for records on their way."""
        await asyncio.to_thread(self._exchange.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""The client for asyncio. The same thread reads; nothing here blocks the event loop."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from streaming.client.base import BaseClient, SentRequest
from streaming.client.decision import Decision, NotReported, Place
from streaming.client.guarding import Call, Guard, Unread, check_guard, refuse_what_is_no_function, runs_later
from streaming.client.records import RequestFields

P = ParamSpec("P")
R = TypeVar("R")


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
        return await asyncio.to_thread(self._exchange.await_place, timeout or self._timeout)

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

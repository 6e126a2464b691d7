"""The client for threads."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from streaming.client.base import BaseClient, SentRequest
from streaming.client.decision import Decision, NotReported, Place
from streaming.client.guarding import Call, Guard, Unread, check_guard, refuse_what_is_no_function, runs_later
from streaming.client.records import RequestFields

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
        return self._exchange.await_place(timeout or self._timeout)

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

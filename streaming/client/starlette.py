"""A dependency for FastAPI, and a guard for Starlette: a request of HTTP is answered if the policies allow it.

It needs the extra `starlette`. The client is one that awaits: `AsyncClient`, or `AsyncLocalClient`.

>>> reads = Requires(client, system="lenses6", action="kafka:GetTopicDetails",
...                  subject=lambda request: f"user:{request.state.user}",
...                  resource=lambda request: f"kafka:topic:prod/main/{request.path_params['topic']}")
>>> @app.get("/topics/{topic}", dependencies=[Depends(reads)])
"""

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request

from streaming.client.clients import AsyncClient
from streaming.client.decision import Decision

UNAUTHENTICATED, DENIED, UNDECIDED = 401, 403, 503


class Requires:
    """`Depends(Requires(…))` in FastAPI, `await Requires(…)(request)` in Starlette; returns the decision, an allow.

    `subject`: the id of who asks, as the application has authenticated it; None: there is none. `resource`: the
    id of what is asked about. `timeout`: seconds; None: that of the client. Where there is no allow, it raises
    HTTPException, without the reason: 401 without a subject, 403 for a deny and for what is not enforced, 503 for an
    error, such as no answer in time.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        system: str,
        action: str,
        subject: Callable[[Request], str | None],
        resource: Callable[[Request], str],
        timeout: float | None = None,
    ) -> None:
        self._client, self._timeout = client, timeout
        self._subject, self._resource = subject, resource
        self._system, self._action = system, action

    async def __call__(self, request: Request) -> Decision:
        """The decision, an allow. Raises HTTPException."""
        subject = self._subject(request)
        if not subject:
            raise HTTPException(UNAUTHENTICATED)
        decision = await self._client.authorize(
            None,
            self._timeout,
            system=self._system,
            action=self._action,
            subject=subject,
            resource=self._resource(request),
        )
        if not decision.allowed:
            raise HTTPException(UNDECIDED if decision.outcome == "error" else DENIED)
        return decision

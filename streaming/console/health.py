"""Whether the console lives, and whether it can answer: for probes, without a viewer. Neither says anything else."""

from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.routing import Route

LIVE, READY = "/healthz", "/readyz"


def health_routes(is_ready: Callable[[], bool]) -> list[Route]:
    """The routes. `is_ready`: whether the policies were read; it is not before, nor when they cannot be read on."""
    ready, unread = PlainTextResponse("ready"), PlainTextResponse("the policies are being read", 503)
    return [
        Route(LIVE, lambda _request: PlainTextResponse("live")),
        Route(READY, lambda _request: ready if is_ready() else unread),
    ]

"""Whether the console lives, and whether it can answer: for probes, without a viewer. Neither says anything else."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

LIVE, READY = "/healthz", "/readyz"


def health_routes(is_ready: Callable[[], bool]) -> list[Route]:
    """The routes. `is_ready`: whether the policies were read; it is not before, nor when they cannot be read on."""

    def live(_request: Request) -> Response:
        return PlainTextResponse("live")

    def ready(_request: Request) -> Response:
        return PlainTextResponse("ready") if is_ready() else PlainTextResponse("the policies are being read", 503)

    return [Route(LIVE, live), Route(READY, ready)]

"""The playground: documents, requests, and at once what comes of them. Nothing of it is kept.

The state is in the page and in the fragment of its address, which browsers send to nobody.
"""

import functools
import importlib.resources
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import yaml
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from policy import all_systems
from policy.testing import Detail, Draft, actions_of
from streaming.console.draft_program import Job
from streaming.console.guard import Tokens, body_of
from streaming.console.pages import Pages
from streaming.console.sandbox import DraftFailed, DraftRefused, Sandbox
from streaming.console.viewer import viewer_of

PATH = "/playground"
MOST_REQUESTS = 200
MOST_DOCUMENTS = 256 << 10  # characters
MOST_FIELD = 10_000  # characters
TITLES = {
    "lenses6": "Lenses 6",
    "lenses5": "Lenses 5",
    "ververica": "Ververica Platform",
    "streamsets": "StreamSets",
    "cdap": "CDAP",
    "kafka-acls": "Kafka ACLs",
    "cedar": "Cedar",
}


class _Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A draft, and the number of the request whose explanation is wanted."""

    draft: Draft
    number: int


class Playground:
    """The routes of the playground."""

    def __init__(self, pages: Pages, tokens: Tokens, sandbox: Sandbox) -> None:
        self._pages, self._tokens, self._sandbox = pages, tokens, sandbox
        self._examples = dict(load_examples())
        self.routes = [
            Route(PATH, self._page),
            Route(f"{PATH}/examples/{{name}}", self._example),
            Route(f"{PATH}/actions/{{system}}", self._actions),
            Route(f"{PATH}/evaluate", functools.partial(self._draft, does="evaluate"), methods=["POST"]),
            Route(f"{PATH}/open", self._open, methods=["POST"]),
            Route(f"{PATH}/save", functools.partial(self._draft, does="save"), methods=["POST"]),
        ]

    def _page(self, request: Request) -> HTMLResponse:
        viewer = viewer_of(request)
        return self._pages.respond(
            "playground.html.j2",
            here=PATH,
            viewer=viewer,
            token=self._tokens.of(viewer.session),
            systems=[(name, TITLES.get(name, name)) for name in systems()],
            examples=[(name, example["title"]) for name, example in self._examples.items()],
        )

    def _example(self, request: Request) -> Response:
        example = self._examples.get(request.path_params["name"])
        return Response(status_code=404) if example is None else JSONResponse(example)

    def _actions(self, request: Request) -> Response:
        return JSONResponse(actions_of(request.path_params["system"]))

    async def _draft(self, request: Request, does: Literal["evaluate", "save"]) -> Response:
        return await self._answered(Job(does, await self._posted(request, Draft)), JSONResponse)

    async def _open(self, request: Request) -> Response:
        opened = await self._posted(request, _Opened)
        if not 0 <= opened.number < len(opened.draft.requests):
            raise HTTPException(400, "there is no request of this number")

        def show(result: dict[str, Any]) -> Response:
            detail = msgspec.convert(result, Detail)
            return self._pages.respond("_evaluation.html.j2", detail=detail)

        return await self._answered(Job("open", opened.draft, opened.number), show)

    async def _posted(self, request: Request, type_: Any) -> Any:
        try:
            return msgspec.json.decode(await body_of(request, self._tokens, viewer_of(request).session), type=type_)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise HTTPException(400, "not a draft") from None

    async def _answered(self, job: Job, respond: Callable[[dict[str, Any]], Response]) -> Response:
        _check(job.draft)
        try:
            return respond(await run_in_threadpool(self._sandbox.ask, job))
        except DraftRefused as refused:  # no error of HTTP: while somebody types, most drafts are not whole
            return JSONResponse({"problem": refused.problem})
        except DraftFailed as failed:
            return JSONResponse({"problem": {"level": "error", "message": str(failed), "line": None}}, 503)


def _check(draft: Draft) -> None:
    """Raise HTTPException for a draft that is too large."""
    if len(draft.requests) > MOST_REQUESTS:
        raise HTTPException(413, f"more than {MOST_REQUESTS} requests")
    if len(draft.documents) > MOST_DOCUMENTS:
        raise HTTPException(413, f"documents of more than {MOST_DOCUMENTS >> 10} KiB")
    texts = [text for asked in draft.requests for text in msgspec.structs.astuple(asked)]
    if any(len(text) > MOST_FIELD for text in (draft.system, draft.at, *texts)):
        raise HTTPException(413, f"a field of more than {MOST_FIELD} characters")


def systems() -> list[str]:
    """Those that are installed; those with a title first."""
    installed = all_systems()
    return sorted(installed, key=lambda name: (list(TITLES).index(name) if name in TITLES else len(TITLES), name))


def load_examples() -> list[tuple[str, dict[str, Any]]]:
    """The examples by name, in the order of the systems: title and draft of each."""
    folder = importlib.resources.files("streaming.console").joinpath("examples")
    files = [(system, folder.joinpath(f"{system}.yaml")) for system in systems()]
    return [(name, yaml.safe_load(file.read_text(encoding="utf-8"))) for name, file in files if file.is_file()]

"""The page of a draft: which of the newest decisions would differ by documents that are not published yet.

It is a form that is posted, for documents are long; nothing is stored and nothing is published.
"""

import functools
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streaming.console.addresses import fields_of
from streaming.console.background import Background
from streaming.console.comparison_program import Compared, Turned
from streaming.console.comparisons import Comparisons, Draft
from streaming.console.guard import Tokens, form_and_token
from streaming.console.past_requests import PastRequest
from streaming.console.playground import MOST_DOCUMENTS, TITLES
from streaming.console.sandbox import DraftFailed, DraftRefused, Sandbox
from streaming.console.site import Site
from streaming.console.viewer import Viewer, viewer_of
from streaming.snapshots.at_offsets import NoLongerKnown

PATH = "/draft"
AGAIN = "this form was of an earlier session, or of an earlier start of the console: send it again"

CompletedComparison = tuple[Compared, list[PastRequest]]


class DraftPages:
    """The routes. `sandbox`: runs `comparison_program`."""

    def __init__(self, site: Site, tokens: Tokens, sandbox: Sandbox) -> None:
        self._site, self._systems, self._tokens = site, site.settings.systems, tokens
        self._comparisons = Comparisons(site.settings, site.records, sandbox)
        self._compared = Background[CompletedComparison]("drafts")
        self.routes = [Route(PATH, self._form), Route(PATH, self._compare, methods=["POST"])]

    def _form(self, request: Request) -> Response:
        """The form; with the documents of the address in it, to be edited."""
        fields = fields_of(request, ("system", "document"))
        system, viewer = fields["document"].partition("/")[0] or fields["system"], viewer_of(request)
        is_seen = system in self._systems and viewer.may_see(system)
        documents = self._site.cluster.read(lambda: self._site.records.text_of(fields["document"])) if is_seen else ""
        return self._page(request, {"system": system if is_seen else "", "documents": documents})

    async def _compare(self, request: Request) -> Response:
        viewer = viewer_of(request)
        posted, token = await form_and_token(request)
        fields = {"system": "", "documents": "", "prune": "", **posted}
        fields["documents"] = fields["documents"].replace("\r\n", "\n")
        if len(fields["documents"]) > MOST_DOCUMENTS:
            raise HTTPException(413, f"documents of more than {MOST_DOCUMENTS >> 10} KiB: lockkeeper replay takes them")
        try:
            self._tokens.check(token, viewer.session)
        except HTTPException as refused:  # of a session that is over: what was typed must not be lost with it
            return self._page(request, fields, refused.status_code, problem={"message": AGAIN, "line": None})
        return await run_in_threadpool(self._answer, request, fields, viewer)

    def _answer(self, request: Request, fields: Mapping[str, str], viewer: Viewer) -> Response:
        system = fields["system"]
        if system not in self._systems or not viewer.may_see(system):
            return self._page(request, fields, problem={"message": "choose a language", "line": None})
        draft = Draft(system, fields["documents"], bool(fields["prune"]))
        try:
            completed = self._site.cluster.work_out(self._compared, draft, lambda: self._comparisons.compare(draft))
        except DraftRefused as refused:
            return self._page(request, fields, problem=refused.problem)
        except (DraftFailed, NoLongerKnown) as failed:
            message = self._site.unseen.text_for(viewer, str(failed))
            return self._page(request, fields, problem={"message": message, "line": None})
        if completed is None:
            return self._page(request, fields, 202, is_compared_later=True)
        compared, requests = completed
        return self._page(
            request, fields, compared=compared, rows=[_row(turned, requests) for turned in compared.turned]
        )

    def prepare(self) -> None:
        """Have what is in force taken in, so that the first draft need not wait for it. It takes a while.

        Raises what `Comparisons` does.
        """
        for system in self._systems:
            self._compared.do(functools.partial(self._comparisons.prepare, system)).result()

    def close(self) -> None:
        """Compare nothing more."""
        self._compared.close()

    def _page(self, request: Request, fields: Mapping[str, str], status: int = 200, **values: Any) -> Response:
        title = TITLES.get(fields["system"], fields["system"])
        shown = {"problem": None, "compared": None, "rows": [], "is_compared_later": False, **values}
        token = self._tokens.of(viewer_of(request).session)
        fields = {"prune": "", **fields}
        return self._site.respond(
            request, "draft.html.j2", PATH, status=status, fields=fields, title=title, token=token, **shown
        )


def _row(turned: Turned, requests: list[PastRequest]) -> dict[str, str]:
    reason = turned.reason.message if turned.reason else ""
    row = requests[turned.number].row(turned.evaluations)
    return {**row, "before": turned.before, "after": turned.after, "reason": reason}

"""The page of a draft: which of the newest decisions would differ by documents that are not published yet.

It is a form that is posted, for documents are long; nothing is stored and nothing is published.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streaming.console.addresses import fields_of
from streaming.console.comparison_program import Compared, ComparisonJob, LiveDocument
from streaming.console.comparison_program import PastRequest as AskedRequest
from streaming.console.guard import Tokens, form_of
from streaming.console.playground import MOST_DOCUMENTS, TITLES
from streaming.console.reading import from_kafka
from streaming.console.records import Records
from streaming.console.sandbox import DraftFailed, DraftRefused, Sandbox
from streaming.console.viewer import Viewer, viewer_of
from streaming.settings import Settings
from streaming.snapshots.at_offsets import NoLongerKnown
from streaming.snapshots.documents import DocumentRecord

PATH = "/draft"
MOST_LIVE = 64 << 20  # bytes of documents in force
COMPARISON_PROGRAM = "streaming.console.comparison_program"
COMPARISON_SECONDS, LIVE_SECONDS = 10.0, 60.0  # for a draft, and for the first one after others came into force


class DraftPages:
    """The routes. `respond`: renders a template for the page of an address. `sandbox`: runs `comparison_program`."""

    def __init__(
        self, settings: Settings, records: Records, tokens: Tokens, sandbox: Sandbox, respond: Callable[..., Response]
    ) -> None:
        self._records, self._tokens, self._sandbox, self._respond = records, tokens, sandbox, respond
        self._systems = settings.systems
        self.routes = [Route(PATH, self._form), Route(PATH, self._compare, methods=["POST"])]

    def _form(self, request: Request) -> Response:
        """The form; with the documents of the address in it, to be edited."""
        fields = fields_of(request, ("system", "document"))
        system, viewer = fields["document"].partition("/")[0] or fields["system"], viewer_of(request)
        is_seen = system in self._systems and viewer.may_see(system)
        documents = from_kafka(lambda: self._records.text_of(fields["document"])) if is_seen else ""
        return self._page(request, {"system": system if is_seen else "", "documents": documents})

    async def _compare(self, request: Request) -> Response:
        viewer = viewer_of(request)
        fields = await form_of(request, self._tokens, viewer.session)
        fields = {"system": "", "documents": "", "prune": "", **fields}
        fields["documents"] = fields["documents"].replace("\r\n", "\n")
        if len(fields["documents"]) > MOST_DOCUMENTS:
            raise HTTPException(413, f"documents of more than {MOST_DOCUMENTS >> 10} KiB: lockkeeper replay takes them")
        return await run_in_threadpool(self._answer, request, fields, viewer)

    def _answer(self, request: Request, fields: Mapping[str, str], viewer: Viewer) -> Response:
        system = fields["system"]
        if system not in self._systems or not viewer.may_see(system):
            return self._page(request, fields, problem={"message": "choose a language", "line": None})
        try:
            compared, rows = self._compared(fields)
        except DraftRefused as refused:
            return self._page(request, fields, problem=refused.problem)
        except (DraftFailed, NoLongerKnown) as failed:
            return self._page(request, fields, problem={"message": str(failed), "line": None})
        return self._page(request, fields, compared=compared, rows=rows)

    def _compared(self, fields: Mapping[str, str]) -> tuple[Compared, list[dict[str, str]]]:
        """What a draft changes, and the requests that it turns. Raises DraftRefused, DraftFailed and NoLongerKnown."""
        system = fields["system"]
        requests = from_kafka(lambda: self._records.newest_requests(system.__eq__))
        key, policies, facts = from_kafka(lambda: self._records.live_documents(system))
        asked = tuple(AskedRequest(past.asked, tuple(past.trust)) for past in requests)
        job = ComparisonJob(key, system, fields["documents"], asked, bool(fields["prune"]))
        result = self._sandbox.ask(job)
        if result.get("needs_live"):
            result = self._sandbox.ask(msgspec.structs.replace(job, live=_live(policies, facts)), LIVE_SECONDS)
        compared = msgspec.convert(result, Compared)
        rows = [
            {
                **requests[turned.number].row(),
                "before": turned.before,
                "after": turned.after,
                "reason": turned.reason.message if turned.reason else "",
            }
            for turned in compared.turned
        ]
        return compared, rows

    def _page(self, request: Request, fields: Mapping[str, str], **values: Any) -> Response:
        title = TITLES.get(fields["system"], fields["system"])
        shown = {"problem": None, "compared": None, "rows": [], **values}
        token = self._tokens.of(viewer_of(request).session)
        fields = {"prune": "", **fields}
        return self._respond(request, "draft.html.j2", PATH, fields=fields, title=title, token=token, **shown)


def _live(policies: tuple[DocumentRecord, ...], facts: tuple[DocumentRecord, ...]) -> tuple[LiveDocument, ...]:
    """The documents for the process. Raises DraftFailed where they are too many for a page."""
    if sum(len(record.value) for record in (*policies, *facts)) > MOST_LIVE:
        raise DraftFailed(f"more than {MOST_LIVE >> 20} MiB of documents are in force: use lockkeeper replay")
    return tuple(
        LiveDocument(record.value.decode("utf-8", "replace"), record.at, record.offset, is_fact)
        for records, is_fact in ((policies, False), (facts, True))
        for record in records
    )

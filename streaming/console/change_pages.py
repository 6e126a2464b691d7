"""The pages of changes: the timeline, and one change."""

from collections import Counter
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streaming.console.addresses import MOST_TEXT, address, fields_of, own_address
from streaming.console.background import Background
from streaming.console.changes import (
    Changed,
    Turned,
    compared_with,
    describe,
    history_seen_by,
    is_worked_out,
    rollback_command,
    sides_of,
    turned_requests,
)
from streaming.console.listing import listed
from streaming.console.site import Site
from streaming.console.viewer import viewer_of
from streaming.records.change import has_document
from streaming.settings.console import page_path
from streaming.snapshots.logged import LoggedChange, NoSuchChange

FILTERS = ("system", "document", "author", "since", "until")
MARKS = {"added": "+", "changed": "~", "removed": "−", "refused": "✘"}


class ChangePages:
    """The routes."""

    def __init__(self, site: Site) -> None:
        self._site, self._topics = site, site.settings.topics.policy_topics()
        self._described, self._compared = Background[Changed]("changes"), Background[Turned]("turned")
        self.routes = [Route("/changes", self._list), Route("/changes/{name:path}", self._change)]

    def _list(self, request: Request) -> Response:
        fields, viewer = fields_of(request, FILTERS), viewer_of(request)
        history = history_seen_by(viewer, self._site.cluster.read(self._site.changes.history))
        changes, unreadable = reversed(history.changes), self._site.changes.unreadable
        shown = listed("/changes", fields, changes, lambda change: _fits(change, fields), unreadable)
        listing = shown.values(fields, _row, history.is_cut)
        return self._site.respond(request, "changes.html.j2", "/changes", **listing)

    def _change(self, request: Request) -> Response:
        name, viewer = request.path_params["name"][:MOST_TEXT], viewer_of(request)
        history = history_seen_by(viewer, self._site.cluster.read(self._site.changes.history))
        try:
            change = history.find(name)
        except NoSuchChange:
            raise HTTPException(
                404, "there is no such change, or several have this id: look for it in the list"
            ) from None
        # A topic that was re-created has another change at the place that a name is made of.
        key = (change.name, change.id, change.at, viewer.systems, len(change.widens))
        changed = self._site.cluster.work_out(self._described, key, lambda: self._describe(change), keep=True)
        compare, turned = bool(request.query_params.get("compare")), None
        if compare:
            turned = self._site.cluster.work_out(self._compared, key, lambda: self._turned(change))
        if changed is None or (compare and turned is None):
            return self._site.respond(request, "waiting.html.j2", "/changes", status=202, again=own_address(request))
        return self._site.respond(
            request,
            "change.html.j2",
            "/changes",
            changed=changed,
            unknown=[self._site.unseen.text_for(viewer, why) for why in changed.unknown],
            row=_row(change),
            marks=MARKS,
            rollback=rollback_command(change),
            after=changed_since(change),
            turned=turned,
            compare_address=address(page_path("changes", change.name), {"compare": "1"}),
        )

    def _describe(self, change: LoggedChange) -> Changed:
        return describe(change, self._site.records.documents(), self._topics)

    def _turned(self, change: LoggedChange) -> Turned:
        sides = sides_of(change, self._site.records.documents(), self._topics)
        systems = {side.part.system for side in sides}
        return turned_requests(self._site.records.newest_requests(systems.__contains__), sides, self._site.facts())

    def close(self) -> None:
        """Work nothing more out."""
        self._described.close()
        self._compared.close()


def changed_since(change: LoggedChange) -> str:
    """The decisions since a change, of its system where it is of one alone."""
    system = change.parts[0].system if len(change.parts) == 1 else ""
    return address("/decisions", {"system": system, "since": change.first.time})


def _fits(change: LoggedChange, fields: dict[str, str]) -> bool:
    return (
        (not fields["system"] or any(part.system == fields["system"] for part in change.parts))
        and (not fields["document"] or has_document(change.parts, fields["document"]))
        and fields["author"].lower() in change.first.author.lower()
    )


def _row(change: LoggedChange) -> dict[str, Any]:
    counts = Counter[str](document.change for document in change.documents)
    opens = sum(widens.widens_count for widens in change.widens)
    return {
        "change": change,
        "address": page_path("changes", change.name),
        "counts": [(MARKS[manner], counts[manner], manner) for manner in MARKS if manner in counts],
        "opens": opens if opens or is_worked_out(change) else None,
        "compared_with": compared_with(change) if opens else [],
    }

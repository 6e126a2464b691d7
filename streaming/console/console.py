"""The console's pages: decisions, one decision, ask, access. All by GET, each page's state in its address.

Each shows what its viewer may see alone: the policies, decisions and alerts of the viewer's systems. Work is bounded:
of a page by what it reads (`decision_log.newest`), of a question by the names that it goes through.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from policy import OUTCOMES, MalformedRequest, Reason, Snapshot, all_systems, decide, to_text
from policy.analysis import Nearest, Node, draw_trees, error_tree, nearest_grants, unknown_names, who_can
from policy.testing import (
    NAMED,
    CaseFileError,
    DraftRequest,
    actions_of,
    full_request,
    refuse_unknown_members,
    short_form_of,
)
from streaming.console.access_pages import AccessPages
from streaming.console.addresses import MOST_TEXT, address, decisions_address, fields_of, own_address
from streaming.console.alert_pages import AlertPages
from streaming.console.background import Background
from streaming.console.change_pages import ChangePages
from streaming.console.completion import completed_names
from streaming.console.draft_pages import DraftPages
from streaming.console.guard import Tokens
from streaming.console.listing import Listing, older_address, span_in
from streaming.console.records import Explained, NoSuchDecision, names_in_parts, request_of, requested_parts
from streaming.console.sandbox import Sandbox
from streaming.console.site import Site
from streaming.console.viewer import Viewer, viewer_of
from streaming.decision_log.remarks import remarks
from streaming.decision_log.search import Found, Query
from streaming.history.span import SpanError
from streaming.pdp.reading import Read, lacking
from streaming.records.formats import shorten_id
from streaming.settings.console import page_path
from streaming.topics import Offsets

LINKS = (
    ("/overview", "Overview"),
    ("/decisions", "Decisions"),
    ("/alerts", "Alerts"),
    ("/changes", "Changes"),
    ("/ask", "Ask"),
    ("/access", "Access"),
    ("/draft", "Draft"),
    ("/playground", "Playground"),
)
ROWS = 50
MOST_NAMES = 5000  # principals that a page goes through; `lockkeeper who-can` has no such bound
FILTERS = ("subject", "action", "resource", "outcome", "system", "document", "request_id", "since", "until", "exact")
ASKED = ("system", "subject", "groups", "action", "resource", "more")


class Console:
    """The routes. `sandbox`: compares drafts with the policies in force."""

    def __init__(self, site: Site, tokens: Tokens, sandbox: Sandbox) -> None:
        self._site, self._explained = site, Background[Explained]("decisions")
        self._refused = Background[list[str]]("refused")
        self._drafts, self._access = DraftPages(site, tokens, sandbox), AccessPages(site)
        self._changes = ChangePages(site)
        self.routes = [
            Route("/", lambda _request: RedirectResponse("/overview")),
            Route("/decisions", self._decisions),
            Route("/decisions/{id:path}", self._decision),
            Route("/ask", self._ask),
            *self._access.routes,
            *self._drafts.routes,
            *self._changes.routes,
            *AlertPages(site).routes,
        ]

    def prepare(self) -> None:
        """Do beforehand what the first page of a kind would wait for. Raises what such a page raises."""
        if (snapshot := self._site.in_force.known()) is not None:
            self._access.prepare(snapshot)
        self._drafts.prepare()

    def close(self) -> None:
        """Work nothing more out."""
        self._explained.close()
        self._refused.close()
        self._changes.close()
        self._drafts.close()

    def _decisions(self, request: Request) -> Response:
        fields, viewer = fields_of(request, FILTERS), viewer_of(request)
        shown = self._newest(fields, viewer)
        refused = self._why_refused("" if shown.rows or shown.problem else fields["request_id"], viewer)
        if refused is None:
            return self._site.respond(request, "waiting.html.j2", "/decisions", status=202, again=own_address(request))
        listing = shown.values(fields, lambda decided: _row(decided.decision))
        return self._site.respond(request, "decisions.html.j2", "/decisions", **listing, refused=refused)

    def _why_refused(self, request_id: str, viewer: Viewer) -> list[str] | None:
        """See `Records.refused`; None while it is worked out, for dead letters may be large."""
        if not request_id:
            return []
        return self._site.cluster.work_out(
            self._refused, (request_id, viewer.systems), lambda: self._site.records.refused(request_id, viewer)
        )

    def _newest(self, fields: Mapping[str, str], viewer: Viewer) -> Listing[Found]:
        try:
            query = _query(fields, viewer)
        except SpanError as error:
            return Listing([], problem=str(error))
        newest = self._site.cluster.read(lambda: self._site.records.newest(query))
        found, until, unreadable = list(newest.found), newest.read_from, newest.unreadable
        if until is None:
            kept_from = "" if newest.kept_from is None else to_text(newest.kept_from)
            return Listing(found, kept_from=kept_from, unreadable=unreadable)
        older = older_address("/decisions", fields, query.span, until)
        return Listing(found, to_text(until), older, unreadable=unreadable, left_out=newest.left_out)

    def _decision(self, request: Request) -> Response:
        id_, viewer = request.path_params["id"][:MOST_TEXT], viewer_of(request)
        policies = self._site.in_force.snapshot()

        def explain() -> Explained:
            return self._site.records.explained(id_, policies, viewer)

        try:
            explained = self._site.cluster.work_out(self._explained, (id_, viewer.systems), explain)
        except MalformedRequest as error:
            raise HTTPException(404, f"the decision repeats no request that can be evaluated: {error}") from None
        except NoSuchDecision as error:
            raise HTTPException(404, str(error)) from None
        if explained is None:
            return self._site.respond(request, "waiting.html.j2", "/decisions", status=202, again=own_address(request))
        decision, text_for = explained.found.decision, self._site.unseen.text_for
        asked = _asked_again(decision)
        return self._site.respond(
            request,
            "decision.html.j2",
            "/decisions",
            explained=explained,
            unknown=text_for(viewer, explained.unknown),
            notes=[text_for(viewer, note) for note in explained.notes],
            decision=decision,
            row=_row(decision),
            ask=address("/ask", asked),
            now=to_text(explained.now),
            alerts=address("/alerts", {"subject": shorten_id(_row(decision)["subject"])}),
            changes=address("/changes", {"system": str(decision["system"]), "since": str(decision["time"])}),
            others=address("/access", {name: asked.get(name, "") for name in ("system", "resource", "more")}),
        )

    def _ask(self, request: Request) -> Response:
        fields = fields_of(request, ASKED)
        answer = problem = who = None
        is_single = True
        past = dict[str, str]()
        if any(fields[name] for name in ("subject", "action", "resource", "more")):
            try:
                asked, read = _request(fields, viewer_of(request)), self._site.in_force.read()
                offsets = self._offsets_for(viewer_of(request), read)
                answer, past = _answer(read.snapshot, asked, offsets), names_in_parts(asked)
                is_single = "evaluations" not in asked
                is_asked = bool(request.query_params.get("who")) and is_single and answer.is_decided
                who = _who(read.snapshot, asked) if is_asked else None
            except (CaseFileError, MalformedRequest) as error:
                problem = str(error)
        return self._site.respond(
            request,
            "ask.html.j2",
            "/ask",
            fields=fields,
            answer=answer,
            problem=problem,
            who=who,
            is_single=is_single,
            who_address=address("/ask", {**fields, "who": "1"}),
            access_address=address("/access", {name: fields[name] for name in ("system", "subject", "groups", "more")}),
            others_address=address("/access", {name: fields[name] for name in ("system", "resource", "more")}),
            past=decisions_address({"system": fields["system"], **past}),
            actions=actions_of(fields["system"]) if viewer_of(request).may_see(fields["system"]) else [],
            names=self._names(request, fields["system"]),
            most=MOST_NAMES,
        )

    def _offsets_for(self, viewer: Viewer, read: Read) -> Offsets:
        """What a question may name in `min_policy_offsets`: others would say how policies change that are not seen."""
        unseen = self._site.unseen.of(viewer)
        return {topic: offsets for topic, offsets in read.all_offsets.items() if topic not in unseen}

    def _names(self, request: Request, system: str) -> tuple[list[str], list[str]]:
        """Some subjects and resources that documents of a system name, for completion."""
        snapshot = self._site.in_force.known()
        if snapshot is None or not viewer_of(request).may_see(system):
            return [], []
        return completed_names(snapshot, system)


def _query(fields: Mapping[str, str], viewer: Viewer) -> Query:
    """What a form asks for, of what the viewer may see. Raises SpanError."""
    span = span_in(fields, time.time_ns() // 1_000_000)
    outcome = fields["outcome"] if fields["outcome"] in OUTCOMES else ""
    named = {name: fields[name] for name in ("subject", "action", "resource", "system", "document", "request_id")}
    return Query(span, **named, outcome=outcome, limit=ROWS, exact=bool(fields["exact"]), systems=viewer.systems)


def _row(decision: Mapping[str, Any]) -> dict[str, Any]:
    context = decision.get("context", {})
    first: dict[str, Any] = next(iter(context.get("reasons", ())), {})
    return {
        **request_of(decision),
        "id": str(decision.get("id", "")),
        "address": page_path("decisions", str(decision.get("id", ""))),
        "time": str(decision.get("time") or ""),
        "system": str(decision.get("system", "")),
        "outcome": str(context.get("outcome", "error")),
        "items": len(decision.get("evaluations") or ()),
        "reason": str(first.get("message", "")),
        "remarks": remarks(decision),
    }


def _asked_again(decision: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a form that asks the same, as far as the decision repeats it."""
    system, named = str(decision.get("system", "")), request_of(decision)
    with contextlib.suppress(CaseFileError):  # of a name that is no entity of Cedar: the form says so
        usual, whole = full_request(named, system), requested_parts(decision)
        parts = ((part, name, _given(whole.get(part, {}))) for part, name in NAMED.items())
        more = {part: _without(given, name) for part, name, given in parts if given != _given(usual[part])}
        named |= {"more": msgspec.json.encode(more).decode()} if any(more.values()) else {}
    return {"system": system, **named}


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value}


def _without(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in part.items() if other != name}


def _request(fields: Mapping[str, str], viewer: Viewer) -> dict[str, Any]:
    """The request of a form, now. Raises CaseFileError."""
    texts = (fields["subject"], fields["groups"], fields["action"], fields["resource"], fields["more"])
    if fields["system"] not in all_systems() or not viewer.may_see(fields["system"]):
        raise CaseFileError("system: choose one")
    short = short_form_of(DraftRequest(*texts))
    if "time" in short:
        raise CaseFileError("more: the answer is about now; leave time out")
    asked = full_request(short, fields["system"])
    if asked["system"] != fields["system"]:  # which was checked against what the viewer may see
        raise CaseFileError("more: names another language than the form; choose it there")
    refuse_unknown_members(asked)
    return {**asked, "id": "console", "time": time.time_ns() // 1_000_000}


class AskAnswer(msgspec.Struct, frozen=True):
    """What Ask shows. ``is_decided``: the policies are as new as the request wants them.

    ``is_nearest_left_out``: a deny, and there are too many names to look for what is nearest to it.
    """

    outcome: str
    reasons: tuple[tuple[Reason, None], ...]
    trees: tuple[Node, ...]
    names: tuple[str, ...]
    nearest: tuple[Nearest | None, ...] = ()
    is_nearest_left_out: bool = False
    is_decided: bool = True


def _answer(snapshot: Snapshot, asked: dict[str, Any], offsets: Offsets) -> AskAnswer:
    trees = draw_trees(snapshot, asked)
    names = tuple(str(name) for name in unknown_names(snapshot, asked))
    if (behind := lacking(asked, offsets)) is not None:
        undecided = tuple(error_tree(tree, behind) for tree in trees)
        return AskAnswer("error", ((Reason("policies-behind", behind), None),), undecided, names, is_decided=False)
    decision = decide(snapshot, asked)
    reasons, are_few = tuple((reason, None) for reason in decision.reasons), _are_few(snapshot, asked["system"])
    nearest = tuple(nearest_grants(snapshot, asked)) if are_few else ()
    is_left_out = not are_few and any(tree.held is False for tree in trees)
    return AskAnswer(decision.outcome, reasons, tuple(trees), names, nearest, is_left_out)


def _who(snapshot: Snapshot, asked: dict[str, Any]) -> Any:
    """Who else can; `"many"` where there are too many names to go through for a page."""
    return who_can(snapshot, asked) if _are_few(snapshot, asked["system"]) else "many"


def _are_few(snapshot: Snapshot, system: str) -> bool:
    """Whether a search for principals goes through no more names, about, than a page may."""
    policy_set = snapshot.policy_sets.get(system)
    if policy_set is None:
        return True
    facts = sum(1 for kind in all_systems()[system].kinds for _ in policy_set.facts.names(kind))
    return len(policy_set.grants) + len(policy_set.memberships) + facts <= MOST_NAMES

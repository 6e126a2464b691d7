"""The pages of alerts: the episodes, and one of them."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from policy import to_text
from streaming.alert_kinds import AlertKind
from streaming.console.addresses import MOST_TEXT, address, fields_of
from streaming.console.alerts import Episode, Piece, decisions_behind, pieces, seen_by
from streaming.console.changes import change_at, history_seen_by
from streaming.console.listing import listed
from streaming.console.site import Site
from streaming.console.viewer import viewer_of
from streaming.decision_log.search import fits_name
from streaming.records.formats import shorten_id
from streaming.report.incidents import SEVERITIES
from streaming.settings.console import page_path
from streaming.snapshots.logged import ChangeHistory

FILTERS = ("kind", "severity", "subject", "system", "since", "until")


class AlertPages:
    """The routes."""

    def __init__(self, site: Site) -> None:
        self._site, self._topics = site, site.settings.topics.policy_topics()
        self.routes = [Route("/alerts", self._list), Route("/alerts/{id:path}", self._episode)]

    def _list(self, request: Request) -> Response:
        fields = fields_of(request, FILTERS)
        seen = seen_by(viewer_of(request), self._site.cluster.read(self._site.alerts.episodes))
        unreadable = self._site.alerts.unreadable
        shown = listed("/alerts", fields, seen, lambda episode: _fits(episode, fields), unreadable)
        choices = {
            "kinds": [(kind, kind) for kind in map(str, AlertKind)],
            "severities": [(severity, severity) for severity in SEVERITIES],
        }
        listing = shown.values(fields, is_cut=self._site.alerts.is_cut)
        return self._site.respond(request, "alerts.html.j2", "/alerts", **listing, **choices)

    def _episode(self, request: Request) -> Response:
        id_, viewer = request.path_params["id"][:MOST_TEXT], viewer_of(request)
        seen = seen_by(viewer, self._site.cluster.read(self._site.alerts.episodes))
        episode = next((episode for episode in seen if episode.alert.id == id_), None)
        if episode is None:
            raise HTTPException(404, "there is no such alert: it was deleted by retention, or the id is wrong")
        evidence = pieces(episode)
        history = history_seen_by(viewer, self._site.cluster.read(self._site.changes.history))
        return self._site.respond(
            request,
            "alert.html.j2",
            "/alerts",
            episode=episode,
            evidence=[(piece, _change_of(piece, history, self._topics, episode.at)) for piece in evidence],
            decisions=decisions_behind(episode),
            changes=address("/changes", {"system": episode.system, "until": to_text(episode.first + 1)}),
            more=address("/alerts", {"subject": episode.subject}),
        )


def _change_of(piece: Piece, history: ChangeHistory, topics: dict[str, str], at: int) -> str:
    """The address of the change that a piece of evidence names by its record; "" for none of these. `at`: ms."""
    if not piece.topic or piece.offset < 0:
        return ""
    change = change_at(history, topics, piece.topic, piece.offset, at)
    return "" if change is None else page_path("changes", change.name)


def _fits(episode: Episode, fields: dict[str, str]) -> bool:
    alert = episode.alert
    return (
        fields["kind"] in ("", alert.kind)
        and fields["severity"] in ("", alert.severity)
        and (not fields["subject"] or _is_about(episode, fields["subject"]))
        and fields["system"] in ("", episode.system)
    )


def _is_about(episode: Episode, subject: str) -> bool:
    """Whether it is about a subject; alerts have a long name shortened."""
    return fits_name(subject, episode.subject) or shorten_id(subject) == episode.subject

"""The overview: decisions a second, latency, lag, policies in force, alerts. Live, by server-sent events.

A stream ends after a minute, and browsers ask for the next: whether its viewer may see it is asked again then.
"""

import asyncio
import collections
import itertools
import operator
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from policy import OUTCOMES, Snapshot, to_text
from streaming.console.alerts import seen_by
from streaming.console.playground import TITLES
from streaming.console.pulse import KEPT_SECONDS, Beat, Look, Pulse, quantile
from streaming.console.site import Site
from streaming.console.viewer import Viewer, viewer_of
from streaming.history.span import DAY, HOUR
from streaming.report.incidents import SEVERITIES

EVENT_SECONDS, STREAM_SECONDS = 1.0, 60.0
MOST_STREAMS = 50
NOW_SECONDS, CHART_BINS = 10, 60
NEWEST = 5  # alerts that are listed
HEIGHT = 24.0


class Overview:
    """The routes. `stop`: ends all streams when it is set."""

    def __init__(self, site: Site, pulse: Pulse, stop: threading.Event) -> None:
        self._site, self._pulse, self._stop = site, pulse, stop
        self._streams = 0
        self._rendered: dict[frozenset[str] | None, tuple[int, asyncio.Future[bytes]]] = {}
        self.routes = [Route("/overview", self._page), Route("/overview/events", self._events)]

    def _page(self, request: Request) -> Response:
        viewer = viewer_of(request)
        return self._site.pages.respond("overview.html.j2", here="/overview", viewer=viewer, **self._values(viewer))

    async def _events(self, request: Request) -> Response:
        viewer = viewer_of(request)
        if self._streams >= MOST_STREAMS:
            raise HTTPException(503, "too many overviews are open; load this page again to see its state")
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._stream(viewer), media_type="text/event-stream", headers=headers)

    async def _stream(self, viewer: Viewer) -> AsyncIterator[str | bytes]:
        self._streams += 1
        deadline, shown = time.monotonic() + STREAM_SECONDS, -1
        try:
            yield "retry: 2000\n\n"
            while not self._stop.is_set() and time.monotonic() < deadline:
                if self._pulse.look.number != shown:
                    shown, event = await self._event(viewer)
                    yield event
                await asyncio.sleep(EVENT_SECONDS / 4)
        finally:
            self._streams -= 1

    async def _event(self, viewer: Viewer) -> tuple[int, bytes]:
        """What is live, and the number of the look that it shows. Rendered once for all viewers of the same systems:
        those who come while it is rendered wait for it.
        """
        number = self._pulse.look.number
        latest = self._rendered.get(viewer.systems)
        if latest is None or latest[0] != number:
            if len(self._rendered) > MOST_STREAMS:
                self._rendered.clear()
            rendering = asyncio.ensure_future(run_in_threadpool(self._render, viewer))
            latest = self._rendered[viewer.systems] = number, rendering
        return number, await asyncio.shield(latest[1])

    def _render(self, viewer: Viewer) -> bytes:
        return _event(self._site.pages.render("_overview.html.j2", viewer=viewer, **self._values(viewer)))

    def _values(self, viewer: Viewer) -> dict[str, Any]:
        look, now = self._pulse.look, time.time_ns() // 1_000_000
        are_alerts_read = True
        try:
            episodes = seen_by(viewer, self._site.cluster.read(self._site.alerts.episodes))
        except HTTPException as unread:
            are_alerts_read, episodes = False, []
            look = msgspec.structs.replace(look, unread=look.unread or unread.detail)
        status = None if look.status is None else self._site.unseen.status_for(viewer, look.status)
        look = msgspec.structs.replace(look, status=status, unread=self._site.unseen.text_for(viewer, look.unread))
        policies = self._site.in_force.known()
        recent = [episode for episode in episodes if episode.at > now - DAY]
        by_severity = collections.Counter(episode.alert.severity for episode in recent)
        return {
            "look": look,
            "rows": [_row(system, look) for system in self._site.settings.systems if viewer.may_see(system)],
            "is_sample": any(beat.is_sample for beat in look.beats),
            "minutes": KEPT_SECONDS // 60,
            "policies": self._policies(viewer, look, policies),
            "version": "" if policies is None else policies.version,
            "instances": [_instance(instance) for instance in look.instances],
            "are_alerts_read": are_alerts_read,
            # Whether one goes on is not known: of most occurrences there is no alert, and of its end there is one.
            "last_hour": sum(1 for episode in recent if episode.at > now - HOUR),
            "severities": [(severity, by_severity[severity]) for severity in SEVERITIES if by_severity[severity]],
            "newest": recent[:NEWEST],
            "now": to_text(now),
        }

    def _policies(self, viewer: Viewer, look: Look, policies: Snapshot | None) -> list[dict[str, Any]]:
        newest = {} if look.status is None else look.status.policies
        refused = [] if policies is None else [rejected.key.partition("/")[0] for rejected in policies.rejected]
        return [
            {
                "title": TITLES.get(system, system),
                "system": system,
                "newest": "" if (at := newest.get(topic)) is None else to_text(at),
                "refused": refused.count(system),
            }
            for system, topic in self._site.settings.topics.policy_topics().items()
            if viewer.may_see(system)
        ]


def _event(text: str) -> bytes:
    """An event whose data are the lines of a text."""
    data = [f"data: {line}" for line in text.splitlines()]
    return "\n".join(["event: overview", *data, "", ""]).encode()


class _Row(msgspec.Struct, frozen=True):
    """A system. `rates`: decisions a second by outcome; `paths`: of the chart, stacked; `most`: a second in it."""

    system: str
    title: str
    rates: dict[str, float]
    median: float | None
    late: float | None
    paths: tuple[tuple[str, str], ...] = ()
    most: float = 0.0

    @property
    def rate(self) -> float:
        """Of all outcomes."""
        return sum(self.rates.values())


def _row(system: str, look: Look) -> _Row:
    now = look.beats[-1].at if look.beats else 0.0
    recent = [beat for beat in look.beats if beat.at > now - NOW_SECONDS]
    rates: dict[str, float] = {outcome: _rate(recent, system, outcome) for outcome in OUTCOMES}
    latencies = [late for name, late in look.latencies if name == system]
    stacks = _stacked([[_rate(beats, system, outcome) for beats in _bins(look.beats, now)] for outcome in OUTCOMES])
    most = max(stacks[-1], default=0.0)
    paths = tuple(
        (outcome, _area(below, above, most))
        for outcome, below, above in zip(OUTCOMES, ([0.0] * CHART_BINS, *stacks), stacks, strict=False)
        if most
    )
    titles = (system, TITLES.get(system, system), rates)
    return _Row(*titles, quantile(latencies, 0.5), quantile(latencies, 0.99), paths, most)


def _rate(beats: Sequence[Beat], system: str, outcome: str) -> float:
    seconds = sum(beat.seconds for beat in beats)
    return sum(beat.counts.get((system, outcome), 0.0) for beat in beats) / seconds if seconds else 0.0


def _bins(beats: Sequence[Beat], now: float) -> list[list[Beat]]:
    """The beats of each step of the chart, oldest first."""
    step = KEPT_SECONDS / CHART_BINS
    bins: list[list[Beat]] = [[] for _ in range(CHART_BINS)]
    for beat in beats:
        if 0 <= (number := CHART_BINS - 1 - int((now - beat.at) / step)) < CHART_BINS:
            bins[number].append(beat)
    return bins


def _stacked(series: Sequence[list[float]]) -> list[list[float]]:
    """Each series on those before it."""
    return list(itertools.accumulate(series, lambda below, values: list(map(operator.add, below, values))))


def _area(below: Sequence[float], above: Sequence[float], most: float) -> str:
    """The path of an SVG between two lines."""

    def points(values: Sequence[float]) -> list[str]:
        return [f"{at} {HEIGHT - HEIGHT * value / most:.1f}" for at, value in enumerate(values)]

    return f"M{' L'.join([*points(above), *reversed(points(below))])}Z"


def _instance(instance: Any) -> dict[str, str]:
    return {"name": instance.name, "version": instance.version, "at": to_text(int(instance.at * 1000))}

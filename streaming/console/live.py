"""The console of a cluster: its pages over a reader of the policies in force, and the topics."""

import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from policy import Compiler
from streaming.console.alerts import AlertLog
from streaming.console.changes import ChangeLog
from streaming.console.comparisons import COMPARISON_PROGRAM, COMPARISON_SECONDS
from streaming.console.console import LINKS, Console
from streaming.console.guard import BURST, RATE, Guard, Rates, Tokens
from streaming.console.health import health_routes
from streaming.console.in_force import InForce
from streaming.console.overview import Overview
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import Playground
from streaming.console.preparation import Preparation
from streaming.console.pulse import Pulse
from streaming.console.reading import Cluster
from streaming.console.recent import RecentDecisions
from streaming.console.records import Records
from streaming.console.sandbox import Sandbox
from streaming.console.server import application
from streaming.console.signing_in import SignedIn, sign_in_method
from streaming.console.site import Site
from streaming.console.unseen import UnseenTopics
from streaming.kafka.clients import admin_client
from streaming.pdp.follower import Follower
from streaming.serve.authentication import LOCAL
from streaming.settings import Settings

VIEWERS = 20  # behind one address


@contextlib.contextmanager
def console(settings: Settings, stop: threading.Event) -> Iterator[ASGIApp]:
    """The console of a cluster, for those whom its settings let in; it reads the policies until `stop` is set.

    `stop` is set, too, when they cannot be read any more: the error is raised at the end.
    """
    tokens = Tokens()
    static = StaticFiles()
    pages = Pages(static, LINKS, tokens.of)
    sign_in = sign_in_method(settings, tokens, pages)
    hosts = LOCAL | {urlsplit(settings.console.url).hostname or "localhost"}
    sandbox = Sandbox()
    comparisons = Sandbox(1, COMPARISON_SECONDS, COMPARISON_PROGRAM, is_eager=False)  # it holds the live documents
    admin = admin_client(settings)
    cluster, records, unseen = Cluster(settings, admin), Records(settings, admin), UnseenTopics(settings)

    def take(policies: Compiler) -> None:
        records.share(policies)
        preparation.begin()

    follower = Follower(settings, stop, lambda _read: None, stop.set, on_policies=take, ends_without_login=True)
    in_force = InForce(cluster, follower, settings.serve.max_staleness_seconds)
    logs = (ChangeLog(settings, admin), AlertLog(settings, admin), RecentDecisions(settings, admin))
    site = Site(settings, pages, cluster, records, *logs, in_force, lambda: follower.facts, unseen)
    shown = Console(site, tokens, comparisons)
    preparation = Preparation((records.prepare, shown.prepare), stop)
    pulse = Pulse(settings, admin, stop)
    follower.start()
    try:
        pulse.start()
        preparation.start()
        overview = Overview(site, pulse, stop)
        routes = [*overview.routes, *shown.routes, *Playground(pages, tokens, sandbox).routes, *sign_in.routes]
        routes += health_routes(lambda: follower.read is not None and follower.failure is None)
        # Viewers who sign in come by a proxy, and share its address.
        rates = Rates(VIEWERS * RATE, VIEWERS * BURST) if settings.console.signs_in else Rates()
        yield Guard(SignedIn(application(routes, pages, static, unseen.text_for), sign_in, pages), hosts, rates)
    finally:
        stop.set()
        pulse.close()
        follower.close()
        shown.close()
        sandbox.close()
        comparisons.close()
    if follower.failure is not None:
        raise follower.failure

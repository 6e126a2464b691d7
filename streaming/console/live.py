"""The console of a cluster: its pages over a reader of the policies in force, and the topics."""

import contextlib
import threading
from collections.abc import Iterable, Iterator

from starlette.types import ASGIApp

from streaming.console.console import LINKS, Console
from streaming.console.guard import Guard, Tokens
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import Playground
from streaming.console.records import Records
from streaming.console.sandbox import Sandbox
from streaming.console.server import application
from streaming.kafka.clients import admin_client
from streaming.serve.authentication import LOCAL
from streaming.serve.follower import Follower
from streaming.settings import Settings


@contextlib.contextmanager
def console(settings: Settings, stop: threading.Event, hosts: Iterable[str] = LOCAL) -> Iterator[ASGIApp]:
    """The console of a cluster, for browsers of this machine; it reads the policies until `stop` is set.

    `stop` is set, too, when they cannot be read any more: the error is raised at the end.
    """
    static, sandbox = StaticFiles(), Sandbox()
    pages = Pages(static, LINKS)
    follower = Follower(settings, stop, lambda _read: None, stop.set)
    follower.start()
    try:
        records = Records(settings, admin_client(settings))
        shown = Console(pages, records, settings.systems, lambda: follower.read)
        routes = [*shown.routes, *Playground(pages, Tokens(), sandbox).routes]
        yield Guard(application(routes, pages, static), hosts)
    finally:
        stop.set()
        follower.close()
        sandbox.close()
    if follower.failure is not None:
        raise follower.failure

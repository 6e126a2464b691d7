"""What the pages of the console share: what they read from Kafka, and how a page is rendered for its viewer."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from policy import FactOverlay
from streaming.console.alerts import AlertLog
from streaming.console.changes import ChangeLog
from streaming.console.in_force import InForce
from streaming.console.pages import Pages
from streaming.console.playground import TITLES
from streaming.console.reading import Cluster
from streaming.console.recent import RecentDecisions
from streaming.console.records import Records
from streaming.console.unseen import UnseenTopics
from streaming.console.viewer import viewer_of
from streaming.settings import Settings


class Site(msgspec.Struct, frozen=True):
    """The web site about a cluster. `facts`: the newest ones, with their past."""

    settings: Settings
    pages: Pages
    cluster: Cluster
    records: Records
    changes: ChangeLog
    alerts: AlertLog
    recent: RecentDecisions
    in_force: InForce
    facts: Callable[[], FactOverlay]
    unseen: UnseenTopics

    def respond(self, request: Request, template: str, here: str, **values: Any) -> Response:
        """A page for its viewer. `here`: the address of its link in the navigation."""
        viewer = viewer_of(request)
        systems = [(name, TITLES.get(name, name)) for name in self.settings.systems if viewer.may_see(name)]
        old = self.in_force.out_of_date()
        return self.pages.respond(template, here=here, systems=systems, viewer=viewer, old=old, **values)

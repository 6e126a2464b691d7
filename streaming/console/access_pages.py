"""The page of access: what a subject may do, who may do what with a resource, and the statements of a system."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from policy import MalformedRequest, Snapshot
from policy.analysis import ordered_statements
from policy.testing import CaseFileError
from streaming.console.access import MOST_PERMISSIONS, Uses, access_in, statements_in, subject_in, uses
from streaming.console.addresses import fields_of
from streaming.console.reading import Cluster
from streaming.console.recent import RecentDecisions
from streaming.console.records import Records
from streaming.console.resources import ResourceAnswer, resource_answers
from streaming.console.viewer import Viewer, viewer_of
from streaming.settings import Settings

FIELDS = ("system", "subject", "groups", "resource", "more")


class AccessPages:
    """The route. `respond`: renders a template for the page of an address; `policies`: those in force."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        records: Records,
        recent: RecentDecisions,
        policies: Callable[[], Snapshot],
        respond: Callable[..., Response],
    ) -> None:
        self._cluster, self._recent = cluster, recent
        self._topics, self._systems = settings.topics.policy_topics(), settings.systems
        self._records, self._policies, self._respond = records, policies, respond
        self.routes = [Route("/access", self._access)]

    def prepare(self, snapshot: Snapshot) -> None:
        """Collect the statements, and the decisions that rest on them, before the first page lists them."""
        self._recent.newest()
        for system in self._systems:
            ordered_statements(snapshot, system)

    def _access(self, request: Request) -> Response:
        fields, problem, viewer = fields_of(request, FIELDS), "", viewer_of(request)
        seen = [name for name in self._systems if viewer.may_see(name) and fields["system"] in ("", name)]
        permissions, answers = list[dict[str, Any]](), list[ResourceAnswer]()
        used, statements = Uses({}), None
        if fields["resource"]:
            answers = resource_answers(self._policies(), seen, fields)
        elif fields["subject"]:
            try:
                short = subject_in(fields)
                used = self._cluster.read(lambda: uses(self._recent, viewer, fields["subject"]))
                policies, is_chosen = self._policies(), bool(fields["system"])
                of_systems = (access_in(policies, name, short, used, is_chosen) for name in seen)
                permissions = [in_system for in_system in of_systems if in_system]
            except (CaseFileError, MalformedRequest) as error:
                problem = str(error)
        elif fields["system"] and seen:
            statements, used = self._statements(viewer, seen[0])
        return self._respond(
            request,
            "access.html.j2",
            "/access",
            fields=fields,
            permissions=permissions,
            answers=answers,
            problem=problem,
            most=MOST_PERMISSIONS,
            statements=statements,
            since=used.since,
        )

    def _statements(self, viewer: Viewer, system: str) -> tuple[dict[str, Any], Uses]:
        used = self._cluster.read(lambda: uses(self._recent, viewer, system=system))
        log, topic = self._cluster.read(self._records.documents), self._topics[system]
        return statements_in(self._policies(), system, used, log, topic), used

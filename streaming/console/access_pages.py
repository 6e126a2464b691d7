"""The page of access: what a subject may do, who may do what with a resource, and the statements of a system."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from policy import MalformedRequest, Snapshot
from policy.analysis import ordered_statements
from policy.testing import CaseFileError
from streaming.console.access import MOST_PERMISSIONS, Uses, access_in, statements_in, subject_in, uses
from streaming.console.addresses import fields_of
from streaming.console.resources import ResourceAnswer, resource_answers
from streaming.console.site import Site
from streaming.console.viewer import Viewer, viewer_of

FIELDS = ("system", "subject", "groups", "resource", "more")


class AccessPages:
    """The route."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.routes = [Route("/access", self._access)]

    def prepare(self, snapshot: Snapshot) -> None:
        """Collect the statements, and the decisions that rest on them, before the first page lists them."""
        self._site.recent.newest()
        for system in self._site.settings.systems:
            ordered_statements(snapshot, system)

    def _access(self, request: Request) -> Response:
        site, fields, problem, viewer = self._site, fields_of(request, FIELDS), "", viewer_of(request)
        seen = [name for name in site.settings.systems if viewer.may_see(name) and fields["system"] in ("", name)]
        permissions, answers = list[dict[str, Any]](), list[ResourceAnswer]()
        used, statements = Uses({}), None
        if fields["resource"]:
            answers = resource_answers(site.in_force.snapshot(), seen, fields)
        elif fields["subject"]:
            try:
                short = subject_in(fields)
                used = site.cluster.read(lambda: uses(site.recent, viewer, fields["subject"]))
                policies, is_chosen = site.in_force.snapshot(), bool(fields["system"])
                of_systems = (access_in(policies, name, short, used, is_chosen) for name in seen)
                permissions = [in_system for in_system in of_systems if in_system]
            except (CaseFileError, MalformedRequest) as error:
                problem = str(error)
        elif fields["system"] and seen:
            statements, used = self._statements(viewer, seen[0])
        return site.respond(
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
        site = self._site
        used = site.cluster.read(lambda: uses(site.recent, viewer, system=system))
        log, topic = site.cluster.read(site.records.documents), site.settings.topics.policy_topics()[system]
        return statements_in(site.in_force.snapshot(), system, used, log, topic), used

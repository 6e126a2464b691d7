"""The subject: a user with the groups and roles of his last login (SS-LOGIN, SS-Q11), from session or claims."""

from typing import Any

import msgspec

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import CompiledDocument, Reason, Unanswerable
from policy.core.request import Request
from policy.core.times import to_ms
from policy.systems.kit.claims import Claimed, claimed
from policy.systems.kit.validator import Validator, one_fact
from policy.systems.streamsets.organizations import principal_of_role, sole_organization
from policy.systems.streamsets.records import SESSION, ActiveJob, Session

PREFIXES = ("user:", "group:", "role:")


class User(msgspec.Struct, frozen=True):
    """The user of a request. ``organization`` None: not known. ``login_at`` None: no login known (SS-Q12).

    ``claims``, ``untrusted``, ``notes``: see policy.core.model.AuthorizationQuery.
    """

    name: str
    organization: str | None
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    login_at: int | None
    claims: tuple[str, ...]
    untrusted: tuple[str, ...]
    notes: tuple[Reason, ...]

    @property
    def principals(self) -> tuple[str, ...]:
        """The user and the principals of his groups and roles; of an unknown organization the user alone."""
        if self.organization is None:
            return (f"user:{self.name}",)
        groups = (f"group:{group}" for group in self.groups)
        roles = (principal_of_role(self.organization, role) for role in self.roles)
        return (f"user:{self.name}", *groups, *roles)


def read_session(document: Document) -> CompiledDocument:
    """A user's last login; raises DocumentRefused."""
    validator = Validator(document.spec)
    if document.key.name.startswith(PREFIXES):
        validator.error(f"{document.key.name!r}: a session is a user's, by his bare name", "name")
    groups, roles = (_names(validator, field) for field in ("groups", "roles"))
    session = Session(_moment(validator, "login_at"), groups, roles)
    return _event(document, validator, session, session.login_at)


def read_active_job(document: Document) -> CompiledDocument:
    """The present run of a job; raises DocumentRefused."""
    validator = Validator(document.spec)
    if not document.key.name.startswith("job:") or document.key.name == "job:":
        validator.error(f"{document.key.name!r} is not job:NAME", "name")
    run = ActiveJob(_moment(validator, "started_at"))
    return _event(document, validator, run, run.started_at)


def _event(document: Document, validator: Validator, body: Any, happened: int) -> CompiledDocument:
    """A login or start does not count for an earlier moment; in a log it has happened, whatever other clocks say."""
    return one_fact(document, validator, body, not_before=None if document.logged else happened)


def _names(validator: Validator, field: str) -> tuple[str, ...] | None:
    return validator.texts(field) if validator.has(field) else None


def _moment(validator: Validator, field: str) -> int:
    try:
        return to_ms(validator.raw(field))
    except ValueError as error:
        validator.error(str(error), field)
        return 0


def user_of(request: Request, facts: Facts, trust: frozenset[str]) -> User:
    """The request's subject; raises Unanswerable for what cannot be a user, and for claims that are no claims."""
    name = request.subject.id
    if name.startswith(PREFIXES):
        message = f"subject {name!r}: write the user's bare name, {name.partition(':')[2]!r} if that is who is meant"
        raise Unanswerable("unknown-principal", message)
    session: Session | None = facts.get(SESSION, name)
    groups, of_groups = _effective(request, "groups", session.groups if session else None, trust)
    roles, of_roles = _effective(request, "roles", session.roles if session else None, trust)
    organization, of_organization = _organization(request, facts, trust)
    read = (groups, roles, of_organization)
    return User(
        name,
        organization,
        groups.names,
        roles.names,
        session.login_at if session else None,
        claims=tuple(sorted({claim for asserted in read for claim in asserted.used})),
        untrusted=tuple(sorted({claim for asserted in read for claim in asserted.untrusted})),
        notes=(*of_groups, *of_roles),
    )


def _effective(
    request: Request, claim: str, at_login: tuple[str, ...] | None, trust: frozenset[str]
) -> tuple[Claimed, tuple[Reason, ...]]:
    """The session's names, where it has some, win over the claim: what came after the login waits (SS-Q11).

    With a note where the claim contradicts the session.
    """
    asserted = claimed(request, claim, "SS-Q11", trust)
    if at_login is None:
        return asserted, ()
    return Claimed(at_login), _contradiction(request.subject.id, claim, asserted.names, at_login)


def _contradiction(user: str, claim: str, names: tuple[str, ...], at_login: tuple[str, ...]) -> tuple[Reason, ...]:
    if not names or set(names) == set(at_login):
        return ()
    written, counted = (", ".join(sorted(values)) or "none" for values in (names, at_login))
    message = f"the request claims the {claim} {written}; at his last login {user} had {counted}, which counts"
    return (Reason("fact-contradiction", message, "SS-LOGIN", f"streamsets/{SESSION}/{user}"),)


def _organization(request: Request, facts: Facts, trust: frozenset[str]) -> tuple[str | None, Claimed]:
    """The user's organization: claimed (trusted with his roles), else the one there is, else not known."""
    written = request.subject.properties.get("organization")
    sole = sole_organization(facts)
    if written is None or written == sole:
        return sole, Claimed()
    if "roles" not in trust:
        return None, Claimed(untrusted=("roles",))
    if not isinstance(written, str) or not written or "/" in written:
        raise Unanswerable("malformed-claim", "subject.properties.organization must be an organization's id")
    return written, Claimed(used=("roles",))

"""One level on one object, or one right over it, for one user (SS-ACCESS)."""

import functools
from collections.abc import Iterator

from policy.core.facts import Facts
from policy.core.model import (
    NO_LONGER_KNOWN,
    All,
    AnyOf,
    Condition,
    Expression,
    Grant,
    PermissionCheck,
    Reason,
    Unanswerable,
)
from policy.core.pattern import EVERYTHING, part_text
from policy.core.times import ALWAYS, to_text
from policy.systems.kit.query import all_of
from policy.systems.streamsets.moments import CountedVersions, counted_versions
from policy.systems.streamsets.organizations import organizations, sole_organization
from policy.systems.streamsets.people import User
from policy.systems.streamsets.records import (
    ACTIVE_JOB,
    ADMINISTRATOR,
    ANYTHING,
    AUTH_TOKEN_ADMINISTRATOR,
    ENGINES,
    FULL,
    OBJECT,
    ORGANIZATION,
    OWNER,
    ActiveJob,
    Organization,
    Thing,
    Version,
    grant_name,
    organization_name,
    version_of,
)


class Access:
    """What a user must hold, as requirements; raises Unanswerable where a document that is needed was refused."""

    def __init__(self, facts: Facts, user: User) -> None:
        self.facts = facts
        self.user = user
        self._lost: dict[str, None] = {}
        self._counted_versions: dict[tuple[str, int | None, int | None], CountedVersions | None] = {}

    @functools.cached_property
    def _sole(self) -> str | None:
        return sole_organization(self.facts)

    def thing(self, name: str) -> Thing | None:
        """The object TYPE:NAME, or None."""
        thing: Thing | None = self.facts.get(OBJECT, name)
        return thing

    def start_of_run(self, job: str) -> int | None:
        """When the present run of a job started (ms); None: it is not active."""
        run: ActiveJob | None = self.facts.get(ACTIVE_JOB, job)
        return run.started_at if run else None

    @property
    def notes(self) -> tuple[Reason, ...]:
        """The objects whose version at the login, or at the start of the run, is not known any more.

        Every known version must allow. That is safe for a request; of an access it does not say what was so.
        """
        message = "its version at the login or start of the run is not known any more, so every known one must allow"
        return tuple(
            Reason(NO_LONGER_KNOWN, f"{name}: {message}", "SS-LOGIN", f"streamsets/{OBJECT}/{name}")
            for name in self._lost
        )

    def _counted(self, name: str, login_at: int | None, until: int | None = None) -> CountedVersions | None:
        """The versions of an object that count; see policy.systems.streamsets.moments."""
        key = (name, login_at, until)
        if key not in self._counted_versions:  # of each version's grants the same is asked, see `counts`
            self._counted_versions[key] = counted_versions(self.thing(name), login_at, until)
        counted = self._counted_versions[key]
        if counted is not None and counted.lost:
            self._lost[name] = None
        return counted

    def at_moment(self, name: str, until: int | None) -> tuple[Version, ...]:
        """The versions of an object that may have been in force at ``until`` (ms; None: now), without deletions."""
        counted = self._counted(name, None, until)
        return () if counted is None else counted.versions

    def counts(self, grant: Grant) -> bool:
        """Whether a grant is on a version that counts for the user; nothing does of an organization that is not his."""
        parts = tuple(map(part_text, grant.object.parts))
        named = version_of(parts)
        if self._is_elsewhere(parts[-1] if named is None else named[0], is_object=named is not None):
            return False
        if named is None:
            return True
        name, index = named
        counted = self._counted(name, self.user.login_at)
        if counted is None or index not in counted.indexes or _not_valid(name, counted, index, "") is not None:
            return False
        return grant.permission == EVERYTHING or not _for_owner_alone(counted, index)

    def _is_elsewhere(self, name: str, is_object: bool) -> bool:
        """Whether the user does not belong to an organization, or to an object's; False where that is not known."""
        try:
            body = self.organization_of_object(name) if is_object else self.member(name)
        except Unanswerable:
            return False
        return isinstance(body, Condition) and body.held is False

    def level(self, name: str, level: str, rule: str, because: str = "", until: int | None = None) -> Expression:
        """``level`` on the object: by its organization's switch, or owned, shared, or an administrator's.

        ``until``: the start of the active job for which the object is frozen, ms.
        """
        body = self.organization_of_object(name)
        if isinstance(body, Condition):
            return body
        organization, record = body
        if not record.enforcement:  # also for who holds no share at all (SS-ENF-OFF); the task's role is still needed
            return self._on_organization(organization, ANYTHING, "SS-ENF-OFF", "everything, as enforcement is off,")
        # Any of them is enough (SS-ACCESS), and shares of a user and of his groups add up (SS-UNION).
        alternatives = [*self._by_grants(name, level, rule, because, until), *self.administration(name, organization)]
        return AnyOf(tuple(alternatives), rule)

    def owner(self, name: str, rule: str) -> Expression:
        """Ownership of the object (SS-OWN-ONE); shares are none, whatever their levels (SS-SHARE)."""
        counted = self._counted(name, self.user.login_at)
        if counted is None:
            return unknown(name)
        checks = (
            _not_valid(name, counted, index, rule)
            or PermissionCheck(OWNER, grant_name(name, index), rule, "ownership", name)
            for index in counted.indexes
        )
        return all_of(checks, rule)

    def administrator(self, organization: str, rule: str) -> PermissionCheck:
        """The role Organization Administrator of ``organization`` (SS-ADMIN-FULL)."""
        return self._on_organization(organization, FULL, rule, f"the role {ADMINISTRATOR}")

    def auth_token_administrator(self, organization: str, rule: str) -> PermissionCheck:
        """The role Auth Token Administrator of ``organization``."""
        return self._on_organization(organization, ENGINES, rule, f"the role {AUTH_TOKEN_ADMINISTRATOR}")

    def administration(self, name: str, organization: str) -> Iterator[Expression]:
        """The roles that have every level on the object (SS-ADMIN-FULL, SS-ENG-DEFAULT, SS-Q9)."""
        yield self.administrator(organization, "SS-ADMIN-FULL")
        if name.startswith("engine:"):
            yield self.auth_token_administrator(organization, "SS-ENG-DEFAULT")

    def organization_of_object(self, name: str) -> tuple[str, Organization] | Condition:
        """The object's organization and its record, if the user belongs to it; else why not.

        It is the one of now, whatever permissions are those of a login or of the start of a run: like the switch, it
        counts at once (SS-Q11).
        """
        counted = self._counted(name, None)
        if counted is None:
            return unknown(name)
        organization = self.organization_of(counted.thing.versions[counted.indexes[-1]])
        if isinstance(organization, Condition):
            return organization
        return self.member(organization)

    def organization_of(self, version: Version) -> str | Condition:
        """The organization of an object; it may be left out while there is one."""
        organization = version.organization or self._sole
        if organization is not None:
            return organization
        if organizations(self.facts):
            return Condition(None, "an object names no organization, and there are several", "SS-Q16")
        return Condition(False, "there is no organization document, so nothing is allowed", "SS-Q16")

    def member(self, organization: str) -> tuple[str, Organization] | Condition:
        """The organization with its record, if the user belongs to it (SS-Q16); else why not."""
        record: Organization | None = self.facts.get(ORGANIZATION, organization)
        if record is None:
            return Condition(
                False, f"there is no document of organization {organization}, so it allows nothing", "SS-Q16"
            )
        if self.user.organization is None:
            message = f"to which organization {self.user.name} belongs is not known: subject.properties.organization"
            return Condition(None, message, "SS-ADMIN-FULL")
        if self.user.organization != organization:
            message = f"{self.user.name} belongs to {self.user.organization}, not to {organization}"
            return Condition(False, message, "SS-ADMIN-FULL")
        return organization, record

    def _by_grants(self, name: str, level: str, rule: str, because: str, until: int | None = None) -> list[Expression]:
        """The ways to hold the level by owning or shares, in the version that counts (moments.py)."""
        counted = self._counted(name, self.user.login_at, until)
        if counted is None:
            return [unknown(name)]
        parts = [self._by_version(name, counted, index, level, rule, because) for index in counted.indexes]
        # Which of several versions counted at the login is not known, so each must allow: see `notes`.
        return parts[0] if len(parts) == 1 else [All(tuple(AnyOf(tuple(part), rule) for part in parts), rule)]

    def _by_version(
        self, name: str, counted: CountedVersions, index: int, level: str, rule: str, because: str
    ) -> list[Expression]:
        """Of a provisioned engine its owner, and those that have the level on its deployment (SS-DEP-SCOPE, SS-Q7)."""
        version = counted.thing.versions[index]
        too_early = _not_valid(name, counted, index, rule)
        if too_early is not None:
            return [too_early]
        text = ", ".join(part for part in (because, self._held_back(counted.thing, index)) if part)
        owned = _for_owner_alone(counted, index)
        check = PermissionCheck(OWNER if owned else (level,), grant_name(name, index), rule, level, name, text)
        if version.deployment is None:
            return [check]
        inherited = self._inherited(version.deployment, level, f"the deployment of {name}")
        if version.window == ALWAYS:
            return [check, *inherited]
        # A document hands nothing on outside of its window: within it its owner's grant counts, and no other is sure to
        # be there.
        owner = (f"user:{version.owner}",)
        valid = PermissionCheck(OWNER, check.object, rule, "its deployment's permissions", name, text, owner)
        return [check, All((valid, AnyOf(tuple(inherited), rule)), rule)]

    def _inherited(self, deployment: str, level: str, because: str) -> list[Expression]:
        """The ways to hold the level on a deployment: to its own organization, which may be another (SS-Q16)."""
        try:
            body = self.organization_of_object(deployment)
        except Unanswerable as refused:  # the engine's owner and administrators do not need it (SS-ACCESS)
            return [Condition(None, str(refused), "SS-DEP-INHERIT")]
        return [body] if isinstance(body, Condition) else self._by_grants(deployment, level, "SS-DEP-INHERIT", because)

    def _held_back(self, thing: Thing, index: int) -> str:
        """Says so where a newer version waits for the user's next login (SS-LOGIN)."""
        newer, login_at = thing.versions[index + 1 :], self.user.login_at
        if login_at is None or not newer or newer[0].at <= login_at:
            return ""
        return f"as it counts for {self.user.name} since his login at {to_text(login_at)}"

    def _on_organization(self, organization: str, permission: tuple[str], rule: str, text: str) -> PermissionCheck:
        return PermissionCheck(permission, organization_name(organization), rule, text, f"organization:{organization}")


def _for_owner_alone(counted: CountedVersions, index: int) -> bool:
    """Whether a version's own shares do not count: it was made after the login, or takes its deployment's."""
    return counted.created or counted.thing.versions[index].deployment is not None


def _not_valid(name: str, counted: CountedVersions, index: int, rule: str) -> Condition | None:
    """Why a version grants nothing, where it is valid for a time only; None: it had begun to be."""
    window = counted.thing.versions[index].window
    if window == ALWAYS or all(window.holds(moment) for moment in counted.moments):
        return None
    return Condition(False, f"the document of {name} was not valid yet at the login or the start of the run", rule)


def unknown(name: str) -> Condition:
    """An object that has no document, or had one that was deleted."""
    return Condition(None, f"{name} is not known: it has no document, or it was deleted", "SS-ACCESS", "unknown-object")

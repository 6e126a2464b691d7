"""What is known, as facts: objects with their versions, organizations, sessions and active jobs."""

import msgspec

from policy.core.times import ALWAYS, Window

OBJECT, ORGANIZATION, SESSION, ACTIVE_JOB = "Object", "Organization", "Session", "ActiveJob"

OWNER = ("OWNER",)  # permission names beside the levels: on a version of an object …
FULL, ENGINES, ANYTHING = ("full",), ("engines",), ("anything",)  # … and on an organization
ADMINISTRATOR = "Organization Administrator"
AUTH_TOKEN_ADMINISTRATOR = "Auth Token Administrator"


class Version(msgspec.Struct, frozen=True):
    """One version of an object, in force from ``at`` (ms). ``links``: field → names; a field not given is missing.

    ``window``: outside of it the document grants nothing. ``kind``: the kind of engine a pipeline runs on, or an
    engine is. ``own_list``: an Organization Administrator changed a provisioned engine's permissions (SS-DEP-OVERRIDE).
    """

    at: int
    deleted: bool = False
    window: Window = ALWAYS
    owner: str = ""
    organization: str | None = None
    links: dict[str, tuple[str, ...]] = {}
    labels: frozenset[str] | None = None
    numbers: frozenset[str] | None = None
    kind: str | None = None
    own_list: bool = False

    @property
    def deployment(self) -> str | None:
        """The deployment whose permissions count in place of its own list, if any (SS-DEP-INHERIT, SS-Q7)."""
        provisioned = self.links.get("provisioned_by")
        return provisioned[0] if provisioned and not self.own_list else None


class Thing(msgspec.Struct, frozen=True):
    """An object: its versions, oldest first; before ``known_from`` (ms) there may have been others."""

    versions: tuple[Version, ...]
    known_from: int

    @property
    def current(self) -> Version:
        """The newest version, perhaps a deletion."""
        return self.versions[-1]

    def repeats(self, earlier: "Thing") -> bool:
        """Whether it says again what the one version of another said: from later on it counts for no one else.

        Not of a version that is valid for a time: whether it was when a user logged in depends on when it began.
        """
        if len(self.versions) > 1 or len(earlier.versions) > 1:
            return self == earlier
        after, before = self.current, earlier.current
        same = msgspec.structs.replace(after, at=before.at) == before
        return same and after.window == ALWAYS and before.at <= after.at


class Organization(msgspec.Struct, frozen=True):
    """``task_roles``: action → lists of roles; one role of every list is needed (SS-TASK-ROLE, SS-Q1)."""

    enforcement: bool
    task_roles: dict[str, tuple[tuple[str, ...], ...]]


class Session(msgspec.Struct, frozen=True):
    """A user's last login (ms), and the groups and roles he had at it; None: not given."""

    login_at: int
    groups: tuple[str, ...] | None
    roles: tuple[str, ...] | None


class ActiveJob(msgspec.Struct, frozen=True):
    """When the present run of a job started, ms."""

    started_at: int


def grant_name(name: str, version: int) -> tuple[str, str, str]:
    """The name in grants of a version (its place among the versions known) of the object TYPE:NAME.

    Its place and not its moment: two versions may have one moment.
    """
    type_, _, rest = name.partition(":")
    return (type_, rest, str(version))


def version_of(name: tuple[str, ...]) -> tuple[str, int] | None:
    """The object and the place of its version, the reverse of `grant_name`; None: an organization's name."""
    match name:
        case (type_, rest, number):
            return f"{type_}:{rest}", int(number)
        case _:
            return None


def organization_name(organization: str) -> tuple[str, str]:
    """The name in grants of an organization; no object's, which have three parts."""
    return ("organization", organization)

"""Which versions of an object count for a user: the permissions' part of time.

How the rules are read, where they leave room:

- A user holds what he held at his last login (SS-LOGIN); the version of an object in force then counts for
  him, in both directions (SS-Q11). Without a known login the newest counts (SS-Q12).
- What came into being after his login counts at once, but for its creator alone: the owner named by its
  first version. Shares made with it wait for the login (SS-OWN-PRIVATE, SS-Q11). An object that was deleted
  and made again is another object: nothing held on the old one holds on the new one.
- A deleted object is not known any more; what was held on it at a login is of no use.
- Of a pipeline of an active job the versions up to the start of the run are looked at and no later one
  (SS-ACTIVE-PIPELINE, SS-Q5), and among them the one of the user's last login, as always. So who logged in
  before the start has what he had at that login, and who logged in after it has what the pipeline gave
  at the start. What he himself held at the start, by a login that is no longer known, plays no part.
- Connections and fragments of an active job's pipeline are as frozen (SS-ACTIVE-CONNECTION,
  SS-ACTIVE-FRAGMENT): no action on a job that is active asks for them, so no change of theirs can
  touch it. The next start asks for connections as they are then.
- What a document grants for a time only counts where that time had begun by the login and by the start of the
  run; once it is over it grants nothing any more.
- Where versions that may have been in force at that moment are not known any more, every version that
  is known must allow. Only the first version after a moment from which all is known is a creation.
"""

from collections.abc import Sequence

import msgspec

from policy.systems.streamsets.records import Thing, Version


class CountedVersions(msgspec.Struct, frozen=True):
    """The versions of a thing that count, every one of which must allow; ``created``: for the owner alone.

    ``moments``: at which they had to be valid already, ms: the login, and the start of the run. ``lost``: the version
    of that moment may be one that is not known any more.
    """

    thing: Thing
    indexes: tuple[int, ...]
    created: bool = False
    moments: tuple[int, ...] = ()
    lost: bool = False

    @property
    def versions(self) -> tuple[Version, ...]:
        """Those at the indexes, oldest first."""
        return tuple(self.thing.versions[index] for index in self.indexes)


def counted_versions(thing: Thing | None, login_at: int | None, until: int | None = None) -> CountedVersions | None:
    """The versions of ``thing`` that count for a user; None: it does not exist, or is not known to.

    ``login_at``: his last login, ms; None: not known. ``until``: the start of the active job, ms, where the
    object is frozen for it.
    """
    if thing is None:
        return None
    lost = until is not None and until < thing.known_from
    frozen_at = None if lost else until
    life = _life([n for n, version in enumerate(thing.versions) if frozen_at is None or version.at <= frozen_at], thing)
    if not life:
        return None
    start = () if until is None else (until,)
    moments = start if login_at is None else (login_at, *start)
    creation_known = thing.versions[life[0]].at > thing.known_from
    if lost:
        return None if creation_known else CountedVersions(thing, tuple(life), moments=moments, lost=True)
    if login_at is None:
        return CountedVersions(thing, (life[-1],), moments=moments)
    if login_at < thing.known_from and not creation_known:
        return CountedVersions(thing, tuple(life), moments=moments, lost=True)
    earlier = [index for index in life if thing.versions[index].at <= login_at]
    if earlier:
        return CountedVersions(thing, (earlier[-1],), moments=moments)
    return CountedVersions(thing, (life[0],), created=True, moments=start)


def first_version(thing: Thing) -> tuple[Version, ...]:
    """The first version since the last deletion; none if that is the last one."""
    return tuple(thing.versions[index] for index in _life(range(len(thing.versions)), thing)[:1])


def _life(indexes: Sequence[int], thing: Thing) -> Sequence[int]:
    """The indexes since the last deletion; none if the last is one."""
    deleted = (place for place in reversed(range(len(indexes))) if thing.versions[indexes[place]].deleted)
    return indexes[next(deleted, -1) + 1 :]

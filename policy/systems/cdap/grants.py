"""Grant and Backend documents: who holds which privilege where, and who may grant.

Holders: ``user:NAME``, and for CD-Q9 ``group:NAME`` and ``role:NAME``. A Grant gives each of its privileges, ``ANY``
(one privilege or more) on the same entities, and ``BELOW`` on all that may lie above them by name: what list and get
ask for (CD-LIST, CD-GET). Nothing flows down from a parent (CD-EXACT-ENTITY, CD-Q4). Grants do not need their entity
to exist and outlive it (CD-CREATE, CD-GRANT).
"""

import functools
from collections.abc import Iterator

from policy.documents import Document
from policy.forms import Form
from policy.model import ALLOW, Grant, Origin, Reading
from policy.patterns import Exact, Name, Pattern, exactly, wildcard
from policy.systems.cdap.catalogue import catalogue, lineage
from policy.systems.cdap.entities import entity_field

ANY = ("ANY",)
BELOW = ("BELOW",)
ADMINISTRATION = ("BACKEND",)
BACKEND = ("backend",)
HOLDERS = ("user", "group", "role")


def read_grant(document: Document) -> Reading:
    """Privileges of one holder on the entities that match (CD-Q12)."""
    form = Form(document.spec)
    holder = _holder(form)
    entity = entity_field(form, "entity", form.text("entity"))
    privileges = _privileges(form)
    form.close()
    form.finish()
    assert entity is not None, "finish() refuses a document without one"
    origin = Origin(str(document.key))
    there = _pattern(entity)
    held = [(_permission(name), there) for name in (*((privilege,) for privilege in privileges), ANY)]
    held += [(_permission(BELOW), above) for above in _above(entity)]
    return Reading(tuple(Grant(holder, ALLOW, what, where, origin, document.window) for what, where in held))


@functools.cache
def _permission(name: Name) -> Pattern:
    """The same few objects for all grants, of which there may be very many."""
    return exactly(name)


def _holder(form: Form) -> str:
    """The one holder; a grant to two is not clear (CD-Q9)."""
    named = [(kind, form.text(kind)) for kind in HOLDERS if form.has(kind)]
    if len(named) != 1:
        form.error(f"exactly one of {', '.join(HOLDERS)} is needed", "user")
        return ""
    return ":".join(named[0])


def _privileges(form: Form) -> list[str]:
    """At least one of the four, as they are written (CD-NO-IMPLICATION)."""
    known, given = catalogue()["privileges"], form.texts("privileges")
    for privilege in given:
        if privilege not in known:
            form.error(f"{privilege!r} is not one of {', '.join(known)}", "privileges")
    if not given:
        form.error(f"at least one of {', '.join(known)} is needed", "privileges")
    return sorted(set(given))


def _pattern(entity: Name) -> Pattern:
    """``*`` is any run of characters, dots too, ``?`` is one; the kind is always exact (CD-Q12)."""
    kind, name = entity
    return Pattern((Exact(kind), wildcard(name, single=True)))


def _above(entity: Name) -> Iterator[Pattern]:
    """What may lie above, by name, an entity that matches."""
    kind, name = entity
    for n, above in enumerate(lineage(kind), 1):
        yield from (_pattern((above, head)) for head in _heads(name) if head.count(".") < n)


def _heads(name: str) -> Iterator[str]:
    """Wildcard texts of what stands before some dot of the names that match ``name``."""
    for at, mark in enumerate(name):
        if mark == "*":  # the rest can match whatever follows, after any dot
            yield name[: at + 1]
            return
        if mark in ".?" and 0 < at < len(name) - 1:
            yield name[:at]


def read_backend(document: Document) -> Reading:
    """The admins of the authorization backend: they alone grant and revoke (CD-GRANT)."""
    form = Form(document.spec)
    admins = form.texts("admins")
    form.close()
    form.finish()
    rights = [(f"user:{admin}", Origin(str(document.key), number)) for number, admin in enumerate(admins)]
    what, where = exactly(ADMINISTRATION), exactly(BACKEND)
    return Reading(tuple(Grant(holder, ALLOW, what, where, origin, document.window) for holder, origin in rights))


def bound_by(document: Document) -> frozenset[str]:
    """The holders that a refused Grant or Backend still names."""
    spec = document.spec or {}
    admins = spec.get("admins")
    users = admins if isinstance(admins, list | tuple) else ()
    named = [(kind, spec.get(kind)) for kind in HOLDERS] + [("user", user) for user in users]
    return frozenset(f"{kind}:{name}" for kind, name in named if isinstance(name, str) and name)

"""Grant and Backend documents: who holds which privilege where, and who may grant.

Principals: ``user:NAME``, and for CD-Q9 ``group:NAME`` and ``role:NAME``. A Grant gives each of its privileges, ``ANY``
(one privilege or more) on the same entities, and ``BELOW`` on all that may lie above them by name: what list and get
ask for (CD-LIST, CD-GET). Where its wildcards match more names below than documents could ever put elsewhere, that is
``SURELY_BELOW``; where it names but one entity there, a fact says which (`singled_out`). Nothing flows down from a
parent (CD-EXACT-ENTITY, CD-Q4). Grants do not need their entity to exist and outlive it (CD-CREATE, CD-GRANT).
"""

import functools
from collections.abc import Iterable, Iterator

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import ALLOW, CompiledDocument, Fact, Grant, StatementId
from policy.core.pattern import Exact, Name, Pattern, exactly, wildcard
from policy.systems.cdap.catalogue import catalogue, lineage
from policy.systems.cdap.entities import entity_field
from policy.systems.kit.validator import Validator

ANY = ("ANY",)
BELOW = ("BELOW",)
SURELY_BELOW = (*BELOW, "SURELY")
SURELY = Pattern((Exact(BELOW[0]),), open=True)  # BELOW and SURELY_BELOW
ADMINISTRATION = ("BACKEND",)
BACKEND = ("backend",)
PRINCIPAL_KINDS = ("user", "group", "role")
SINGLED_OUT = "SingledOut"  # kind of the facts about grants that name but one entity below another
SOME = "?"  # in their keys, for any name that matches a wildcard


def read_grant(document: Document) -> CompiledDocument:
    """Privileges of one principal on the entities that match (CD-Q12)."""
    validator = Validator(document.spec)
    principal = _principal(validator)
    entity = entity_field(validator, "entity", validator.text("entity"))
    privileges = _privileges(validator)
    validator.reject_unknown()
    validator.finish()
    assert entity is not None, "finish() refuses a document without one"
    statement_id = StatementId(str(document.key))
    there = _pattern(entity)
    rights = [(_permission(name), there) for name in (*((privilege,) for privilege in privileges), ANY)]
    # SURELY_BELOW too, unless one entity is all that is named.
    rights += [(SURELY if single is None else _permission(BELOW), _pattern(above)) for above, single in _cuts(entity)]
    grants = tuple(Grant(principal, ALLOW, what, where, statement_id, document.window) for what, where in rights)
    return CompiledDocument(grants, facts=_facts(document.key.name, principal, entity))


@functools.cache
def _permission(name: Name) -> Pattern:
    """The same few objects for all grants, of which there may be very many."""
    return exactly(name)


def _principal(validator: Validator) -> str:
    """The one principal; a grant to two is not clear (CD-Q9)."""
    named = [(kind, validator.text(kind)) for kind in PRINCIPAL_KINDS if validator.has(kind)]
    if len(named) != 1:
        validator.error(f"exactly one of {', '.join(PRINCIPAL_KINDS)} is needed", "user")
        return ""
    return ":".join(named[0])


def _privileges(validator: Validator) -> list[str]:
    """At least one of the four, as they are written (CD-NO-IMPLICATION)."""
    allowed, privileges = catalogue()["privileges"], validator.texts("privileges")
    for privilege in privileges:
        if privilege not in allowed:
            validator.error(f"{privilege!r} is not one of {', '.join(allowed)}", "privileges")
    if not privileges:
        validator.error(f"at least one of {', '.join(allowed)} is needed", "privileges")
    return sorted(set(privileges))


def _pattern(entity: Name) -> Pattern:
    """``*`` is any run of characters, dots too, ``?`` is one; the kind is always exact (CD-Q12)."""
    kind, name = entity
    return Pattern((Exact(kind), wildcard(name, single=True)))


def _cuts(entity: Name) -> Iterator[tuple[Name, Name | None]]:
    """What may lie above, by name, an entity that matches; beside it what is named there, if that is but one entity."""
    kind, name = entity
    kinds = (*lineage(kind), kind)
    for n, above in enumerate(kinds[:-1], 1):
        for head, tail in _parts(name):
            if head.count(".") < n:
                yield (above, head), _one(kinds[n:], tail)


def _parts(name: str) -> Iterator[tuple[str, str]]:
    """Wildcard texts of what stands before and after some dot of the names that match ``name``."""
    for at, mark in enumerate(name):
        if mark == "*":  # the rest can match whatever follows, after any dot
            yield name[: at + 1], name[at:]
            return
        if mark in ".?" and 0 < at < len(name) - 1:
            yield name[:at], name[at + 1 :]


def _one(kinds: tuple[str, ...], tail: str) -> Name | None:
    """The entity that ``tail`` names or names something in, by the rest of its name; None: wildcards name too many.

    ``kinds``: those from the one directly below to the one that is granted on.
    """
    if not _wild(tail):
        return (kinds[-1], tail)
    first = tail.partition(".")[0]
    return (kinds[0], first) if len(kinds) > 1 and first and not _wild(first) else None


def _wild(text: str) -> bool:
    return "*" in text or "?" in text


def _facts(document: str, principal: str, entity: Name) -> tuple[Fact, ...]:
    """Where the grant names entities one by one, found by its principal and what these are below."""
    keys = tuple(_shared_key(principal, above) for above, single in _cuts(entity) if single is not None)
    return (Fact(SINGLED_OUT, document, entity, keys),) if keys else ()


@functools.lru_cache(maxsize=65536)
def _shared_key(principal: str, above: Name) -> tuple[str, str]:
    """The same few objects for the many grants of a principal in one place. Not for requests: clients choose names."""
    return _key(principal, above)


def _key(principal: str, above: Name) -> tuple[str, str]:
    kind, head = above
    return ("below", f"{kind}:{SOME if _wild(head) else head} {principal}")


def singled_out(facts: Facts, principals: Iterable[str], above: Name) -> set[Name]:
    """What grants of ``principals`` may name, or name something in, one by one below ``above``."""
    keys = (_key(principal, ancestor) for principal in principals for ancestor in (above, (above[0], SOME)))
    named = {document for key in keys for document in facts.find(SINGLED_OUT, *key)}
    granted = filter(None, (facts.get(SINGLED_OUT, document) for document in named))
    cuts = (cut for entity in granted for cut in _cuts(entity))
    inside = (single for (kind, _), single in cuts if single is not None and kind == above[0])
    return {(kind, f"{above[1]}.{name}") for kind, name in inside}


def read_backend(document: Document) -> CompiledDocument:
    """The admins of the authorization backend: they alone grant and revoke (CD-GRANT)."""
    validator = Validator(document.spec)
    admins = validator.texts("admins")
    validator.reject_unknown()
    validator.finish()
    key, administration, backend = str(document.key), exactly(ADMINISTRATION), exactly(BACKEND)
    grants = (
        Grant(f"user:{admin}", ALLOW, administration, backend, StatementId(key, number), document.window)
        for number, admin in enumerate(admins)
    )
    return CompiledDocument(tuple(grants))

"""Organization documents, and which organization an object or a user belongs to.

The enforcement switch is a grant as well: off, everyone holds ANYTHING on the organization (SS-ENF-OFF).
So a comparison of two states of the grants shows what switching it off opened.
"""

from collections.abc import Iterator

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import ALLOW, CompiledDocument, Grant, StatementId
from policy.core.pattern import Name, exactly
from policy.systems.kit.system import EVERYONE
from policy.systems.kit.validator import Validator, one_fact
from policy.systems.streamsets.catalogue import operations
from policy.systems.streamsets.records import (
    ADMINISTRATOR,
    ANYTHING,
    AUTH_TOKEN_ADMINISTRATOR,
    ENGINES,
    FULL,
    ORGANIZATION,
    Organization,
    Thing,
    organization_name,
)

EVERY = ("every", "")  # the key under which all organizations are found
TaskRoles = dict[str, tuple[tuple[str, ...], ...]]


def principal_of_role(organization: str, role: str) -> str:
    """The principal of a role. Ids of organizations have no ``/``, so that no role of one is a role of another."""
    return f"role:{organization}/{role}"


def organizations(facts: Facts) -> frozenset[str]:
    """Every organization that has a document, also a refused one."""
    return facts.find(ORGANIZATION, *EVERY) | frozenset(facts.broken(ORGANIZATION))


def sole_organization(facts: Facts) -> str | None:
    """The organization, while there is one; it need not be named then."""
    known = organizations(facts)
    return next(iter(known)) if len(known) == 1 else None


def leaves_enforcement(before: Thing, after: Thing, facts: Facts) -> bool:
    """Whether an object that was governed by permissions belongs to an organization that enforces none."""
    if before.current.deleted or after.current.deleted:
        return False
    enforced = []
    for thing in (before, after):
        name = thing.current.organization or sole_organization(facts)
        record: Organization | None = None if name is None else facts.get(ORGANIZATION, name)
        enforced.append(None if record is None else record.enforcement)
    return enforced[0] is not False and enforced[1] is False


def read_organization(document: Document) -> CompiledDocument:
    """The switch, off unless it was set (SS-ENF-DEFAULT-OFF), task roles, and what administrators hold."""
    name, form = document.key.name, Validator(document.spec)
    if "/" in name:
        form.error("an organization's id has no /", "name")
    enforcement = form.flag("enforcement") or False
    written = form.raw("task_roles") if "task_roles" in (document.spec or {}) else {}
    task_roles = _task_roles(Validator(written, "task_roles", form.errors))
    organization, grants = Organization(enforcement, task_roles), _grants(document, enforcement)
    return one_fact(document, form, organization, (EVERY,), grants=grants)


def _grants(document: Document, enforcement: bool) -> Iterator[Grant]:
    """SS-ADMIN-FULL, SS-ENG-DEFAULT with SS-Q9, and with the switch off SS-ENF-OFF."""
    name = document.key.name
    held: list[tuple[str, Name]] = [
        (principal_of_role(name, ADMINISTRATOR), FULL),
        (principal_of_role(name, AUTH_TOKEN_ADMINISTRATOR), ENGINES),
        *([] if enforcement else [(EVERYONE, ANYTHING)]),
    ]
    object_, statement_id = exactly(organization_name(name)), StatementId(str(document.key))
    for principal, permission in held:
        yield Grant(principal, ALLOW, exactly(permission), object_, statement_id)


def _task_roles(form: Validator) -> TaskRoles:
    """Each task's roles as lists of which one role each is needed; a flat list is one such list (SS-Q1)."""
    found = {}
    for task in form.fields():
        if task not in operations():
            hint = form.nearest(task, operations(), separator=", ")
            form.error(f"there is no such task, so nothing would need the role{hint}", task)
        found[task] = _alternatives(form, task)
    return found


def tasks_opened(before: TaskRoles, after: TaskRoles) -> Iterator[str]:
    """The tasks that needed a role before which they do not need now: one of a list, or of a narrower one."""
    for task, lists in sorted(before.items()):
        needed = [set(roles) for roles in after.get(task, ())]
        if not all(any(roles <= set(one) for roles in needed) for one in lists):
            yield task


def _alternatives(form: Validator, task: str) -> tuple[tuple[str, ...], ...]:
    value = form.raw(task)
    nested = isinstance(value, list) and bool(value) and all(isinstance(item, list) for item in value)
    lists = [Validator({task: item}, form.where, form.errors).texts(task) for item in (value if nested else [value])]
    if not all(lists):
        form.error("needs at least one role; leave the task out if it needs none (SS-Q1)", task)
    return tuple(lists)

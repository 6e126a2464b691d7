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
    OBJECT,
    ORGANIZATION,
    Organization,
    Thing,
    organization_name,
)

ROLE = "role:"  # the prefix of principals
EVERY = ("every", "")  # the key under which all organizations are found
TaskRoles = dict[str, tuple[tuple[str, ...], ...]]


def principal_of_role(organization: str, role: str) -> str:
    """The principal of a role. Ids of organizations have no ``/``, so that no role of one is a role of another."""
    return f"{ROLE}{organization}/{role}"


def role_name(principal: str) -> str:
    """The role of a principal that is one of a role; "" of any other."""
    return principal.partition("/")[2] if principal.startswith(ROLE) else ""


def organizations(facts: Facts) -> frozenset[str]:
    """Every organization that has a document, also a refused one."""
    return facts.find(ORGANIZATION, *EVERY) | frozenset(facts.broken(ORGANIZATION))


def sole_organization(facts: Facts) -> str | None:
    """The organization, while there is one; it need not be named then."""
    names = organizations(facts)
    return next(iter(names)) if len(names) == 1 else None


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


def unenforced_without_name(facts: Facts) -> str:
    """The organization of objects that name none, where there are such and it enforces no permissions; "": none."""
    name = sole_organization(facts)
    record: Organization | None = None if name is None else facts.get(ORGANIZATION, name)
    if name is None or record is None or record.enforcement:
        return ""
    current = (thing.current for thing in facts.bodies(OBJECT))
    return name if any(not version.deleted and version.organization is None for version in current) else ""


def read_organization(document: Document) -> CompiledDocument:
    """The switch, off unless it was set (SS-ENF-DEFAULT-OFF), task roles, and what administrators hold."""
    name, validator = document.key.name, Validator(document.spec)
    if "/" in name:
        validator.error("an organization's id has no /", "name")
    enforcement = validator.flag("enforcement") or False
    written = validator.raw("task_roles") if "task_roles" in (document.spec or {}) else {}
    task_roles = _task_roles(Validator(written, "task_roles", validator.errors))
    organization, grants = Organization(enforcement, task_roles), _grants(document, enforcement)
    return one_fact(document, validator, organization, (EVERY,), grants=grants)


def _grants(document: Document, enforcement: bool) -> Iterator[Grant]:
    """SS-ADMIN-FULL, SS-ENG-DEFAULT with SS-Q9, and with the switch off SS-ENF-OFF."""
    name = document.key.name
    rights: list[tuple[str, Name]] = [
        (principal_of_role(name, ADMINISTRATOR), FULL),
        (principal_of_role(name, AUTH_TOKEN_ADMINISTRATOR), ENGINES),
        *([] if enforcement else [(EVERYONE, ANYTHING)]),
    ]
    object_, statement_id = exactly(organization_name(name)), StatementId(str(document.key))
    for principal, permission in rights:
        yield Grant(principal, ALLOW, exactly(permission), object_, statement_id)


def _task_roles(validator: Validator) -> TaskRoles:
    """Each task's roles as lists of which one role each is needed; a flat list is one such list (SS-Q1)."""
    task_roles = {}
    for task in validator.fields():
        if task not in operations():
            hint = validator.nearest(task, operations(), separator=", ")
            validator.error(f"there is no such task, so nothing would need the role{hint}", task)
        task_roles[task] = _alternatives(validator, task)
    return task_roles


def tasks_opened(before: TaskRoles, after: TaskRoles) -> Iterator[str]:
    """The tasks that needed a role before which they do not need now: one of a list, or of a narrower one."""
    for task, lists in sorted(before.items()):
        needed = [set(roles) for roles in after.get(task, ())]
        if not all(any(roles <= set(required) for roles in needed) for required in lists):
            yield task


def _alternatives(validator: Validator, task: str) -> tuple[tuple[str, ...], ...]:
    value = validator.raw(task)
    nested = isinstance(value, list) and bool(value) and all(isinstance(item, list) for item in value)
    lists = [validator.sibling({task: item}).texts(task) for item in (value if nested else [value])]
    if not all(lists):
        validator.error("needs at least one role; leave the task out if it needs none (SS-Q1)", task)
    return tuple(lists)

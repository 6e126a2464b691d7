"""A system of another distribution, as small as one can be: passes open doors."""

from typing import Any

from policy.systems.kit import (
    ALLOW,
    UNTYPED,
    AuthorizationQuery,
    CompiledDocument,
    Document,
    Facts,
    Grant,
    Kind,
    PermissionCheck,
    PrivilegedPermission,
    Request,
    StatementId,
    Validator,
    exactly,
)

OPEN = ("open",)


class Doors:
    """See policy.systems.kit.system.System. Kind ``Pass``: ``{user, doors: [names]}``."""

    name = "doors"
    kinds = {"Pass": Kind(principals=("user",))}
    deny_rule = None
    default_rule = "DO-DEFAULT"
    subject_types = ("user",)
    subjects = ("",)
    claims = ()
    name_of_resource = None
    reads_resource_id = True

    def read(self, document: Document) -> CompiledDocument:
        """A grant for each door."""
        form = Validator(document.spec)
        user, doors = form.text("user"), form.texts("doors")
        form.reject_unknown()
        form.finish()
        grants = (
            Grant(user, ALLOW, exactly(OPEN), exactly((door,)), StatementId(str(document.key), number), document.window)
            for number, door in enumerate(doors)
        )
        return CompiledDocument(tuple(grants))

    def held_by(self, kind: str, name: str, fields: frozenset[str]) -> tuple[str, ...]:
        """Nobody."""
        return ()

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """The door."""
        return (request.resource.id,)

    def resource_type(self, action: str, resource: str) -> str:
        """Any."""
        return UNTYPED

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """A pass for the door."""
        door = request.resource.id
        check = PermissionCheck(OPEN, (door,), "DO-PASS", request.action.name, door)
        return AuthorizationQuery((request.subject.id,), check, (), (), ())

    def retention_floor(self, facts: Facts) -> int | None:
        """It never looks back."""
        return None

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """None."""
        return ()


SYSTEM = Doors()

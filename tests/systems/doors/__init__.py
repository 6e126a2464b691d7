"""A system of another distribution, to begin a new one from: documents are passes, and a pass opens doors."""

from policy.systems.kit import (
    ALLOW,
    AuthorizationQuery,
    CompiledDocument,
    Document,
    Facts,
    Grant,
    Kind,
    PermissionCheck,
    Request,
    StatementId,
    System,
    Validator,
    exactly,
)

OPEN = ("open",)


def read_pass(document: Document) -> CompiledDocument:
    """A grant for each door of ``{user, doors: [names]}``."""
    spec = Validator(document.spec)
    user, doors = spec.text("user"), spec.texts("doors")
    spec.reject_unknown()
    spec.finish()
    grants = (
        Grant(user, ALLOW, exactly(OPEN), exactly((door,)), StatementId(str(document.key), number), document.window)
        for number, door in enumerate(doors)
    )
    return CompiledDocument(tuple(grants))


class Doors(System):
    """A user opens the doors of its passes, and no others."""

    name = "doors"
    kinds = {"Pass": Kind(principals=("user",), read=read_pass)}
    default_rule = "DO-DEFAULT"
    subject_types = ("user",)
    subjects = ("",)

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """A pass for the door."""
        door = request.resource.id
        check = PermissionCheck(OPEN, (door,), "DO-PASS", request.action.name, door)
        return AuthorizationQuery((request.subject.id,), check)


SYSTEM = Doors()

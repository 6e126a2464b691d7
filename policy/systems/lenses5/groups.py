"""Group documents: namespaces, application and administration permissions, Connect clusters, members.

Objects that permissions are held on: ``("dataset", connection, name)``, ``("connect-cluster", alias)`` and
``("lenses",)`` for what has no object. Permissions: ``(connection type, name)`` in a namespace, else ``(name,)``.
"""

from collections.abc import Iterable, Iterator

import msgspec

from policy.core.document import Document
from policy.core.model import ALLOW, CompiledDocument, Grant, Membership, StatementId
from policy.core.pattern import Exact, Name, Pattern, exactly, wildcard
from policy.systems.kit.validator import MAX_STATEMENTS, Validator
from policy.systems.lenses5.catalogue import catalogue

LENSES: Name = ("lenses",)
CLUSTER_ACCESS = "Connect Clusters Access"
FEATURES = ("application", "administration")


def dataset(connection: str, name: str) -> Name:
    """A dataset; the same name on another connection is another one (L5-Q15)."""
    return ("dataset", connection, name)


def cluster(alias: str) -> Name:
    """A Connect cluster by its configured alias."""
    return ("connect-cluster", alias)


def read_group(document: Document) -> CompiledDocument:
    """A Group as grants to ``group:NAME``, and as memberships of its members and of any principal that claims it."""
    reader = _GroupReader(document)
    grants = [*reader.namespaces(), *reader.features(), *reader.clusters()]
    memberships = tuple(reader.members())
    reader.validator.reject_unknown()
    reader.validator.finish()
    return CompiledDocument(tuple(grants), memberships, warnings=tuple(reader.warnings))


class PermissionFamily(msgspec.Struct, frozen=True):
    """The permissions that a list may hold; ``codes``: their names in Lenses's clients, ``text``: for people."""

    permissions: list[str]
    codes: dict[str, str]
    text: str
    rule: str = ""


def feature_family(name: str) -> PermissionFamily:
    """The application or the administration permissions."""
    permissions: list[str] = getattr(catalogue(), name)
    return PermissionFamily(permissions, catalogue().code_names[name], f"the {name} permissions")


def namespace_family(type_: str) -> PermissionFamily:
    """The permissions that namespaces of a connection type may hold."""
    text = f"the permissions of {type_} namespaces"
    return PermissionFamily(catalogue().namespace[type_], catalogue().code_names["namespace"], text, "L5-NS-AVAILABLE")


class _GroupReader:
    """Reads one Group; errors add up in ``validator``, what may not be meant in ``warnings``."""

    def __init__(self, document: Document) -> None:
        self.validator = Validator(document.spec)
        self.warnings: list[str] = []
        self._document = document
        self._group = f"group:{document.key.name}"

    def members(self) -> Iterator[Membership]:
        """The members, and ``claim:NAME``: a principal that a request says is in the group."""
        members = {f"user:{member}" for member in self.validator.texts("members", required=False)}
        for member in (f"claim:{self._document.key.name}", *sorted(members)):
            yield Membership(member, self._group, StatementId(str(self._document.key)), self._document.window)

    def features(self) -> Iterator[Grant]:
        """Application and administration permissions, held without an object (L5-APP-SCOPE, L5-ADM-GLOBAL)."""
        for name in FEATURES:
            family = feature_family(name)
            permissions = self._permissions(self.validator, name, family, required=False)
            self._warn_of_gates(permissions, family.permissions)
            for permission in permissions:
                yield self._grant((permission,), exactly(LENSES))

    def clusters(self) -> Iterator[Grant]:
        """Access to Connect clusters by alias, taken literally (L5-CC-ACCESS)."""
        for alias in self.validator.texts("connect_clusters", required=False):
            if "*" in alias:  # the source gives datasets alone wildcards (L5-NS-DATASETS)
                self.warnings.append(f"connect_clusters: the * in {alias!r} is no wildcard")
            yield self._grant((CLUSTER_ACCESS,), exactly(cluster(alias)))

    def namespaces(self) -> Iterator[Grant]:
        """The grants of all namespaces; their number is bounded."""
        namespaces = self.validator.forms("namespaces", required=False)
        statements, types = 0, dict[str, str]()
        for number, namespace in enumerate(namespaces):
            datasets = namespace.texts("datasets")
            statements += max(1, len(datasets))
            yield from self._namespace(namespace, number, datasets, types)
        if statements > MAX_STATEMENTS:
            message = f"{statements} datasets in all; at most {MAX_STATEMENTS}: split the document"
            self.validator.error(message, "namespaces")

    def _namespace(
        self, namespace: Validator, number: int, datasets: tuple[str, ...], types: dict[str, str]
    ) -> Iterator[Grant]:
        """One grant for each permission and dataset pattern, on its own connection alone (L5-NS-SHAPE)."""
        connection, type_ = namespace.text("connection"), namespace.one_of("type", catalogue().namespace)
        permissions = self._permissions(namespace, "permissions", namespace_family(type_)) if type_ else []
        namespace.reject_unknown("permissions")
        self._warn_of_namespace(namespace, connection, type_, types)
        if not datasets or not permissions:
            self.warnings.append(f"{namespace.where}: grants nothing; it has no datasets or no permissions")
        for permission in permissions:
            for text in dict.fromkeys(datasets):
                yield self._grant((type_, permission), _datasets(connection, text), number)

    def _permissions(
        self, validator: Validator, field: str, family: PermissionFamily, required: bool = True
    ) -> list[str]:
        """The permissions in ``field``, each by its name or by the one that Lenses's clients use."""
        permissions = dict[str, None]()
        for text in validator.texts(field, required):
            permission = family.codes.get(text, text)
            if permission in family.permissions:
                permissions[permission] = None
            elif text in catalogue().legacy:
                self.warnings.append(f"{validator.path(field)}: {text} is a legacy name that grants nothing")
            else:
                hint = validator.nearest(text, [*family.permissions, *family.codes])
                rule = f" ({family.rule})" if family.rule else ""
                validator.error(f"{text!r} is not one of {family.text}{rule}{hint}", field)
        return list(permissions)

    def _warn_of_gates(self, permissions: Iterable[str], family: Iterable[str]) -> None:
        """Manage without View is worth nothing (L5-Q2), unless another group gives View."""
        for permission in permissions:
            view = permission.replace(" / Manage", " / View")
            if view in family and view not in permissions:
                self.warnings.append(f"{permission} gives nothing without {view}, which this group does not have")

    def _warn_of_namespace(self, namespace: Validator, connection: str, type_: str, types: dict[str, str]) -> None:
        if "*" in connection:
            self.warnings.append(f"{namespace.where}.connection: the * in {connection!r} is no wildcard")
        if connection and type_ and types.setdefault(connection, type_) != type_:
            self.warnings.append(f"{namespace.where}: {connection} is {types[connection]} in a namespace before")

    def _grant(self, permission: Name, object_: Pattern, statement: int | None = None) -> Grant:
        statement_id = StatementId(str(self._document.key), statement)
        return Grant(self._group, ALLOW, exactly(permission), object_, statement_id, self._document.window)


def _datasets(connection: str, text: str) -> Pattern:
    """Datasets one by one or by wildcard (L5-NS-DATASETS): only ``*`` is special (L5-Q4)."""
    return Pattern((Exact("dataset"), Exact(connection), wildcard(text)))

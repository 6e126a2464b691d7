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
    reader.form.reject_unknown()
    reader.form.finish()
    return CompiledDocument(tuple(grants), memberships, warnings=tuple(reader.warnings))


class _Family(msgspec.Struct, frozen=True):
    """The permissions that a list may hold; ``codes``: their names in Lenses's clients, ``text``: for people."""

    known: list[str]
    codes: dict[str, str]
    text: str


def _feature_family(name: str) -> _Family:
    known: list[str] = getattr(catalogue(), name)
    return _Family(known, catalogue().code_names[name], f"the {name} permissions")


def _namespace_family(type_: str) -> _Family:
    text = f"the permissions of {type_} namespaces (L5-NS-AVAILABLE)"
    return _Family(catalogue().namespace[type_], catalogue().code_names["namespace"], text)


class _GroupReader:
    """Reads one Group; errors add up in ``form``, oddities in ``warnings``."""

    def __init__(self, document: Document) -> None:
        self.form = Validator(document.spec)
        self.warnings: list[str] = []
        self._document = document
        self._group = f"group:{document.key.name}"

    def members(self) -> Iterator[Membership]:
        """The members, and ``claim:NAME``: a principal that a request says is in the group."""
        members = {f"user:{member}" for member in self.form.texts("members", required=False)}
        for member in (f"claim:{self._document.key.name}", *sorted(members)):
            yield Membership(member, self._group, StatementId(str(self._document.key)), self._document.window)

    def features(self) -> Iterator[Grant]:
        """Application and administration permissions, held without an object (L5-APP-SCOPE, L5-ADM-GLOBAL)."""
        for name in FEATURES:
            family = _feature_family(name)
            held = self._permissions(self.form, name, family, required=False)
            self._warn_of_gates(held, family.known)
            for permission in held:
                yield self._grant((permission,), exactly(LENSES))

    def clusters(self) -> Iterator[Grant]:
        """Access to Connect clusters by alias, taken literally (L5-CC-ACCESS)."""
        for alias in self.form.texts("connect_clusters", required=False):
            if "*" in alias:
                self.warnings.append(f"connect_clusters: the * in {alias!r} is no wildcard")
            yield self._grant((CLUSTER_ACCESS,), exactly(cluster(alias)))

    def namespaces(self) -> Iterator[Grant]:
        """The grants of all namespaces; their number is bounded."""
        forms = self.form.forms("namespaces", required=False)
        statements, types = 0, dict[str, str]()
        for number, form in enumerate(forms):
            datasets = form.texts("datasets")
            statements += max(1, len(datasets))
            yield from self._namespace(form, number, datasets, types)
        if statements > MAX_STATEMENTS:
            self.form.error(f"{statements} datasets in all; at most {MAX_STATEMENTS}: split the document", "namespaces")

    def _namespace(
        self, form: Validator, number: int, datasets: tuple[str, ...], types: dict[str, str]
    ) -> Iterator[Grant]:
        """One grant for each permission and dataset pattern, on its own connection alone (L5-NS-SHAPE)."""
        connection, type_ = form.text("connection"), form.one_of("type", catalogue().namespace)
        permissions = self._permissions(form, "permissions", _namespace_family(type_)) if type_ else []
        form.reject_unknown("permissions")
        self._warn_of_namespace(form, connection, type_, types)
        if not datasets or not permissions:
            self.warnings.append(f"{form.where}: grants nothing; it has no datasets or no permissions")
        for permission in permissions:
            for text in dict.fromkeys(datasets):
                yield self._grant((type_, permission), _datasets(connection, text), number)

    def _permissions(self, form: Validator, field: str, family: _Family, required: bool = True) -> list[str]:
        """The permissions in ``field``, each by its name or by the one that Lenses's clients use."""
        found = dict[str, None]()
        for text in form.texts(field, required):
            permission = family.codes.get(text, text)
            if permission in family.known:
                found[permission] = None
            elif text in catalogue().legacy:
                self.warnings.append(f"{form.path(field)}: {text} is a legacy name that grants nothing")
            else:
                hint = form.nearest(text, [*family.known, *family.codes])
                form.error(f"{text!r} is not one of {family.text}{hint}", field)
        return list(found)

    def _warn_of_gates(self, held: Iterable[str], known: Iterable[str]) -> None:
        """Manage without View is worth nothing (L5-Q2), unless another group gives View."""
        for permission in held:
            view = permission.replace(" / Manage", " / View")
            if view in known and view not in held:
                self.warnings.append(f"{permission} gives nothing without {view}, which this group does not have")

    def _warn_of_namespace(self, form: Validator, connection: str, type_: str, types: dict[str, str]) -> None:
        if "*" in connection:
            self.warnings.append(f"{form.where}.connection: the * in {connection!r} is no wildcard")
        if connection and type_ and types.setdefault(connection, type_) != type_:
            self.warnings.append(f"{form.where}: {connection} is {types[connection]} in a namespace before")

    def _grant(self, permission: Name, object_: Pattern, statement: int | None = None) -> Grant:
        statement_id = StatementId(str(self._document.key), statement)
        return Grant(self._group, ALLOW, exactly(permission), object_, statement_id, self._document.window)


def _datasets(connection: str, text: str) -> Pattern:
    """Datasets one by one or by wildcard (L5-NS-DATASETS): only ``*`` is special (L5-Q4)."""
    return Pattern((Exact("dataset"), Exact(connection), wildcard(text)))

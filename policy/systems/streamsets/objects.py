"""Object documents: owner and shares as grants on each version of the object, the rest as a fact.

History: an object's facts and grants distinguish all its known versions, so that a decision can pick the
one in force at the moment that counts (moments.py).
"""

from collections.abc import Iterator

from policy.core.document import Document
from policy.core.model import ALLOW, CompiledDocument, Fact, Grant, StatementId
from policy.core.pattern import EVERYTHING, exactly
from policy.systems.kit.validator import Validator
from policy.systems.streamsets.catalogue import ObjectType, catalogue, reference, type_of
from policy.systems.streamsets.records import OBJECT, Thing, Version, grant_name

PRINCIPAL_PREFIXES = ("user:", "group:")  # SS-SHARE-WHO
IGNORED = "origin"  # how an object came about never counts: it starts with its owner alone (SS-PIPE-PUBLISH-OWNER …)


def read_object(document: Document) -> CompiledDocument:
    """The object's fact with all its versions, and the grants of each; raises DocumentRefused."""
    read = [_read_version(document.key.name, version) for version in (*document.history, document)]
    versions = tuple(version for version, _ in read)
    grants = [
        grant
        for number, (document_of, (version, acl)) in enumerate(zip((*document.history, document), read, strict=True))
        if not version.deleted
        for grant in _grants(document_of, version, acl, number)
    ]
    thing = Thing(versions, document.known_from)
    fact = Fact(
        OBJECT, document.key.name, thing, tuple(_keys(document.key.name, thing)), StatementId(str(document.key))
    )
    return CompiledDocument(tuple(grants), facts=(fact,))


def read_levels(form: Validator, type_: ObjectType) -> dict[str, tuple[str, ...]]:
    """A form of an acl: principal → levels; what is wrong is added to the form's errors (SS-SHARE-WHO)."""
    acl = {}
    for principal in form.fields():
        if not principal.startswith(PRINCIPAL_PREFIXES) or principal in PRINCIPAL_PREFIXES:
            form.error("is not user:NAME or group:NAME (SS-SHARE-WHO)", principal)
        levels = form.texts(principal)
        if not levels and form.raw(principal) == []:
            form.error("at least one level is needed (SS-SHARE-WHO); leave the entry out to take all back", principal)
        for level in levels:
            if level not in type_.levels:
                form.error(f"{level!r} is not one of {', '.join(type_.levels)}", principal)
        acl[principal] = levels
    return acl


Acl = dict[str, tuple[str, ...]]


def _read_version(name: str, document: Document) -> tuple[Version, Acl]:
    if document.spec is None:
        return Version(document.at, deleted=True), {}
    form = Validator(document.spec)
    type_ = _type(name, form)
    owner = form.text("owner")
    if owner.startswith(PRINCIPAL_PREFIXES):
        form.error(
            f"{owner!r}: an owner is one user, by his bare name; a group cannot own (SS-OWN-ONE, SS-Q21)", "owner"
        )
    acl = read_levels(form.mapping("acl"), type_) if form.has("acl") else {}
    version = Version(
        document.at,
        window=document.window,
        owner=owner,
        organization=form.text("organization", required=False) or None,
        links=dict(_links(form, type_)),
        labels=_set(form, "labels", type_),
        numbers=_set(form, "versions", type_),
        kind=next((form.text(field, required=False) or None for field in type_.texts), None),
        own_list=any(form.flag(field) or False for field in type_.flags),
    )
    form.reject_unknown(IGNORED)
    form.finish()
    return version, acl


def _type(name: str, form: Validator) -> ObjectType:
    """The type by the document's name and its ``type`` field, which must agree."""
    written = form.one_of("type", catalogue().types)
    try:
        by_name = type_of(name)
        if written and written != by_name:
            form.error(f"{written!r}, and the name says {by_name}", "type")
    except ValueError as error:
        form.error(str(error), "name")
    return catalogue().types.get(written) or ObjectType(levels=())


def _links(form: Validator, type_: ObjectType) -> Iterator[tuple[str, tuple[str, ...]]]:
    for field, target in type_.one.items():
        if text := form.text(field, required=False):
            yield field, _references(form, field, (text,), target)
    for field, target in type_.many.items():
        if form.has(field):
            yield field, _references(form, field, form.texts(field), target)


def _references(form: Validator, field: str, texts: tuple[str, ...], target: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in texts:
        try:
            found[reference(text, target)] = None
        except ValueError as error:
            form.error(str(error), field)
    return tuple(found)


def _set(form: Validator, field: str, type_: ObjectType) -> frozenset[str] | None:
    """Labels or version numbers, compared as they are written (SS-Q3); None: not given."""
    if field not in type_.lists or not form.has(field):
        return None
    value = form.raw(field)
    if isinstance(value, list | tuple):
        value = [str(item) if isinstance(item, int) else item for item in value]
    return frozenset(Validator({field: value}, form.where, form.errors).texts(field))


def _grants(document: Document, version: Version, acl: Acl, number: int) -> Iterator[Grant]:
    """The owner's full access (SS-OWN-FULL) and the shares (SS-SHARE-WHO, SS-UNION); statements by principal."""
    object_ = exactly(grant_name(document.key.name, number))
    statement_id = StatementId(str(document.key))
    yield Grant(f"user:{version.owner}", ALLOW, EVERYTHING, object_, statement_id, document.window)
    for statement, principal in enumerate(sorted(acl)):
        statement_id = StatementId(str(document.key), statement)
        for level in acl[principal]:
            yield Grant(principal, ALLOW, exactly((level,)), object_, statement_id, document.window)


def _keys(name: str, thing: Thing) -> Iterator[tuple[str, str]]:
    """By which a job finds its engines: by label and kind, and those that do not say (SS-JOB-ENGINES)."""
    engine = thing.current
    if engine.deleted or not name.startswith("engine:"):
        return
    if engine.kind is None or engine.labels is None:
        yield "engine", "incomplete"
    if engine.kind is not None:
        yield "engine-kind", engine.kind
    for label in sorted(engine.labels or ()):
        yield "engine-label", label

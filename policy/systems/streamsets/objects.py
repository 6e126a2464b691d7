"""Object documents: owner and shares as grants on each version of the object, the rest as a fact.

History: an object's facts and grants distinguish all its known versions, so that a decision can pick the
one in force at the moment that counts (moments.py).
"""

import itertools
from collections.abc import Iterator, Sequence

from policy.core.document import SINCE_EVER, Document
from policy.core.model import ALLOW, CompiledDocument, Fact, Grant, StatementId
from policy.core.pattern import EVERYTHING, exactly
from policy.core.times import Window, window_between
from policy.systems.kit.validator import Validator
from policy.systems.streamsets.catalogue import ObjectType, catalogue, reference, type_of
from policy.systems.streamsets.records import OBJECT, Thing, Version, grant_name

PRINCIPAL_PREFIXES = ("user:", "group:")  # SS-SHARE-WHO
# How an object came about never counts: published, imported or downloaded, it starts with its owner alone
# (SS-PIPE-PUBLISH-OWNER, SS-PIPE-IMPORT-OWNER, SS-PIPE-DOWNLOAD-OWNER, SS-FRAG-IMPORT-OWNER), and an export has no
# permissions (SS-PIPE-EXPORT-STRIPS, SS-FRAG-EXPORT-STRIPS).
IGNORED = "origin"


def read_object(document: Document) -> CompiledDocument:
    """The object's facts with its versions, and the grants of each; raises DocumentRefused.

    A version that says itself from when on it counts is in the facts from then on, and so are its grants.
    """
    name, documents = document.key.name, (*document.history, document)
    read = [_read_version(name, version) for version in documents]
    versions, acls = tuple(version for version, _ in read), [acl for _, acl in read]
    grants = itertools.chain.from_iterable(map(_grants, documents, versions, acls, itertools.count()))
    return CompiledDocument(tuple(grants), facts=tuple(_facts(document, documents, versions)))


def _facts(document: Document, documents: Sequence[Document], versions: tuple[Version, ...]) -> Iterator[Fact]:
    """What is known of the object in each interval in which no other version begins."""
    begins = [version.effective_from for version in documents]
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], None], strict=True), 1):
        if begin != end:
            thing, window = Thing(versions[:number], document.known_from), _window(begin, end)
            keys = tuple(_keys(document.key.name, thing))
            yield Fact(OBJECT, document.key.name, thing, keys, StatementId(str(document.key)), window)


def _window(begin: int, end: int | None = None) -> Window:
    return window_between(None if begin == SINCE_EVER else begin, end)


def read_levels(validator: Validator, type_: ObjectType) -> dict[str, tuple[str, ...]]:
    """The levels of an acl by principal; what is wrong is added to the validator's errors (SS-SHARE-WHO)."""
    acl = {}
    for principal in validator.fields():
        if not principal.startswith(PRINCIPAL_PREFIXES) or principal in PRINCIPAL_PREFIXES:
            validator.error("is not user:NAME or group:NAME (SS-SHARE-WHO)", principal)
        levels = validator.texts(principal)
        if not levels and validator.raw(principal) == []:
            message = "at least one level is needed (SS-SHARE-WHO); leave the entry out to take all back"
            validator.error(message, principal)
        for level in levels:
            if level not in type_.levels:
                validator.error(f"{level!r} is not one of {', '.join(type_.levels)}", principal)
        acl[principal] = levels
    return acl


Acl = dict[str, tuple[str, ...]]


def _read_version(name: str, document: Document) -> tuple[Version, Acl]:
    if document.spec is None:
        return Version(document.at, deleted=True), {}
    validator = Validator(document.spec)
    type_ = _type(name, validator)
    owner = validator.text("owner")
    if owner.startswith(PRINCIPAL_PREFIXES):
        validator.error(
            f"{owner!r}: an owner is one user, by his bare name; a group cannot own (SS-OWN-ONE, SS-Q21)", "owner"
        )
    acl = read_levels(validator.mapping("acl"), type_) if validator.has("acl") else {}
    version = Version(
        document.at,
        window=document.window,
        owner=owner,
        organization=validator.text("organization", required=False) or None,
        links=dict(_links(validator, type_)),
        labels=_set(validator, "labels", type_),
        numbers=_set(validator, "versions", type_),
        kind=next((validator.text(field, required=False) or None for field in type_.texts), None),
        own_list=any(validator.flag(field) or False for field in type_.flags),
    )
    validator.reject_unknown(IGNORED)
    validator.finish()
    return version, acl


def _type(name: str, validator: Validator) -> ObjectType:
    """The type by the document's name and its ``type`` field, which must agree."""
    written = validator.one_of("type", catalogue().types)
    try:
        by_name = type_of(name)
        if written and written != by_name:
            validator.error(f"{written!r}, and the name says {by_name}", "type")
    except ValueError as error:
        validator.error(str(error), "name")
    return catalogue().types.get(written) or ObjectType(levels=())


def _links(validator: Validator, type_: ObjectType) -> Iterator[tuple[str, tuple[str, ...]]]:
    for field, target in type_.one.items():
        if text := validator.text(field, required=False):
            yield field, _references(validator, field, (text,), target)
    for field, target in type_.many.items():
        if validator.has(field):
            yield field, _references(validator, field, validator.texts(field), target)


def _references(validator: Validator, field: str, texts: tuple[str, ...], target: str) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for text in texts:
        try:
            names[reference(text, target)] = None
        except ValueError as error:
            validator.error(str(error), field)
    return tuple(names)


def _set(validator: Validator, field: str, type_: ObjectType) -> frozenset[str] | None:
    """Labels or version numbers, compared as they are written (SS-Q3); None: not given."""
    if field not in type_.lists or not validator.has(field):
        return None
    value = validator.raw(field)
    if isinstance(value, list | tuple):
        value = [str(item) if isinstance(item, int) else item for item in value]
    return frozenset(validator.sibling({field: value}).texts(field))


def _grants(document: Document, version: Version, acl: Acl, number: int) -> Iterator[Grant]:
    """The owner's full access (SS-OWN-FULL) and the shares (SS-SHARE-WHO, SS-UNION); statements by principal."""
    window = document.window.meet(_window(document.effective_from))
    if version.deleted or window is None:
        return
    # Shares are granted while enforcement is off, too: they count once it is on (SS-ENF-ASSIGN-WHILE-OFF, SS-ENF-ON).
    object_ = exactly(grant_name(document.key.name, number))
    statement_id = StatementId(str(document.key))
    # Who had it before has only what is shared with him (SS-OWN-CREATOR, SS-OWN-NEW-FULL, SS-Q10).
    yield Grant(f"user:{version.owner}", ALLOW, EVERYTHING, object_, statement_id, window)
    for statement, principal in enumerate(sorted(acl)):
        statement_id = StatementId(str(document.key), statement)
        for level in acl[principal]:
            yield Grant(principal, ALLOW, exactly((level,)), object_, statement_id, window)


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

"""Reading a document's spec field by field, so that every error in it is named, not just the first."""

from collections.abc import Iterable, Mapping
from typing import Any

from policy.core.document import Document
from policy.core.model import CompiledDocument, DocumentRefused, Fact, Grant, StatementId, Unanswerable
from policy.core.names import fault, is_simple
from policy.core.suggest import nearest
from policy.core.times import ALWAYS, Window

MAX_STATEMENTS = 10_000  # entries of one list of statements
HINTED = 100  # errors of a document that name what may have been meant: 10,000 of them took 2.6 s


class Validator:
    """A mapping under inspection. ``where`` is its place ("statements[2]"); errors add up in ``errors``."""

    def __init__(self, value: object, where: str = "", errors: list[str] | None = None) -> None:
        self.errors: list[str] = [] if errors is None else errors
        self.where = where
        self._known: set[str] = set()
        self._value: Mapping[Any, Any] = value if type(value) is dict or isinstance(value, Mapping) else {}
        if self._value is not value:
            self.error(f"must be a mapping, not {type(value).__name__}")

    def error(self, message: str, field: str = "") -> None:
        """Add an error at ``field`` of this place."""
        path = self.path(field)
        self.errors.append(f"{path}: {message}" if path else message)

    def path(self, field: str) -> str:
        """Where a field stands, such as ``statements[2].effect``."""
        return ".".join(part for part in (self.where, field) if part)

    def nearest(self, name: str, known: Iterable[str], separator: str = " or ") -> str:
        """What a misspelt name may have been meant as (see `suggest`), for the first errors of a document alone."""
        return nearest(name, known, separator=separator) if len(self.errors) < HINTED else ""

    def has(self, field: str) -> bool:
        """Whether the field is given; marks it as known."""
        self._known.add(field)
        return self._value.get(field) is not None

    def is_empty(self, field: str) -> bool:
        """Whether the field is there, and has no value; it need not be known."""
        return field in self._value and self._value[field] is None

    def raw(self, field: str) -> Any:
        """The field as it is, None when it is not given."""
        self._known.add(field)
        return self._value.get(field)

    def fields(self) -> list[str]:
        """The fields given, of a mapping whose fields are names of something; marks them as known."""
        for field in self._value:
            if not isinstance(field, str) or not field:
                self.error(f"must have texts that are not empty as fields, not {field!r}")
        names = [field for field in self._value if isinstance(field, str) and field]
        for name in names:
            self._check(name, name)
        self._known.update(names)
        return names

    def text(self, field: str, required: bool = True, blanks: bool = False) -> str:
        """A name: a text that is not empty; "" when it is wrong or not given. ``blanks``: it may end in some."""
        value = self.raw(field)
        if value is None:
            if required:
                self.error("required; must be text", field)
            return ""
        if not isinstance(value, str) or not value:
            self.error(f"must be text that is not empty, not {value!r}", field)
            return ""
        if not is_simple(value):
            self._check(value, field, blanks)
        return value

    def _check(self, text: str, field: str, blanks: bool = False) -> None:
        """Refuse a name that may be taken for another one."""
        if wrong := fault(text, blanks):
            self.error(f"{text!r} {wrong}", field)

    def flag(self, field: str) -> bool | None:
        """true or false; None when it is not given or wrong, as an empty one is: it may have been meant as either."""
        value = self.raw(field)
        if isinstance(value, bool):
            return value
        if field in self._value:
            self.error(f"must be true or false, not {value!r}", field)
        return None

    def texts(self, field: str, required: bool = True, one: bool = False) -> tuple[str, ...]:
        """A list of texts that are not empty; with ``one`` a single text stands for a list of one."""
        value = self.raw(field)
        if one and isinstance(value, str):
            value = [value]
        if value is None and not required:
            return ()
        if not isinstance(value, list | tuple):
            self.error(
                "required; must be a list of texts" if value is None else f"must be a list, not {value!r}", field
            )
            return ()
        wrong = [item for item in value if not isinstance(item, str) or not item]
        for item in wrong:
            self.error(f"must hold texts that are not empty, not {item!r}", field)
        right = tuple(item for item in value if item not in wrong) if wrong else tuple(value)
        for item in right:
            if not is_simple(item):
                self._check(item, field)
        return right

    def one_of(self, field: str, allowed: Iterable[str], required: bool = True) -> str:
        """One of the ``allowed`` texts; "" when it is wrong or not given."""
        value, choices = self.text(field, required), list(allowed)
        if value and value not in choices:
            self.error(f"{value!r} is not one of {', '.join(choices)}", field)
            return ""
        return value

    def mapping(self, field: str) -> "Validator":
        """A mapping within this one, whose errors are added to the same list."""
        return Validator(self.raw(field), self.path(field), self.errors)

    def sibling(self, value: Mapping[str, object]) -> "Validator":
        """Other fields at the same place, such as one of this mapping in another spelling."""
        return Validator(value, self.where, self.errors)

    def forms(self, field: str, required: bool = True) -> list["Validator"]:
        """A list of mappings, each with a validator of its own; with too many there is an error, and none of them."""
        value = self.raw(field)
        if value is None and not required:
            return []
        if not isinstance(value, list | tuple):
            self.error("required; must be a list" if value is None else f"must be a list, not {value!r}", field)
            return []
        if len(value) > MAX_STATEMENTS:
            self.error(f"{len(value)} statements; at most {MAX_STATEMENTS}: split the document", field)
            return []
        path = self.path(field)
        return [Validator(item, f"{path}[{number}]", self.errors) for number, item in enumerate(value)]

    def refuse_window(self, window: Window) -> None:
        """Refuse a validity window: of a fact or a setting it would be unclear what holds outside of it."""
        if window != ALWAYS:
            field = "valid_until" if window.start is None else "valid_from"
            self.error("not for this kind, which does not grant: leave it out and delete the document", field)

    def reject_unknown(self, *ignored: str) -> None:
        """Refuse every field that was not read and is not ``ignored``."""
        unknown = self._value.keys() - self._known
        for field in sorted(str(name) for name in unknown.difference(ignored)) if unknown else ():
            fields = sorted({*self._known, *ignored})
            self.error(f"unknown field (known: {', '.join(fields)}){self.nearest(field, fields)}", field)

    def finish(self) -> None:
        """Raise DocumentRefused if anything was wrong."""
        if self.errors:
            raise DocumentRefused(self.errors)

    def finish_request(self, code: str, rule: str | None = None) -> None:
        """Raise Unanswerable if anything was wrong, for a part of a request."""
        if self.errors:
            raise Unanswerable(code, "; ".join(self.errors), rule)


def one_fact(
    document: Document,
    validator: Validator,
    body: Any,
    keys: Iterable[tuple[str, str]] = (),
    *,
    grants: Iterable[Grant] = (),
    warnings: Iterable[str] = (),
    not_before: int | None = None,
) -> CompiledDocument:
    """What a document of a setting says: one fact of its kind and name, and the grants that follow from it.

    Raises DocumentRefused where its validator has errors, for fields that it did not read, and for a validity window.
    """
    validator.refuse_window(document.window)
    validator.reject_unknown()
    validator.finish()
    key = document.key
    fact = Fact(key.kind, key.name, body, tuple(keys), StatementId(str(key)), not_before=not_before)
    return CompiledDocument(tuple(grants), facts=(fact,), warnings=tuple(warnings))

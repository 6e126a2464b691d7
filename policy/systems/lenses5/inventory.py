"""Documents that say what exists: consumer groups, processors, connectors, schemas, external applications.

Their fields are those that a request's context may have for the same thing (things in catalogue.yaml).
"""

from typing import Any

from policy.core.document import Document
from policy.core.model import CompiledDocument, Fact, StatementId
from policy.core.times import ALWAYS
from policy.systems.kit.validator import Validator
from policy.systems.lenses5.catalogue import FieldType, catalogue

KINDS = {thing.document: thing for thing in catalogue().things.values() if thing.document is not None}


def read_inventory(document: Document) -> CompiledDocument:
    """The document as one fact, of the fields that it gives; raises DocumentRefused.

    An empty list of topics is accepted and denies (L5-Q11).
    """
    validator, key = Validator(document.spec), document.key
    read = {field: read_field(validator, field, type_) for field, type_ in KINDS[key.kind].fields.items()}
    validator.reject_unknown()
    validator.finish()
    values = {field: value for field, value in read.items() if value is not None}
    return CompiledDocument(
        facts=(Fact(key.kind, key.name, values, statement_id=StatementId(str(key))),),
        warnings=_warnings(document, values),
    )


def read_field(validator: Validator, field: str, type_: FieldType) -> Any | None:
    """The field by its type: text, texts (a tuple, each once), bool; None when it is not given or wrong."""
    if not validator.has(field):
        return None
    if type_ == "flag":
        return validator.flag(field)
    if type_ == "texts":
        return tuple(dict.fromkeys(validator.texts(field)))
    return validator.text(field) if type_ == "text" else validator.one_of(field, type_)


def _warnings(document: Document, values: dict[str, Any]) -> tuple[str, ...]:
    warnings = []
    if document.window != ALWAYS:
        warnings.append("valid_from and valid_until bound grants; what this document says holds at any time")
    if not values:
        warnings.append("the document says nothing")
    return tuple(warnings)

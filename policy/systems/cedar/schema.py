"""Schema documents: all that are in force apply together, to decisions and to what lint finds (CE-SCHEMA)."""

from collections.abc import Mapping

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import CompiledDocument, Unanswerable
from policy.systems.cedar import engine
from policy.systems.cedar.text import Unsplittable, check_depth
from policy.systems.kit.validator import Validator, one_fact

SCHEMA = "Schema"
EVERY_SCHEMA = ("schema", "every")  # the key under which all of them are found


def current_schema(facts: Facts) -> engine.Schema | None:
    """The schema in force at the moment of the facts; None: there is none. Raises Unanswerable."""
    names = sorted(facts.find(SCHEMA, *EVERY_SCHEMA))
    texts = tuple(text for name in names if (text := facts.get(SCHEMA, name)) is not None)
    if not texts:
        return None
    try:
        return engine.schema(texts)
    except engine.EngineError as error:
        documents = " and ".join(f"cedar/{SCHEMA}/{name}" for name in names)
        message = f"{documents} cannot apply together: {error}"
        raise Unanswerable("contradicting-documents", message, "CE-SCHEMA") from None


def newest_schema(facts: Facts) -> engine.Schema | None:
    """The schema of the newest versions; for tools, not for decisions. Raises EngineError."""
    texts = tuple(str(facts.versions(SCHEMA, name)[-1].body) for name in facts.names(SCHEMA))
    return engine.schema(texts) if texts else None


def read_schema(document: Document) -> CompiledDocument:
    """A Schema document; raises DocumentRefused where Cedar does not take it."""
    validator = Validator(document.spec)
    schema = validator.raw("schema")
    if not isinstance(schema, str | Mapping) or not schema:
        validator.error("required, as Cedar text or in the JSON form", "schema")
    text = ""
    if not validator.errors:
        try:
            if isinstance(schema, str):
                check_depth(schema)
            text = engine.schema_text(schema)
        except (Unsplittable, engine.EngineError) as error:
            validator.error(str(error), "schema")
    return one_fact(document, validator, text, (EVERY_SCHEMA,))

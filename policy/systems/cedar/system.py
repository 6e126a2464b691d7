"""Cedar policies: documents to facts, a request to the slice of them that decides it, and Cedar's answer to it."""

from collections.abc import Iterator
from typing import Any

from policy.core.facts import Facts
from policy.core.model import AuthorizationQuery, Unanswerable
from policy.core.request import Request
from policy.systems.cedar.answer import answer
from policy.systems.cedar.entities import ENTITIES, read_entities
from policy.systems.cedar.forbids import lifted_by
from policy.systems.cedar.policies import POLICY_SET, read_policy_set
from policy.systems.cedar.request import cedar_request
from policy.systems.cedar.schema import SCHEMA, read_schema
from policy.systems.cedar.settings import SETTINGS, current_settings, read_settings
from policy.systems.cedar.statements import CedarEngine
from policy.systems.cedar.uid import Uid, text_of, uid_of_text
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.system import UNTYPED, Kind, System


class Cedar(System):
    name = "cedar"
    kinds = {
        POLICY_SET: Kind(missed=True, read=read_policy_set),
        ENTITIES: Kind(fact=True, missed=True, read=read_entities),
        SCHEMA: Kind(missed=True, read=read_schema),
        SETTINGS: Kind(missed=True, read=read_settings),
    }
    deny_rule = "CE-FORBID-WINS"
    default_rule = "CE-DEFAULT-DENY"
    subject_types = ()  # any
    subjects = ()
    engine = CedarEngine()

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """Type and id; and the subject's type: without it ``User::"a"`` and ``Service::"a"`` would be one subject."""
        return (request.subject.type, request.resource.type, request.resource.id)

    def resource_type(self, action: str, resource: str) -> str:
        """Not known: policies say what types there are."""
        return UNTYPED

    def entity_of_text(self, text: str) -> Uid | None:
        """Type and id of an entity as policies write it, ``User::"dana"``; None: it is an id alone.

        Raises ValueError for one that Cedar would not parse: taken for an id, it would be denied without a word.
        """
        uid = uid_of_text(text)
        if uid is None and '::"' in text:
            raise ValueError(f"{text} is not an entity as Cedar writes it: check its type, quotes and escapes")
        return uid

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """Cedar's answer to the request, worked out; raises Unanswerable."""
        _check_refused(facts)
        cedar = cedar_request(request, facts, trust, current_settings(facts))
        result, failures = answer(cedar, facts)
        return AuthorizationQuery(
            (text_of(cedar.principal),), result, cedar.claims, (*cedar.notes, *failures), cedar.untrusted
        )

    def opened_by(self, change: FactChange, facts: Facts) -> Iterator[Opening]:
        """Anything; and where a forbid may no longer match, a deny that is lifted (CE-Q1)."""
        yield Opening()
        if why := lifted_by(change, facts):
            yield Opening(lifts=why)


LOST_BY_REFUSAL = {  # what a refused document may have held
    POLICY_SET: "a forbid about any principal",
    ENTITIES: "any entity",
    SCHEMA: "the groups of every action and the types of every attribute",
    SETTINGS: "the type of every action and group",
}


def _check_refused(facts: Facts) -> None:
    """Raise Unanswerable while a document is refused that may have held anything (CE-REFUSED)."""
    for kind, what in LOST_BY_REFUSAL.items():
        if refused := facts.broken(kind):
            message = f"cedar/{kind}/{refused[0]} was refused, has no earlier good version, and may have held {what}"
            raise Unanswerable("refused-document", message, "CE-REFUSED")

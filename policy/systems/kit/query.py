"""A request as a question of its system: what must hold of every request, then what the system makes of it."""

from policy.core.facts import Facts
from policy.core.model import Question, Unanswerable
from policy.core.names import fault, is_simple
from policy.core.request import Request
from policy.systems.kit.system import System


def to_question(system: System, request: Request, facts: Facts, trust: frozenset[str]) -> Question:
    """See `System.ask`; raises Unanswerable too for a subject type that the system does not have, and for a name that
    may be taken for another one.
    """
    subject, resource = request.subject, request.resource
    if subject.type not in system.subject_types:
        known = ", ".join(system.subject_types)
        raise Unanswerable("unknown-subject-type", f"subject.type {subject.type!r} is not one of {known}")
    if not is_simple(subject.id + request.action.name + resource.type + resource.id):
        check_name(subject.id, "subject.id")
        check_name(request.action.name, "action.name")
        check_name(resource.type, "resource.type")
        check_name(resource.id, "resource.id")
    return system.ask(request, facts, trust)


def check_name(text: str, place: str) -> None:
    """Raise Unanswerable when ``text``, at ``place`` in a request, may be taken for another name."""
    if wrong := fault(text):
        raise Unanswerable("malformed-name", f"{place} {text!r} {wrong}")

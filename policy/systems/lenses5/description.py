"""What is known of the thing that a request is about: from documents first, then from what the request claims."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.core.facts import Facts
from policy.core.model import Reason, Unanswerable
from policy.core.request import Request
from policy.systems.kit.validator import Validator
from policy.systems.lenses5.catalogue import Action, Thing
from policy.systems.lenses5.inventory import read_field
from policy.systems.lenses5.target import Target, find_target


@dataclass
class Description:
    """A thing with what is known of it. ``state``: " as asked for", where that is not how it stands.

    ``claimed``: fields that only the request gives; ``untrusted``: fields that only the request gives and that
    it is not trusted to; ``used``: fields that were read.
    """

    target: Target
    values: Mapping[str, Any]
    claimed: frozenset[str] = frozenset()
    untrusted: frozenset[str] = frozenset()
    state: str = ""
    used: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """For people: "consumer group billing"."""
        return " ".join(part for part in (self.target.noun, self.target.name) if part) + self.state

    @property
    def rests_on_claims(self) -> bool:
        """Whether a field that was read came from the request alone."""
        return bool(self.used & self.claimed)

    def get(self, field: str) -> Any | None:
        """What is known of the field, None when nothing is; ``thing``: what kind of thing it is."""
        self.used.add(field)
        return self.target.noun if field == "thing" else self.values.get(field)


def describe(
    request: Request, action: Action, facts: Facts, trusted: bool
) -> tuple[list[Description], tuple[Reason, ...]]:
    """The descriptions that must all satisfy the rule, and what the request contradicts; raises Unanswerable.

    There is one; where the action proposes what is to be, a second one has it as the request asks for it, so
    that neither an outdated document nor an untrue claim can stand in for the other.
    """
    target = find_target(request, action)
    _check_id(target, request.resource.id, facts)
    requested, documented = _requested(request, target.thing), _documented(target, facts)
    only_given, nothing = frozenset(requested.keys() - documented.keys()), frozenset[str]()
    stands = {**action.implies, **target.fields, **(requested if trusted else {}), **documented}
    claimed, untrusted = (only_given, nothing) if trusted else (nothing, only_given)
    descriptions = [Description(target, stands, claimed, untrusted)]
    if not action.proposes:
        return descriptions, tuple(_contradictions(descriptions[0], requested, documented))
    if (proposed := {**stands, **requested}) != stands:
        descriptions.append(Description(target, proposed, state=" as asked for"))
    return descriptions, ()


def _check_id(target: Target, id_: str, facts: Facts) -> None:
    """A node has a name beside the resource's id, which must then not be another thing's that has a document."""
    kind = target.thing.document
    if kind is not None and id_ != target.name and facts.get(kind, id_) is not None:
        message = f"resource.id is {id_!r}, of which there is a document, and the properties name {target.name!r}"
        raise Unanswerable("malformed-properties", message)


def _requested(request: Request, thing: Thing) -> dict[str, Any]:
    """What the request's context says of the thing."""
    validator = Validator(request.context, "context")
    read = {name: read_field(validator, name, type_) for name, type_ in thing.fields.items()}
    validator.finish_request("malformed-claim")
    return {name: value for name, value in read.items() if value is not None}


def _documented(target: Target, facts: Facts) -> Mapping[str, Any]:
    """What documents say of it; raises Unanswerable when its document was refused."""
    kind = target.thing.document
    return {} if kind is None else facts.get(kind, target.name) or {}


def _contradictions(
    description: Description, requested: Mapping[str, Any], documented: Mapping[str, Any]
) -> Iterator[Reason]:
    document = f"lenses5/{description.target.thing.document}/{description.target.name}"
    for name in sorted(requested.keys() & documented.keys()):
        if _unordered(requested[name]) != _unordered(documented[name]):
            says = f"the request says {_shown(requested[name])}, the document {_shown(documented[name])}, which counts"
            yield Reason("fact-contradiction", f"{name} of {description.text}: {says}", None, document)


def _unordered(value: Any) -> Any:
    return frozenset(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return (", ".join(value) or "none") if isinstance(value, tuple) else str(value)

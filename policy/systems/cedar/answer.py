"""Cedar's answer to a request, by the policies and entities that it needs (CE-SLICE), and what decided it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from policy.core.facts import Facts
from policy.core.model import EngineResult, Reason, Unanswerable
from policy.systems.cedar import engine
from policy.systems.cedar.entities import Entity, first_faulty, first_nonconforming, nonconformity
from policy.systems.cedar.policies import EVERY, POLICY, SCOPE, Policy, keys_for
from policy.systems.cedar.request import CedarRequest
from policy.systems.cedar.uid import Uid, leaves, text_of

MOST_REASONS = 50  # determining policies that a decision names, and failures


class _Slice(NamedTuple):
    """Policies as the engine takes them: their texts, links of templates among these, and the policy by position."""

    texts: tuple[str, ...]
    links: tuple[engine.Link, ...]
    policies: dict[int, Policy]


def answer(cedar: CedarRequest, facts: Facts) -> tuple[EngineResult, list[Reason]]:
    """What Cedar says, and failures that change nothing; raises Unanswerable where it cannot evaluate the request.

    The policies of each key are evaluated by themselves, for so each policy is parsed once, whatever requests come: a
    forbid that is satisfied anywhere decides, then a permit.
    """
    within = {part: cedar.entities.ancestors(uid) for part, uid in cedar.parts.items()}
    groups = [_policies(facts, key) for key in _keys(cedar, within)]
    above = {part: frozenset(uids) for part, uids in within.items()}
    named = [
        uid
        for group in groups
        for policy in group
        if policy.literals and all(getattr(policy, part).fits(uid, above[part]) for part, uid in cedar.parts.items())
        for uid in policy.literals
    ]
    in_context = (*cedar.in_context.named, *(cedar.in_context.possible if cedar.schema is not None else ()))
    entities = cedar.entities.closure((*cedar.parts.values(), *in_context, *named))
    texts = tuple(entity.text for entity in entities)
    parts = {part: {"type": type_, "id": id_} for part, (type_, id_) in cedar.parts.items()}
    request = {**parts, "context": cedar.context}
    permits, forbids, failed = list[Policy](), list[Policy](), list[tuple[Policy, str]]()
    for part in map(_slice, [group for group in groups if group] or [[]]):
        try:
            outcome = engine.evaluate(part.texts, part.links, texts, request, cedar.schema)
        except engine.EngineError as error:
            raise _unanswerable(cedar, entities, error) from None
        (permits if outcome.allowed else forbids).extend(part.policies[position] for position in outcome.determining)
        failed += [(part.policies[position], why) for position, why in outcome.failed]
    determining = sorted(set(forbids or permits), key=_by_place)  # a policy for several actions has a key for each
    failed = sorted(set(failed), key=lambda failure: _by_place(failure[0]))
    return _conclude(cedar, bool(permits) and not forbids, determining, failed)


def _unanswerable(cedar: CedarRequest, entities: list[Entity], error: engine.EngineError) -> Unanswerable:
    """Cedar takes no request, and no entity, that does not conform to the schema (CE-SCHEMA)."""
    if cedar.schema is None:
        why = _first_malformed(cedar, entities) or str(error)
        return Unanswerable("evaluation-failed", f"Cedar cannot evaluate the request: {why}", "CE-ERRORS")
    entity = first_nonconforming(entities, cedar.schema)
    what = "the request" if entity is None or not entity.document else entity.document
    why = str(error) if entity is None else nonconformity(entity, cedar.schema)
    message = f"{what} does not conform to the schema: {why}"
    return Unanswerable("evaluation-failed", message, "CE-SCHEMA")


def _first_malformed(cedar: CedarRequest, entities: list[Entity]) -> str:
    """The first value that Cedar does not have, with its path and without the value, which may be a secret.

    Cedar names one of several at random; the reason of a decision is the same each time.
    """
    bodies = [(text_of(entity.uid), json.loads(f"{{{entity.body}}}")) for entity in entities]
    values = [("context", cedar.context)]
    values += [(f"{name}.{field}", body[field]) for name, body in bodies for field in sorted(body)]
    all_leaves = [leaf for path, value in values for leaf in leaves(value, path)]
    faults = (f"{path} {fault}" for path, leaf in all_leaves if (fault := _scalar_fault(leaf)))
    return next(faults, "") or _malformed_escape([leaf for leaf in all_leaves if isinstance(leaf[1], Mapping)])


def _scalar_fault(value: object) -> str:
    if value is None:
        return "is null, which is no value of Cedar"
    if isinstance(value, float) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        return "is no integer of 64 bits: Cedar has decimals as {__extn: {fn: decimal, arg: TEXT}}"
    return ""


def _malformed_escape(escapes: list[tuple[str, object]]) -> str:
    malformed = first_faulty(escapes, lambda items: bool(engine.value_fault([value for _, value in items])))
    return "" if malformed is None else f"{malformed[0]}: {engine.value_fault([malformed[1]])}"


def _keys(request: CedarRequest, within: dict[str, list[Uid]]) -> Iterator[str]:
    """The keys of all policies whose scope the request may satisfy; each policy has one of them."""
    yield EVERY
    for part, uid in request.parts.items():
        yield from keys_for(part, uid, within[part])


def _policies(facts: Facts, key: str) -> list[Policy]:
    """The policies of a key, by document and number."""
    names = facts.find(POLICY, SCOPE, key)
    policies = [policy for name in names if (policy := facts.get(POLICY, name)) is not None]
    return sorted(policies, key=_by_place) if len(policies) > 1 else policies


def _by_place(policy: Policy) -> tuple[str, int]:
    return policy.statement_id.place


def _slice(policies: list[Policy]) -> _Slice:
    own = [policy for policy in policies if not policy.slots]
    linked = [policy for policy in policies if policy.slots]
    templates = {text: len(own) + number for number, text in enumerate(dict.fromkeys(policy.text for policy in linked))}
    texts = (*(policy.text for policy in own), *templates)
    links = tuple(engine.Link(templates[policy.text], policy.slots) for policy in linked)
    positions = dict(enumerate(own)) | {len(texts) + number: policy for number, policy in enumerate(linked)}
    return _Slice(texts, links, positions)


def _conclude(
    request: CedarRequest, allowed: bool, determining: list[Policy], failed: list[tuple[Policy, str]]
) -> tuple[EngineResult, list[Reason]]:
    """The answer by CE-ERRORS: where a policy that failed (with why) might have changed it, it is not known."""
    overriding = "forbid" if allowed else "permit"
    unknown = [] if determining and not allowed else [failure for failure in failed if failure[0].effect == overriding]
    if unknown:
        message = f"{'permitted' if allowed else 'not permitted'}, but a {overriding} could not be evaluated"
        return EngineResult(None, "CE-ERRORS", message, tuple(_failures(unknown)), False), []
    if determining:
        rule = "CE-PERMIT" if allowed else "CE-FORBID-WINS"
        reasons = tuple(_determining(determining, rule))
        return EngineResult(allowed, rule, reasons[0].message, reasons, not allowed), _failures(failed)
    message = (
        f"no permit is satisfied for {', '.join(map(text_of, (request.principal, request.action, request.resource)))}"
    )
    reason = Reason("no-grant", message, "CE-DEFAULT-DENY")
    return EngineResult(False, "CE-DEFAULT-DENY", message, (reason,), False), _failures(failed)


def _determining(policies: list[Policy], rule: str) -> Iterator[Reason]:
    """The determining policies, the first of very many (CE-DETERMINING)."""
    code = "allowed" if rule == "CE-PERMIT" else "denied"
    for policy in policies[:MOST_REASONS]:
        yield Reason(code, f"{policy.named} is satisfied", rule, *policy.statement_id.place)
    if (more := len(policies) - MOST_REASONS) > 0:
        yield Reason(code, f"{more} more are satisfied", rule)


def _failures(failed: Iterable[tuple[Policy, str]]) -> list[Reason]:
    return [
        Reason("evaluation-failed", f"{policy.named} failed: {why}", "CE-ERRORS", *policy.statement_id.place)
        for policy, why in list(failed)[:MOST_REASONS]
    ]

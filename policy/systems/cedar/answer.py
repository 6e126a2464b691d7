"""Cedar's answer to a request, by the policies and entities that it needs (CE-SLICE), and what decided it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from policy.core.facts import Facts
from policy.core.model import EngineResult, Reason, Unanswerable
from policy.systems.cedar import engine
from policy.systems.cedar.asked import Asked
from policy.systems.cedar.policies import EVERY, POLICY, SCOPE, Policy, keys_for
from policy.systems.cedar.uid import Uid, references, text_of

MOST_REASONS = 50  # determining policies that a decision names, and failures

Failed = list[tuple[Policy, str]]
"""Policies that could not be evaluated, and why."""


class _Slice(NamedTuple):
    """Policies as the engine takes them: their texts, links of templates among these, and the policy by position."""

    texts: tuple[str, ...]
    links: tuple[engine.Link, ...]
    policies: dict[int, Policy]


def answer(asked: Asked, facts: Facts) -> tuple[EngineResult, list[Reason]]:
    """What Cedar says, and failures that change nothing; raises Unanswerable where it cannot evaluate the request."""
    policies = _policies(asked, facts)
    needed = (asked.principal, asked.action, asked.resource, *references(asked.context))
    entities = asked.known.closure((*needed, *(uid for policy in policies for uid in policy.literals)))
    part = _slice(policies)
    request = {
        "principal": _json_of(asked.principal),
        "action": _json_of(asked.action),
        "resource": _json_of(asked.resource),
        "context": asked.context,
    }
    try:
        found = engine.evaluate(part.texts, part.links, tuple(entity.text for entity in entities), request)
    except engine.EngineError as error:
        message = f"Cedar cannot evaluate the request: {error}"
        raise Unanswerable("evaluation-failed", message, "CE-ERRORS") from None
    determining = [part.policies[position] for position in found.determining]
    return _conclude(asked, found.allowed, determining, [(part.policies[at], why) for at, why in found.failed])


def _policies(asked: Asked, facts: Facts) -> list[Policy]:
    """The policies whose scope the request satisfies, by document and number."""
    names = dict.fromkeys(facts.find(POLICY, SCOPE, EVERY))
    within = dict[str, frozenset[Uid]]()
    for part, uid in (("principal", asked.principal), ("action", asked.action), ("resource", asked.resource)):
        above = asked.known.ancestors(uid)
        within[part] = frozenset(above)
        for key in keys_for(part, uid, above):
            names.update(dict.fromkeys(facts.find(POLICY, SCOPE, key)))
    fitting = list[Policy]()
    for name in names:
        policy: Policy | None = facts.get(POLICY, name)
        if (
            policy is not None
            and policy.principal.fits(asked.principal, within["principal"])
            and policy.action.fits(asked.action, within["action"])
            and policy.resource.fits(asked.resource, within["resource"])
        ):
            fitting.append(policy)
    return sorted(fitting, key=lambda policy: policy.statement_id.place)


def _slice(policies: list[Policy]) -> _Slice:
    own = [policy for policy in policies if not policy.slots]
    linked = [policy for policy in policies if policy.slots]
    templates = {text: len(own) + number for number, text in enumerate(dict.fromkeys(one.text for one in linked))}
    texts = (*(policy.text for policy in own), *templates)
    links = tuple(engine.Link(templates[policy.text], policy.slots) for policy in linked)
    positions = dict(enumerate(own)) | {len(texts) + number: policy for number, policy in enumerate(linked)}
    return _Slice(texts, links, positions)


def _json_of(uid: Uid) -> dict[str, str]:
    return {"type": uid[0], "id": uid[1]}


def _conclude(
    asked: Asked, allowed: bool, determining: list[Policy], failed: Failed
) -> tuple[EngineResult, list[Reason]]:
    """The answer by CE-ERRORS: where a policy that failed might have changed it, it is not known."""
    decisive = "forbid" if allowed else "permit"
    unknown = [] if determining and not allowed else [one for one in failed if one[0].effect == decisive]
    if unknown:
        message = f"{'permitted' if allowed else 'not permitted'}, but a {decisive} could not be evaluated"
        return EngineResult(None, "CE-ERRORS", message, tuple(_failures(unknown)), False), []
    if determining:
        rule = "CE-PERMIT" if allowed else "CE-FORBID-WINS"
        reasons = tuple(_determining(determining, rule))
        return EngineResult(allowed, rule, reasons[0].message, reasons, not allowed), _failures(failed)
    message = f"no permit is satisfied for {', '.join(map(text_of, (asked.principal, asked.action, asked.resource)))}"
    reason = Reason("no-grant", message, "CE-DEFAULT-DENY")
    return EngineResult(False, "CE-DEFAULT-DENY", message, (reason,), False), _failures(failed)


def _determining(policies: list[Policy], rule: str) -> Iterator[Reason]:
    """The determining policies, the first of very many (CE-DETERMINING)."""
    code = "allowed" if rule == "CE-PERMIT" else "denied"
    for policy in policies[:MOST_REASONS]:
        yield Reason(code, f"{policy.named} is satisfied", rule, *_place(policy))
    if (more := len(policies) - MOST_REASONS) > 0:
        yield Reason(code, f"{more} more are satisfied", rule)


def _failures(failed: Iterable[tuple[Policy, str]]) -> list[Reason]:
    return [
        Reason("evaluation-failed", f"{policy.named} failed: {why}", "CE-ERRORS", *_place(policy))
        for policy, why in list(failed)[:MOST_REASONS]
    ]


def _place(policy: Policy) -> tuple[str, int | None]:
    return policy.statement_id.document, policy.statement_id.statement

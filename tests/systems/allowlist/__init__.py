"""A system with an engine of its own, as small as one can be: lists of rules that permit and forbid.

    permit alice read docs/*            forbid * write docs/x            permit group:staff read docs/y if mfa

Who is a user, ``group:NAME`` or ``*``; a ``*`` at the end of a resource stands for any more. ``if`` names a field of
the request's context that must be true; a rule whose field is not given cannot be evaluated.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from policy.systems.kit import (
    ALLOW,
    DENY,
    AuthorizationQuery,
    CompiledDocument,
    Document,
    Engine,
    EngineFinding,
    EngineResult,
    Fact,
    Facts,
    Kind,
    Privilege,
    Reason,
    Request,
    Statement,
    StatementId,
    System,
    Unanswerable,
    Validator,
    claimed,
    one_fact,
)

EFFECTS = ("permit", "forbid")
EVERYTHING = Privilege("everything", "wildcard", "critical")


class Rule(NamedTuple):
    """One line of a list. ``field``: of the context, "" for no condition."""

    effect: str
    who: str
    action: str
    resource: str
    field: str = ""

    def matches(self, action: str, resource: str) -> bool:
        """Whether it is about this; who asks is left aside."""
        start, star = self.resource.removesuffix("*"), self.resource.endswith("*")
        return (resource.startswith(start) if star else resource == start) and self.action in ("*", action)

    def __str__(self) -> str:
        return " ".join(self[:4]) + (f" if {self.field}" if self.field else "")


def parse(line: str) -> Rule:
    """A rule from its line; raises ValueError."""
    words = line.split()
    if len(words) == 6 and words[4] == "if":
        words.pop(4)
    elif len(words) != 4:
        raise ValueError("must be EFFECT WHO ACTION RESOURCE [if FIELD]")
    if words[0] not in EFFECTS:
        raise ValueError(f"{words[0]} is neither permit nor forbid")
    return Rule(*words)


class AllowlistEngine(Engine):
    """What tools ask of it."""

    statement_kinds = ("Rule",)

    def statement(self, fact: Fact) -> Statement:
        """The line."""
        rule: Rule = fact.body
        gives = (EVERYTHING,) if rule.action == rule.resource == "*" else ()
        return Statement(ALLOW if rule.effect == "permit" else DENY, str(rule), (rule.who,), gives)

    def subjects(self, facts: Facts) -> Iterator[tuple[str, str]]:
        """Users of rules and members."""
        users = {rule.who for rule in facts.bodies("Rule") if rule.who != "*" and not rule.who.startswith("group:")}
        yield from (("user", name) for name in sorted({*users, *facts.names("Member")}))

    def findings(self, facts: Facts) -> Iterator[EngineFinding]:
        """Rules with an action that no Vocabulary has."""
        known = {action for actions in facts.bodies("Vocabulary") for action in actions}
        for name in facts.names("Rule"):
            for fact in facts.versions("Rule", name):
                if known and fact.body.action not in known and fact.statement_id is not None:
                    place = fact.statement_id
                    yield EngineFinding(
                        place.document, place.statement, "unknown-action", f"{fact.body}: no such action"
                    )


def read_list(document: Document) -> CompiledDocument:
    """A fact for each rule, found by whom it is about."""
    spec, rules = Validator(document.spec), list[Fact]()
    for number, line in enumerate(spec.texts("rules")):
        try:
            rule = parse(line)
        except ValueError as error:
            spec.error(str(error), f"rules[{number}]")
            continue
        name, place = f"{document.key.name}#{number}", StatementId(str(document.key), number)
        rules.append(Fact("Rule", name, rule, (("who", rule.who),), place, document.window))
    spec.reject_unknown()
    spec.finish()
    return CompiledDocument(facts=tuple(rules))


def read_vocabulary(document: Document) -> CompiledDocument:
    """The actions."""
    spec = Validator(document.spec)
    return one_fact(document, spec, spec.texts("actions"))


def read_member(document: Document) -> CompiledDocument:
    """The groups of the user who is named as the document."""
    spec = Validator(document.spec)
    return one_fact(document, spec, spec.texts("groups"))


class Allowlist(System):
    """Kinds ``List`` of ``rules``, ``Vocabulary`` of ``actions``, and members."""

    name = "allowlist"
    kinds = {
        "List": Kind(read=read_list),
        "Vocabulary": Kind(missed=True, read=read_vocabulary),
        "Member": Kind(fact=True, read=read_member),
    }
    deny_rule = "AL-FORBID"
    default_rule = "AL-DEFAULT"
    subject_types = ()
    subjects = ()
    engine = AllowlistEngine()

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """The answer of the engine; raises Unanswerable for an action that is empty of meaning."""
        user = request.subject.id
        if user.startswith("group:") or user == "*":
            raise Unanswerable("unknown-principal", f"{user} is no user")
        groups = claimed(request, "groups", "AL-GROUP", trust)
        names = {user, "*", *(f"group:{name}" for name in (*groups.names, *(facts.get("Member", user) or ())))}
        found = sorted(rule for who in sorted(names) for rule in _rules(facts, who))
        fitting = [(place, rule) for place, rule in found if rule.matches(request.action.name, request.resource.id)]
        return AuthorizationQuery((), evaluate(fitting, request.context), groups.used, (), groups.untrusted)


def _rules(facts: Facts, who: str) -> Iterator[tuple[str, Rule]]:
    for name in facts.find("Rule", "who", who):
        rule = facts.get("Rule", name)
        if rule is not None:
            yield name, rule


def evaluate(rules: Iterable[tuple[str, Rule]], context: dict[str, Any]) -> EngineResult:
    """A forbid that is satisfied wins, then one that cannot be evaluated, then permits likewise."""
    rules = list(rules)
    held = {name: context.get(rule.field) is True if rule.field in context else None for name, rule in rules}
    held.update((name, True) for name, rule in rules if not rule.field)
    for effect, wins, code in (("forbid", False, "denied"), ("permit", True, "allowed")):
        for truth in (True, None):
            met = [(name, rule) for name, rule in rules if rule.effect == effect and held[name] is truth]
            if met:
                rule_id = f"AL-{effect.upper()}"
                reasons = tuple(_reason(code if truth else "evaluation-failed", rule_id, *one) for one in met)
                message = f"{len(met)} {effect} {'satisfied' if truth else 'not evaluated'}"
                return EngineResult(wins if truth else None, rule_id, message, reasons, bool(truth) and not wins)
    return EngineResult(False, "AL-DEFAULT", "nothing permits it")


def _reason(code: str, rule_id: str, name: str, rule: Rule) -> Reason:
    document, _, number = name.rpartition("#")
    return Reason(code, f"{document} rule {number}: {rule}", rule_id, f"allowlist/List/{document}", int(number))


SYSTEM = Allowlist()

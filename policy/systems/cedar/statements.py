"""What tools for policy authors ask of Cedar policies (CE-Q1, CE-Q2): statements, subjects, and what a schema says."""

from collections.abc import Iterator, Mapping
from typing import Literal

from policy.core.facts import Facts
from policy.core.grouping import grouped
from policy.core.model import ALLOW, DENY, Fact, Unanswerable
from policy.core.request import Request
from policy.systems.cedar import engine
from policy.systems.cedar.entities import ENTITY, Entity
from policy.systems.cedar.policies import POLICY, Policy
from policy.systems.cedar.request import cedar_request
from policy.systems.cedar.schema import SCHEMA, newest_schema
from policy.systems.cedar.settings import current_settings, settings_of_all_times
from policy.systems.cedar.text import Unsplittable, one_line, split
from policy.systems.cedar.uid import Uid, implicit_fault, text_of
from policy.systems.kit.engine import Engine, EngineFinding, NearStatement, Privilege, Statement, statement_facts

SCOPELESS = Privilege("a permit without scope", "wildcard", "high")


class CedarEngine(Engine):
    """See `policy.systems.kit.engine.Engine`."""

    statement_kinds = (POLICY,)
    statement_text = "policies"

    def lines_of_statements(self, text: str) -> tuple[int, ...]:
        """The lines in which policies and templates begin, their annotations included."""
        try:
            return tuple(piece.line for piece in split(text))
        except Unsplittable:
            return ()

    def statement(self, fact: Fact) -> Statement:
        """A policy by what Cedar parsed; a permit for every principal, action and resource is a privilege (CE-Q1)."""
        policy: Policy = fact.body
        named = sorted({text_of(uid) for uid in policy.principal.uids}) or ["*"]
        slots = "".join(f" {slot} = {text_of(uid)}" for slot, uid in policy.slots)
        permits = policy.effect == "permit"
        privileges = (SCOPELESS,) if permits and policy.scopeless else ()
        text = one_line(policy.text) + slots
        return Statement(ALLOW if permits else DENY, text, tuple(named), privileges, content=policy.content)

    def subjects(self, facts: Facts) -> Iterator[Uid]:
        """Every entity that documents name, but those that no request may have as its subject (CE-Q2, CE-GROUPS)."""
        groups = {settings.group_type for settings in settings_of_all_times(facts)}
        return (uid for uid in self.resources(facts) if any(uid[0] != group for group in groups))

    def resources(self, facts: Facts) -> Iterator[Uid]:
        """Every entity that documents name, actions aside: what is a resource is not said (CE-Q2)."""
        actions = _action_types(facts)
        return (uid for uid in sorted(set(self._named(facts))) if any(uid[0] != action for action in actions))

    def actions(self, facts: Facts) -> Iterator[str]:
        """Every action that documents name: policies, entities and schemas (CE-Q2)."""
        actions = _action_types(facts)
        named = (id_ for type_, id_ in (*self._named(facts), *_declared(facts)) if type_ in actions)
        yield from sorted(set(named))

    def near(self, facts: Facts, request: Request, trust: frozenset[str]) -> Iterator[NearStatement]:
        """Permits whose scope has the subject and all but one of the rest. Where all of the scope fits, it is a
        condition that is not satisfied: Cedar does not say which part of it.
        """
        try:
            cedar = cedar_request(request, facts, trust, current_settings(facts))
        except Unanswerable:
            return
        within = {part: frozenset(cedar.entities.ancestors(uid)) for part, uid in cedar.parts.items()}
        for fact in statement_facts(self, facts):
            policy: Policy = fact.body
            off = [part for part, uid in cedar.parts.items() if not getattr(policy, part).fits(uid, within[part])]
            if policy.effect != "permit" or "principal" in off or len(off) > 1:
                continue
            statement_id, plain = fact.statement_id or policy.statement_id, not policy.conditions
            if off:
                lacks: Literal["action", "resource"] = "action" if off == ["action"] else "resource"
                detail = f"not for {text_of(cedar.parts[off[0]])}"
                yield NearStatement(statement_id, policy.named, lacks, detail, plain)
            elif facts.get(POLICY, fact.name) is not policy:
                yield NearStatement(statement_id, policy.named, "validity", "not valid at this time", plain)
            else:
                yield NearStatement(statement_id, policy.named, "condition", "its conditions are not satisfied")

    def _never_asked(self, facts: Facts) -> Iterator[EngineFinding]:
        """Policies for actions of other types than requests have: a forbid for one forbids nothing."""
        actions, parents = _action_types(facts), dict[Uid, list[Uid]]()
        for entity in facts.bodies(ENTITY):
            parents.setdefault(entity.uid, []).extend(entity.parents)
        for uid, groups in _declared(facts).items():
            parents.setdefault(uid, []).extend(groups)
        todo = [uid for uid in parents if uid[0] in actions]
        request = set(todo)
        while todo:
            above = [uid for uid in parents.get(todo.pop(), ()) if uid not in request]
            request.update(above)
            todo += above
        for fact in statement_facts(self, facts):
            policy: Policy = fact.body
            named = policy.action.uids
            if named and all(uid[0] not in actions and uid not in request for uid in named):
                types = " or ".join(sorted(actions))
                message = f"no request has {text_of(named[0])}: actions of requests are of the type {types}"
                yield EngineFinding(*policy.statement_id.place, "never-satisfied", message)

    def _named(self, facts: Facts) -> Iterator[Uid]:
        """The entities of scopes and conditions, those that are described, and those that these refer to."""
        for fact in statement_facts(self, facts):
            policy: Policy = fact.body
            yield from (uid for scope in (policy.principal, policy.action, policy.resource) for uid in scope.uids)
            yield from policy.literals
        for entity in facts.bodies(ENTITY):
            yield from (entity.uid, *entity.parents, *entity.refers)

    def findings(self, facts: Facts) -> Iterator[EngineFinding]:
        """Actions that no request can have, and what does not conform to the Schema documents, all of them together."""
        yield from self._never_asked(facts)
        names = facts.names(SCHEMA)
        if not names:
            yield from _implicit(facts)
            return
        try:
            schema = newest_schema(facts)
            assert schema is not None
            every_policy = [fact.body for fact in statement_facts(self, facts)]
            # Each template by one link.
            templates = {(policy.statement_id.document, policy.text): policy for policy in every_policy if policy.slots}
            policies = [*(policy for policy in every_policy if not policy.slots), *templates.values()]
            for number, message in engine.violations([policy.text for policy in policies], schema):
                if 0 <= number < len(policies):
                    document, statement = policies[number].statement_id.place
                    yield EngineFinding(document, statement, "schema", message)
                else:
                    yield EngineFinding(f"cedar/{SCHEMA}/{names[0]}", None, "schema", message)
            yield from _entities(facts, schema)
        except engine.EngineError as error:
            yield EngineFinding(f"cedar/{SCHEMA}/{names[0]}", None, "schema", str(error))


def _action_types(facts: Facts) -> set[str]:
    return {settings.action_type for settings in settings_of_all_times(facts)}


def _declared(facts: Facts) -> Mapping[Uid, tuple[Uid, ...]]:
    """The actions of the newest schema, each with its groups."""
    try:
        schema = newest_schema(facts)
    except engine.EngineError:  # a finding
        return {}
    return {} if schema is None else schema.actions


def _implicit(facts: Facts) -> Iterator[EngineFinding]:
    """Entities that need a schema, while there is none: each request that needs one is an error (CE-SCHEMA-FORM)."""
    for fact in (fact for name in facts.names(ENTITY) for fact in facts.versions(ENTITY, name)):
        entity: Entity = fact.body
        if entity.implicit is not None:
            path, escape = entity.implicit
            message = implicit_fault(f"{text_of(entity.uid)}{path}", escape)
            number = fact.statement_id.statement if fact.statement_id is not None else None
            yield EngineFinding(entity.document, number, "schema", message)


def _entities(facts: Facts, schema: engine.Schema) -> Iterator[EngineFinding]:
    """One finding for each document whose entities do not conform."""
    by_document = grouped(facts.bodies(ENTITY), lambda entity: str(entity.document))
    for document, entities in sorted(by_document.items()):
        try:
            engine.check_documents_entities(engine.entity_list(entity.text for entity in entities), schema)
        except engine.EngineError as error:
            yield EngineFinding(document, None, "schema", str(error))

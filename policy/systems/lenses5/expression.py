"""The clauses of catalogue.yaml interpreted over what is known: one small builder for each kind of clause."""

from policy.core.model import All, Condition, Expression, PermissionCheck
from policy.systems.kit.query import expression
from policy.systems.lenses5.catalogue import Clause, catalogue
from policy.systems.lenses5.description import Description
from policy.systems.lenses5.groups import LENSES, cluster, dataset

NO_TOPICS = "L5-Q11"  # the rule by which "all topics" does not hold of no topics
TOPICS_ON = "Kafka"  # the connection type of every topic that a thing uses


class ExpressionBuilder:
    """Builds the requirement of a rule on one described thing."""

    def __init__(self, description: Description) -> None:
        self._is = description

    def of_rule(self, rule: str) -> Expression:
        """The requirement of ``rule``."""
        return self._build(catalogue().rules[rule], rule)

    def _build(self, clause: Clause, rule: str) -> Expression:
        built = expression(clause, self._leaf, rule)
        assert built is not None, "every clause asks something"
        return built

    def _leaf(self, clause: Clause, rule: str) -> Expression:
        match clause:
            case {"rule": other}:
                return self.of_rule(other)
            case {"condition": name}:
                return self._build(catalogue().conditions[name], rule)
            case {"permission": permission}:
                return self._permission(permission, clause, rule)
            case {"field": field}:
                return self._field(field, clause, rule)
            case {"case": field}:
                return self._case(field, clause, rule)
            case _:
                return Condition(True, clause["stated"], rule)

    def _case(self, field: str, clause: Clause, rule: str) -> Expression:
        if (value := self._is.get(field)) is not None:
            return self._build(clause["of"][value], rule)
        if "else" in clause and field not in self._is.untrusted:
            return self._build(clause["else"], rule)
        return self._unknown(field, rule)

    def _field(self, field: str, clause: Clause, rule: str) -> Expression:
        value = self._is.get(field)
        if value is None:
            return self._unknown(field, rule)
        holds = value in clause["is"] if "is" in clause else value not in clause["not"]
        verdict = "" if holds else "it is not so that "
        return Condition(holds, f"{self._is.text}: {verdict}{clause['text']}", rule)

    def _permission(self, permission: str, clause: Clause, rule: str) -> Expression:
        if "each" in clause:
            return self._each(permission, clause["each"], rule)
        if clause.get("held_on") == "dataset":
            return self._dataset(permission, rule)
        if clause.get("held_on") == "connect_cluster":
            return self._cluster(permission, rule)
        return PermissionCheck((permission,), LENSES, rule, permission, "Lenses")

    def _dataset(self, permission: str, rule: str) -> Expression:
        """The permission on the requested dataset, from a namespace of its connection's type."""
        target, connection, name = self._is.target, str(self._is.get("connection")), str(self._is.get("dataset"))
        text = f"{target.noun} {name} of connection {connection}"
        return PermissionCheck((str(target.thing.type), permission), dataset(connection, name), rule, permission, text)

    def _cluster(self, permission: str, rule: str) -> Expression:
        alias = self._is.get("connect_cluster")
        if alias is None:
            return self._unknown("connect_cluster", rule)
        itself = self._is.target.thing.property == "connect_cluster"
        because = "" if itself else f"the Connect cluster of {self._is.text}"
        return PermissionCheck((permission,), cluster(alias), rule, permission, f"Connect cluster {alias}", because)

    def _each(self, permission: str, field: str, rule: str) -> Expression:
        """The permission on every topic that ``field`` names, on the thing's connection."""
        topics, connection = self._is.get(field), self._is.get("connection")
        if topics is None or connection is None:
            return self._no_topics(field if topics is None else "connection", rule)
        if not topics:
            return Condition(
                False, f"{_words(field)} of {self._is.text}: there is none, so nothing allows it", NO_TOPICS
            )
        because = f"{catalogue().words[field]} of {self._is.text}"
        atoms = (
            PermissionCheck(
                (TOPICS_ON, permission),
                dataset(connection, topic),
                rule,
                permission,
                f"topic {topic} of connection {connection}",
                because,
            )
            for topic in ((topics,) if isinstance(topics, str) else topics)
        )
        return All(tuple(atoms), rule)

    def _no_topics(self, field: str, rule: str) -> Expression:
        """Topics that are not known deny where the specification says so (L5-Q9, L5-Q11)."""
        query = self._is.target.thing.unknown
        if query is None or field in self._is.untrusted:
            return self._unknown(field, rule)
        return Condition(False, f"{_words(field)} of {self._is.text} is not known", query, "fact-missing")

    def _unknown(self, field: str, rule: str) -> Expression:
        suffix = "; the request gives it and is not trusted to" if field in self._is.untrusted else ""
        return Condition(None, f"{_words(field)} of {self._is.text} is not known{suffix}", rule)


def _words(field: str) -> str:
    return field.replace("_", " ")

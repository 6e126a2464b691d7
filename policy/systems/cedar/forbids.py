"""Whether a forbid may stop matching by a change of entities, of the schema or of the settings (CE-Q1).

What a forbid reads is taken from the words of its text: more may be reported than is lifted, and nothing is left out.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from policy.core.facts import Facts
from policy.systems.cedar.entities import ENTITY, UID, Entity
from policy.systems.cedar.policies import POLICY
from policy.systems.cedar.uid import text_of
from policy.systems.kit.fact_changes import FactChange

WORD = re.compile(r"\w+")
ATTRIBUTE = re.compile(r"[.\[]|\bhas\b")  # what an expression that reads one has in it
LIFTS = "a forbid may no longer match, as {} changed"


class _Read(msgspec.Struct, frozen=True):
    """What the forbids of a policy set read. ``words``: of their texts. ``everything``: a word may be escaped.

    ``attributes``: whether one may read an attribute, of whatever name.
    """

    words: frozenset[str]
    everything: bool
    attributes: bool

    def attribute(self, name: str) -> bool:
        """Whether one may read an attribute."""
        return self.everything or self.words.issuperset(WORD.findall(name))

    @property
    def ancestors(self) -> bool:
        """Whether one asks what an entity is in."""
        return self.everything or "in" in self.words

    @property
    def tags(self) -> bool:
        """Whether one reads tags, whose names may be worked out."""
        return self.everything or not self.words.isdisjoint(("getTag", "hasTag"))


_READ: WeakKeyDictionary[Facts, _Read] = WeakKeyDictionary()  # a change of entities asks once for each of them


def lifted_by(change: FactChange, facts: Facts) -> str:
    """Why a forbid may no longer match; "": none does. ``facts``: after the change."""
    read = _READ.get(facts)
    if read is None:
        read = _READ[facts] = _read(facts)
    if not read.words:
        return ""
    if change.kind != ENTITY:
        return LIFTS.format(f"the {change.kind} document")
    before, after = change.bodies
    changed = list(_changed(before, after, read))
    if not changed and read.attributes and _is_claimed(change, facts):
        changed.append("what requests may say of entities")
    return ", ".join(map(LIFTS.format, changed))


def _read(facts: Facts) -> _Read:
    forbids = [policy for policy in facts.bodies(POLICY) if policy.effect == "forbid"]
    texts = [policy.text for policy in forbids]
    words = frozenset(word for text in texts for word in WORD.findall(text))
    attributes = any(policy.conditions and ATTRIBUTE.search(policy.text) for policy in forbids)
    return _Read(words, any("\\" in text for text in texts), attributes)


def _is_claimed(change: FactChange, facts: Facts) -> bool:
    """Whether the properties of an entity that a request may have count on one side alone: while no document describes
    it (CE-ENTITIES). What other documents say of it counts only if it is the same: else requests are errors.
    """
    before, after = change.bodies
    entity: Entity | None = before or after
    if entity is None or (before is not None and after is not None):
        return False
    names = facts.find(ENTITY, UID, text_of(entity.uid)) - change.edited.keys()
    others = (facts.get(ENTITY, name) for name in sorted(names))
    return all(other is None or other.text != entity.text for other in others)


def _changed(before: Entity | None, after: Entity | None, read: _Read) -> Iterator[str]:
    """What forbids read of an entity that is another now."""
    parents = [set(entity.parents) if entity is not None else set() for entity in (before, after)]
    if parents[0] != parents[1] and read.ancestors:
        yield "the parents of entities"
    old, new = _values(before), _values(after)
    names = {name for name in old["attrs"].keys() | new["attrs"].keys() if _differ(old["attrs"], new["attrs"], name)}
    if changed := sorted(name for name in names if read.attribute(name)):
        yield f"the attribute {changed[0]}"
    if old["tags"] != new["tags"] and read.tags:
        yield "the tags of entities"


def _values(entity: Entity | None) -> dict[str, dict[str, Any]]:
    return {"attrs": {}, "tags": {}, **({} if entity is None else json.loads(f"{{{entity.body}}}"))}


def _differ(old: dict[str, Any], new: dict[str, Any], name: str) -> bool:
    return json.dumps(old.get(name), sort_keys=True) != json.dumps(new.get(name), sort_keys=True)

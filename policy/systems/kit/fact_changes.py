"""What a change of facts opens: access that comes without any grant, where something that is known restricted it.

A system says so by `System.opened_by`. Where it does not, any change of a fact may open anything to anyone: what a fact
does is known to evaluation alone, and a change that is reported for nothing is better than one that passes in silence.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.core.grouping import grouped
from policy.core.model import Fact
from policy.systems.kit.privileged import Severity


class FactChange(msgspec.Struct, frozen=True):
    """The facts of one thing before and after a change: several where a document has versions, each with its moment.

    ``document``: its ``system/kind/name``, of the first of them. ``edited``: the names of its kind that the same edits
    concern, with its own, each with the facts before; ``came``, ``went``: those of which they say something for the
    first time, and nothing any more.
    """

    kind: str
    name: str
    before: tuple[Fact, ...]
    after: tuple[Fact, ...]
    came: frozenset[str] = frozenset()
    went: frozenset[str] = frozenset()
    edited: Mapping[str, tuple[Fact, ...]] = {}

    @property
    def document(self) -> str:
        """The document that says it."""
        return next((str(fact.statement_id.document) for fact in (*self.after, *self.before) if fact.statement_id), "")

    @property
    def bodies(self) -> tuple[Any | None, Any | None]:
        """What is known before and after; None: nothing. Of things that count at every moment."""
        before, after = (facts[0].body if facts else None for facts in (self.before, self.after))
        return before, after

    def is_first_of(self, names: frozenset[str]) -> bool:
        """Whether nothing of the kind was known before the edits. ``names``: those of the kind after them."""
        return not self.went and names <= self.came


class Opening(msgspec.Struct, frozen=True, order=True):
    """Access that a change of facts opens: ``who`` may do ``action`` on ``resource``; ``*`` for what is not known.

    ``lifts``: the restriction that is gone, which alerts report with this ``severity``; "" where there was none.
    """

    action: str = "*"
    resource: str = ""
    who: str = "*"
    lifts: str = ""
    severity: Severity = "medium"


def fact_changes(before: Iterable[Fact], after: Iterable[Fact], apart: Iterable[str] = ()) -> Iterator[FactChange]:
    """The things of which something else is known, by kind and name. ``apart``: kinds that are compared elsewhere.

    One whose name ends with that of its document, and that moved to another one as it was, is none.
    """
    old, new = _by_name(before), _by_name(after)
    for key, to in _moved(old, new).items():
        del old[key]
        new.pop(to, None)  # two that said the same may be one now
    came, went = _names_by_kind(new.keys() - old.keys()), _names_by_kind(old.keys() - new.keys())
    no_names, edited = frozenset[str](), dict[str, dict[str, tuple[Fact, ...]]]()
    for kind, name in old.keys() | new.keys():
        edited.setdefault(kind, {})[name] = old.get((kind, name), ())
    for kind, name in sorted(old.keys() | new.keys()):
        facts = old.get((kind, name), ()), new.get((kind, name), ())
        if kind not in apart and _contents(facts[0]) != _contents(facts[1]):
            yield FactChange(kind, name, *facts, came.get(kind, no_names), went.get(kind, no_names), edited[kind])


_ByName = dict[tuple[str, str], tuple[Fact, ...]]


def _moved(old: _ByName, new: _ByName) -> dict[tuple[str, str], tuple[str, str]]:
    """What is named after another document now and says what it did: the former name, and the one that it has now."""
    went, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    names = {_bare_name(key, new[key]): key for key in came}
    pairs = ((key, names.get(_bare_name(key, old[key]))) for key in went)
    return {key: to for key, to in pairs if to is not None and _contents(old[key], True) == _contents(new[to], True)}


def _bare_name(key: tuple[str, str], facts: tuple[Fact, ...]) -> tuple[str, str]:
    """A kind and a name, without the document that says it: what several documents may say, each names with its own."""
    kind, name = key
    return kind, name.removesuffix(f"#{facts[0].statement_id.document}") if facts[0].statement_id else name


def _names_by_kind(names: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    by_kind = grouped(names, operator.itemgetter(0))
    return {kind: frozenset(name for _, name in of_kind) for kind, of_kind in by_kind.items()}


def _by_name(facts: Iterable[Fact]) -> _ByName:
    by_name = grouped(facts, lambda fact: (fact.kind, fact.name))
    return {name: tuple(of_name) for name, of_name in by_name.items()}


def _contents(facts: Iterable[Fact], without_document: bool = False) -> list[tuple[Any, ...]]:
    bodies = ((_without_document(fact.body) if without_document else fact.body, fact) for fact in facts)
    return [(body, fact.keys, fact.window, fact.not_before) for body, fact in bodies]


def _without_document(body: Any) -> Any:
    """Without the document that it is in, where it names that."""
    is_named = isinstance(body, msgspec.Struct) and hasattr(body, "document")
    return msgspec.structs.replace(body, document="") if is_named else body

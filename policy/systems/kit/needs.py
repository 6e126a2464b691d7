"""Requirements as data: the all/any trees of a system's catalogue, made into requirements of the core.

A *need* is a mapping as it stands in the catalogue: ``{all: [...]}`` or ``{any: [...]}``, nested to any depth,
or a leaf, which the system reads itself. ``rule`` is the rule id of a need and of all needs inside that name none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from policy.core.model import All, AnyOf, Requirement

Need = Mapping[str, Any]
Leaf = Callable[[Need, str], Requirement | None]


def requirement(need: Need, leaf: Leaf, rule: str = "") -> Requirement | None:
    """``need`` as a requirement. ``leaf`` reads a leaf under a rule; None: it asks nothing of this request.

    A tree that asks nothing is None too; at the top the caller must take that for "never".
    """
    rule = need.get("rule", rule)
    if "all" not in need and "any" not in need:
        return leaf(need, rule)
    parts = (requirement(part, leaf, rule) for part in need.get("all", need.get("any", ())))
    items = tuple(part for part in parts if part is not None)
    if not items:
        return None
    return All(items, rule) if "all" in need else AnyOf(items, rule)

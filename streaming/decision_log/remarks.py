"""What must be said of a decision beside its outcome: in shadow mode it allows nothing, and of a request that was
answered elsewhere the caller may have been told something else.
"""

from collections.abc import Mapping
from typing import Any

NOT_ENFORCED = "not enforced (shadow mode)"


def remarks(decision: Mapping[str, Any]) -> list[str]:
    """The remarks on the value of a decision's record, a text each."""
    context = decision.get("context")
    is_enforced = not isinstance(context, Mapping) or context.get("enforced", True)
    return [*([] if is_enforced else [NOT_ENFORCED]), *_told(decision.get("answered"))]


def _told(answered: Any) -> list[str]:
    """What the caller was told, unless the job has found that this was right."""
    if not isinstance(answered, Mapping) or answered.get("agrees") is True:
        return []
    found = "contradicted by the job" if answered.get("agrees") is False else "not verified"
    return [f"{answered.get('by', '?')} answered {answered.get('outcome', '?')}: {found}"]

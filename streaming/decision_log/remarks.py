"""What must be said of a decision beside its outcome: in shadow mode it allows nothing, and of a request that was
answered elsewhere the caller may have got another answer.
"""

from collections.abc import Mapping
from typing import Any

NOT_ENFORCED = "not enforced (shadow mode)"


def remarks(decision: Mapping[str, Any]) -> list[str]:
    """The remarks on the value of a decision's record, a text each."""
    context = decision.get("context")
    is_enforced = not isinstance(context, Mapping) or context.get("enforced", True)
    return [*([] if is_enforced else [NOT_ENFORCED]), *_other_answer(decision.get("answered"))]


def _other_answer(answered: Any) -> list[str]:
    """The answer that the caller got, unless the job agrees."""
    if not isinstance(answered, Mapping) or answered.get("agrees") is True:
        return []
    verdict = "contradicted by the job" if answered.get("agrees") is False else "not verified"
    return [f"{answered.get('by', '?')} answered {answered.get('outcome', '?')}: {verdict}"]

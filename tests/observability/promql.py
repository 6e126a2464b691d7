"""Which metrics and labels a PromQL expression names: enough of its grammar for that, and no more."""

import re

KEYWORDS = frozenset(
    {"and", "or", "unless", "offset", "bool", "on", "ignoring", "group_left", "group_right", "by", "without"}
)
_LABEL_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\s*\{([^}]*)\}")
_MATCHER = re.compile(r"\s*([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_DURATION = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


def names_in(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics with the labels that their own selectors name, and the labels of lists such as `by (le)`."""
    rest = _TEXT.sub('""', expression)
    listed = {label.strip() for found in _LABEL_LISTS.findall(rest) for label in found.split(",") if label.strip()}
    rest = _DURATION.sub("", _LABEL_LISTS.sub("", rest))
    metrics: dict[str, set[str]] = {}
    for name, matchers in _SELECTOR.findall(rest):
        metrics.setdefault(name, set()).update(
            label for part in matchers.split(",") for label in _MATCHER.findall(part)
        )
    for name in set(_NAME.findall(_SELECTOR.sub(r"\1 ", rest))) - KEYWORDS:
        metrics.setdefault(name, set())
    return metrics, listed

"""YAML of case files: scalars mean what they mean in documents, and what repeats may be written once.

Unlike documents, case files are their author's own: anchors, aliases and merge keys (``<<``) are welcome.
"""

import re
from typing import Any

import yaml

from policy.core.plain_data import CONSTANTS, DECIMAL, INTEGER, NOTHING, Unreadable

TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars as `policy.core.plain_data` does, and refuses a key that occurs twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping, once its own keys are seen to differ; a key of its own may replace a merged one."""
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if any(key.value == other.value for other in keys[:number]):
                problem = f"duplicate key {key.value!r} in one mapping: remove one"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
        return node


def _resolve(tag: str, pattern: str) -> None:
    _Loader.add_implicit_resolver(TAG + tag, re.compile(rf"(?:{pattern})\Z"), None)


_resolve("merge", "<<")
_resolve("null", "|".join(map(re.escape, NOTHING)))
_resolve("bool", "|".join(CONSTANTS))
_resolve("int", INTEGER.pattern)
_resolve("float", DECIMAL.pattern)


def read_case_yaml(text: str) -> Any:
    """The one value of the text. Raises Unreadable with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        message = " ".join(filter(None, (error.context, error.problem)))
        raise Unreadable(f"not YAML: {message}", None if mark is None else mark.line + 1) from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(f"not YAML: {error}") from None

"""YAML of settings and of files that settings name, in which each name stands once in its mapping.

YAML 1.2 (3.2.1.3) wants it so; PyYAML takes the last: a name that is there twice would lift a setting, or the
credentials of a caller, in silence.
"""

from typing import Any

import yaml

TWICE = "a name that is there twice in one mapping: remove one"


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping, once its own names are seen to differ; one of its own may replace a merged one."""
        node = super().compose_mapping_node(anchor)
        names = set[tuple[str, str]]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in names:
                raise yaml.composer.ComposerError(None, None, TWICE, key.start_mark)
            names.add((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError, and ValueError such as for the date 2024-99-99; RecursionError."""
    return yaml.load(text, _Loader)


def problem_of(error: Exception) -> str:
    """What is wrong and on which line, without anything that stands there: it may be part of a secret."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{TWICE if problem == TWICE else 'not YAML'}{place}"

"""YAML of settings and of files that settings name, in which each name stands once in its mapping.

YAML 1.2 (3.2.1.3) wants it so; PyYAML takes the last: a name that is there twice would lift a setting, or the
credentials of a caller, in silence.
"""

from typing import Any

import yaml


class DuplicateName(yaml.composer.ComposerError):
    """A name stands twice in its mapping."""


class _Loader(yaml.SafeLoader):
    # A moment is text, as in documents: `until: 2027-01-31T00:00:00Z` needs no quotes.
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping, once its own names are seen to differ; one of its own may replace a merged one."""
        node = super().compose_mapping_node(anchor)
        names = set[tuple[str, str]]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in names:
                raise DuplicateName(None, None, "a name that is there twice", key.start_mark)
            names.add((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:
    """The value of a text. Raises yaml.YAMLError, and ValueError such as for the number 0x_; RecursionError."""
    return yaml.load(text, _Loader)


def place_of(error: Exception) -> str:
    """Where in a text an error is, and nothing that stands there: it may be part of a secret."""
    mark = getattr(error, "problem_mark", None)
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""

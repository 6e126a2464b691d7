"""YAML of case files: scalars mean what they mean in documents, and what repeats may be written once.

Unlike documents, case files are their author's own: anchors, aliases and merge keys (``<<``) are welcome.
"""

import re
from typing import Any

import yaml
from yaml.composer import Composer

from policy.core.plain_data import CONSTANTS, DECIMAL, INTEGER, NOTHING, Parser, Unreadable, unreadable_yaml

TAG = "tag:yaml.org,2002:"
SEVERAL = "a second YAML document begins here: a case file has one, and policy documents are files of their own"


class _Loader(Composer, Parser):  # type: ignore[misc, valid-type]  # mypy takes no class that is chosen when it runs
    """Resolves plain scalars as `policy.core.plain_data` does, and refuses a key that occurs twice.

    The composer of Python takes the events of libyaml, whose own one ends the process where a text nests 20,000 deep.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, text: str) -> None:
        Parser.__init__(self, text)
        Composer.__init__(self)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping, once its own keys are seen to differ; a key of its own may replace a merged one."""
        node, keys = super().compose_mapping_node(anchor), set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                problem = f"duplicate key {key.value!r} in one mapping: remove one"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            keys.add(key.value)
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
    except yaml.YAMLError as error:
        wrong = unreadable_yaml(error, text)
        raise Unreadable(SEVERAL, wrong.line) if "expected a single document" in wrong.message else wrong from None
    except ValueError as error:
        raise Unreadable(f"not YAML: {error}") from None

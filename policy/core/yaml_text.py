"""Plain data as YAML text, which `policy.core.plain_data` reads back as the same data."""

import re
import unicodedata
from typing import Any

import yaml

from policy.core.names import NO_NAMES
from policy.core.plain_data import CONSTANTS, DECIMAL, INTEGER, NOTHING, Unreadable, read_yaml

WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Writes every value out, and quotes all text that `policy.core.plain_data` would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Documents have no aliases."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Several lines as lines, such as policies of Cedar, where YAML can write them so."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
for _tag, _pattern in (
    ("null", "|".join(map(re.escape, NOTHING))),
    ("bool", "|".join(CONSTANTS)),
    ("int", INTEGER.pattern),
    ("float", DECIMAL.pattern),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)


def dump_yaml(value: Any, escaped: bool = False) -> str:
    """A value as YAML: letters as they are, all escaped where some are invisible or change the direction of others.

    ``escaped``: all that is not ASCII is, in any case.
    """
    plain = _dump(value, unescaped=not escaped)
    unseen = any(unicodedata.category(mark) in NO_NAMES for mark in plain if mark != "\n")
    return _dump(value, unescaped=False) if unseen else plain


def _dump(value: Any, unescaped: bool) -> str:
    """``unescaped``: as they are, else as escapes where they are not ASCII."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=unescaped, width=WIDTH)
    return text


def is_exact(value: Any, text: str) -> bool:
    """Whether YAML is read back as this value: some numbers of JSON, such as 1e300, are text there."""
    try:
        parts = read_yaml(text)
    except Unreadable:
        return False
    return len(parts) == 1 and is_same_value(parts[0].value, value, in_order=True)


def is_same_value(value: Any, other: Any, in_order: bool = False) -> bool:
    """Whether plain data is equal and of one type: to Python True is 1 and 1 is 1.0, to Cedar they are not.

    ``in_order``: whether the fields of mappings must have the same order, too.
    """
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        has_same_names = list(value) == list(other) if in_order else value.keys() == other.keys()
        return has_same_names and all(is_same_value(value[name], other[name], in_order) for name in value)
    if isinstance(value, list):
        parts = zip(value, other, strict=False)
        return len(value) == len(other) and all(is_same_value(*pair, in_order) for pair in parts)
    return bool(value == other)

"""YAML and JSON of documents as plain data: either the value that it shows, or `Unreadable`."""

import contextlib
import json
from random import Random
from typing import Any

import yaml

from policy.core.plain_data import Unreadable, read_value
from policy.core.request import check_nesting
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import DEEP, LARGE, LARGEST, mutate_bytes, mutate_data, to_json
from tests.fuzz.samples import all_documents, words

PIECES = (b"[", b"{", b"{a: ", b"- ", b"a:\n ", b"? ", b"[a, ", b'{"a":', b"? - ", b"!!x ", b"&a ", b"'", b'"', b"|\n ")


class Texts:
    """See the module."""

    name, share, records = "texts", 90, 1

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A document in JSON or YAML; large ones repeat what opens something, or have a key many times."""
        if dice.randrange(LARGE) == 0:
            return _large(dice)
        value: Any = dice.choice(all_documents())
        value = mutate_data(dice, value, words("lenses6")) if dice.random() < 0.7 else value
        data = to_json(dice, value)
        if dice.random() < 0.5:
            flow, wide = dice.choice((None, True, False)), dice.random() < 0.5
            with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
                data = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=wide).encode()
        return data if deep else mutate_bytes(dice, data)

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        try:
            value = read_value(given)
        except Unreadable:
            return Execution(False, True)
        check_nesting(value)
        again = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if read_value(again) != value:
            raise Violation("otherwise: written once more it is read otherwise")
        try:
            strict = json.loads(given.decode("utf-8-sig"))
        except ValueError:
            return Execution()
        if strict != value and "\\u" not in given.decode("utf-8-sig"):
            raise Violation(f"otherwise: JSON is read as {value!r}"[:300])
        return Execution()


def _large(dice: Random) -> bytes:
    what, size = dice.randrange(4), LARGEST
    if what == 0:
        return dice.choice(PIECES) * dice.choice((DEEP, size // 4))
    if what == 1:
        return (
            b"{" + b",".join(b'"k%d":1' % n for n in range(size // 3)) + b',"k%d":2}' % dice.choice((0, size // 3 - 1))
        )
    if what == 2:
        return b"\n".join(b"k%d: 1" % n for n in range(size // 3)) + b"\nk%d: 2" % dice.choice((0, size // 3 - 1))
    return b"a: " + dice.choice((b"9", b"1.", b"x ", b"\\", b"''", b"\xc3\xa9", b"#")) * (size // 2)

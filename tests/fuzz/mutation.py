"""Mutations: of bytes, which mostly end in the first decoder, and of plain data, which mostly pass it."""

import json
from random import Random
from typing import Any

LARGE = 200  # one input of so many is large
LARGEST = 60_000  # characters or items of a part of a large one

FAULTY = (
    *(
        "",
        " ",
        "*",
        "**",
        "a*b",
        "?",
        "*:*",
        "a:",
        ":a",
        "/",
        "a//b",
        "user:",
        "group:",
        "user:*",
        "../..",
        "\x00",
        "\n",
    ),
    *(
        "\x7f",
        "\u200b",
        "e\u0301",
        "\u00e9",
        " a",
        "a ",
        "\u2028",
        "\ufeff",
        "\ud800",
        "\U0001f512",
        "%s",
        "{}",
        "null",
    ),
    *("true", "0", "-1", "1e9", "2026-11-21T10:00:00Z", "9999-12-31T23:59:60Z", "9" * 30, "a" * 300, "\\", '"', "'"),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1 << 31, 1 << 63, 1 << 64, 10**30, 1.5, 1e308, "", [], {}, [[]], [{}]),
    *({"": ""}, ["a"], {"a": []}),
)
TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"\x00", b"\xff", b"\xc3\x01", b"\xc3\x28", b"\xef\xbb\xbf"),
    *(b"\\u0000", b"\\ud800", b"null", b"1e999", b"NaN", b"-", b"---\n", b"&a ", b"*a", b"!!python/name:os.system "),
    *(b"<<: ", b"? ", b"|\n", b"\r", b"\t", b"\x85", b"\x00\x00\x00\x00\x01", b"#", b"%", b"bearer ", b"password="),
)
DEEP = 40  # deeper than any limit of nesting

Path = tuple[Any, ...]


def mutate_bytes(dice: Random, data: bytes) -> bytes:
    """The data with one to four parts changed, left out, repeated, or cut off."""
    for _ in range(dice.randint(1, 4)):
        data = _mutate_once(dice, data)
    return data


def _mutate_once(dice: Random, data: bytes) -> bytes:
    at, end = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
    what = dice.randrange(7)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[end:]
    if what == 2:
        return data[:at] + data[at:end] * _times(dice, end - at) + data[end:]
    if what == 3:
        return data[:at] + dice.choice(TOKENS) + data[at:]
    if what == 4:
        return data[:at] + dice.choice(TOKENS) * _times(dice, 4) + data[end:]
    if what == 5 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
    return data[:at] + dice.randbytes(dice.randint(1, 8)) + data[at:]


def _times(dice: Random, size: int) -> int:
    if dice.randrange(LARGE):
        return dice.randint(2, 3)
    return max(2, LARGEST // max(size, 1))


def paths(value: Any, above: Path = ()) -> list[Path]:
    """Where the parts of plain data are, itself too."""
    found, todo = [], [(above, value)]
    while todo:
        place, part = todo.pop()
        found.append(place)
        if isinstance(part, dict):
            todo += [((*place, name), inner) for name, inner in part.items()]
        elif isinstance(part, list):
            todo += [((*place, number), inner) for number, inner in enumerate(part)]
    return found


def part_at(value: Any, path: Path) -> Any:
    """What is at a place."""
    for step in path:
        value = value[step]
    return value


def replaced(value: Any, path: Path, new: Any) -> Any:
    """The data with another part at a place; all else is shared."""
    if not path:
        return new
    first, *rest = path
    copied = value.copy()
    copied[first] = replaced(value[first], tuple(rest), new)
    return copied


def mutate_data(dice: Random, value: Any, vocabulary: list[Any], times: int | None = None) -> Any:
    """The plain data with some parts replaced: mostly by parts of other samples, so that it still means something."""
    for _ in range(dice.choice((1, 1, 1, 2, 3)) if times is None else times):
        path = dice.choice(paths(value))
        value = _mutate_part(dice, value, path, vocabulary)
    return value


def _mutate_part(dice: Random, value: Any, path: Path, vocabulary: list[Any]) -> Any:
    part = part_at(value, path)
    what = dice.randrange(12)
    if what < 4 and vocabulary and isinstance(part, str):
        return replaced(value, path, dice.choice(vocabulary))
    if isinstance(part, str) and what < 8:
        return replaced(value, path, mutate_text(dice, part))
    if isinstance(part, list) and what < 9:
        return replaced(value, path, _mutate_list(dice, part))
    if isinstance(part, dict) and what < 9:
        return replaced(value, path, _mutate_mapping(dice, part, vocabulary))
    if what == 9:
        return replaced(value, path, _nested(dice, part))
    if what == 10:
        return replaced(value, path, dice.choice(FAULTY))
    return replaced(value, path, dice.choice(OTHERS))


def mutate_text(dice: Random, text: str) -> str:
    """A text that is much like another."""
    at = dice.randint(0, len(text))
    what = dice.randrange(9)
    if what == 0:
        return text.swapcase()
    if what == 1:
        return text[:at] + dice.choice(FAULTY) + text[at:]
    if what == 2:
        return text[:at]
    if what == 3:
        return text[at:]
    if what == 4:
        return text[:at] + "*"
    if what == 5:
        return text[:at] + "*" + text[at + 1 :]
    if what == 6:
        return text + dice.choice(("x", "/", ":", "/x", " ", "-1"))
    if what == 7:
        return text.replace(dice.choice("/:-"), dice.choice("/:-*"), 1)
    return text * _times(dice, len(text))


def _mutate_list(dice: Random, items: list[Any]) -> list[Any]:
    if not items:
        return [dice.choice(FAULTY)]
    at, what = dice.randrange(len(items)), dice.randrange(5)
    if what == 0:
        return items[:at] + items[at + 1 :]
    if what == 1:
        return [*items, items[at]]
    if what == 2:
        return dice.sample(items, len(items))
    if what == 3:
        return [*items, dice.choice(OTHERS)]
    return items * min(_times(dice, len(str(items))), 5000)


def _mutate_mapping(dice: Random, mapping: dict[str, Any], vocabulary: list[Any]) -> dict[str, Any]:
    names, what = list(mapping), dice.randrange(5)
    if not names or what == 0:
        return {**mapping, dice.choice((*FAULTY, "extra")): dice.choice(OTHERS)}
    name = dice.choice(names)
    if what == 1:
        return {other: part for other, part in mapping.items() if other != name}
    if what == 2:
        return {(mutate_text(dice, other) if other == name else other): part for other, part in mapping.items()}
    if what == 3 and vocabulary:
        return {**mapping, name: dice.choice(vocabulary)}
    return dict(dice.sample(list(mapping.items()), len(mapping)))


def _nested(dice: Random, part: Any) -> Any:
    for _ in range(dice.choice((1, 2, 30, DEEP))):
        part = [part] if dice.random() < 0.5 else {"a": part}
    return part


def texts_in(value: Any) -> list[str]:
    """All texts of plain data but the names of fields."""
    return [part for part in (part_at(value, path) for path in paths(value)) if isinstance(part, str)]


def to_json(dice: Random, value: Any) -> bytes:
    """Plain data as JSON in one of the forms that producers write."""
    form = dice.randrange(6)
    plain = form < 3
    text = json.dumps(
        value,
        ensure_ascii=plain,
        separators=((",", ":"), None, (" ,", " : "))[form % 3],
        indent=1 if form == 5 else None,
        sort_keys=form == 4,
    )
    if dice.randrange(12) == 0:
        text = _with_duplicate(dice, text)
    return text.encode("utf-8", "surrogatepass")


def _with_duplicate(dice: Random, text: str) -> str:
    """With a key that occurs twice in its mapping, or a letter of it written as an escape."""
    at = text.rfind('"', 0, dice.randint(0, len(text)))
    if text[at + 1 : at + 2].isalpha() and dice.random() < 0.5:
        return f"{text[: at + 1]}\\u{ord(text[at + 1]):04x}{text[at + 2 :]}"
    end = text.rfind("}")
    names = [name for name in ("id", "system", "subject", "resource", "spec", "kind", "name") if f'"{name}"' in text]
    if end < 0 or not names:
        return text
    again = json.dumps(dice.choice(names))
    return f"{text[:end]},{again}:{dice.choice(('null', '1', json.dumps('x'), '{}'))}{text[end:]}"

"""Dead letters: records that are no requests, as they came but for secrets, with headers that say why."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import msgspec

from streaming.records.dead_letter_headers import PREFIX
from streaming.records.formats import Header
from streaming.records.size_gate import record_size
from streaming.settings import Limits

ROOM = 16 * 1024  # for the headers that say why
BEARER = re.compile(rb"^\s*(bearer|basic)\s", re.IGNORECASE)


class Rejection(msgspec.Struct, frozen=True):
    """Which record was refused, and why."""

    topic: str
    partition: int
    offset: int
    why: Exception


def dead_letter(
    rejection: Rejection, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, limits: Limits
) -> tuple[bytes | None, bytes | None, list[Header]]:
    """Key, value and headers of the dead letter; one that is too large carries hashes instead."""
    kept = [(h["key"], _mask_header(h["key"], h["value"])) for h in headers or ()]
    masked = None if value is None else mask_secrets(value)
    masked_key = None if key is None else mask_secrets(key)
    if record_size(masked_key, masked, kept) + ROOM > limits.record_out:
        return hashed_dead_letter(rejection, key, value)
    return masked_key, masked, [*kept, *_reasons(rejection)]


def hashed_dead_letter(
    rejection: Rejection, key: bytes | None, value: bytes | None
) -> tuple[None, bytes, list[Header]]:
    """The same with hashes in place of key and value: at most ALWAYS_FITS bytes, whatever came."""
    return None, _stand_in(rejection, key, value), _reasons(rejection)


def _reasons(rejection: Rejection) -> list[Header]:
    reasons = {
        "topic": rejection.topic,
        "partition": str(rejection.partition),
        "offset": str(rejection.offset),
        "stage": "VALUE_CONVERTER",
        "exception.class.name": f"{type(rejection.why).__module__}.{type(rejection.why).__name__}",
        "exception.message": str(rejection.why)[:4000],
    }
    return [(PREFIX + name, text.encode("utf-8", "replace")) for name, text in reasons.items()]


def _stand_in(rejection: Rejection, key: bytes | None, value: bytes | None) -> bytes:
    return msgspec.json.encode(
        {
            "topic": rejection.topic,
            "partition": rejection.partition,
            "offset": rejection.offset,
            "key_sha256": hashlib.sha256(key or b"").hexdigest(),
            "value_sha256": hashlib.sha256(value or b"").hexdigest(),
        }
    )


def _mask_header(name: str, value: bytes | None) -> bytes | None:
    if value is None:
        return None
    named = NAME.search(name.lower().encode("utf-8", "replace"))
    return MASK if named or BEARER.match(value) else mask_secrets(value)


MASK = b"***"

# All patterns are for lower case. Each alternative begins with one of the hints, which are searched for first: that is
# a hundred times faster than a search for a pattern.
_HINTS = (
    *(b"pass", b"pwd", b"secret", b"token", b"auth", b"credential", b"cookie", b"jaas", b"assertion", b"key"),
    *(b"session", b"saml", b"bearer", b"basic", b"eyj", b"\\u00", b"%"),
)
_USER_INFO_HINTS = b"://", b"@"

_KEYS = (b"api", b"access", b"account", b"encryption", b"private", b"shared", b"signing", b"ssl")
_BEFORE_KEY = b"|".join(b"(?<=%s)|(?<=%s[-_. ])" % (word, word) for word in _KEYS)
NAME = re.compile(
    rb"pass(?:word|wd|phrase|code)|pwd|secret|token|authori[sz]ation|credential|cookie|jaas|assertion"
    rb"|(?:" + _BEFORE_KEY + rb")key|session[-_. ]?id|saml[-_. ]?response|auth[-_.]user[-_.]info"
)

_LETTER = rb"(?:[46][1-9a-f]|[57][0-9a]|5f|2[de]|3[0-9])"
# A possessive group with alternatives ends too early in Python before 3.11.5: it would leave secrets unmasked.
_ESCAPED = re.compile(rb"((?:\\u00" + _LETTER + rb")+)|\\.", re.IGNORECASE | re.DOTALL)
"""In JSON: escapes of what a name may consist of, as a group; or any other escape."""

_ALONE = re.compile(
    rb"bearer\s++(?=[\w.~+/=-]{8})"
    rb"|(?<![\w ])basic\s++(?=[\w+/=-]{8,}+(?:[\"'\\,;]|\s*+\Z))"
    rb"|(?:(?<![\w-])|(?<=\\[nrt]))(?=eyj[\w-]{8,}+\.[\w-]*+\.)"  # a JSON Web Token
    rb"|://[^\s/:@\"]*+:(?=[^\s/@\"]++@)"  # user and password of a URL
    rb"|(?<=private )key"
    rb"|(?:\\u00|%)" + _LETTER  # letters are written so only to hide a name
)
"""Secrets that need no name before them. A match ends where the secret begins."""
_SUSPECT = re.compile(NAME.pattern + rb"|" + _ALONE.pattern)
_NAME_END = re.compile(rb"(?:[\w.-]|%(?!3[ad]))*")  # no possessive group: see _ESCAPED
_ASSIGNED = re.compile(rb"""[\s"'\\)\]]*+(?:[:=>]|%3[ad])\s*+""")

_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_COLON = re.compile(rb"\s*+:\s*+")
_SCALAR = re.compile(rb"[^,\]}\s]*+")
_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)


def mask_secrets(value: bytes) -> bytes:
    """The value without its secrets; the very value when it holds none."""
    lowered = value.lower()
    suspects = _suspects(lowered)
    if not suspects and b"\0" not in value:
        return value
    try:
        msgspec.json.decode(value, type=msgspec.Raw)  # checks it, and makes nothing of it
    except (ValueError, RecursionError):
        return _mask_text(value, lowered, suspects)
    if b"\\u00" in lowered:
        unescaped = _ESCAPED.sub(_plain, value)
        lowered = unescaped.lower()
        masked = _mask_json(unescaped, lowered, _suspects(lowered))
        return value if masked is unescaped else masked
    return _mask_json(value, lowered, suspects)


def _suspects(lowered: bytes) -> list[int]:
    """Where a secret or its name may begin, in order."""
    hints = [hint for hint in _HINTS if hint in lowered]
    if all(hint in lowered for hint in _USER_INFO_HINTS):
        hints.append(_USER_INFO_HINTS[0])
    starts = (match.start() for hint in hints for match in re.finditer(re.escape(hint), lowered))
    return sorted(at for at in starts if _SUSPECT.match(lowered, at))


def _mask_text(value: bytes, lowered: bytes, suspects: list[int]) -> bytes:
    at = _secret_in(lowered, suspects, len(value))
    if b"\0" in value or value.startswith(b"\xc3\x01"):
        return _mask_binary(value, lowered, suspects, at)
    return value if at is None else value[:at] + MASK


def _mask_binary(value: bytes, lowered: bytes, suspects: list[int], at: int | None) -> bytes:
    """Avro has lengths between name and value, which may be any byte, a letter too; UTF-16 has zeros between letters.

    `at`: where a secret would begin if it were text.
    """
    if (name := _name_end(lowered, suspects)) is not None:
        at = name if at is None else min(at, name)
    if at is not None:
        return value[:at] + MASK
    letters = lowered.replace(b"\0", b"")
    return value if _name_end(letters, _suspects(letters)) is None else MASK


def _name_end(lowered: bytes, suspects: Iterable[int]) -> int | None:
    """Where the first name of a secret ends."""
    return next((name.end() for suspect in suspects if (name := NAME.match(lowered, suspect))), None)


def _mask_json(value: bytes, lowered: bytes, suspects: list[int]) -> bytes:
    parts: list[bytes] = []
    kept = at = number = 0
    while number < len(suspects):
        suspect = suspects[number]
        end = _end(_STRING_REST, lowered, suspect)
        within = suspects[number : bisect_left(suspects, end, number)]
        colon = _COLON.match(lowered, end)
        if colon and any(NAME.match(lowered, name) for name in within):
            at = _value_end(lowered, colon.end())
            parts += [value[kept : colon.end()], b'"', MASK, b'"']
            kept = at
        else:
            at = end
            if (secret := _secret_in(lowered, within, end - 1)) is not None:
                parts += [value[kept:secret], MASK]
                kept = end - 1
        number = bisect_left(suspects, at, number)
    return b"".join((*parts, value[kept:])) if parts else value


def _plain(escape: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escape[1].lower().replace(b"\\u00", b"").decode()) if escape[1] else escape[0]


def _secret_in(lowered: bytes, suspects: Iterable[int], end: int) -> int | None:
    """Where the first secret of a text begins that ends at `end`; a name alone is none."""
    at = 0
    for suspect in suspects:
        if suspect < at:  # within a longer name, whose end is known
            continue
        if alone := _ALONE.match(lowered, suspect):
            return alone.end()
        at = _end(_NAME_END, lowered, suspect)
        if assigned := _ASSIGNED.match(lowered, at, end):
            return assigned.end()
    return None


def _value_end(text: bytes, at: int) -> int:
    """Behind the value that begins here, in what is known to be JSON."""
    first = text[at : at + 1]
    if first == b'"':
        return _end(_STRING_REST, text, at + 1)
    if first not in (b"{", b"["):
        return _end(_SCALAR, text, at)
    depth = 0
    while bracket := _BRACKET.match(text, at):
        at = bracket.end()
        depth += 1 if bracket[1] in b"{[" else -1
        if not depth:
            return at
    raise AssertionError("JSON that was checked has all its brackets")


def _end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    assert match
    return match.end()

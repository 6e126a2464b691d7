"""Texts that strangers wrote, in a form that shows what they are: short, and with unseen characters made visible."""

import hashlib
import unicodedata

LONGEST = 300  # characters
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction overrides, lone surrogates, …


def shortened(text: str, longest: int = LONGEST) -> str:
    """``text``, or its beginning with a mark that says how long it is and, by a hash, which."""
    if len(text) <= longest:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[:longest]}… ({len(text):,} characters, sha256 {mark})"


def visible(text: str) -> str:
    """``text`` with every character that nobody sees, or that turns others around, written as its code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in UNSEEN else c for c in text)

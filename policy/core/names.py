"""What is the same name: names are compared by code point, in every system, and must not come in two ways of writing.

So a name in a document or a request is an error when another could be meant by it: not in Unicode form NFC, with a
blank at an end (or beside the first colon, where the name behind a prefix begins), with a control or format character.
"""

import unicodedata

NO_NAMES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories: control, format, half a pair, line, paragraph


def is_simple(text: str) -> bool:
    """Whether a text has nothing that could be at fault: most have not, and parts of one that has not neither."""
    return text.isascii() and text.isprintable() and " " not in text


def fault(text: str, blanks: bool = False) -> str:
    """Why a text may be taken for another name; "" when it may not. ``blanks``: it may have some at its ends."""
    if is_simple(text):
        return ""
    if any(unicodedata.category(character) in NO_NAMES for character in text):
        return "has a control or format character"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode form NFC"
    head, _, rest = text.partition(":")
    if not blanks and any(part != part.strip() for part in (text, head, rest)):
        return "has a blank at an end"
    return ""


def plain(text: str) -> str:
    """The name without fault that is meant by a text, as far as that can be known."""
    visible = "".join(character for character in text if unicodedata.category(character) not in NO_NAMES)
    return ":".join(part.strip() for part in unicodedata.normalize("NFC", visible).split(":", 1))


def fold(text: str) -> str:
    """The same for all names that differ in case, in blanks at their ends or in compatible characters alone.

    For what must not be passed by a misspelling, never for what allows.
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).strip()

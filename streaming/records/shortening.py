"""Texts that are too long for a record: shortened, and saying so. The client reads them too, so this imports little."""

import hashlib

ID_CHARACTERS = 1000  # of an id, a longer one is shortened
ID_BEGIN = 200


def shorten(text: str, most: int) -> str:
    """A text for people, with what is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def shorten_id(text: str) -> str:
    """An id: one that is too long is its beginning and a hash, so that different ones stay different."""
    if len(text) <= ID_CHARACTERS:
        return text
    hashed = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:ID_BEGIN]}… (shortened from {len(text)} characters, sha256:{hashed})"

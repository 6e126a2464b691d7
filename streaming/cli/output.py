"""Printing: results to standard output, remarks to standard error."""

import json
import sys
import unicodedata
from typing import Any

UNSEEN = {"Cc", "Cf"}  # control and format characters


def tell(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{harmless(text)}\n")


def tell_now(text: str) -> None:
    """Print a line of the result at once: somebody may wait for it."""
    tell(text)
    sys.stdout.flush()


def tell_json(value: Any) -> None:
    """Print a value as one line of JSON, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """Print a line that is not part of the result."""
    sys.stderr.write(f"{harmless(text)}\n")


def harmless(text: str) -> str:
    """Names come from strangers: control characters could rewrite what a terminal shows."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in UNSEEN else f"\\u{ord(c):04x}" for c in text)

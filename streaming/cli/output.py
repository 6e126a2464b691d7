"""Printing: results to standard output, remarks to standard error."""

import json
import sys
from typing import Any


def tell(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{text}\n")


def tell_json(value: Any) -> None:
    """Print a value as one line of JSON, at once: somebody may wait for it."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """Print a line that is not part of the result."""
    sys.stderr.write(f"{text}\n")

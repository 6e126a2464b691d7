"""The types that values are converted to."""

import threading
from typing import Any

import msgspec

_lock = threading.Lock()


def prepare_types(*types: Any) -> None:
    """Have msgspec work out types before anything is converted to them, which the first conversion would do.

    Where two threads do so at once, the process ends with a segmentation fault (12 of 15 processes with eight threads,
    msgspec 0.22).
    """
    with _lock:
        for type_ in types:
            msgspec.json.Decoder(type_)

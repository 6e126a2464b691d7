"""Exit codes, and the exception by which a command fails."""

from collections.abc import Iterable
from pathlib import Path

FAILED = 1
MISUSED = 2
FENCED = 3
EXIT_CODES = (
    "Exit codes: 0 done, 1 it failed or a check did, 2 usage or configuration error, 3 (`run`, `monitor`, "
    "`access-changes`) fenced: another instance with the same job_name took over."
)


class Failure(Exception):
    """A command failed; the message says what was wrong, where, and what would fix it. `details`: further lines."""

    def __init__(self, message: str, code: int = FAILED, details: Iterable[str] = ()) -> None:
        super().__init__("\n".join((message, *details)))
        self.lines = (message, *details)
        self.code = code


def read_file(path: Path, option: str = "") -> bytes:
    """What a file holds that an argument names, or an option. Raises Failure."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{option} {path}: {error.strerror}".lstrip(), MISUSED) from error

"""The command `lockkeeper`. One module a group of commands; each imports Kafka and Spark only when it runs."""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from streaming.cli.app import app
from streaming.cli.expected_errors import echo_error, exit_code
from streaming.cli.failure import FAILED
from streaming.terminal import drop_output, escaped_streams, open_missing_streams

_NO_COMMANDS = {"__main__"}


def register_commands() -> None:
    """Let every command module add its commands."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NO_COMMANDS:
            importlib.import_module(f"{__name__}.{module.name}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 1 it failed or a check did, 2 usage or configuration error, 3 fenced."""
    register_commands()
    open_missing_streams()
    with escaped_streams():
        code = _run(arguments)
    sys.exit(_written(code))


def _run(arguments: Sequence[str] | None) -> int | str | None:
    """The exit code of a command; why it failed is printed."""
    try:
        app(arguments, prog_name="lockkeeper")
    except SystemExit as ended:
        return ended.code
    except Exception as error:
        echo_error(error)
        return exit_code(error) or FAILED
    return 0


def _written(code: int | str | None) -> int | str | None:
    """The exit code once all that was printed is written: Python would end with 120 where it cannot be."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if not code and not isinstance(error, BrokenPipeError):  # whose reader has what it wanted
            echo_error(error)
        return code or FAILED
    return code

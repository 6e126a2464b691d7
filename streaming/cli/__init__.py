"""The command `lockkeeper`. One module a group of commands; each imports Kafka and Spark only when it runs."""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from streaming.cli.app import app
from streaming.cli.expected_errors import echo_error, exit_code
from streaming.cli.failure import FAILED
from streaming.terminal import escaped_streams

_NO_COMMANDS = {"__main__"}


def register_commands() -> None:
    """Let every command module add its commands."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NO_COMMANDS:
            importlib.import_module(f"{__name__}.{module.name}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 1 it failed or a check did, 2 usage or configuration error, 3 fenced."""
    register_commands()
    with escaped_streams():
        try:
            app(arguments, prog_name="lockkeeper")
        except Exception as error:
            echo_error(error)
            sys.exit(exit_code(error) or FAILED)
    sys.exit(0)

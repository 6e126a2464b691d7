"""Options that many commands share, and the settings they make."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streaming.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="LOCKKEEPER_CONFIG", help="Settings in YAML; LOCKKEEPER_… variables go first."
    ),
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Kafka's address, HOST:PORT; goes before the settings.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def settings_of(config: Path | None, bootstrap: str | None = None) -> "Settings":
    """The settings from file, environment and command line. Raises SettingsError."""
    from streaming.settings import load_settings

    told = {"LOCKKEEPER_BOOTSTRAP_SERVERS": bootstrap} if bootstrap else {}
    return load_settings(config, {**os.environ, **told})

"""Options of most commands: which settings and cluster, and JSON for machines."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.grouped_options import Options
from streaming.cli.output import echo_err

if TYPE_CHECKING:
    from streaming.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="LOCKKEEPER_CONFIG", help="Settings in YAML; LOCKKEEPER_… variables take precedence."
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", help="Kafka's address, HOST:PORT; takes precedence over the settings."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@dataclass(frozen=True)
class KafkaOptions(Options):
    """Which cluster, and by which settings."""

    config: Config = None
    bootstrap: Bootstrap = None

    def settings(self, master: str | None = None) -> "Settings":
        """The settings from file, environment and command line. Raises SettingsError."""
        from streaming.settings import load_settings

        options = {"LOCKKEEPER_BOOTSTRAP_SERVERS": self.bootstrap, "LOCKKEEPER_MASTER": master}
        environment = {**os.environ, **{name: value for name, value in options.items() if value}}
        return load_settings(self.config, environment, lambda warning: echo_err(f"warning: {warning}"))

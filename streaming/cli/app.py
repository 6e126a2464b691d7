"""The application and its groups, which the command modules add their commands to."""

from typing import Annotated

import typer

from streaming import DISTRIBUTION
from streaming.cli.failure import EXIT_CODES
from streaming.cli.grouped_options import Commands


def _group(about: str, completion: bool = False) -> Commands:
    """Without rich markup, help and errors are plain text, with and without a terminal, and start faster."""
    return Commands(
        help=about,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


ABOUT = "A streaming authorization enforcer: Kafka requests in, decisions out."

app = _group(ABOUT, completion=True)
topics_app = _group("Make and check the topics.")
checkpoint_app = _group("Work on the checkpoints of a job that does not run.")
policy_app = _group("Publish, read and work on policy documents.")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lockkeeper {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback(help=ABOUT)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options without a command."""


app.add_typer(topics_app, name="topics")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(policy_app, name="policy")

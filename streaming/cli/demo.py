"""`lockkeeper demo`."""

from typing import Annotated

import typer

from streaming.cli.app import EXIT_CODES, app
from streaming.cli.failures import FAILED, Failure

EPILOG = f"""Examples:

  lockkeeper demo

  lockkeeper demo --seconds 60 --rate 500

  lockkeeper demo --seconds 10 --json

{EXIT_CODES}"""


@app.command(epilog=EPILOG)
def demo(
    seconds: Annotated[float, typer.Option(min=2, help="How long requests are sent.")] = 20,
    rate: Annotated[float, typer.Option(min=1, max=5000, help="Requests a second.")] = 200,
    machine: Annotated[bool, typer.Option("--json", help="Print only the summary, as JSON.")] = False,
) -> None:
    """See it work: a broker, policies, traffic and the job on this machine, checked at the end.

    Half-way a policy changes; the summary says how long that took to be in force, whether every request
    was decided exactly once, and whether every decision is that of the slow reference evaluator.
    """
    from streaming.demo.play import DemoFailed, play

    try:
        held = play(seconds, rate, machine)
    except DemoFailed as error:
        raise Failure(f"the demo failed: {error}", FAILED) from error
    if not held:
        raise typer.Exit(FAILED)

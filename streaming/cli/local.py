"""`lockkeeper broker` and `lockkeeper demo`: what runs on one machine."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.app import app
from streaming.cli.extras import require_extra
from streaming.cli.failure import FAILED, MISUSED, Failure
from streaming.cli.output import echo_err, echo_now
from streaming.cli.signals import stop_on_signals

KAFKA_PORT = 9092
LOOK_SECONDS = 0.5


@app.command("broker")
def broker(
    port: Annotated[int, typer.Option(min=0, max=65535, help="At 127.0.0.1; 0: any free one.")] = KAFKA_PORT,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of its data; default: lockkeeper/kafka in XDG_DATA_HOME or ~/.local/share."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with no data, and keep none.")] = False,
) -> None:
    """Run a Kafka broker on this machine, to try things with, until SIGTERM or Ctrl-C.

    One process without copies, encryption or log-in, for this machine alone: not for what must not be lost. Prints
    its address once it answers. Started again, it has its topics, records and cluster id as before; with --fresh it is
    another cluster each time, for which `run` needs another checkpoint.

    \b
    Examples:
      lockkeeper broker
      lockkeeper broker --port 19092 --data ./kafka-data
      lockkeeper broker --fresh
    """
    from streaming.broker import EmbeddedBroker, usual_data_folder

    if fresh and data:
        raise Failure("--fresh keeps no data: leave out either --fresh or --data", MISUSED)
    folder = None if fresh else (data or usual_data_folder()).absolute()
    with stop_on_signals() as stop, EmbeddedBroker(port=port or None, data_dir=folder) as running:
        echo_now(running.bootstrap_servers)
        echo_err(
            f"Kafka answers here until Ctrl-C; {f'its data are in {folder}' if folder else 'its data end with it'}"
        )
        while not stop.wait(LOOK_SECONDS):
            if running.ended:
                raise Failure(f"the broker ended unexpectedly. {running.end_of_log()}")
    echo_err("stopped")


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=2, max=86_400, help="How long requests are sent, after a warm-up.")
    ] = 20,
    rate: Annotated[float, typer.Option(min=1, max=5000, help="Requests a second.")] = 200,
    machine: Annotated[bool, typer.Option("--json", help="Print only the summary, as JSON.")] = False,
    in_console: Annotated[
        bool, typer.Option("--console", help="Show it in the browser at the end, and stay until Ctrl-C.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the console in the browser.")] = True,
) -> None:
    """Run a demo: a broker, policies, traffic and the job on this machine, with a check at the end.

    Half-way a policy changes; the summary says how long that took to be in force, whether every request
    was decided exactly once, and whether every decision is that of the slow reference evaluator.

    \b
    Examples:
      lockkeeper demo
      lockkeeper demo --seconds 60 --rate 500
      lockkeeper demo --seconds 10 --json
      lockkeeper demo --console
    """
    if in_console and machine:
        raise Failure("--json prints the summary alone: leave out either --json or --console", MISUSED)
    if in_console:
        require_extra("console")
    from streaming.cli.browser import show_console
    from streaming.demo.play import DemoFailed, play

    show = (lambda settings: show_console(settings, browser)) if in_console else None
    try:
        passed = play(seconds, rate, machine, show)
    except DemoFailed as error:
        raise Failure(f"the demo failed: {error}", FAILED) from error
    if not passed:
        raise typer.Exit(FAILED)

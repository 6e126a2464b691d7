"""`lockkeeper broker`: a Kafka broker for one machine."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.app import app
from streaming.cli.failures import Failure
from streaming.cli.output import remark, tell
from streaming.cli.signals import stop_on_signals

KAFKA_PORT = 9092
LOOK_SECONDS = 0.5


@app.command("broker")
def broker(
    port: Annotated[int, typer.Option(min=0, max=65535, help="At 127.0.0.1; 0: any free one.")] = KAFKA_PORT,
    data: Annotated[Path | None, typer.Option(help="A folder to keep its data; without, they end with it.")] = None,
) -> None:
    """Run a Kafka broker on this machine, to try things with, until SIGTERM or Ctrl-C.

    One process without copies, encryption or log-in, for this machine alone: not for what must not be lost. Prints
    its address once it answers.

    \b
    Examples:
      lockkeeper broker
      lockkeeper broker --port 19092 --data ./kafka-data
    """
    from streaming.runtime.broker import EmbeddedBroker

    with stop_on_signals() as stop, EmbeddedBroker(port=port or None, data_dir=data and data.absolute()) as running:
        tell(running.bootstrap_servers)
        remark("Kafka answers here until Ctrl-C")
        while not stop.wait(LOOK_SECONDS):
            if running.ended:
                raise Failure(f"the broker ended by itself. {running.end_of_log()}")
    remark("stopped")

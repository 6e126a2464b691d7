"""`lockkeeper serve`: decisions over HTTP, until it is asked to stop."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import KafkaOptions
from streaming.cli.expected_errors import echo_error, exit_code
from streaming.cli.extras import require_extra
from streaming.cli.failure import FAILED
from streaming.cli.output import echo_err
from streaming.cli.signals import DEADLINE_SECONDS, end_at_once, stop_on_signals

if TYPE_CHECKING:
    from socket import socket

    from streaming.serve.workers import Readiness
    from streaming.settings import Settings

Workers = Annotated[
    int,
    typer.Option(
        "--workers", "-w", min=1, max=64, help="Processes that answer. Each has its own policies and metrics port."
    ),
]


@app.command("serve")
def serve(kafka: KafkaOptions, workers: Workers = 1) -> None:
    """Answer authorization requests over HTTP by the OpenID AuthZEN Authorization API 1.0, until SIGTERM or Ctrl-C.

    It reads policies and facts from Kafka as the job does, without Spark and Java, and decides by itself: the job need
    not run. POST /access/v1/evaluation and /access/v1/evaluations; a system's paths begin with its name, such as
    /lenses6/access/v1/evaluation. GET /.well-known/authzen-configuration lists them.

    serve.callers names a file of who may ask, by bearer tokens or client certificates; without it, programs on this
    machine alone may, and it listens on 127.0.0.1. serve.tls has its certificate. While policies could not be read
    for serve.max_staleness_seconds, it answers 503 and decides nothing. metrics.port serves /metrics, /healthz and
    /readyz, as for `run`; with --workers N, the N ports from it on.

    \b
    Examples:
      lockkeeper serve --config lockkeeper.yaml
      LOCKKEEPER_SERVE_PORT=8181 lockkeeper serve --bootstrap kafka:9092
    """
    require_extra("serve")
    from streaming.serve.server import bind, check_files

    settings = kafka.settings()
    check_files(settings)
    if workers == 1:
        _serve(settings)
        return
    from streaming.serve.workers import run_workers

    socket_ = bind(settings.serve.address, settings.serve.port)

    def work(worker: int, readiness: "Readiness") -> int:
        try:
            _serve(_of_worker(settings, worker), socket_, worker, readiness)
        except Exception as error:
            echo_error(error)
            return exit_code(error) or FAILED
        return 0

    raise typer.Exit(run_workers(workers, work))


def _of_worker(settings: "Settings", worker: int) -> "Settings":
    """With an endpoint of metrics of its own: the ports follow the configured one."""
    import msgspec

    metrics = settings.metrics
    if not metrics.port:
        return settings
    return msgspec.structs.replace(settings, metrics=msgspec.structs.replace(metrics, port=metrics.port + worker))


def _serve(
    settings: "Settings",
    socket_: "socket | None" = None,
    worker: int = 0,
    readiness: "Readiness | None" = None,
) -> None:
    from streaming.ops.logs import configure_logs
    from streaming.serve.server import Server
    from streaming.serve.workers import WorkerHealth

    check_access(settings)
    configure_logs(settings, sys.stderr)
    drain = settings.serve.drain_seconds
    with stop_on_signals(lambda: _give_up(drain)) as stop:
        health = WorkerHealth(settings.serve.max_staleness_seconds, worker, readiness) if readiness else None
        server = Server(settings, socket_, health)
        who = "the callers of serve.callers" if settings.serve.callers else "this machine alone, without credentials"
        echo_err(f"reading policies from {settings.bootstrap_servers}; {server.url} answers {who}")
        server.run(stop, lambda: echo_err(f"ready: deciding at {server.url}"))
    echo_err("stopped")


def check_access(settings: "Settings") -> None:
    """Raise Failure where the topics that it follows cannot be read."""
    connect(settings, documents=settings.topics.documents)


def _give_up(drain: float) -> None:
    time.sleep(drain)
    echo_err(f"stopped, after {DEADLINE_SECONDS + drain:g} s of waiting for requests under way")
    end_at_once(0)

"""`lockkeeper serve`: decisions over HTTP, until it is asked to stop."""

import sys

from streaming.cli.app import (
    DEADLINE_SECONDS,
    Bootstrap,
    Config,
    app,
    echo_err,
    end_at_once,
    need,
    reach,
    settings_of,
    stop_on_signals,
)


@app.command("serve")
def serve(config: Config = None, bootstrap: Bootstrap = None) -> None:
    """Answer authorization requests over HTTP by the OpenID AuthZEN Authorization API 1.0, until SIGTERM or Ctrl-C.

    It reads policies and facts from Kafka as the job does, without Spark and Java, and decides by itself: the job need
    not run. POST /access/v1/evaluation and /access/v1/evaluations; a system's paths begin with its name, such as
    /lenses6/access/v1/evaluation. GET /.well-known/authzen-configuration lists them.

    Callers need no login, so it listens on 127.0.0.1 unless serve.allow_remote is set. While policies could not be read
    for serve.max_staleness_seconds, it answers 503 and decides nothing. metrics.port serves /metrics, /healthz and
    /readyz, as for `run`.

    \b
    Examples:
      lockkeeper serve --config lockkeeper.yaml
      LOCKKEEPER_SERVE_PORT=8181 lockkeeper serve --bootstrap kafka:9092
    """
    need("serve")
    from streaming.kafka.reader import document_topics
    from streaming.ops.telemetry import configure_logs
    from streaming.serve.server import Server

    settings = settings_of(config, bootstrap)
    reach(settings, *document_topics(settings.topics), settings.topics.history)
    configure_logs(settings, sys.stderr)
    with stop_on_signals(_give_up) as stop:
        server = Server(settings)
        who = "any machine that reaches it" if settings.serve.allow_remote else "this machine alone"
        echo_err(f"reading policies from {settings.bootstrap_servers}; {server.url} answers {who}, without a login")
        server.run(stop, lambda: echo_err(f"ready: deciding at {server.url}"))
    echo_err("stopped")


def _give_up() -> None:
    echo_err(f"stopped, after {DEADLINE_SECONDS:g} s of waiting for requests under way")
    end_at_once(0)

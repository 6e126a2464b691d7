"""`lockkeeper playground | console`: policies tried in the browser, and decisions looked at."""

import contextlib
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import KafkaOptions
from streaming.cli.extras import require_extra
from streaming.cli.output import echo, echo_err
from streaming.cli.signals import stop_on_signals

if TYPE_CHECKING:
    from socket import socket

    from streaming.settings import Settings

ADDRESS = "127.0.0.1"
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")]
PortOption = Annotated[
    int | None, typer.Option("--port", "-p", min=0, max=65535, help="In place of console.port.", show_default=False)
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")]


@app.command("playground")
def playground(port: Port = 0, browser: Browser = True) -> None:
    """Try policies in the browser: documents, requests, and at once what comes of them. Needs no Kafka.

    It listens on 127.0.0.1 alone, until Ctrl-C. Nothing is stored: the address of the page holds all that you type, so
    a link shares it. What you try can be saved as a case file for `lockkeeper policy test`.

    \b
    Examples:
      lockkeeper playground
      lockkeeper playground --port 8090 --no-browser
    """
    require_extra("console")
    from streaming.console.server import playground as opened
    from streaming.console.server import serve
    from streaming.serve.server import bind

    with opened() as application, contextlib.closing(bind(ADDRESS, port)) as bound, stop_on_signals() as stop:
        serve(application, bound, stop, lambda: _show(bound, "/playground", browser))
    echo_err("stopped")


@app.command("console")
def console(kafka: KafkaOptions, port: PortOption = None, browser: Browser = True) -> None:
    """Show decisions and policies in the browser. It reads Kafka as `decisions` and `explain` do, and writes nothing.

    An overview, live; decisions, newest first, each with its tree under the policies of its moment and under those of
    today; alerts with what is behind them; changes of policies with who gained and lost; questions to the policies in
    force; what a subject may do, and who may do what with a resource; the newest decisions that would differ by a
    draft; the playground.

    It listens on 127.0.0.1, until Ctrl-C: who may reach the port of this machine sees all of it, without credentials.
    Other machines reach it with console.address, where viewers sign in, by OpenID Connect (console.oidc) or a proxy
    (console.proxy); console.access names a file of who sees which systems.

    \b
    Examples:
      lockkeeper console --config lockkeeper.yaml
      lockkeeper console --bootstrap kafka:9092 --port 8090 --no-browser
    """
    require_extra("console")
    from streaming.console.viewers import Viewers

    settings = kafka.settings()
    if settings.console.access:
        Viewers(settings)  # a file that cannot be used is said without Kafka
    check_access(settings)
    show_console(settings, browser, port)
    echo_err("stopped")


def check_access(settings: "Settings") -> None:
    """Raise Failure where the console's topics are not there, or may not be read."""
    from streaming.kafka.permissions import Permission
    from streaming.settings import monitor_settings

    names = settings.topics
    connect(
        settings,
        *(names.decisions, names.alerts, names.changes, *names.asking),
        documents=names.documents,
        described=(*names.inputs, names.verdicts),
        permissions=[Permission("group", monitor_settings(settings).job_name, "Describe")],
    )


def show_console(settings: "Settings", browser: bool, port: int | None = None) -> None:
    """Serve the console of a cluster until SIGTERM or Ctrl-C. `port`: None for that of the settings."""
    from streaming.console.live import console as opened
    from streaming.console.server import serve
    from streaming.ops.logs import log_warnings_only
    from streaming.serve.server import bind

    log_warnings_only(sys.stderr)
    chosen = settings.console
    with (
        contextlib.closing(bind(chosen.address, chosen.port if port is None else port)) as bound,
        stop_on_signals() as stop,
        opened(settings, stop) as application,
    ):
        serve(application, bound, stop, lambda: _show(bound, "/overview", browser, chosen.url))


def _show(bound: "socket", path: str, browser: bool, url: str = "") -> None:
    address = (url.rstrip("/") or f"http://localhost:{bound.getsockname()[1]}") + path
    echo(address)
    sys.stdout.flush()
    echo_err("Ctrl-C ends it")
    if browser:
        webbrowser.open(address)

"""`lockkeeper playground`: policies tried in the browser, without Kafka."""

import contextlib
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app, echo, echo_err, need, stop_on_signals

if TYPE_CHECKING:
    from socket import socket

ADDRESS = "127.0.0.1"
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")]
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
    need("console")
    from streaming.console.server import playground as opened
    from streaming.console.server import serve
    from streaming.serve.server import bind

    with opened() as application, contextlib.closing(bind(ADDRESS, port)) as bound, stop_on_signals() as stop:
        serve(application, bound, stop, lambda: _show(bound, browser))
    echo_err("stopped")


def _show(bound: "socket", browser: bool) -> None:
    address = f"http://localhost:{bound.getsockname()[1]}/playground"
    echo(address)
    sys.stdout.flush()
    echo_err("Ctrl-C ends it")
    if browser:
        webbrowser.open(address)

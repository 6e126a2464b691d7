"""Operating `lockkeeper serve`: its access log, its spans, how it ends, and several processes on one port."""

import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from streaming.serve import access_log
from streaming.serve.access_log import AccessLog
from streaming.serve.tracing import RequestTracing
from streaming.serve.workers import SILENT_SECONDS, Readiness, WorkerHealth
from streaming.settings import MetricsSettings, Settings
from tests.brokers import TestBroker, free_port
from tests.serve.test_serve import ASKED, PATH, Asking, serving, settings_of, written
from tests.stream.world import World, group, role
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
stream = pytest.mark.stream
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def world(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> World:
    """Topics with a role that dana has."""
    made = World(broker, fresh_name("operating"), str(tmp_path / "checkpoint"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def _scope(path: str = PATH, **headers: str) -> dict[str, Any]:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"method": "POST", "raw_path": path.encode(), "headers": given, access_log.REQUEST_ID: "r-1"}


def test_the_access_log_has_a_line_of_json_for_each_response_and_counts_what_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, scope = io.StringIO(), {**_scope('/a"\x01' + "b" * 999), access_log.CALLER: "checkout"}
    log = AccessLog(stream)
    log.flush()
    log.add(_scope(authorization="Bearer secret"), 200, 0.00125)
    log.add(scope, 404, 1.0)
    assert stream.getvalue() == "", "lines are written by another thread"
    log.flush()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("+00:00")
    assert first == {
        "event": "access",
        "method": "POST",
        "path": PATH,
        "status": 200,
        "ms": 1.25,
        "request_id": "r-1",
        "caller": "",
        "lost": 0,
    }
    assert (second["caller"], len(second["path"])) == ("checkout", access_log.PATH_CHARACTERS)
    monkeypatch.setattr(access_log, "HELD", 2)
    for _ in range(5):
        log.add(scope, 200, 0.1)
    log.flush()
    log.add(scope, 200, 0.1)
    log.flush()
    assert [json.loads(line)["lost"] for line in stream.getvalue().splitlines()] == [0, 0, 3, 0, 0]


def test_a_span_continues_the_clients_trace_and_names_no_path_of_its_choice() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = RequestTracing(provider)
    tracing.answered(_scope(traceparent=TRACEPARENT, tracestate="a=b"), PATH, 200, 0.002)
    tracing.answered(_scope("/other", traceparent="nonsense"), "", 503, 0.001)
    tracing.answered(_scope(traceparent=TRACEPARENT[:-1] + "0"), PATH, 200, 0.002)  # the client samples it not
    one, other = exporter.get_finished_spans()
    assert one.parent is not None
    assert (one.name, f"{one.context.trace_id:x}", f"{one.parent.span_id:x}") == (
        f"POST {PATH}",
        TRACE[1:],
        "b7ad6b7169203331",
    )
    assert (one.kind, (one.end_time or 0) - (one.start_time or 0)) == (SpanKind.SERVER, 2_000_000)
    assert (other.name, other.parent, other.status.status_code) == ("POST", None, StatusCode.ERROR)


@stream
def test_it_is_not_ready_before_it_ends_and_answers_meanwhile(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    settings = settings_of(world, drain_seconds=4.0, access_log=True)
    settings = msgspec.structs.replace(settings, metrics=MetricsSettings(port))
    with serving(settings) as running:
        text = Asking(running.server.port).text
        wait_until(lambda: text(port, "/readyz") == "ready\n", "it is ready")
        assert text(port, "/healthz") == "alive\n"
        status, _, headers = running.ask(PATH, ASKED, X_Request_ID="before", Authorization="Bearer secret-token")
        assert (status, headers.get("connection")) == (200, None)
        running.stop.set()
        wait_until(lambda: text(port, "/readyz") != "ready\n", "it is not ready")
        status, _, headers = running.ask(PATH, ASKED, X_Request_ID="meanwhile")
        assert (status, headers["connection"]) == (200, "close")
        assert text(port, "/healthz") == "alive\n"
        running.thread.join(30)
        with pytest.raises(ConnectionRefusedError):
            running.ask(PATH, ASKED)
    logged = capsys.readouterr().err
    lines = [json.loads(line) for line in logged.splitlines() if '"access"' in line]
    assert [(line["request_id"], line["path"], line["status"]) for line in lines] == [
        ("before", PATH, 200),
        ("meanwhile", PATH, 200),
    ]
    assert "secret-token" not in logged
    assert "user:dana" not in logged


def test_a_worker_is_ready_when_all_are() -> None:
    readiness = Readiness(2)
    one, two = (WorkerHealth(5.0, number, readiness) for number in range(2))
    for health in (one, two):
        health.running = True
    one.policies_read()
    one.note()
    two.note()
    assert one.problems() == ["1 other workers are not ready"]
    two.policies_read()
    two.note()
    assert (one.problems(), two.problems()) == ([], [])
    two.running = False
    two.note()
    assert one.problems() == ["1 other workers are not ready"]


def test_a_worker_that_gives_no_sign_is_not_ready() -> None:
    """Stopped or stuck, it still has connections of the shared port."""
    now = 100.0
    readiness = Readiness(2, lambda: now)
    for worker in range(2):
        readiness.set(worker, True)
    assert readiness.waiting() == 0
    now += 2 * SILENT_SECONDS
    readiness.set(0, True)
    assert readiness.waiting() == 1


@pytest.mark.parametrize(("codes", "expected"), [([0, None], 1), ([3, None], 3), ([None, 2], 2)])
def test_workers_end_together(codes: list[int | None], expected: int) -> None:
    """One that ends by itself ends the others. In another process: the signals of this one are pytest's."""
    script = (
        "import signal, sys\n"
        "from streaming.serve.workers import run_workers\n"
        f"codes = {codes!r}\n"
        "def work(worker, readiness):\n"
        "    if codes[worker] is None:\n"
        "        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "        signal.pause()\n"
        "    return codes[worker]\n"
        "sys.exit(run_workers(len(codes), work))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=30, cwd=Path(__file__).parents[2])
    assert ended.returncode == expected


def test_workers_that_a_signal_ends_before_they_handle_it_end_with_its_number_as_shells_count_it() -> None:
    """15 is no exit code that the guide has; the same command with one worker ends with 143."""
    script = (
        "import signal, sys\n"
        "from streaming.serve.workers import run_workers\n"
        "sys.exit(run_workers(2, lambda worker, readiness: signal.pause()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: _handles(process.pid, signal.SIGTERM), "it waits for its workers")
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()


def _handles(pid: int, number: signal.Signals) -> bool:
    [caught] = re.findall(r"SigCgt:\s(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@stream
@pytest.mark.long  # four processes start
def test_two_workers_answer_on_one_port_and_end_with_their_parent(world: World, tmp_path: Path) -> None:
    """Asked to end, they end in order; where the parent is killed, they end too."""
    first = _free_ports(2)
    settings = msgspec.structs.replace(settings_of(world), metrics=MetricsSettings(first))
    for number in (signal.SIGTERM, signal.SIGKILL):
        with _workers(settings, tmp_path) as (process, port):
            ask = Asking(port)
            for metrics in (first, first + 1):
                wait_until(partial(_is_ready, ask, metrics), "both are ready", 60)
            world.publish(role("readers", "kafka:topic:prod/main/orders", effect="deny"))
            assert not any(ask({"freshness": "full"})[1]["decision"] for _ in range(20))
            world.publish(role("readers", "kafka:topic:prod/main/orders"))
            assert all(ask({"freshness": "full"})[1]["decision"] for _ in range(20))
            process.send_signal(number)
            assert process.wait(30) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
            wait_until(lambda at=port: not _listens(at), "the port is free", 30)


def _is_ready(ask: Asking, port: int) -> bool:
    return ask.text(port, "/readyz") == "ready\n"


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    return next(port for port in iter(free_port, 0) if not any(_listens(port + n) for n in range(count)))


@contextlib.contextmanager
def _workers(settings: Settings, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    file = written(settings, folder)
    command = [sys.executable, "-m", "streaming.cli", "serve", "--config", str(file), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("ready: "))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, int(ready.strip().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()

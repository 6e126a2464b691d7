"""The log: JSON elsewhere than on a terminal, each line with the job, from the configured level on."""

import contextlib
import io
import json
import logging
from typing import Any

import pytest
import structlog

from streaming.ops.logs import configure_logs
from streaming.ops.queries import summary
from streaming.ops.tally import Tally
from streaming.ops.watch import Watch, observing
from streaming.settings import LogSettings, Settings


def _settings(**log: Any) -> Settings:
    return Settings(job_name="doors", kafka={"sasl.password": "s3cret"}, log=LogSettings(**log))


def _batch(watch: Watch, settings: Settings) -> None:
    """A batch with two decisions and a dead letter."""
    with watch.batch(3):
        counts = [("lenses6", "deny", 2)]
        watch.decided([Tally(settings.topics.requests[0], counts, 1, [0], [3], [])], 0, "sha256:1")
        watch.step("committed", 3)


def _logged(**log: Any) -> list[dict[str, Any]]:
    settings, stream = _settings(**log), io.StringIO()
    configure_logs(settings, stream)
    _batch(Watch(settings), settings)
    assert "s3cret" not in stream.getvalue()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_batch_is_one_line_with_the_policy_version_and_counts() -> None:
    [line] = _logged()
    shown = {name: line[name] for name in ("event", "level", "job", "batch", "policy_version", "records", "deny")}
    assert shown == {
        "event": "batch decided",
        "level": "info",
        "job": "doors",
        "batch": 3,
        "policy_version": "sha256:1",
        "records": 3,
        "deny": 2,
    }
    assert line["dead_letters"] == 1


@pytest.mark.parametrize(
    ("log", "events"),
    [
        ({"level": "warning"}, []),
        ({"level": "debug"}, ["batch decided"]),
    ],
)
def test_levels_are_honoured(log: dict[str, Any], events: list[str]) -> None:
    assert [line["event"] for line in _logged(**log)] == events


def test_a_terminal_gets_lines_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logs(_settings(), stream)
    structlog.get_logger().info("hello")
    assert not stream.getvalue().startswith("{")
    assert "hello" in stream.getvalue()


def _ending(failure: Exception | None) -> list[dict[str, Any]]:
    """What is logged when the job ends."""
    stream = io.StringIO()
    configure_logs(_settings(), stream)
    with contextlib.suppress(RuntimeError), observing(_settings()):
        if failure:
            raise failure
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("failure", "level", "reason"),
    [(RuntimeError("no room"), "error", "RuntimeError"), (None, "info", "asked to stop")],
)
def test_why_the_job_ended_is_in_the_log(failure: Exception | None, level: str, reason: str) -> None:
    [line] = _ending(failure)
    assert (line["event"], line["level"], line["reason"]) == ("the job ended", level, reason)
    assert line.get("why") == (str(failure) if failure else None)


def test_a_progress_is_reported_without_offsets() -> None:
    progress = {
        "name": "lockkeeper",
        "batchId": 0,
        "numInputRows": 12,
        "processedRowsPerSecond": 3.5,
        "durationMs": {"addBatch": 80},
        "stateOperators": [],
        "sources": [{"endOffset": "…"}],
    }
    assert summary(progress) == {
        "query": "lockkeeper",
        "batch": 0,
        "rows": 12,
        "rows_per_second": 3.5,
        "milliseconds": {"addBatch": 80},
    }


def test_what_libraries_log_is_in_the_log_and_errors_that_py4j_also_raises_at_debug_level_alone() -> None:
    """Py4J logs each with all of its stacks: a Java that was killed left hundreds of lines."""

    def logged(level: str) -> list[tuple[str, str]]:
        stream = io.StringIO()
        configure_logs(_settings(level=level), stream)
        py4j = logging.makeLogRecord({"name": "root", "msg": "sent", "levelno": 40, "pathname": "/py4j/gateway.py"})
        for record in (py4j, logging.makeLogRecord({"name": "other", "msg": "old", "levelno": 30})):
            logging.getLogger(record.name).handle(record)
        lines = map(json.loads, stream.getvalue().splitlines())
        return [(line["event"], line["level"]) for line in lines]

    assert logged("info") == [("old", "warning")]
    assert logged("debug") == [("sent", "debug"), ("old", "warning")]

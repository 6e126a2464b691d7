"""Runs the job in a process of its own, observed as `lockkeeper run` observes it, and started again when it fails.

    python -m tests.stream.observed_process SETTINGS_JSON STEP...

For each STEP one run that fails when its first batch gets there, then one that is left alone: all with the same
watch. Logs to standard error; when it ends it prints its spans, each as a line of JSON.
"""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable

import msgspec
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streaming.application import run
from streaming.ops.health import serving
from streaming.ops.logs import configure_logs
from streaming.ops.telemetry import Tracing
from streaming.ops.watch import Watch
from streaming.settings import Settings


class Broken(Exception):
    """A step that fails on purpose."""


def main(settings: Settings, deadly: list[str]) -> None:
    """Run, once more than there are deadly steps, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    configure_logs(settings, sys.stderr)
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    watch = Watch(settings, Tracing(provider, settings.job_name))
    with serving(settings.metrics, watch.metrics.registry, watch.health):
        for step in deadly:
            with contextlib.suppress(Broken):
                run(settings, stop, _broken_at(step), watch)
        run(settings, stop, watch=watch)
    for span in spans.get_finished_spans():
        parent = span.parent.span_id if span.parent else None
        links = [f"{link.context.trace_id:032x}" for link in span.links]
        fields = {"name": span.name, "id": span.context.span_id, "parent": parent, "links": links}
        print(json.dumps({**fields, "status": span.status.status_code.name}), flush=True)


def _broken_at(deadly: str) -> Callable[[str, int], None]:
    def on_step(step: str, batch: int) -> None:
        if step == deadly and batch >= 0:
            raise Broken(step)

    return on_step


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings), sys.argv[2:])

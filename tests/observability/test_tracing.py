"""Traces: a span a batch with its steps, linked to some of its requests; nothing without the extra."""

import contextlib
import sys
from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from streaming.ops.metrics import Step
from streaming.ops.tally import Tally
from streaming.ops.telemetry import LINKS, Batch, Tracing, open_tracing
from streaming.ops.watch import Watch
from streaming.settings import Settings, SettingsError, TracingSettings

ASKED = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{ASKED}-b7ad6b7169203331-01"
STEPS: list[tuple[Step, int]] = [("range-fixed", 1_010), ("policies-read", 1_030), ("evaluated", 1_100)]


def _batch(*traces: str) -> Batch:
    return Batch(4, 1_000, STEPS, True, "sha256:1", Counter(allow=2, dead_letters=1), list(traces))


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Keeps what is exported."""
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    """Tracing to that exporter."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider, "job")


def _spans(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The batch's span, and the others."""
    spans = exporter.get_finished_spans()
    [batch] = [span for span in spans if span.parent is None]
    return batch, [span for span in spans if span is not batch]


def test_a_batch_is_a_span_with_its_steps_below_it_end_to_end(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.batch(_batch())
    batch, steps = _spans(exporter)
    assert (batch.name, batch.start_time, batch.end_time) == ("job batch", 1_000, 1_100)
    assert [(s.name, s.start_time, s.end_time) for s in steps] == [
        ("range-fixed", 1_000, 1_010),
        ("policies-read", 1_010, 1_030),
        ("evaluated", 1_030, 1_100),
    ]
    assert {step.parent.span_id for step in steps if step.parent} == {batch.context.span_id}
    assert dict(batch.attributes or {}) == {
        "lockkeeper.job": "job",
        "lockkeeper.batch": 4,
        "lockkeeper.policy_version": "sha256:1",
        "lockkeeper.records.allow": 2,
        "lockkeeper.records.dead_letters": 1,
    }


def test_it_is_linked_to_requests_and_what_is_no_trace_parent_is_left_out(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    tracing.batch(_batch("", "00-1", TRACEPARENT, "\ufffd" * 64, f"00-{'0' * 32}-{'0' * 16}-01"))
    batch, _ = _spans(exporter)
    assert [f"{link.context.trace_id:032x}" for link in batch.links] == [ASKED]


def test_a_batch_that_fails_says_so_with_the_steps_it_got_to(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    watch = Watch(Settings(), tracing)
    with contextlib.suppress(RuntimeError), watch.batch(0):
        watch.step("range-fixed", 0)
        raise RuntimeError("s3cret")
    batch, steps = _spans(exporter)
    assert (batch.status.status_code, batch.status.description) == (StatusCode.ERROR, "RuntimeError")
    assert [step.name for step in steps] == ["range-fixed"]


def test_links_are_bounded_over_all_of_a_batch(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    watch = Watch(Settings(), tracing)
    tally = Tally(Settings().topics.requests[0], [], 0, [], [], [TRACEPARENT] * 8)
    with watch.batch(0):
        watch.decided([tally] * 100, 0, "sha256:1")
        watch.step("committed", 0)
    assert len(_spans(exporter)[0].links) == LINKS


def test_switched_off_it_is_not_there() -> None:
    assert open_tracing(TracingSettings(), "job") is None


def test_switched_on_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(
        SettingsError, match=r"tracing\.endpoint: opentelemetry.* is not installed.*lockkeeper-authz\[tracing\]"
    ):
        open_tracing(TracingSettings(endpoint="http://localhost:4318/v1/traces"), "job")

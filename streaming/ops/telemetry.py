"""Traces of the job, which are OpenTelemetry's: a span for each batch, its steps below it, links to some requests.

Their libraries come with the extra `tracing`; they are imported only when tracing is on.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from streaming import DISTRIBUTION
from streaming.ops.metrics import Step
from streaming.settings import SettingsError, TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, Tracer

LINKS = 32  # requests that a batch's span is linked to, at most
NOT_INSTALLED = (
    "tracing.endpoint: {missing} is not installed. Install lockkeeper with the extra `tracing` "
    f"(pip install '{DISTRIBUTION}[tracing]'), or leave tracing.endpoint empty"
)


class Batch(msgspec.Struct):
    """A micro-batch. Times in ns since the epoch; each step ends at its time. `traces`: of some of its requests."""

    number: int
    began: int = msgspec.field(default_factory=time.time_ns)
    steps: list[tuple[Step, int]] = []
    decided: bool = False
    policy_version: str = ""
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    traces: list[str] = []

    def lasted(self) -> Iterator[tuple[Step, float]]:
        """Each step and how long it took, s."""
        before = self.began
        for step, at in self.steps:
            yield step, (at - before) / 1e9
            before = at


class Tracing:
    """Makes the spans of batches. They are made afterwards, from the times of the steps: nothing waits for them."""

    def __init__(self, provider: "TracerProvider", job: str) -> None:
        self._provider, self._job = provider, job
        self._tracer: Tracer = provider.get_tracer("lockkeeper")

    def batch(self, batch: Batch, failure: Exception | None = None) -> None:
        """Trace a batch that is over."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        counts = {f"lockkeeper.records.{name}": count for name, count in batch.counts.items()}
        numbers = {"lockkeeper.batch": batch.number, **counts}
        span = self._tracer.start_span(
            f"{self._job} batch",
            kind=SpanKind.CONSUMER,
            attributes={"lockkeeper.job": self._job, "lockkeeper.policy_version": batch.policy_version, **numbers},
            links=list(_links(batch.traces)),
            start_time=batch.began,
        )
        self._steps(batch, set_span_in_context(span))
        if failure is not None:
            # Its text is in the log; it may quote text of untrusted clients.
            span.set_status(StatusCode.ERROR, type(failure).__name__)
            span.end()
            return
        span.end(batch.steps[-1][1] if batch.steps else None)

    def _steps(self, batch: Batch, within: object) -> None:
        before = batch.began
        for step, at in batch.steps:
            child: Span = self._tracer.start_span(step, context=within, start_time=before)  # type: ignore[arg-type]
            child.end(at)
            before = at

    def close(self) -> None:
        """Send what is not sent yet."""
        self._provider.shutdown()


def _links(traceparents: Iterable[str]) -> Iterator["Link"]:
    """A link to each request's span; an invalid trace parent, as untrusted clients may send, is left out."""
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    for traceparent in traceparents:
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        request = get_current_span(context).get_span_context()
        if request.is_valid:
            yield Link(request)


def open_tracing(settings: TracingSettings, job: str) -> Tracing | None:
    """Tracing to the configured endpoint; None when it is off. Raises SettingsError when the extra is missing."""
    provider = open_provider(settings, job)
    return None if provider is None else Tracing(provider, job)


def open_provider(settings: TracingSettings, job: str) -> "TracerProvider | None":
    """What sends spans to the configured endpoint; None when it is off. Raises SettingsError without the extra."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[import-not-found, unused-ignore]
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(NOT_INSTALLED.format(missing=error.name)) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "lockkeeper", "service.instance.id": job}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
    return provider

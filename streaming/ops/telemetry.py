"""Logs and traces of the job.

The log has one event a line, for people on a terminal and as JSON elsewhere, each with the name of the job. Traces are
OpenTelemetry's: a span for each batch, its steps below it, and links to some requests. Their libraries come with the
extra `tracing`; they are imported only when tracing is on.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import structlog

from streaming import DISTRIBUTION
from streaming.ops.metrics import Step
from streaming.settings import Settings, SettingsError, TracingSettings
from streaming.terminal import escape, one_line, raw

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, Tracer


Event = structlog.typing.EventDict


def configure_logs(settings: Settings, stream: TextIO) -> None:
    """Log to `stream` from the configured level on."""
    rendering = (
        [_escaped, structlog.dev.ConsoleRenderer()] if stream.isatty() else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _naming(settings.job_name),
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(raw(stream) if stream.isatty() else stream),
    )
    others = [handler for handler in logging.getLogger().handlers if not isinstance(handler, _Forwarded)]
    logging.getLogger().handlers = [*others, _Forwarded()]


class _Forwarded(logging.Handler):
    """Logs what a library has logged; what Py4J has, at debug level: it logs each error that it raises, with stacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it, with the exception if there is one."""
        level = logging.DEBUG if "py4j" in record.pathname else record.levelno
        structlog.get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def log_warnings_alone(stream: TextIO) -> None:
    """For commands that are not the job but run parts of it: their results are not mixed with its events."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            _escaped,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def _escaped(_logger: Any, _method: str, event: Event) -> Event:
    """For people: no name in an event can end its line; a traceback has lines of its own."""
    return {
        name: escape(value) if name == "exception" else one_line(value) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _naming(job: str) -> Callable[[Any, str, Event], Event]:
    """Adds the job's name: the events come from several threads, which share no context."""

    def name(_logger: Any, _method: str, event: Event) -> Event:
        return {**event, "job": job}

    return name


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

"""The trace that a request is part of, as W3C headers."""

import sys

NAMES = ("traceparent", "tracestate")

Header = tuple[str, str | bytes | None]  # as Kafka's clients take them


def trace_headers(traceparent: str | None = None, tracestate: str | None = None) -> list[Header]:
    """The given trace, else that of OpenTelemetry's current span, else none."""
    found = {"traceparent": traceparent, "tracestate": tracestate} if traceparent else _current()
    return [(name, text.encode("ascii", "replace")) for name in NAMES if (text := found.get(name))]


def _current() -> dict[str, str | None]:
    """Whoever has a current span has imported OpenTelemetry; nobody else needs to."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str | None] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier

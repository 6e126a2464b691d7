"""A span for each request, continued from its `traceparent` header (W3C Trace Context), for OpenTelemetry."""

import time
from typing import TYPE_CHECKING, Any

from streaming.ops.telemetry import open_provider
from streaming.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

CARRIED = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


class RequestTracing:
    """Makes spans afterwards, from the times of requests: no request waits for one. They are sent by a thread."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._propagator = provider, TraceContextTextMapPropagator()
        self._tracer: Tracer = provider.get_tracer("lockkeeper")

    def answered(self, scope: dict[str, Any], route: str, status: int, seconds: float) -> None:
        """Trace a response. `route`: the path, "" where there is no such path: untrusted clients choose others."""
        from opentelemetry.trace import SpanKind, StatusCode

        carried = {CARRIED[name]: value.decode("latin-1") for name, value in scope["headers"] if name in CARRIED}
        ended, method = time.time_ns(), scope["method"]
        span = self._tracer.start_span(
            f"{method} {route}".strip(),
            self._propagator.extract(carried),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": route, "http.response.status_code": status},
            start_time=ended - round(seconds * 1e9),
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(ended)

    def close(self) -> None:
        """Send what is not sent yet."""
        self._provider.shutdown()


def open_request_tracing(settings: TracingSettings, name: str) -> RequestTracing | None:
    """Tracing to the configured endpoint; None when it is off. Raises SettingsError when the extra is missing."""
    provider = open_provider(settings, name)
    return None if provider is None else RequestTracing(provider)

"""The trace that a request belongs to travels in its record's headers."""

from opentelemetry.sdk.trace import TracerProvider

from streaming.client.records import trace_headers

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_given_trace_is_carried_and_without_one_there_are_no_headers() -> None:
    assert trace_headers(GIVEN, "a=b") == [("traceparent", GIVEN.encode()), ("tracestate", b"a=b")]
    assert trace_headers() == []


def test_the_current_span_of_opentelemetry_is_carried_unless_one_is_given() -> None:
    tracer = TracerProvider().get_tracer("tests")
    with tracer.start_as_current_span("fields") as span:
        context = span.get_span_context()
        expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()
        assert trace_headers() == [("traceparent", expected)]
        assert trace_headers(GIVEN) == [("traceparent", GIVEN.encode())]
    assert trace_headers() == []

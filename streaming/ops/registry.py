"""Metrics on a registry of their own: two applications in one process, as in tests, share none."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class MetricsRegistry:
    """The metrics of an application, on `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """A counter with these labels."""
        return Counter(name, about, labels, registry=self.registry)

    def gauge(self, name: str, about: str, value: Callable[[], float] | None = None) -> Gauge:
        """`value`: asked for with each scrape; None: the gauge is set."""
        gauge = Gauge(name, about, registry=self.registry)
        if value is not None:
            gauge.set_function(value)
        return gauge

    def histogram(
        self, name: str, about: str, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS, *labels: str
    ) -> Histogram:
        """`buckets`: their upper bounds, ascending."""
        return Histogram(name, about, labels, buckets=buckets, registry=self.registry)

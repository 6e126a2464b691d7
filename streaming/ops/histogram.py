"""A histogram of what was counted elsewhere: it takes many observations at once, as the client's own does not."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class CountedHistogram(Collector):
    """A histogram without labels. `bounds`: the upper bounds of its buckets, ascending, without infinity."""

    def __init__(self, name: str, about: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._about = name, about
        self._bounds = np.array(bounds)
        self._labels = [*map(floatToGoString, bounds), "+Inf"]
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()
        registry.register(self)

    def add(self, values: "np.ndarray[Any, Any]", counts: Sequence[int]) -> None:
        """Count each of `values` as often as `counts` says."""
        weights = np.asarray(counts, dtype=np.int64)
        places = np.searchsorted(self._bounds, values, side="left")  # a value on a bound is within its bucket
        added = np.bincount(places, weights, minlength=len(self._counts)).astype(np.int64)
        with self._lock:
            self._counts += added
            self._sum += float(values @ weights)

    def collect(self) -> Iterable[Metric]:
        """The histogram as it stands."""
        with self._lock:
            so_far, total = np.cumsum(self._counts).tolist(), self._sum
        yield HistogramMetricFamily(
            self._name, self._about, buckets=list(zip(self._labels, so_far, strict=True)), sum_value=total
        )

    def describe(self) -> Iterable[Metric]:
        """Its name, for the registry."""
        return self.collect()

"""How far the decisions are behind the ends of their topics: asked for when the metrics are read."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

NAME = "lockkeeper_consumer_lag_records"
ABOUT = (
    "Records of a partition behind the offset that the job, or its monitor, has committed, as Kafka's own tools show "
    "it: markers of transactions count. Absent while Kafka does not answer."
)

Lags = Callable[[], Mapping[tuple[str, int], int]]
"""By topic and partition, the records between the committed offset and the end; empty: it is not known now."""


class ConsumerLag(Collector):
    """The lag of each partition. `groups`: by consumer group, whom to ask; each reads topics of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.groups: dict[str, Lags] = {}
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The lags as they are now."""
        [family] = self.describe()
        for ask in tuple(self.groups.values()):
            for (topic, partition), lag in sorted(ask().items()):
                family.add_metric([topic, str(partition)], lag)
        yield family

    def describe(self) -> list[GaugeMetricFamily]:
        """The family without values: its name is known without a request to Kafka."""
        return [GaugeMetricFamily(NAME, ABOUT, labels=["topic", "partition"])]

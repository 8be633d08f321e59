"""Driver: makes Prometheus metrics of one run. Imported only if `metrics.port` is set."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Instruments:
    """Metrics in a registry of their own, because a process may have several runs. Each has a label with the name of the run."""

    def __init__(self, prefix: str, label: str, run: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix, self._label, self._run = prefix, label, run

    def gauge(self, name: str, text: str) -> Gauge:
        return self.gauge_by(name, text).labels(self._run)

    def gauge_by(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a gauge with more labels, whose values follow that of the run."""
        return Gauge(self._prefix + name, text, [self._label, *labels], registry=self.registry)

    def counter(self, name: str, text: str) -> Counter:
        return self.counter_by(name, text).labels(self._run)

    def counter_by(self, name: str, text: str, *labels: str) -> Counter:
        """Return a counter with more labels, whose values follow that of the run."""
        return Counter(self._prefix + name, text, [self._label, *labels], registry=self.registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        series = Histogram(self._prefix + name, text, [self._label], registry=self.registry, buckets=buckets)
        return series.labels(self._run)

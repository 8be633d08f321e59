"""Driver: the Prometheus metrics of a DataFrame sink. Their meaning: docs/how-to/dataframes.md#metrics.

Imported only if `metrics.port` is set: `prometheus_client` comes with the extra `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from shallow_mirror.config import MetricsSettings
from shallow_mirror.streaming.watch.health import HealthLimits, RunHealth
from shallow_mirror.streaming.watch.instruments import Instruments
from shallow_mirror.streaming.watch.metrics_port import serving

PREFIX = "shallow_mirror_sink_"

_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 30, 60, 120, 300, 600)


class SinkMetrics:
    """Metrics of one run. For any thread."""

    def __init__(self, sink: str) -> None:
        made = Instruments(PREFIX, "sink", sink)
        gauge, counter = made.gauge, made.counter
        self.registry = made.registry
        self._sink = sink
        self.run_epoch = gauge("run_epoch", "Rises with every run that takes over the table")
        self._batch_id = gauge("batch_id", "Of the newest streaming micro-batch that is visible")
        self._decided_at = gauge("last_decision_timestamp_seconds", "When the newest micro-batch of this process became visible")
        for unknown in (self._batch_id, self._decided_at):
            unknown.set(math.nan)
        self._micro_batches = counter("micro_batches", "Written, decided and visible")
        self.replays = counter("replays", "Micro-batches that were written before, and left out")
        self.retries = counter("retries", "Further attempts to write a micro-batch, after errors that may pass")
        self._records = counter("records", "Written")
        self._bytes = counter("written_bytes", "Record batches written, compressed")
        self._seconds = made.histogram("micro_batch_seconds", "From its begin until it is visible", _BUCKETS_S)

    def wrote(self, *, batch_id: int | None, records: int, size_bytes: int, seconds: float, at_s: float) -> None:
        """Record a micro-batch that is visible now. `batch_id` None: of a batch job. `at_s`: Unix time."""
        self._micro_batches.inc()
        self._records.inc(records)
        self._bytes.inc(size_bytes)
        self._seconds.observe(seconds)
        self._decided_at.set(at_s)
        if batch_id is not None:
            self._batch_id.set(batch_id)

    @contextmanager
    def served(self, settings: MetricsSettings) -> Iterator[None]:
        """Serve them while the block runs. Raises ConfigError if the port is not available.

        The probes of the port are passed: Spark decides when a sink is called, and how long it is not.
        """
        health = RunHealth(HealthLimits(live_s=math.inf, ready_s=math.inf))
        health.on_take_over()
        health.on_progress()
        with serving(self._sink, self.registry, health, settings):
            yield

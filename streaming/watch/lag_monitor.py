"""Driver: a thread that queries both clusters at an interval for the metrics of a running mirror: lag, open transactions."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.rows import preserved_topics
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.log_context import in_context
from shallow_mirror.streaming.watch.lag import copied_until, included_positions, partition_statuses, query_source, query_target
from shallow_mirror.streaming.watch.metrics import ClusterSnapshot
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)


class ClusterObserver(Protocol):
    def update(self, snapshot: ClusterSnapshot) -> None: ...
    def clear(self) -> None: ...


class LagMonitor:
    """It has connections of its own, so that no micro-batch waits for its requests."""

    def __init__(self, config: MirrorConfig, observer: ClusterObserver) -> None:
        self._config = config
        self._observer = observer
        self._is_over = threading.Event()
        self.positions: Mapping[SourcePartition, Position] = {}
        """Replaced as a whole by the mirror's own thread."""
        self.source_cluster_id = self.target_cluster_id = ""
        """Of the run, once it has reached both: what another cluster answers is no measurement."""

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=in_context(self._run), name="lag monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def query(self) -> ClusterSnapshot:
        """Return the state of both clusters now. Raises MirrorError for a response that cannot be used."""
        # Positions are read first: a mirror that runs meanwhile can only seem to be further behind than it is.
        positions = included_positions(self._config, self.positions)
        until_ms = copied_until(positions)
        offsets = {source: position.offset for source, position in positions.items()}
        view = query_source(self._config, offsets, until_ms, clock=self._clock, cluster_id=self.source_cluster_id)
        target_problem = query_target(self._config, clock=self._clock, cluster_id=self.target_cluster_id)
        at_ms = int(time.time() * 1000)
        return ClusterSnapshot(
            at_ms=at_ms,
            partitions=partition_statuses(offsets, until_ms, view, at_ms),
            open_transactions=view.open_transactions,
            preserved_topics=preserved_topics(positions),
            is_source_up=view.problem is None,
            is_target_up=target_problem is None,
        )

    def _clock(self) -> float:
        """Return the time, or infinity at the end of the run, so that its deadlines are over at once."""
        return math.inf if self._is_over.is_set() else time.monotonic()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    snapshot = self.query()
                    if not self._is_over.is_set():  # what was cut short by the end of the run is no measurement
                        self._observer.update(snapshot)
                except MirrorError as error:
                    self._observer.clear()
                    _log.warning("lag and open transactions cannot be measured: %s", error)
                self._is_over.wait(self._config.metrics.lag_interval_s)
        finally:
            self._observer.clear()

"""Driver: asks both clusters from time to time how far behind the mirror is, for its metrics: in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.runner.lag import copied_until, included_positions, partition_statuses, query_source, query_target
from shallow_mirror.streaming.runner.metrics import ClusterSnapshot
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)


class ClusterObserver(Protocol):
    def saw(self, seen: ClusterSnapshot) -> None: ...
    def forget(self) -> None: ...


class LagMonitor:
    """It has connections of its own: whatever it asks, no micro-batch waits for it."""

    def __init__(self, config: MirrorConfig, sees: ClusterObserver) -> None:
        self._config, self._sees, self._is_over = config, sees, threading.Event()
        self.positions: Mapping[SourcePartition, Position] = {}
        """Replaced as a whole by the mirror's own thread."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="source watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def look(self) -> ClusterSnapshot:
        """Raises MirrorError where a cluster answers what nobody can use."""
        positions = included_positions(self._config, self.positions)
        until_ms = copied_until(positions)
        offsets = {source: position.offset for source, position in positions.items()}
        view = query_source(self._config, offsets, until_ms, clock=self._clock)
        target_problem = query_target(self._config, clock=self._clock)
        at_ms = int(time.time() * 1000)
        return ClusterSnapshot(
            at_ms=at_ms,
            partitions=partition_statuses(offsets, until_ms, view, at_ms),
            open_transactions=view.open_transactions,
            is_source_up=view.problem is None,
            is_target_up=target_problem is None,
        )

    def _clock(self) -> float:
        """Deadlines are over at once when nobody wants the answer any more."""
        return math.inf if self._is_over.is_set() else time.monotonic()

    def _watch(self) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    seen = self.look()
                    if not self._is_over.is_set():
                        self._sees.saw(seen)
                except MirrorError as error:
                    self._sees.forget()
                    _log.warning("lag and open transactions for the metrics are not known: %s", error)
                self._is_over.wait(self._config.metrics.lag_interval_s)
        finally:
            self._sees.forget()

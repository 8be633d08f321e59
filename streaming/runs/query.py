"""Driver: the query of a mirror or an archive, until it ends or a stop is requested. Its micro-batches come from Spark's
Structured Streaming (`micro_batch_stream.py`) or from a loop of the driver (`micro_batch_loop.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from shallow_mirror.sinks.micro_batches import MicroBatchSink, raising_unfit_python
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.streaming.watch.health import RunHealth

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_QUIET_S = 1.0
"""A query is idle when nothing came for this long beyond its trigger interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The common arguments of both kinds of micro-batches."""

    spark: Any
    sink: MicroBatchSink
    options: PlannerOptions
    trigger_s: float | None
    """Between the starts of two micro-batches. None: the query ends at the log ends of its start."""
    health: RunHealth


class RunningQuery(Protocol):
    """A query that copies in other threads than the caller's."""

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the query, at most so long. Return whether it has ended, by itself or by an error."""

    def raise_failure(self) -> None:
        """Raise the error of a query that has ended, unless it was of its sink, or there was none."""


MicroBatches = Callable[[Query], AbstractContextManager[RunningQuery]]
"""Begin a query. Where the block is left, what still runs of it is cancelled and waited for."""


@raising_unfit_python()
def run_query(
    query: Query,
    micro_batches: MicroBatches,
    *,
    settle_after_s: float,
    supervisor: Supervisor,
    check: Callable[[], None],
) -> None:
    """Run the query. `check` is called several times a second.

    Raises the error of the last micro-batch, else that of the planner.
    """
    sink = query.sink
    with micro_batches(query) as running:
        while not running.wait(_POLL_S):
            if supervisor.is_over():
                _log.info("ending after the micro-batch that runs")
                sink.stop()
                break
            check()
            sink.register_if_idle()
            sink.settle_if_idle(settle_after_s + _QUIET_S)
    if sink.failure is not None:
        raise sink.failure
    running.raise_failure()

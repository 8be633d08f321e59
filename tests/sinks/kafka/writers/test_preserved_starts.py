"""Where a mirror with preserved offsets begins that does not begin with the log of the source."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from tests.fakes.peers import NOW_MS
from tests.sinks.kafka.writers.test_preserved_writer import placed, preserving
from tests.sinks.two_strict_clusters import A, B, Clusters, client_of, planned
from tests.support.record_batches import batch, marker

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.streaming.planning import PlannerConfig, SourceOffsets


@pytest.mark.parametrize("start", [-1, NOW_MS], ids=["latest", "a time"])
def test_a_start_behind_records_has_fillers_in_front_and_every_record_from_there_on(clusters: Clusters, start: int) -> None:
    """A transaction is open then: the mirror begins with it, whatever was written behind."""
    clusters.write(A, 3)
    clusters.source.seed(("orders", 0), batch(3, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), batch(5, 1, timestamp=NOW_MS + 1))
    planner = PlannerConfig(
        include=("orders",), micro_batch_bytes=1 << 20, slots=1, request_timeout_ms=1000, start_timestamp_ms=start
    )
    with closing(Cluster(client_of(clusters.source))) as source:
        starts = SourceOffsets(planner, source).start_offsets({}, Deadline.after_ms(5_000, time.monotonic))
    assert starts == {A: 3, B: 0}
    clusters.source.seed(("orders", 0), marker(6, 1, 9))
    clusters.run(preserving(clusters, starts), planned(A, 7, 3))
    assert placed(clusters) == [(0, 0, 3), (3, 3, 2), (5, 5, 1), (6, 6, 1)]

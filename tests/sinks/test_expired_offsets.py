"""Rows of expired offsets, of all partitions of a topic whose leaders answer."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from tests.sinks.two_strict_clusters import A, B, Clusters

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, RetriableError
from shallow_mirror.sinks.micro_batches.expired_offsets import expired_rows
from shallow_mirror.types import SourcePartition, TargetPartition


def expired(clusters: Clusters, *, most_ms: int = 10_000) -> dict[SourcePartition, tuple[int, int]]:
    """Return what has expired, where the slot of A has found a log start of 3."""
    loss = DataLossError(A.topic_partition, 0, 3, "deleted")
    targets = {source: TargetPartition("copy", "copy-id", source.partition) for source in (A, B)}
    client = clusters.job({}).source
    assert client is not None
    with closing(Cluster(client)) as source:
        rows = expired_rows(loss, {A: 0, B: 0}, targets, {}, source, Deadline.after_ms(most_ms, time.monotonic))
    return {row.segment.source: (row.segment.source_start, row.segment.source_end) for row in rows}


@pytest.fixture
def losing(clusters: Clusters) -> Clusters:
    for source, start in ((A, 3), (B, 2)):
        clusters.write(source, 2, 3)
        clusters.source.log("orders", source.partition).delete_records_before(start)
    return clusters


def test_all_partitions_of_the_topic_have_a_row(losing: Clusters) -> None:
    assert expired(losing) == {A: (0, 3), B: (0, 2)}


def test_one_without_a_leader_has_none(losing: Clusters) -> None:
    losing.source.move_leader(("orders", 1), -1)
    assert expired(losing) == {A: (0, 3)}


@pytest.mark.slow
def test_where_a_leader_does_not_answer_only_the_one_that_the_slot_has_read_has_a_row(losing: Clusters) -> None:
    losing.source.nodes[2] = ("127.0.0.1", 1)  # listed, and nothing listens there
    losing.source.move_leader(("orders", 1), 2)
    assert expired(losing) == {A: (0, 3)}


@pytest.mark.slow
def test_without_that_one_there_is_none(losing: Clusters) -> None:
    losing.source.move_leader(("orders", 0), -1)
    with pytest.raises(RetriableError):
        expired(losing, most_ms=500)

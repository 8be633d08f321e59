"""The pauses of writers, read from logs."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients import BatchConsumer
from shallow_mirror.errors import CorruptBatchError
from shallow_mirror.migration.observations import LogEnd
from shallow_mirror.migration.writer_rhythm import read_longest_pause_s
from shallow_mirror.types import TopicPartition


def test_a_batch_that_cannot_be_read_ends_the_measurement_and_not_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def poll_batches(consumer: BatchConsumer, max_bytes: int, timeout_ms: float) -> None:
        raise CorruptBatchError(TopicPartition("orders", 0), 2, 0, "its checksum is wrong")

    monkeypatch.setattr(BatchConsumer, "poll_batches", poll_batches)
    with StrictCluster() as cluster:
        cluster.create_topic("orders")
        cluster.seed(("orders", 0), batch(0, 2), batch(2, 3))
        client = ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap})
        with closing(Cluster(client)) as source:
            assert read_longest_pause_s(source, client, {TopicPartition("orders", 0): LogEnd(5, 5)}) == 0.0

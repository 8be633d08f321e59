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
from shallow_mirror.migration import writer_rhythm
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


def test_a_new_producer_for_each_batch_pauses_between_batches() -> None:
    """A job that runs every 20 s, on two partitions in turn."""
    names = [TopicPartition("orders", partition) for partition in range(2)]
    with StrictCluster() as cluster:
        cluster.create_topic("orders", 2)
        for name in names:
            runs = range(name.partition, 8, 2)
            written = (
                batch(offset, producer_id=100 + run, producer_epoch=0, base_sequence=0, timestamp=20_000 * run)
                for offset, run in enumerate(runs)
            )
            cluster.seed((name.topic, name.partition), *written)
        client = ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap})
        with closing(Cluster(client)) as source:
            assert read_longest_pause_s(source, client, dict.fromkeys(names, LogEnd(4, 4))) == 20.0


def test_what_was_not_read_of_a_log_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producer 2 wrote once a second, also before the last offsets, and producer 1 once to another partition."""
    monkeypatch.setattr(writer_rhythm, "TAIL_OFFSETS", 5)
    quiet, busy = (TopicPartition("orders", partition) for partition in range(2))
    with StrictCluster() as cluster:
        cluster.create_topic("orders", 2)
        cluster.seed(("orders", 0), batch(0, producer_id=1, producer_epoch=0, base_sequence=0, timestamp=0))
        later = (
            batch(second, producer_id=2, producer_epoch=0, base_sequence=second, timestamp=1000 * second)
            for second in range(1, 60)
        )
        cluster.seed(("orders", 1), batch(0, timestamp=0), *later)
        client = ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap})
        with closing(Cluster(client)) as source:
            assert read_longest_pause_s(source, client, {quiet: LogEnd(1, 1), busy: LogEnd(60, 60)}) == 1.0

"""What ends the reading of a partition, told by a reader that a test scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support import mirror_runs as runs
from tests.support.record_batches import batch, view

from shallow_mirror.broker.fetch import IndexedPartition
from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError, DataLossError, MirrorError
from shallow_mirror.preflight.findings import Level
from shallow_mirror.preflight.sample_reader import SampleReader
from shallow_mirror.preflight.sampling import TopicSampler, ignore_progress
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.types import OffsetRange, SourcePartition, TopicPartition
from shallow_mirror.wire.batches import index_batches

FIRST, SECOND = (SourcePartition("orders", "id", partition) for partition in range(2))
PLAN = TargetPlan(topic="orders", exists=True, partition_count=2, replication_factor=1, settings={})


class Reader:
    """Five records of each partition, and behind them `error` in the first."""

    read_bytes = 0

    def __init__(self, error: MirrorError) -> None:
        self._error = error

    def read(self, topic_partition: TopicPartition, wanted: OffsetRange) -> Iterator[tuple[IndexedPartition, int]]:
        records = view(batch(0, 5))
        yield IndexedPartition(topic_partition, index_batches(records), records, (), 0, wanted.end, wanted.end, wanted.start), 5
        if topic_partition == FIRST.topic_partition:
            raise self._error


def sampled(folder: Path, error: MirrorError) -> tuple[Any, list[str]]:
    config = runs.config(folder, "127.0.0.1:1", "127.0.0.1:2", ["orders"])
    reader = cast(SampleReader, Reader(error))
    sampler = TopicSampler(config, reader, {FIRST: OffsetRange(0, 10), SECOND: OffsetRange(0, 5)}, ignore_progress)
    report = sampler.sample("orders", 2, PLAN)
    return report, [finding.what for finding in sampler.findings if finding.level is Level.STOPS]


def test_a_batch_that_the_reader_itself_refuses_is_counted_by_its_rule(tmp_path: Path) -> None:
    report, stops = sampled(tmp_path, BatchRefusedError(FIRST.topic_partition, 5, "too large to be opened", "Exclude the topic"))
    ((rule, count),) = report.counts.refusals.items()
    assert (rule, count.topic_partition, count.base_offset, count.remedy) == (
        "too large to be opened", FIRST.topic_partition, 5, "Exclude the topic",
    )  # fmt: skip
    assert (report.counts.refused.batch_count, stops) == (1, [])


@pytest.mark.parametrize(
    "error",
    [
        DataLossError(FIRST.topic_partition, 5, 7, "retention removed it"),
        CorruptBatchError(FIRST.topic_partition, 5, 0, "unknown record format"),
        ConfigError("Fetch of orders-0: TOPIC_AUTHORIZATION_FAILED"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_the_reading_of_one_partition_is_reported_and_the_others_are_read(tmp_path: Path, error: MirrorError) -> None:
    report, stops = sampled(tmp_path, error)
    (sentence,) = stops
    assert sentence.startswith(str(error))
    assert ("To skip what is lost, set read.on_data_loss" in sentence) is isinstance(error, DataLossError)
    assert report.counts.raw.record_count == 10
    reached = {topic_partition.partition: (sample.reached, sample.is_whole) for topic_partition, sample in report.samples.items()}
    assert reached == {0: (5, False), 1: (5, True)}
    assert (report.backlog.size_bytes, report.backlog.is_exact) == (3 * report.counts.read.size_bytes // 2, False)

"""Topics that were preserved and are translated now, between two strict clusters: which rows their logs get, and when none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.record_rules import RefusedError
from tests.fakes.strict_broker import StrictCluster
from tests.support.decided_ranges import decided_ranges
from tests.support.mirror_runs import config
from tests.support.record_batches import batch, marker, record

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.rows.positions import moved_by
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.streaming.runs.target_logs import EndedPreservation
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import SharedProducer, restamped_at
from shallow_mirror.wire.records import Fillers

ORDERS = "orders"
APPLICATION, SHARED, OTHER_SHARED = 9, 70, 71
IN_TXN = 0x10
SOURCE, TARGET = SourcePartition(ORDERS, "west-id", 0), TargetPartition(ORDERS, "east-id", 0)
DATA, GAP = SegmentKind.DATA, SegmentKind.GAP
ROUTE = RoutedTopic(
    target_topic=ORDERS,
    target_topic_id="east-id",
    limits=BatchLimits(
        max_message_bytes=1 << 20, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
    ),
)


def written(base: int, count: int, *, attributes: int = 0, producer_id: int = SHARED, first: str = "") -> bytes:
    values = b"".join(record(delta, value=b"%s%d" % (first.encode(), base + delta)) for delta in range(count))
    return batch(
        base,
        count,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base,
        payload=values,
    )


def filler(base: int, count: int) -> bytes:
    shared = SharedProducer(producer_id=SHARED, now_ms=1_000, old_before_ms=0)
    stamped = restamped_at(Fillers(None, 1 << 20).batch(count, 1_000), base, shared)
    return base.to_bytes(8, "big") + bytes(stamped)[8:]


AT_SOURCE = (
    written(0, 3, producer_id=APPLICATION),
    written(3, 2, attributes=IN_TXN, producer_id=APPLICATION),
    marker(5, 1, APPLICATION),
    written(6, 4, producer_id=APPLICATION),
)
"""Offsets 0 to 10, of which 5 is a marker."""
PLACED = (written(0, 3), written(3, 2), filler(5, 1), written(6, 2))
"""What a mirror with preserved offsets had placed of it when it was killed."""


class EndedLog:
    def __init__(self, source: StrictCluster, target: StrictCluster, folder: Path) -> None:
        self.source, self.target, self._folder = source, target, folder
        for cluster in (source, target):
            cluster.create_topic(ORDERS)

    def rows(self, position: int, *, offsets: str = "translated", shared: int | None = SHARED) -> tuple[DecidedSegment, ...]:
        settings = config(self._folder, self.source.bootstrap, self.target.bootstrap, [".*"], topics={"offsets": {".*": offsets}})
        at = Position(position, TARGET, target_end=position, shared_producer_id=shared)
        with closing(Cluster(settings.target.client)) as target:
            ended = EndedPreservation(settings, target)
            rows = ended.rows({SOURCE: at}, {ORDERS: ROUTE}, lambda: Deadline.after_ms(10_000, time.monotonic))
        if rows:
            moved_by({SOURCE: at}, rows)
        return rows

    @property
    def end(self) -> int:
        return self.target.log(ORDERS, 0).end_offset


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EndedLog]:
    with StrictCluster(cluster_id="west") as source, StrictCluster(cluster_id="east") as target:
        made = EndedLog(source, target, tmp_path)
        source.seed((ORDERS, 0), *AT_SOURCE)
        yield made


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, [(DATA, 0, 5, 0), (GAP, 5, 6, None), (DATA, 6, 8, 6)]),
        (3, [(DATA, 3, 5, 3), (GAP, 5, 6, None), (DATA, 6, 8, 6)]),
        (6, [(DATA, 6, 8, 6)]),
        (7, [(DATA, 7, 8, 7)]),
    ],
)
def test_what_was_written_and_not_decided_counts_as_copied(log: EndedLog, position: int, expected: list[object]) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    rows = log.rows(position)
    assert decided_ranges(rows) == expected
    assert sum(row.segment.record_count for row in rows) == 8 - position - (position <= 5)
    assert {(row.txn, row.shared_producer_id, row.is_continued) for row in rows} == {(None, SHARED, False)}


def test_a_log_that_ends_at_its_position_needs_no_rows(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    assert log.rows(8) == ()


def test_nothing_is_asked_of_logs_that_stay_preserved_or_were_never(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    assert log.rows(0, offsets="preserved") == log.rows(0, offsets="continued") == log.rows(0, shared=None) == ()
    assert log.target.asked("Produce") == 0


def test_requests_of_an_earlier_task_are_refused_from_then_on(log: EndedLog) -> None:
    """Without the fence, the batch that a killed task had on its way would be appended behind the first transaction."""
    log.target.seed((ORDERS, 0), *PLACED)
    log.rows(0)
    assert log.end == 9, "a filler with the next producer epoch"
    late = bytes(8) + written(8, 2)[8:]
    with pytest.raises(RefusedError, match=r"^47"):
        log.target.log(ORDERS, 0).append(late, int(time.time() * 1000))


def test_a_start_that_is_repeated_changes_nothing(log: EndedLog) -> None:
    """It was killed behind the fence, in front of the decision."""
    log.target.seed((ORDERS, 0), *PLACED)
    first = log.rows(0)
    assert log.rows(0) == first
    assert log.rows(8) == ()
    assert log.end == 9


def test_a_foreign_batch_is_not_counted(log: EndedLog) -> None:
    """The remedy of a PreservedLogDamagedError: the rest is copied behind what is there."""
    log.target.seed((ORDERS, 0), *PLACED, written(8, 2, producer_id=APPLICATION, first="foreign "))
    assert decided_ranges(log.rows(6)) == [(DATA, 6, 8, 6)]


def test_what_a_run_with_a_copy_of_the_tables_has_placed_counts_as_copied(log: EndedLog) -> None:
    """It had registered the partition with a producer of its own."""
    log.target.seed((ORDERS, 0), *PLACED, written(8, 2, producer_id=OTHER_SHARED))
    assert decided_ranges(log.rows(6)) == [(DATA, 6, 10, 6)]


def test_only_what_equals_the_source_counts_of_another_producer(log: EndedLog) -> None:
    foreign = (written(8, 1, producer_id=OTHER_SHARED), written(9, 1, producer_id=OTHER_SHARED, first="foreign "))
    log.target.seed((ORDERS, 0), *PLACED, *foreign, written(10, 3, producer_id=APPLICATION))
    assert decided_ranges(log.rows(8)) == [(DATA, 8, 9, 8)]


def test_what_the_source_no_longer_has_does_not_count_of_another_producer(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED, written(8, 1, producer_id=OTHER_SHARED, first="foreign "))
    log.source.log(ORDERS, 0).log_start_offset = 9
    assert decided_ranges(log.rows(8)) == []


def test_a_log_that_does_not_hold_what_the_source_has_is_refused(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED[:3], written(6, 2, first="another "))
    with pytest.raises(ConfigError, match=r"orders was preserved until now, .* from offset 3 on: .*another mirror id"):
        log.rows(3)


def test_a_log_that_is_refused_stays_as_it_is_and_can_be_preserved_again(log: EndedLog) -> None:
    """As after a target topic gave records its own times for a while."""
    log.target.seed((ORDERS, 0), *PLACED[:3], written(6, 2, first="another "))
    with pytest.raises(ConfigError, match=r"Nothing was written to it\. Set topics\.offsets back to preserved"):
        log.rows(3)
    assert (log.end, log.target.asked("Produce")) == (8, 0)


@pytest.mark.parametrize(
    "behind",
    [batch(8, 1, producer_id=SHARED, producer_epoch=1, base_sequence=0), written(8, 1, producer_id=APPLICATION, first="x ")],
    ids=["fenced by an earlier version", "another writer"],
)
def test_a_log_that_is_refused_and_cannot_be_preserved_again_needs_another_topic(log: EndedLog, behind: bytes) -> None:
    log.target.seed((ORDERS, 0), *PLACED[:3], written(6, 2, first="another "), behind)
    with pytest.raises(ConfigError, match=r"from offset 3 on: .*another mirror id") as refused:
        log.rows(3)
    assert "preserved again" not in str(refused.value)
    assert "back to preserved" not in str(refused.value)


def late_before_the_fence(log: EndedLog, monkeypatch: pytest.MonkeyPatch, late: bytes) -> None:
    """Let a request of an earlier task arrive when the log was compared, and the fence is not there yet."""
    fence = EndedPreservation._fence

    def delayed(self: EndedPreservation, *args: Any) -> Any:
        log.target.seed((ORDERS, 0), late)
        return fence(self, *args)

    monkeypatch.setattr(EndedPreservation, "_fence", delayed)


@pytest.mark.parametrize("position", [3, 8])
def test_what_arrives_before_the_fence_counts_as_copied(log: EndedLog, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    late_before_the_fence(log, monkeypatch, written(8, 2))
    rows = log.rows(position)
    assert (rows[0].segment.source_start, rows[-1].segment.source_end) == (position, 10)
    assert sum(row.segment.record_count for row in rows) == 10 - position - (position <= 5)


def test_what_arrives_before_the_fence_is_compared(log: EndedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    late_before_the_fence(log, monkeypatch, written(8, 2, first="another "))
    with pytest.raises(ConfigError, match=r"from offset 3 on: .*another mirror id") as refused:
        log.rows(3)
    assert "back to preserved" not in str(refused.value), "the fence has the offset of a record"


def test_a_source_that_has_lost_what_was_copied_is_named(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED, written(8, 5))
    with pytest.raises(ConfigError, match=r"has offsets up to 13 of this mirror, source partition orders-0 ends at 10"):
        log.rows(3)


def test_what_the_source_no_longer_has_counts_by_its_producer(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    log.source.log(ORDERS, 0).log_start_offset = 6
    assert decided_ranges(log.rows(0)) == [(DATA, 0, 6, 0), (DATA, 6, 8, 6)]


def test_what_the_target_deleted_in_front_of_a_batch_of_the_mirror_was_the_mirrors(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), *PLACED)
    log.target.log(ORDERS, 0).log_start_offset = 6
    assert decided_ranges(log.rows(3)) == [(DATA, 3, 8, 3)]


def test_deleted_records_of_an_unknown_producer_do_not_count_as_copied(log: EndedLog) -> None:
    log.target.seed((ORDERS, 0), written(0, 3), written(3, 2, producer_id=APPLICATION, first="foreign "))
    log.target.log(ORDERS, 0).log_start_offset = 5
    with pytest.raises(
        ConfigError, match=r"begins at 5, behind what was decided \(3\): .*is not known\. Mirror the topic to a new"
    ):
        log.rows(3)
    assert decided_ranges(log.rows(5)) == []


@pytest.mark.parametrize("position", [0, 3])
def test_records_of_the_mirror_behind_those_of_another_producer_are_not_copied_a_second_time(
    log: EndedLog, position: int
) -> None:
    foreign = written(3, 1, producer_id=APPLICATION, first="foreign ")
    log.target.seed((ORDERS, 0), written(0, 3), foreign, _moved(written(3, 2), 4))
    with pytest.raises(ConfigError, match=r"behind those of another producer, from offset 4 on.*new target topic with another"):
        log.rows(position)


def _moved(placed: bytes, base: int) -> bytes:
    """Return the batch as a broker stores it at another offset than its own."""
    return base.to_bytes(8, "big") + placed[8:]

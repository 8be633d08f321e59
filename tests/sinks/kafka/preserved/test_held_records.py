"""Records that a preserved target log holds and that the source has deleted since, in a strict cluster."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.mirror_runs import config
from tests.support.record_batches import batch, record

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.rows.positions import moved_by
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.preserved.held_records import HeldRecords
from shallow_mirror.sinks.micro_batches.expired_offsets import log_expired
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import SharedProducer, restamped_at
from shallow_mirror.wire.records import Fillers

ORDERS, SHARED, APPLICATION = "orders", 70, 9
TOPIC_ID = uuid.UUID(int=7 << 80)
SOURCE, TARGET = (
    SourcePartition(ORDERS, "west-id", 0),
    TargetPartition(ORDERS, base64.urlsafe_b64encode(TOPIC_ID.bytes).rstrip(b"=").decode(), 0),
)
DATA, GAP, EXPIRED = SegmentKind.DATA, SegmentKind.GAP, SegmentKind.EXPIRED


def written(base: int, count: int, *, producer_id: int = SHARED) -> bytes:
    payload = b"".join(record(delta, value=b"%d" % (base + delta)) for delta in range(count))
    return batch(base, count, producer_id=producer_id, producer_epoch=0, base_sequence=base, payload=payload)


def filler(base: int, count: int) -> bytes:
    shared = SharedProducer(producer_id=SHARED, now_ms=1_000, old_before_ms=0)
    return base.to_bytes(8, "big") + bytes(restamped_at(Fillers(None, 1 << 20).batch(count, 1_000), base, shared))[8:]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[tuple[StrictCluster, HeldRecords]]:
    with StrictCluster(cluster_id="east") as broker:
        broker.create_topic(ORDERS, topic_id=TOPIC_ID)
        client = config(tmp_path, broker.bootstrap, broker.bootstrap, [".*"]).target.client
        with closing(Cluster(client)) as cluster:
            yield broker, HeldRecords(cluster)


def rows_of(held: HeldRecords, start: int, end: int, *, is_preserved: bool = True) -> list[tuple[SegmentKind, int, int, int]]:
    expired = Segment(source=SOURCE, source_start=start, source_end=end, kind=EXPIRED, target=TARGET)
    producers = {SOURCE: SHARED} if is_preserved else {}
    deadline = Deadline.after_ms(10_000, time.monotonic)
    rows = held.replace_expired([DecidedSegment(expired, None)], producers, deadline)
    moved_by({SOURCE: Position(start, TARGET, target_end=start, shared_producer_id=SHARED)}, rows)
    log_expired(rows)
    return [(row.segment.kind, row.segment.source_start, row.segment.source_end, row.segment.record_count) for row in rows]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 10, [(DATA, 0, 3, 3), (GAP, 3, 5, 0), (DATA, 5, 7, 2), (EXPIRED, 7, 10, 0)]),
        (1, 6, [(DATA, 1, 3, 2), (GAP, 3, 5, 0), (DATA, 5, 6, 1)]),
        (7, 10, [(EXPIRED, 7, 10, 0)]),
    ],
)
def test_what_the_log_holds_counts_as_copied(
    target: tuple[StrictCluster, HeldRecords], start: int, end: int, expected: list[object]
) -> None:
    broker, held = target
    broker.seed((ORDERS, 0), written(0, 3), filler(3, 2), written(5, 2))
    assert rows_of(held, start, end) == expected


def test_records_of_another_producer_and_topics_that_are_not_preserved_stay_expired(
    target: tuple[StrictCluster, HeldRecords],
) -> None:
    broker, held = target
    assert rows_of(held, 0, 4) == [(EXPIRED, 0, 4, 0)]
    broker.seed((ORDERS, 0), written(0, 1), written(1, 1, producer_id=APPLICATION))
    assert rows_of(held, 0, 4) == [(DATA, 0, 1, 1), (EXPIRED, 1, 4, 0)]
    assert rows_of(held, 0, 4, is_preserved=False) == [(EXPIRED, 0, 4, 0)]


def test_the_log_says_of_each_offset_once_whether_it_was_copied(
    target: tuple[StrictCluster, HeldRecords], caplog: pytest.LogCaptureFixture
) -> None:
    broker, held = target
    broker.seed((ORDERS, 0), written(0, 2), written(2, 1), filler(3, 2), written(5, 2))
    rows_of(held, 0, 10)
    assert [record.getMessage().removeprefix(f"{SOURCE.topic_partition}: ") for record in caplog.records] == [
        "the source has deleted offsets 0 to 2, but the target holds them since an earlier run: they count as copied",
        "the source has deleted offsets 5 to 6, but the target holds them since an earlier run: they count as copied",
        "retention deleted offsets 7 to 9 before they were copied; continuing behind them",
    ]


def test_a_log_without_a_leader_keeps_only_its_own_row_waiting(target: tuple[StrictCluster, HeldRecords]) -> None:
    broker, held = target
    broker.create_topic("users", topic_id=uuid.UUID(int=8 << 80))
    broker.seed((ORDERS, 0), written(0, 3))
    users = SourcePartition("users", "west-id", 0)
    ours, others = (
        DecidedSegment(Segment(source=source, source_start=0, source_end=3, kind=EXPIRED, target=at), None)
        for source, at in ((SOURCE, TARGET), (users, TargetPartition("users", "users-id", 0)))
    )
    deadline, producers = Deadline.after_ms(10_000, time.monotonic), {SOURCE: SHARED, users: SHARED}
    broker.move_leader(("users", 0), -1)
    (row,) = held.replace_expired([ours, others], producers, deadline)
    assert (row.segment.source, row.segment.kind) == (SOURCE, DATA)
    with pytest.raises(RetriableError, match="users-0"):
        held.replace_expired([others], producers, deadline)

"""Which topics keep their offsets, and how many fillers they were sent."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.checkpoints.rows.topic_offsets import (
    FILLER_COLUMNS,
    TopicOffsets,
    decided_fillers,
    preserved_topics,
    recorded_fillers,
    topics_with_offsets,
)
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

TXN = SlotTxn("m-0", 5, 1)


def row(
    topic: str,
    start: int,
    end: int,
    kind: SegmentKind,
    *,
    shared: int | None = 77,
    txn: SlotTxn | None = None,
    partition: int = 0,
) -> DecidedSegment:
    is_copied = kind is SegmentKind.DATA
    segment = Segment(
        source=SourcePartition(topic, "id", partition),
        source_start=start,
        source_end=end,
        kind=kind,
        target=TargetPartition(topic, "other", partition),
        target_start=start if is_copied else None,
        target_end=end if is_copied else None,
    )
    return DecidedSegment(segment, txn, shared_producer_id=None if txn else shared)


def position(topic: str, partition: int, shared: int | None) -> tuple[SourcePartition, Position]:
    return SourcePartition(topic, "id", partition), Position(
        9, TargetPartition(topic, "other", partition), shared_producer_id=shared
    )


ROWS = (
    row("kept", 7, 7, SegmentKind.GAP),
    row("kept", 7, 20, SegmentKind.DATA),
    row("kept", 20, 21, SegmentKind.COMMIT),
    row("kept", 21, 25, SegmentKind.ABORTED),
    row("kept", 0, 3, SegmentKind.GAP, partition=1),
    row("kept", 25, 30, SegmentKind.EXPIRED, shared=None),
    row("other", 0, 10, SegmentKind.DATA, txn=TXN),
    row("other", 10, 11, SegmentKind.COMMIT, txn=TXN),
    row("other", 11, 15, SegmentKind.GAP, shared=None),
)


def test_a_topic_is_preserved_where_all_of_its_partitions_are() -> None:
    positions = dict(
        [
            position("kept", 0, 77),
            position("kept", 1, 78),
            position("mixed", 0, 77),
            position("mixed", 1, None),
            position("t", 0, None),
        ]
    )
    assert preserved_topics(positions) == {"kept"}
    assert topics_with_offsets(positions, {"kept": 4, "mixed": 3}) == (
        TopicOffsets(topic="kept", offsets="preserved", filler_count=4),
        TopicOffsets(topic="mixed", offsets="translated"),
        TopicOffsets(topic="t", offsets="translated"),
    )


def test_offsets_without_a_record_are_fillers_where_offsets_are_preserved() -> None:
    table = rows_to_arrow(ROWS, 1, 1, 0).select(FILLER_COLUMNS)
    pieces = [pa.Table.from_batches([batch]) for batch in table.to_batches(max_chunksize=2)]
    assert recorded_fillers(pieces, {"kept"}) == {"kept": 1 + 4 + 3 + 5}
    assert decided_fillers(ROWS, {"kept"}) == recorded_fillers(pieces, {"kept"})


def test_fillers_of_a_forgotten_topic_are_not_those_of_another_one_with_its_name() -> None:
    former = [replace(row, segment=replace(row.segment, source=SourcePartition("kept", "former", 0))) for row in ROWS[:4]]
    table = rows_to_arrow([*former, *ROWS], 1, 1, 0).select(FILLER_COLUMNS)
    assert recorded_fillers([table], {"kept"}, ["former"]) == recorded_fillers([rows_to_arrow(ROWS, 1, 1, 0)], {"kept"})


def test_rows_of_a_transaction_hold_no_fillers() -> None:
    """Of a topic that was damaged and went on with translated offsets, before it was preserved again."""
    assert decided_fillers(ROWS, {"other"}) == {"other": 4}
    assert recorded_fillers([rows_to_arrow(ROWS, 1, 1, 0)], ()) == {}

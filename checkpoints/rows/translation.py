"""Pure: translate source offsets to target offsets and back, over arrays of segments.

T(s) = s + shift inside a data segment; otherwise the start of the next data segment, or the end of the last one. T is
monotonic, and on data its inverse is exact. The same arrays serve both ways: only the roles of the sides change.
Records that were released from quarantine are apart: their copies lie behind those of later records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shallow_mirror.types import COPIED_KINDS, SegmentKind, TopicPartition

TRANSLATION_COLUMNS = [
    f"{side}_{name}" for side in ("source", "target") for name in ("topic", "topic_id", "partition", "start", "end")
] + ["kind", "micro_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The place that an offset leads to. After `reverse` the fields `target_…` hold the *source's* topic, partition and offset.

    `exact`: the offset holds a mirrored record, and this is its offset. Otherwise the offset is that of the next mirrored
    record, or with `beyond` the end of the map. `target_offset` is None when the map knows no data for the partition.
    `kind` is that of the segment that holds the offset, None outside all segments.
    """

    kind: SegmentKind | None
    exact: bool
    beyond: bool
    target_topic: str | None
    target_partition: int | None
    target_offset: int | None


class Translator:
    """The data of one partition: ranges [start, end) and the begin of each on the other side, ordered by start.

    `released`: those released from quarantine, of which only exact translations count.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        lead_to: NDArray[np.int64],
        topic_partitions: Sequence[TopicPartition],
        partition_index: NDArray[np.int64],
        others: Sequence[tuple[int, int, SegmentKind]] = (),
        released: Translator | None = None,
    ) -> None:
        self._released = released
        order = np.argsort(starts, kind="stable")
        self._starts, self._ends, self._lead_to = starts[order], ends[order], lead_to[order]
        self._topic_partitions, self._partition_index = tuple(topic_partitions), partition_index[order]
        kept = sorted(span for span in others if span[1] > span[0])
        self._other_starts = np.array([start for start, _, _ in kept], np.int64)
        self._others = kept

    @classmethod
    def of_source(cls, rows: pa.Table) -> Translator:
        """Build it from all rows of one source partition (one topic id), of every kind."""
        others = rows.filter(pa.array(~_has_kind(rows, *COPIED_KINDS)))
        kinds = map(SegmentKind, others.column("kind").to_pylist())
        spans = zip(_longs(others, "source_start").tolist(), _longs(others, "source_end").tolist(), kinds, strict=True)
        return cls._both(rows, "source", "target", list(spans))

    @classmethod
    def of_target(cls, rows: pa.Table) -> Translator:
        """Build it from all rows of one target partition (one topic id). Markers and others' records there have no kind."""
        return cls._both(rows, "target", "source")

    @classmethod
    def _both(cls, rows: pa.Table, side: str, other: str, others: Sequence[tuple[int, int, SegmentKind]] = ()) -> Translator:
        data, released = (rows.filter(pa.array(_has_kind(rows, kind))) for kind in COPIED_KINDS)
        beside = cls(*_columns_of_side(released, side, other)) if released.num_rows else None
        return cls(*_columns_of_side(data, side, other), others, beside)

    def find(self, offset: int) -> Translation:
        if self._released is not None:
            released = self._released.find(offset)
            if released.exact:
                return replace(released, kind=SegmentKind.RELEASED)
        if len(self._starts) == 0:
            return Translation(
                kind=self._kind_of(offset), exact=False, beyond=True, target_topic=None, target_partition=None, target_offset=None
            )
        at = int(np.searchsorted(self._starts, offset, side="right")) - 1
        if at >= 0 and offset < self._ends[at]:
            return self._translation(at, offset - int(self._starts[at]), kind=SegmentKind.DATA, exact=True)
        kind = self._kind_of(offset)
        if at + 1 < len(self._starts):
            return self._translation(at + 1, 0, kind=kind)
        return self._translation(at, int(self._ends[at] - self._starts[at]), kind=kind, beyond=True)

    def _translation(
        self, at: int, distance: int, *, kind: SegmentKind | None, exact: bool = False, beyond: bool = False
    ) -> Translation:
        topic_partition = self._topic_partitions[int(self._partition_index[at])]
        return Translation(
            kind=kind,
            exact=exact,
            beyond=beyond,
            target_topic=topic_partition.topic,
            target_partition=topic_partition.partition,
            target_offset=int(self._lead_to[at]) + distance,
        )

    def _kind_of(self, offset: int) -> SegmentKind | None:
        at = int(np.searchsorted(self._other_starts, offset, side="right")) - 1
        return self._others[at][2] if at >= 0 and offset < self._others[at][1] else None


def _has_kind(rows: pa.Table, *kinds: SegmentKind) -> NDArray[np.bool_]:
    return np.asarray(pc.is_in(rows.column("kind").cast(pa.string()), value_set=pa.array([kind.value for kind in kinds])))


def _columns_of_side(
    rows: pa.Table, side: str, other: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[TopicPartition], NDArray[np.int64]]:
    topic_partitions, partition_index = _topic_partitions(rows, f"{other}_topic", f"{other}_partition")
    return (
        _longs(rows, f"{side}_start"),
        _longs(rows, f"{side}_end"),
        _longs(rows, f"{other}_start"),
        topic_partitions,
        partition_index,
    )


def _longs(rows: pa.Table, column: str) -> NDArray[np.int64]:
    return np.asarray(rows.column(column).to_numpy(), np.int64)


def _topic_partitions(rows: pa.Table, topic: str, partition: str) -> tuple[list[TopicPartition], NDArray[np.int64]]:
    """Return the topic-partitions, and for every row the index of its own."""
    if rows.num_rows == 0:
        return [], np.zeros(0, np.int64)
    topics, partitions = (rows.column(name).combine_chunks().dictionary_encode() for name in (topic, partition))
    codes = topics.indices.to_numpy().astype(np.int64) * len(partitions.dictionary) + partitions.indices.to_numpy()
    distinct_codes, partition_index = np.unique(codes, return_inverse=True)
    names, numbers = topics.dictionary.to_pylist(), partitions.dictionary.to_pylist()
    topic_partitions = [
        TopicPartition(names[code // len(numbers)], numbers[code % len(numbers)]) for code in distinct_codes.tolist()
    ]
    return topic_partitions, partition_index.astype(np.int64)

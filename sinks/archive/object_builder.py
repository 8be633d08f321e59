"""Executor: one object of an archive while it is written: parts in which the batches of a partition are adjacent, then a footer.

A part is collected in a buffer of PART_BYTES, so memory does not grow with partitions or the object. What is large enough to be a
run of the index by itself is written out of the receive buffer, without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shallow_mirror.archive_format import (
    INDEX_BYTES,
    AbortedTxn,
    ArchivedSegment,
    IndexEntry,
    LeaderEpochStart,
    ObjectHeader,
    ObjectName,
    StoredBatches,
    build_footer,
)
from shallow_mirror.errors import CorruptBatchError
from shallow_mirror.object_store import ObjectWriter
from shallow_mirror.sinks.slot_values import ReadPart
from shallow_mirror.types import Segment, SegmentKind, SourcePartition
from shallow_mirror.wire import CONTROL_BIT, MarkerType, crc32c, joined_crc, parse_marker

PART_BYTES = 8 << 20
"""Batches of so many bytes at most are sorted by partition before they are written."""


@dataclass(slots=True)
class _Chunk:
    """Adjacent batches of one partition of one response."""

    data: memoryview
    size_bytes: npt.NDArray[np.int64]
    base_offsets: npt.NDArray[np.int64]
    max_timestamps: npt.NDArray[np.int64]


@dataclass(slots=True)
class _StoredPartition:
    """Content of the row of one partition."""

    index: list[IndexEntry] = field(default_factory=list)
    leader_epochs: list[LeaderEpochStart] = field(default_factory=list)
    aborted: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """By producer id and first offset: the offset of the abort marker."""
    run_crc32c: list[int] = field(default_factory=list)
    """Of each entry of the index."""
    min_timestamp_ms: int | None = None


class ObjectBuilder:
    """An object of one slot and one retention class."""

    def __init__(self, name: ObjectName, writer: ObjectWriter, retention_class: str) -> None:
        """`retention_class`: the topic pattern."""
        self.name = name
        self.size_bytes = 0
        """Of all batches so far."""
        self._writer = writer
        self._retention_class = retention_class
        self._stored: dict[SourcePartition, _StoredPartition] = {}
        self._part: dict[SourcePartition, list[_Chunk]] = {}
        self._buffer = memoryview(bytearray(PART_BYTES))
        """One for all parts: memory that is new to the process costs more than the copy into it."""
        self._part_bytes = 0
        """Of the buffer, in use."""
        self._position = 0

    def add(self, part: ReadPart, first: int, end: int, position: int) -> None:
        """Add the batches `first` to `end` of a part of a response, copied or written. `position`: where their row continues.

        Raises CorruptBatchError for a control batch that holds no control record.
        """
        index, headers = part.index, part.index.headers[first:end]
        start, sizes = int(index.pos[first]), index.size_bytes[first:end]
        size = int(index.pos[end - 1] + index.size_bytes[end - 1]) - start
        stored = self._stored.setdefault(part.source, _StoredPartition())
        is_run = size >= min(INDEX_BYTES, PART_BYTES)
        chunk = _Chunk(
            part.records[start : start + size] if is_run else self._copied(part.records[start : start + size]),
            sizes.copy(),
            headers["base_offset"].astype(np.int64),
            headers["max_timestamp"].astype(np.int64),
        )
        # The batch in which a log begins, after DeleteRecords, may begin below the position.
        chunk.base_offsets[0] = max(chunk.base_offsets[0], position)
        self._part.setdefault(part.source, []).append(chunk)
        _note_leader_epochs(stored, headers["partition_leader_epoch"], chunk.base_offsets)
        _note_timestamps(stored, headers["base_timestamp"])
        _note_aborted(stored, part, first, end)
        self.size_bytes += size
        if is_run:
            self._write_partition(part.source)

    def _copied(self, records: memoryview) -> memoryview:
        """Return a copy in the buffer, which is written first if there is no room left."""
        if self._part_bytes + len(records) > PART_BYTES:
            self._write_part()
        begin, self._part_bytes = self._part_bytes, self._part_bytes + len(records)
        self._buffer[begin : self._part_bytes] = records
        return self._buffer[begin : self._part_bytes]

    def _write_part(self) -> None:
        for source in sorted(self._part):
            self._write_partition(source)
        self._part_bytes = 0

    def _write_partition(self, source: SourcePartition) -> None:
        chunks, stored = self._part.pop(source), self._stored[source]
        runs = _index_of(chunks, self._position)
        stored.index += runs
        crc, number, left = 0, 0, runs[0].size_bytes
        for chunk in chunks:
            data = chunk.data
            # A run may begin inside of a chunk, and the other way round. A piece is written while the processor has it at hand.
            while len(data):
                piece, data = data[:left], data[left:]
                crc, left = crc32c(piece, crc), left - len(piece)
                self._writer.write(piece)
                if not left:
                    stored.run_crc32c.append(crc)
                    number += 1
                    crc, left = 0, runs[number].size_bytes if number < len(runs) else 0
            self._position += len(chunk.data)

    def close(self, source_cluster_id: str, segments: Sequence[Segment]) -> Mapping[SourcePartition, StoredBatches]:
        """Write the rest and the footer, and return the places of the batches of each partition, once they are durable.

        `segments`: the rows of the object's partitions, and those of others that have no batches.
        """
        self._write_part()
        stored = {source: self._stored_batches(partition) for source, partition in self._stored.items()}
        rows = [
            ArchivedSegment(segment, stored[segment.source] if segment.kind is SegmentKind.DATA else None) for segment in segments
        ]
        self._writer.write(build_footer(ObjectHeader.of_object(self.name, source_cluster_id), rows))
        self._writer.close()
        return stored

    def abort(self) -> None:
        self._writer.abort()

    @property
    def sources(self) -> frozenset[SourcePartition]:
        return frozenset(self._stored)

    def _stored_batches(self, partition: _StoredPartition) -> StoredBatches:
        return StoredBatches(
            object_name=str(self.name),
            index=tuple(partition.index),
            leader_epochs=tuple(partition.leader_epochs),
            aborted=tuple(AbortedTxn(*begin, last_offset) for begin, last_offset in sorted(partition.aborted.items())),
            crc32c=joined_crc(partition.run_crc32c, [run.size_bytes for run in partition.index]),
            min_timestamp_ms=partition.min_timestamp_ms,
            retention_class=self._retention_class,
            run_crc32c=tuple(partition.run_crc32c),
        )


def _index_of(chunks: Sequence[_Chunk], position: int) -> list[IndexEntry]:
    """Return the runs of adjacent batches, of about INDEX_BYTES. `position`: of the first batch in the object."""
    sizes = np.concatenate([chunk.size_bytes for chunk in chunks])
    positions = position + np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff((positions - position) // INDEX_BYTES, prepend=-1))
    return [
        IndexEntry(*fields)
        for fields in zip(
            np.concatenate([chunk.base_offsets for chunk in chunks])[starts].tolist(),
            positions[starts].tolist(),
            np.add.reduceat(sizes, starts).tolist(),
            np.maximum.reduceat(np.concatenate([chunk.max_timestamps for chunk in chunks]), starts).tolist(),
            strict=True,
        )
    ]


def _note_leader_epochs(stored: _StoredPartition, epochs: npt.NDArray[np.int32], base_offsets: npt.NDArray[np.int64]) -> None:
    last = stored.leader_epochs[-1].leader_epoch if stored.leader_epochs else None
    for i in np.flatnonzero(np.append(True, epochs[1:] != epochs[:-1])).tolist():
        if int(epochs[i]) != last:
            last = int(epochs[i])
            stored.leader_epochs.append(LeaderEpochStart(last, int(base_offsets[i])))


def _note_timestamps(stored: _StoredPartition, base_timestamps: npt.NDArray[np.int64]) -> None:
    known = base_timestamps[base_timestamps >= 0]
    if len(known):
        least = int(known.min())
        stored.min_timestamp_ms = least if stored.min_timestamp_ms is None else min(stored.min_timestamp_ms, least)


def _note_aborted(stored: _StoredPartition, part: ReadPart, first: int, end: int) -> None:
    """Note the aborted transactions of a response that have data in these batches or before them, and their ends."""
    headers = part.index.headers
    last_offset = int(part.index.last_offset[end - 1])
    for producer_id, first_offset in part.aborted:
        if first_offset <= last_offset:
            stored.aborted.setdefault((producer_id, first_offset), None)
    if not stored.aborted:
        return
    is_control = (headers["attributes"][first:end] & CONTROL_BIT) != 0
    for i in (np.flatnonzero(is_control) + first).tolist():
        producer_id, offset = int(headers["producer_id"][i]), int(headers["base_offset"][i])
        if headers["records_count"][i] <= 0 or not _is_abort(part, i):
            continue
        # One producer id may have several aborted transactions, one after the other: a marker ends the one that is open.
        begun = [
            (producer, first_offset)
            for (producer, first_offset), marker in stored.aborted.items()
            if producer == producer_id and first_offset <= offset and marker is None
        ]
        if begun:
            stored.aborted[min(begun)] = offset


def _is_abort(part: ReadPart, i: int) -> bool:
    try:
        return parse_marker(part.batch(i)).type is MarkerType.ABORT
    except ValueError as error:
        base_offset = int(part.index.headers["base_offset"][i])
        raise CorruptBatchError(part.source.topic_partition, base_offset, int(part.index.pos[i]), str(error)) from error

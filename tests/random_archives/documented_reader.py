"""Reader of an archive by docs/reference/archive-format.md alone: Delta rows through `deltalake`, objects as plain files.

It imports nothing of the package: what it reads must be what the package restores. Rules are cited by their numbers there.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import crc32c
import lz4.frame
import zstandard
from deltalake import DeltaTable
from tests.random_archives.source_logs import LogRecord, first_time_after

VISIBLE = "COPY_SEGMENT_FINISHED"
_HEADER = struct.Struct(">qiibIhiqqqhii")
_TRAILER = struct.Struct(">II6sH")
_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_XERIAL = b"\x82SNAPPY\x00"
NO_END = (1 << 63) - 1


class FormatError(Exception):
    """The archive is not as its format says."""


class PartitionId(NamedTuple):
    topic: str
    topic_id: str
    partition: int


class RawBatch(NamedTuple):
    """The header of a record batch, and its bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    data: bytes

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_commit(self) -> bool:
        """Return whether a marker commits: the type is in its key, behind five fields of a byte and a version."""
        return bool(struct.unpack_from(">hh", self.data, _HEADER.size + 5)[1])

    def records(self) -> Iterator[LogRecord]:
        yield from read_records(self)

    def first_time_after(self, after_ms: int) -> int | None:
        return first_time_after(self.base_timestamp, self.max_timestamp, after_ms)


def read_batches(data: bytes) -> Iterator[RawBatch]:
    """Yield whole batches (rule 6), each checked by its CRC (rule 9)."""
    while data:
        header = _HEADER.unpack_from(data)
        size = 12 + header[1]
        batch = RawBatch._make((*header, data[:size]))
        if len(batch.data) != size or crc32c.crc32c(batch.data[21:]) != batch.crc:
            raise FormatError(f"the batch of offset {batch.base_offset} is damaged")
        yield batch
        data = data[size:]


def read_records(batch: RawBatch) -> Iterator[LogRecord]:
    """Yield the records of a batch of magic 2, opened."""
    data, pos = decompressed(batch.attributes & 0x07, batch.data[_HEADER.size :]), 0
    for _ in range(batch.records_count):
        size, pos = _varint(data, pos)
        end = pos + size
        timestamp_delta, pos = _varint(data, pos + 1)
        offset_delta, pos = _varint(data, pos)
        key, pos = _text(data, pos)
        value, pos = _text(data, pos)
        count, pos = _varint(data, pos)
        headers: list[tuple[bytes, bytes | None]] = []
        for _ in range(count):
            name, pos = _text(data, pos)
            content, pos = _text(data, pos)
            headers.append((name or b"", content))
        if pos != end:
            raise FormatError(f"a record of the batch of offset {batch.base_offset} ends at byte {pos}, not {end}")
        timestamp_ms = batch.max_timestamp if batch.attributes & _APPEND_TIME else batch.base_timestamp + timestamp_delta
        yield LogRecord(batch.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers))


def decompressed(codec: int, data: bytes) -> bytes:
    if codec == 0 or not data:
        return data
    if codec == 1:
        return zlib.decompress(data, 31)
    if codec == 2:
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in _snappy_blocks(data))
    if codec == 3:
        return bytes(lz4.frame.decompress(data))
    with zstandard.ZstdDecompressor().stream_reader(data) as stream:
        return stream.read()


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield data
        return
    pos = 16
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4])
        yield data[pos + 4 : pos + 4 + size]
        pos += 4 + size


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[pos]
        raw |= (byte & 0x7F) << shift
        pos, shift = pos + 1, shift + 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos


def _text(data: bytes, pos: int) -> tuple[bytes | None, int]:
    size, pos = _varint(data, pos)
    return (None, pos) if size < 0 else (data[pos : pos + size], pos + size)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `archive_segments`. `index`: (first offset, position, bytes). `aborted`: (producer id, first, last offset)."""

    source: PartitionId
    lineage: int
    start: int
    end: int
    kind: str
    state: str
    decision: int
    decided_at: datetime
    object_name: str | None
    size_bytes: int
    crc32c: int
    index: Sequence[tuple[int, int, int]]
    aborted: Sequence[tuple[int, int, int | None]]

    @property
    def has_batches(self) -> bool:
        return self.kind == "data" and self.state == VISIBLE


@dataclass(frozen=True, slots=True)
class LogPart:
    """A batch as a log of the archive has it: its records of [start, end), and whether it was aborted."""

    batch: RawBatch
    start: int
    end: int
    is_aborted: bool

    def records(self) -> Iterator[LogRecord]:
        return (record for record in self.batch.records() if self.start <= record.offset < self.end)


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """The log of one partition in one lineage, up to a decision. `start`: behind what retention has deleted.

    `expired`: where offsets begin that had expired at the source.
    """

    lineage: int
    start: int
    end: int
    parts: Sequence[LogPart]
    expired: Sequence[int]

    def records(self, end: int, *, is_committed_only: bool = True) -> Iterator[LogRecord]:
        """Yield what a consumer sees in front of `end`."""
        for part in self.parts:
            if not part.batch.is_control and not (is_committed_only and part.is_aborted):
                yield from (record for record in part.records() if record.offset < end)


@dataclass(frozen=True, slots=True)
class Description:
    """A row of `archive_topics`."""

    topic: str
    topic_id: str
    partitions: int
    seen_at: datetime


@dataclass(slots=True)
class DocumentedReader:
    """An archive as it is now. `tables` and `objects` are folders."""

    tables: Path
    objects: Path
    rows: Sequence[Row] = field(init=False)
    descriptions: Sequence[Description] = field(init=False)
    _batches: dict[tuple[str | None, int, int], Sequence[RawBatch]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        table = DeltaTable(str(self.tables / "archive_segments")).to_pyarrow_table()
        self.rows = sorted(map(_row, table.to_pylist()), key=lambda row: (row.source, row.lineage, row.start, row.end))
        topics = DeltaTable(str(self.tables / "archive_topics")).to_pyarrow_table()
        self.descriptions = [
            Description(row["source_topic"], row["source_topic_id"], row["partitions"], row["seen_at"])
            for row in topics.to_pylist()
        ]

    def log(self, source: PartitionId, *, lineage: int | None = None, decision: int | None = None) -> ArchivedLog | None:
        """Return the log of a lineage, by default of the newest one, up to a decision; None without a row."""
        rows = [row for row in self.rows if row.source == source and (decision is None or row.decision <= decision)]
        numbers = sorted({row.lineage for row in rows if lineage is None or row.lineage <= lineage})
        if not numbers:
            return None
        newest, clip, later_aborts = numbers[-1], NO_END, set[tuple[int, int]]()
        parts: list[LogPart] = []
        expired: list[int] = []
        deleted_end, start, end = -1, NO_END, 0
        for number in reversed(numbers):  # rule 4
            own = [row for row in rows if row.lineage == number]
            lost = {(txn, first) for (txn, first), marker in _markers(own).items() if marker >= clip and clip < NO_END}
            of_lineage: list[LogPart] = []
            for row in own:
                if row.start > clip or (row.start == clip and row.end > clip):
                    continue
                row_end = min(row.end, clip)
                start, end = min(start, row.start), max(end, row_end if number == newest else 0)
                if row.state != VISIBLE:
                    deleted_end = max(deleted_end, row_end)
                if row.kind == "expired":
                    expired.append(row.start)
                if row.has_batches:
                    aborted = [txn for txn in row.aborted if (txn[0], txn[1]) not in lost]
                    aborted += [(*key, None) for key in later_aborts if number != newest and key[1] < row_end]
                    of_lineage += self._parts(row, row_end, aborted)
            parts = of_lineage + parts
            later_aborts |= {key for row in own for key in ((txn[0], txn[1]) for txn in row.aborted)} - lost
            clip = min([clip, *(row.start for row in own)])
        start = max(start, deleted_end)
        return ArchivedLog(newest, start, max(start, end), [part for part in parts if part.end > start], expired)

    def own_parts(self, source: PartitionId, lineage: int) -> list[LogPart]:
        """Return what the rows of one lineage have, whatever the later ones replaced."""
        own = [row for row in self.rows if row.source == source and row.lineage == lineage and row.has_batches]
        return [part for row in own for part in self._parts(row, row.end, row.aborted)]

    def _parts(self, row: Row, end: int, aborted: Sequence[tuple[int, int, int | None]]) -> Iterator[LogPart]:
        for batch in self._row_batches(row):
            first, last = max(row.start, batch.base_offset), min(end, batch.end_offset)
            if first >= last:
                continue  # rule 7
            is_aborted = batch.is_transactional and any(  # rule 8
                producer_id == batch.producer_id and begin <= batch.base_offset < (row.end if marker is None else marker)
                for producer_id, begin, marker in aborted
            )
            yield LogPart(batch, first, last, is_aborted)

    def _row_batches(self, row: Row) -> Sequence[RawBatch]:
        key = (row.object_name, row.lineage, row.index[0][1])
        if key not in self._batches:
            content = (self.objects / (row.object_name or "")).read_bytes()
            stored = b"".join(content[position : position + size] for _, position, size in row.index)
            if len(stored) != row.size_bytes or crc32c.crc32c(stored) != row.crc32c:  # rule 9
                raise FormatError(f"{row.object_name}: the checksum of [{row.start}, {row.end}) of {row.source} is another one")
            self._batches[key] = tuple(read_batches(stored))
        return self._batches[key]

    def footer_rows(self, object_name: str) -> list[dict[str, Any]]:
        """Return the rows of a footer."""
        content = (self.objects / object_name).read_bytes()
        checksum, size, magic, number = _TRAILER.unpack(content[-16:])
        document = content[-16 - size : -16]
        if (magic, number) != (b"SMARCH", 1) or crc32c.crc32c(document) != checksum:
            raise FormatError(f"{object_name} is no object of format 1")
        rows: list[dict[str, Any]] = json.loads(document)["rows"]
        return rows

    def sources(self, decision: int | None = None) -> dict[PartitionId, int]:
        """Return the newest decision of each partition, up to one."""
        newest: dict[PartitionId, int] = {}
        for row in self.rows:
            if decision is None or row.decision <= decision:
                newest[row.source] = max(newest.get(row.source, 0), row.decision)
        return newest


def _markers(rows: Sequence[Row]) -> dict[tuple[int, int], int]:
    """Return the abort marker of each transaction that rows of one lineage list; NO_END where none of them has it."""
    markers: dict[tuple[int, int], int] = {}
    for row in rows:
        for producer_id, first, last in row.aborted:
            key = producer_id, first
            markers[key] = min(NO_END if last is None else last, markers.get(key, NO_END))
    return markers


def _row(row: Mapping[str, Any]) -> Row:
    return Row(
        source=PartitionId(row["source_topic"], row["source_topic_id"], row["source_partition"]),
        lineage=row["lineage"],
        start=row["source_start"],
        end=row["source_end"],
        kind=row["kind"],
        state=row["state"],
        decision=row["micro_batch"],
        decided_at=row["decided_at"],
        object_name=row["object_name"],
        size_bytes=row["size_bytes"] or 0,
        crc32c=row["crc32c"] or 0,
        index=tuple((run["start_offset"], run["position"], run["size_bytes"]) for run in row["index"] or ()),
        aborted=tuple((txn["producer_id"], txn["first_offset"], txn["last_offset"]) for txn in row["aborted"] or ()),
    )

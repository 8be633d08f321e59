"""Does an archive hold what its source holds, once, and nothing besides? Without the readers of the project.

The source is read from the log segments of its broker, the archive from the rows of its table, as any Delta reader sees them,
and from its objects as plain files. Batches are compared byte by byte.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
from deltalake import DeltaTable
from tests.faults.check import Checked
from tests.faults.writers import Outcome, Written

from shallow_mirror.types import TopicPartition

_HEADER = struct.Struct(">qiiBIhiqqqhii")
"""Of a record batch: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, two timestamps, producer id and
epoch, sequence number, number of records."""
_LENGTH_ENDS = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MARKER_TYPE = struct.Struct(">h")
_MARKER_TYPE_AT = _HEADER.size + 7
"""One-byte length, attributes, timestamp delta, offset delta and key length, then the version of the key."""
_ABORT = 0

VISIBLE, DELETED = "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_FINISHED"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch with its bytes. `end_offset`: behind its last record."""

    base_offset: int
    end_offset: int
    attributes: int
    producer_id: int
    record_count: int
    data: bytes

    @property
    def is_abort_marker(self) -> bool:
        return bool(self.attributes & _CONTROL) and _MARKER_TYPE.unpack_from(self.data, _MARKER_TYPE_AT)[0] == _ABORT


def batches_of(data: bytes, start: int = 0) -> list[Batch]:
    """Return the whole batches behind byte `start`; a last one that is not complete is left out."""
    batches = []
    while start + _HEADER.size <= len(data):
        base_offset, length, _, _, _, attributes, last_delta, _, _, producer_id, _, _, count = _HEADER.unpack_from(data, start)
        end = start + _LENGTH_ENDS + length
        if length <= 0 or end > len(data):
            break
        batches.append(Batch(base_offset, base_offset + last_delta + 1, attributes, producer_id, count, data[start:end]))
        start = end
    return batches


class SourceLog:
    """The log of a broker, from the files of its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[TopicPartition, int] = {}
        self._batches: defaultdict[TopicPartition, list[Batch]] = defaultdict(list)
        self._former: defaultdict[TopicPartition, list[Sequence[Batch]]] = defaultdict(list)

    def before_truncation(self, topic_partition: TopicPartition) -> None:
        """Read the log once more and keep it: what the files hold from now on is another one."""
        self._former[topic_partition].append(tuple(self.batches(topic_partition)))
        self._batches[topic_partition] = []
        self._read_bytes[topic_partition] = 0

    def logs(self, topic_partition: TopicPartition) -> list[Sequence[Batch]]:
        """Return the logs that were truncated, in order, and the one that the partition has now."""
        return [*self._former[topic_partition], self.batches(topic_partition)]

    def batches(self, topic_partition: TopicPartition) -> Sequence[Batch]:
        """Return what the log of a partition holds now. Nothing of it may have been deleted since the last call."""
        segments = sorted((self._folder / f"{topic_partition.topic}-{topic_partition.partition}").glob("*.log"))
        new = batches_of(b"".join(segment.read_bytes() for segment in segments), self._read_bytes.get(topic_partition, 0))
        self._read_bytes[topic_partition] = self._read_bytes.get(topic_partition, 0) + sum(len(batch.data) for batch in new)
        self._batches[topic_partition] += new
        return self._batches[topic_partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRow:
    """A row of `archive_segments`. `index`: (offset, position, size) of its runs; `aborted`: (producer id, first, last offset).

    `lineage`: 0, and one more behind each truncation of the source's log.
    """

    topic_partition: TopicPartition
    start: int
    end: int
    kind: str
    state: str
    micro_batch: int = 0
    object_name: str | None = None
    size_bytes: int = 0
    record_count: int = 0
    crc32c: int = 0
    index: tuple[tuple[int, int, int], ...] = ()
    aborted: tuple[tuple[int, int, int | None], ...] = ()
    lineage: int = 0

    @property
    def is_visible(self) -> bool:
        return self.kind == "data" and self.state == VISIBLE

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.start}, {self.end}){f' of lineage {self.lineage}' if self.lineage else ''}"


def load_archived_rows(tables: Path) -> list[ArchivedRow]:
    """Read all rows, in the order of partitions, lineages and offsets; none where the table is not there yet."""
    if not DeltaTable.is_deltatable(str(tables / "archive_segments")):
        return []
    rows = DeltaTable(str(tables / "archive_segments")).to_pyarrow_table().to_pylist()
    return sorted(map(_row_of, rows), key=lambda row: (row.topic_partition, row.lineage, row.start, row.end))


def _row_of(row: Mapping[str, Any]) -> ArchivedRow:
    return ArchivedRow(
        topic_partition=TopicPartition(row["source_topic"], row["source_partition"]),
        start=row["source_start"],
        end=row["source_end"],
        kind=row["kind"],
        state=row["state"],
        micro_batch=row["micro_batch"],
        object_name=row["object_name"],
        size_bytes=row["size_bytes"] or 0,
        record_count=row["record_count"] or 0,
        crc32c=row["crc32c"] or 0,
        index=tuple((entry["start_offset"], entry["position"], entry["size_bytes"]) for entry in row["index"] or ()),
        aborted=tuple((txn["producer_id"], txn["first_offset"], txn["last_offset"]) for txn in row["aborted"] or ()),
        lineage=row["lineage"],
    )


def load_files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder of objects by its name, hidden ones too, but for those beside the objects."""
    beside = {"topics", "owners", "rows"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name not in beside)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def lineage_differences(rows: Sequence[ArchivedRow], files: Mapping[str, bytes], logs: Sequence[Sequence[Batch]]) -> list[str]:
    """Pure. `rows` are those of one partition, ordered, `logs` what it held, one more behind each truncation.

    Every lineage has to be its own log from where it begins; in front of that, both logs have to be the same.
    """
    by_lineage = {number: list(group) for number, group in itertools.groupby(rows, key=lambda row: row.lineage)}
    if not rows:
        return []
    if sorted(by_lineage) != list(range(len(logs))):
        return [f"lineage: {rows[0].topic_partition}: lineages {sorted(by_lineage)} of {len(logs)} logs"]
    differences = differences_of(by_lineage[0], files, logs[0])
    for number in range(1, len(logs)):
        own, former = by_lineage[number], by_lineage[number - 1]
        differences += differences_of(own, files, logs[number])
        start = own[0].start
        if start > former[-1].end:
            differences.append(
                f"hole: {own[0].topic_partition}: lineage {number} begins at {start}, the one before it ends at {former[-1].end}"
            )
        before = [[batch.data for batch in logs[each] if batch.base_offset < start] for each in (number - 1, number)]
        if before[0] != before[1]:
            differences.append(
                f"lost: {own[0].topic_partition}: lineage {number} begins at {start}, its log differs in front of that"
            )
    return differences


def differences_of(rows: Sequence[ArchivedRow], files: Mapping[str, bytes], source: Sequence[Batch]) -> list[str]:
    """Pure. `rows` are those of one partition and lineage, ordered, `source` its log. A difference begins with its kind and a colon."""
    differences = [*_holes(rows)]
    base_offsets = [batch.base_offset for batch in source]
    aborted = _aborted_txns(source)
    for row in rows:
        expected = source[bisect.bisect_left(base_offsets, row.start) : bisect.bisect_left(base_offsets, row.end)]
        if row.kind != "data":
            differences += [f"lost: {row}: of kind {row.kind}, but the source has offset {b.base_offset}" for b in expected[:1]]
        elif row.is_visible:
            differences += _row_differences(row, files, expected)
            differences += _aborted_differences(row, expected, aborted)
    return differences


def _holes(rows: Sequence[ArchivedRow]) -> Iterable[str]:
    for before, row in itertools.pairwise(rows):
        if row.start > before.end:
            yield f"hole: {row.topic_partition}: no row for offsets [{before.end}, {row.start})"
        elif row.start < before.end:
            yield f"twice: {row.topic_partition}: two rows for offsets [{row.start}, {min(row.end, before.end)})"
    if rows and rows[0].start != 0 and rows[0].lineage == 0:
        yield f"hole: {rows[0].topic_partition}: no row for offsets [0, {rows[0].start})"


def _row_differences(row: ArchivedRow, files: Mapping[str, bytes], expected: Sequence[Batch]) -> Iterable[str]:
    content = files.get(row.object_name or "")
    if content is None:
        yield f"lost: {row}: there is no file {row.object_name}"
        return
    runs = [content[position : position + size] for _, position, size in row.index]
    stored = b"".join(runs)
    batches = batches_of(stored)
    if sum(len(batch.data) for batch in batches) != len(stored):
        yield f"changed: {row}: {row.object_name} does not hold whole batches there"
    if len(stored) != row.size_bytes:
        yield f"changed: {row}: {len(stored)} bytes, the row says {row.size_bytes}"
    if crc32c.crc32c(stored) != row.crc32c:
        yield f"changed: {row}: the checksum of the row is another one"
    if sum(batch.record_count for batch in expected if not batch.attributes & _CONTROL) != row.record_count:
        yield f"changed: {row}: the row says {row.record_count} records"
    for (start_offset, _, _), run in zip(row.index, runs, strict=True):
        if not run or batches_of(run)[0].base_offset != start_offset:
            yield f"changed: {row}: the run of offset {start_offset} begins with another batch"
    yield from _batch_differences(row, batches, expected)


def _batch_differences(row: ArchivedRow, stored: Sequence[Batch], expected: Sequence[Batch]) -> Iterable[str]:
    by_offset: defaultdict[int, list[bytes]] = defaultdict(list)
    for batch in stored:
        by_offset[batch.base_offset].append(batch.data)
    for batch in expected:
        found = by_offset.pop(batch.base_offset, [])
        if not found:
            yield f"lost: {row}: the batch of offset {batch.base_offset}"
        elif len(found) > 1:
            yield f"twice: {row}: the batch of offset {batch.base_offset}"
        elif found[0] != batch.data:
            yield f"changed: {row}: the batch of offset {batch.base_offset}"
    yield from (f"extra: {row}: a batch of offset {offset}" for offset in by_offset)
    offsets = [batch.base_offset for batch in stored]
    if offsets != sorted(offsets):
        yield f"reordered: {row}"


def _aborted_txns(source: Sequence[Batch]) -> dict[tuple[int, int], int]:
    """Return the offset of the abort marker by producer id and first offset."""
    begun: dict[int, int] = {}
    aborted = {}
    for batch in source:
        if batch.attributes & _CONTROL:
            first = begun.pop(batch.producer_id, None)
            if first is not None and batch.is_abort_marker:
                aborted[batch.producer_id, first] = batch.base_offset
        elif batch.attributes & _TRANSACTIONAL:
            begun.setdefault(batch.producer_id, batch.base_offset)
    return aborted


def _aborted_differences(row: ArchivedRow, expected: Sequence[Batch], aborted: Mapping[tuple[int, int], int]) -> Iterable[str]:
    listed = {(producer_id, first): last for producer_id, first, last in row.aborted}
    for (producer_id, first), marker in aborted.items():
        has_data = any(
            batch.producer_id == producer_id and first <= batch.base_offset < marker and not batch.attributes & _CONTROL
            for batch in expected
        )
        if has_data and (producer_id, first) not in listed:
            yield f"aborted but visible: {row}: the row does not name the transaction of {producer_id} from {first}"
    for key, last in listed.items():
        marker_at = aborted.get(key)
        if marker_at is None:
            yield f"lost: {row}: the row names a transaction of {key[0]} from {key[1]} as aborted, which was not"
        elif last != (marker_at if marker_at < row.end else None):
            yield f"changed: {row}: the transaction of {key[0]} from {key[1]} ends at {marker_at}, not at {last}"


def object_differences(rows: Iterable[ArchivedRow]) -> list[str]:
    """Pure: bytes of an object that two rows name."""
    runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.kind == "data" and row.object_name is not None:
            runs[row.object_name] += [(position, position + size) for _, position, size in row.index]
    differences = []
    for name, named in sorted(runs.items()):
        for (_, end), (begin, _) in itertools.pairwise(sorted(named)):
            if begin < end:
                differences.append(f"twice: {name}: two rows name byte {begin}")
    return differences


def orphans(rows: Sequence[ArchivedRow], files: Iterable[str], run_epoch: int | None = None) -> list[str]:
    """Pure: files that no row names, besides rows that say that theirs was deleted.

    `run_epoch`: of the archive that runs now. What it wrote since its last decision is no orphan yet: a slot that failed leaves
    the objects of the others, which can be told from those of a decision that is still to come when the next one is recorded.
    """
    named = {row.object_name for row in rows if row.kind == "data" and row.state != DELETED}
    last = max((_decision_of(row.object_name) for row in rows if row.object_name is not None), default=(0, 0))
    return [
        f"orphan: {name}"
        for name in sorted(set(files) - named)
        if _decision_of(name)[0] != run_epoch or _decision_of(name) <= last
    ]


def _decision_of(name: str) -> tuple[int, int]:
    """Return run epoch and number of `id/epoch/number-...`; hidden files begin with a dot."""
    _, run_epoch, file = name.split("/")
    return int(run_epoch), int(file.lstrip(".").partition("-")[0])


def retention_differences(rows: Iterable[ArchivedRow], keep_bytes: Mapping[str, int]) -> list[str]:
    """Pure. `keep_bytes` of each topic that has a limit; others expire never."""
    visible: defaultdict[str, int] = defaultdict(int)
    expired: set[str] = set()
    for row in rows:
        if row.is_visible:
            visible[row.topic_partition.topic] += row.size_bytes
        elif row.kind == "data":
            expired.add(row.topic_partition.topic)
    return [
        f"lost: {topic}: expired to {visible[topic]} bytes, {keep_bytes.get(topic)} are to be kept"
        for topic in sorted(expired)
        if visible[topic] < keep_bytes.get(topic, visible[topic] + 1)
    ]


def unkept_promises(rows: Sequence[ArchivedRow], written: Iterable[Written]) -> list[str]:
    """Pure: records that the source acknowledged and that no row holds. `rows` of one partition, `written` below its end."""
    lineages = [[row for row in group if row.kind == "data"] for _, group in itertools.groupby(rows, key=lambda row: row.lineage)]
    differences = []
    for record in written:
        if record.outcome is Outcome.OK and record.offset is not None:
            candidates = [(data, bisect.bisect_right(data, record.offset, key=lambda row: row.start) - 1) for data in lineages]
            if not any(at >= 0 and record.offset < data[at].end for data, at in candidates):
                differences.append(f"lost: {record.topic_partition}: offset {record.offset} was acknowledged, and no row has it")
    return differences


class ArchiveChecker:
    """Compares all of an archive with all of the log. `tables` and `objects` are folders."""

    def __init__(
        self,
        log_folder: Path,
        tables: Path,
        objects: Path,
        keep_bytes: Mapping[str, int],
        take_written: Callable[[], list[Written]],
    ) -> None:
        self._log = SourceLog(log_folder)
        self._tables, self._objects, self._keep_bytes = tables, objects, keep_bytes
        self._take_written = take_written
        self._later: list[Written] = []
        self._records: dict[tuple[TopicPartition, int, int], int] = {}

    def check(self, run_epoch: int | None = None, kept: Collection[str] = ()) -> Checked:
        """To be called while the archive stands between two micro-batches, or has ended, and after `archive clean`.

        `run_epoch`: of the archive that runs; None: it has ended. `kept`: what was not cleaned, because no row has its offsets yet;
        an archive that has ended and caught up has no such object.
        """
        rows, files = load_archived_rows(self._tables), load_files(self._objects)
        by_partition = {
            topic_partition: list(group)
            for topic_partition, group in itertools.groupby(rows, key=lambda row: row.topic_partition)
        }
        known = self._written_below({topic_partition: group[-1].end for topic_partition, group in by_partition.items()})
        differences = [
            *object_differences(rows),
            *orphans(rows, files.keys() - (set() if run_epoch is None else set(kept)), run_epoch),
            *retention_differences(rows, self._keep_bytes),
        ]
        for topic_partition, group in by_partition.items():
            differences += lineage_differences(group, files, self._log.logs(topic_partition))
            differences += unkept_promises(group, (record for record in known if record.topic_partition == topic_partition))
        before = sum(self._records.values())
        self._records |= {(row.topic_partition, row.lineage, row.start): row.record_count for row in rows if row.is_visible}
        outcomes = [record.outcome for record in known]
        return Checked(
            records=sum(self._records.values()) - before,
            acknowledged=outcomes.count(Outcome.OK),
            unknown=outcomes.count(Outcome.UNKNOWN),
            differences=tuple(differences),
        )

    @property
    def records(self) -> int:
        """How many records of the archive were compared so far, each counted once; those of aborted transactions too."""
        return sum(self._records.values())

    def _written_below(self, ends: Mapping[TopicPartition, int]) -> list[Written]:
        below: list[Written] = []
        later: list[Written] = []
        for record in (*self._later, *self._take_written()):
            is_later = record.offset is not None and record.offset >= ends.get(record.topic_partition, 0)
            (later if is_later else below).append(record)
        self._later = later
        return below

"""Pure: the footer of an archive's object, which repeats the rows of its batches.

    batches | JSON (UTF-8) | CRC-32C of the JSON (u32) | bytes of the JSON (u32) | "SMARCH" | format number (u16)

All integers are big-endian. An object can be found by its table only; the footer is there so that the table can be rebuilt from a
store. Every later format keeps the trailer and the field `format`, so that a reader can tell a newer object from a damaged one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shallow_mirror.archive_format.archived_batches import (
    AbortedTxn,
    ArchivedSegment,
    IndexEntry,
    LeaderEpochStart,
    StoredBatches,
)
from shallow_mirror.archive_format.object_names import ObjectName
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.types import COPIED_KINDS, Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire import crc32c

FORMAT = 1
MINOR = 1
"""Of the format: a later minor number adds fields, which readers of this format may ignore. 1 added `run_crc32c`, and the
retention class and try of the object's name; footers before it have no minor number."""
MAGIC = b"SMARCH"
TRAILER = struct.Struct(">II6sH")
TAIL_BYTES = 1 << 16
"""Read so many bytes from the end of an object first: most footers are shorter."""
MAX_FOOTER_BYTES = 1 << 26
"""About 1.5 million entries of the index. A reader allocates no more than this, whatever an object says."""

_INT32, _INT64 = 1 << 31, 1 << 63
_KINDS = {kind.value: kind for kind in (SegmentKind.DATA, SegmentKind.GAP, SegmentKind.EXPIRED)}
_REMEDY = "Restore the object from a copy of the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """The fields of the footer besides the rows; all but `source_cluster_id` is in the name of the object as well.

    `retention_class` and `try_id` are None in footers of format 1.0.
    """

    archive_id: str
    source_cluster_id: str
    run_epoch: int
    decision: int
    slot: int
    retention_class: int | None
    try_id: str | None

    @classmethod
    def of_object(cls, name: ObjectName, source_cluster_id: str) -> ObjectHeader:
        return cls(
            archive_id=name.archive_id,
            source_cluster_id=source_cluster_id,
            run_epoch=name.run_epoch,
            decision=name.decision,
            slot=name.slot,
            retention_class=name.retention_class,
            try_id=name.try_id,
        )


@dataclass(frozen=True, slots=True)
class ObjectFooter:
    """`size_bytes`: of the footer; the batches lie in front of it."""

    header: ObjectHeader
    rows: tuple[ArchivedSegment, ...]
    size_bytes: int


def build_footer(header: ObjectHeader, rows: Sequence[ArchivedSegment]) -> bytes:
    """Return the bytes behind the batches of an object. Raise ValueError for rows that no reader could read again."""
    document = {
        "format": FORMAT,
        "minor": MINOR,
        "archive_id": header.archive_id,
        "source_cluster_id": header.source_cluster_id,
        "run_epoch": header.run_epoch,
        "decision": header.decision,
        "slot": header.slot,
        "retention_class": header.retention_class,
        "try": header.try_id,
        "rows": [_row(row) for row in rows],
    }
    names = sorted({row.stored.object_name for row in rows if row.stored is not None})
    if len(names) != 1:
        raise ValueError(f"the rows of an object must name it, and no other one: {names}")
    object_name = names[0]
    if (_parsed_header(document), _parsed_rows(document, object_name)) != (header, tuple(rows)):
        raise ValueError(f"the footer of {object_name} cannot hold these rows: {rows}")
    content = json.dumps(document, separators=(",", ":")).encode()
    if len(content) > MAX_FOOTER_BYTES:
        raise ValueError(f"the footer of {object_name} has {len(content)} bytes, at most {MAX_FOOTER_BYTES} are allowed")
    return content + TRAILER.pack(crc32c(content), len(content), MAGIC, FORMAT)


def footer_size(object_name: str, tail: bytes | memoryview) -> int:
    """Return how many bytes at the end of an object are its footer. `tail`: its last bytes, at least the trailer.

    Raise ArchiveFormatError if it is no object of an archive, or is cut.
    """
    if len(tail) < TRAILER.size:
        raise ArchiveFormatError(object_name, f"it ends after {len(tail)} bytes, without a trailer", _REMEDY)
    _, content_bytes, magic, _ = TRAILER.unpack(tail[-TRAILER.size :])
    if magic != MAGIC:
        raise ArchiveFormatError(object_name, "it does not end like an object of an archive", _REMEDY)
    if content_bytes > MAX_FOOTER_BYTES:
        raise ArchiveFormatError(
            object_name, f"its footer claims {content_bytes} bytes, at most {MAX_FOOTER_BYTES} are allowed", _REMEDY
        )
    return int(content_bytes) + TRAILER.size


def parse_footer(object_name: str, tail: bytes | memoryview) -> ObjectFooter:
    """Return the footer of an object. `tail`: its last bytes, `footer_size` of them at least.

    Raise ArchiveFormatError for a damaged object, ConfigError for one that a newer release wrote.
    """
    size_bytes = footer_size(object_name, tail)
    if len(tail) < size_bytes:
        raise ArchiveFormatError(object_name, f"its footer has {size_bytes} bytes, {len(tail)} are there", _REMEDY)
    content = bytes(tail[len(tail) - size_bytes : len(tail) - TRAILER.size])
    checksum, _, _, format_number = TRAILER.unpack(tail[-TRAILER.size :])
    if crc32c(content) != checksum:
        raise ArchiveFormatError(object_name, "the checksum of its footer does not match", _REMEDY)
    try:
        document = _dict(json.loads(content.decode()), "footer")
        _check_format(object_name, document, format_number)
        header = _parsed_header(document)
        rows = _parsed_rows(document, object_name)
    except (ValueError, RecursionError) as error:
        raise ArchiveFormatError(object_name, f"its footer is malformed: {error}", _REMEDY) from error
    _check_name(object_name, header)
    return ObjectFooter(header, rows, size_bytes)


def _check_format(object_name: str, document: Mapping[str, Any], format_number: int) -> None:
    if _integer(document, "format", 0, 1 << 16) != format_number:
        raise ValueError("two format numbers")
    if format_number > FORMAT:
        raise ConfigError(
            f"object {object_name} has format {format_number}, this release reads up to {FORMAT}. Use a newer shallow-mirror"
        )
    if format_number != FORMAT:
        raise ValueError(f"there is no format {format_number}")


def _check_name(object_name: str, header: ObjectHeader) -> None:
    """Find an object that was moved to the name of another one."""
    name = ObjectName.parse(object_name)
    if name is None:
        return
    expected = ObjectHeader.of_object(name, header.source_cluster_id)
    if header.try_id is None:  # format 1.0
        expected = replace(expected, retention_class=None, try_id=None)
    if expected != header:
        raise ArchiveFormatError(object_name, f"it is another object by its footer: {header}", _REMEDY)


def _row(row: ArchivedSegment) -> dict[str, Any]:
    segment, stored = row.segment, row.stored
    fields = {
        "source_topic": segment.source.topic,
        "source_topic_id": segment.source.topic_id,
        "source_partition": segment.source.partition,
        "lineage": segment.lineage,
        "source_start": segment.source_start,
        "source_end": segment.source_end,
        "kind": segment.kind.value,
        "size_bytes": segment.size_bytes,
        "batch_count": segment.batch_count,
        "record_count": segment.record_count,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "source_leader_epoch": segment.source_leader_epoch,
    }
    if stored is None:
        return fields
    return fields | {
        "min_timestamp_ms": stored.min_timestamp_ms,
        "leader_epochs": [[epoch.leader_epoch, epoch.start_offset] for epoch in stored.leader_epochs],
        "aborted": [[txn.producer_id, txn.first_offset, txn.last_offset] for txn in stored.aborted],
        "index": [[run.start_offset, run.position, run.size_bytes, run.max_timestamp_ms] for run in stored.index],
        "crc32c": stored.crc32c,
        "run_crc32c": None if stored.run_crc32c is None else list(stored.run_crc32c),
        "retention_class": stored.retention_class,
    }


def _minor(document: Mapping[str, Any]) -> int:
    return _integer(document, "minor", 0, 1 << 16) if "minor" in document else 0


def _parsed_header(document: Mapping[str, Any]) -> ObjectHeader:
    is_complete = _minor(document) >= 1
    return ObjectHeader(
        archive_id=_text(document, "archive_id"),
        source_cluster_id=_text(document, "source_cluster_id"),
        run_epoch=_integer(document, "run_epoch", 0, _INT32),
        decision=_integer(document, "decision", 0, 1 << 32),
        slot=_integer(document, "slot", 0, _INT32),
        retention_class=_integer(document, "retention_class", 0, _INT32) if is_complete else None,
        try_id=_text(document, "try") if is_complete else None,
    )


def _parsed_rows(document: Mapping[str, Any], object_name: str) -> tuple[ArchivedSegment, ...]:
    minor = _minor(document)
    return tuple(_parsed_row(_dict(row, "row"), object_name, minor) for row in _list(document, "rows"))


def _parsed_row(row: Mapping[str, Any], object_name: str, minor: int) -> ArchivedSegment:
    kind = _KINDS.get(_text(row, "kind"))
    if kind is None:
        raise ValueError("kind is none of an archive's rows")
    is_stored = kind in COPIED_KINDS
    source = SourcePartition(
        _text(row, "source_topic"), _text(row, "source_topic_id"), _integer(row, "source_partition", 0, _INT32)
    )
    start = _integer(row, "source_start", 0, _INT64)
    end = _integer(row, "source_end", start, _INT64)
    segment = Segment(
        source=source,
        source_start=start,
        source_end=end,
        kind=kind,
        target=TargetPartition(*source),
        target_start=start if is_stored else None,
        target_end=end if is_stored else None,
        record_count=_integer(row, "record_count", 0, _INT64),
        batch_count=_integer(row, "batch_count", 0, _INT32),
        size_bytes=_integer(row, "size_bytes", 0, _INT64),
        max_timestamp_ms=_integer_or_none(row, "max_timestamp_ms", _INT64),
        source_leader_epoch=_integer_or_none(row, "source_leader_epoch", _INT32),
        # The field is missing in objects that were written before there were lineages.
        lineage=_integer(row, "lineage", 0, _INT32) if "lineage" in row else 0,
    )
    return ArchivedSegment(segment, _parsed_batches(row, segment, object_name, minor) if is_stored else None)


def _parsed_batches(row: Mapping[str, Any], segment: Segment, object_name: str, minor: int) -> StoredBatches:
    stored = StoredBatches(
        object_name=object_name,
        index=tuple(IndexEntry(*_integers(run, 4)) for run in _list(row, "index")),
        leader_epochs=tuple(LeaderEpochStart(*_integers(epoch, 2)) for epoch in _list(row, "leader_epochs")),
        aborted=tuple(_parsed_aborted(txn) for txn in _list(row, "aborted")),
        crc32c=_integer(row, "crc32c", 0, 1 << 32),
        min_timestamp_ms=_integer_or_none(row, "min_timestamp_ms", _INT64),
        retention_class=_text(row, "retention_class"),
        run_crc32c=_parsed_run_crcs(row) if minor >= 1 else None,
    )
    if stored.run_crc32c is not None and len(stored.run_crc32c) != len(stored.index):
        raise ValueError("run_crc32c has other runs than index")
    _check_index(stored.index, segment)
    _check_rising((epoch.start_offset for epoch in stored.leader_epochs), "leader_epochs")
    if any(not -1 <= epoch.leader_epoch < _INT32 for epoch in stored.leader_epochs):
        raise ValueError("leader_epochs holds a number that is no leader epoch")
    return stored


def _parsed_run_crcs(row: Mapping[str, Any]) -> tuple[int, ...]:
    crcs = _list(row, "run_crc32c")
    if not all(type(crc) is int and 0 <= crc < 1 << 32 for crc in crcs):
        raise ValueError("run_crc32c is no list of checksums")
    return tuple(crcs)


def _parsed_aborted(value: object) -> AbortedTxn:
    if isinstance(value, list) and value[2:] == [None]:
        producer_id, first_offset = _integers(value[:2], 2)
        return AbortedTxn(producer_id, first_offset, None)
    producer_id, first_offset, last_offset = _integers(value, 3)
    if last_offset < first_offset:
        raise ValueError("an aborted transaction ends before it begins")
    return AbortedTxn(producer_id, first_offset, last_offset)


def _check_index(index: Sequence[IndexEntry], segment: Segment) -> None:
    if not index or index[0].start_offset < segment.source_start or index[-1].start_offset >= segment.source_end:
        raise ValueError("index reaches beyond the offsets of its row")
    _check_rising((run.start_offset for run in index), "index")
    if any(run.position < 0 or run.size_bytes <= 0 for run in index):
        raise ValueError("index holds a run without bytes")
    if sum(run.size_bytes for run in index) != segment.size_bytes:
        raise ValueError("the runs of index have other bytes than their row")


def _check_rising(offsets: Iterable[int], name: str) -> None:
    if any(following <= offset for offset, following in pairwise(offsets)):
        raise ValueError(f"the offsets of {name} do not rise")


def _dict(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    value.encode()  # raises for a lone surrogate, which JSON can escape and no column can hold
    return value


def _integer(document: Mapping[str, Any], name: str, lowest: int, above: int) -> int:
    """Return a field from [lowest, above)."""
    value = document.get(name)
    if type(value) is not int or not lowest <= value < above:
        raise ValueError(f"{name} is no integer from {lowest} to {above - 1}")
    return value


def _integer_or_none(document: Mapping[str, Any], name: str, above: int) -> int | None:
    return None if document.get(name) is None else _integer(document, name, -above, above)


def _integers(value: object, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"not a list of {count} integers")
    if not all(type(number) is int and -_INT64 <= number < _INT64 for number in value):
        raise ValueError(f"not a list of {count} integers of 64 bits")
    return value

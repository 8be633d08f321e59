"""Driver: verify a quarantined batch.

The table must hold it as it was quarantined, the source the same bytes, and the target its records if it was released.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from shallow_mirror.checkpoints.logs import Quarantine, QuarantinedBatch, QuarantineEntry
from shallow_mirror.errors import CorruptBatchError, OffsetMapConflictError
from shallow_mirror.types import OffsetRange, Segment, TopicPartition
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.differences import Difference, DifferenceKind
from shallow_mirror.verify.fingerprints import difference_of_records, record_content
from shallow_mirror.verify.partition_reader import Chunk, LogReader
from shallow_mirror.wire.batches import Verdict
from shallow_mirror.wire.records import OPENED_FETCHES, open_batch

_VISIBLE = (Verdict.RAW, Verdict.REBUILD)

Contents = dict[int, bytes]
"""What a copy keeps of a record, by offset."""


@dataclass(slots=True)
class QuarantineCheck:
    """Compare the quarantined batches of one partition.

    `source` and `target` are None if they are gone. `unchecked` counts source offsets.
    """

    quarantine: Quarantine
    source: LogReader | None
    target: LogReader | None
    differences: list[Difference] = field(default_factory=list)
    unchecked: Counter[Unchecked] = field(default_factory=Counter)

    def check(self, entry: QuarantineEntry, *, is_live: bool) -> None:
        """`is_live`: of the source topic as it is now.

        Raises RetriableError, ConfigError, and BatchRefusedError for a batch that is too large to be opened.
        """
        segment = entry.segment
        if not entry.is_released:
            self.unchecked[Unchecked.QUARANTINED] += segment.source_end - segment.source_start
        try:
            kept = self.quarantine.batch(entry)
        except OffsetMapConflictError as problem:
            self._report_difference(segment, DifferenceKind.MISSING, str(problem))
            return
        if is_live and self.source is not None:
            self._compare_with_source(segment, kept, self.source)
        if entry.is_released and self.target is not None:
            self._compare_with_target(entry, kept, self.target)

    def _compare_with_source(self, segment: Segment, kept: QuarantinedBatch, source: LogReader) -> None:
        """Compare while the source has the batch; its cleaner may have made it another batch with the same records."""
        base_offset = int.from_bytes(kept.batch[:8], "big", signed=True)
        if source.log.is_compacted:
            return
        for chunk, i in _batches(source, OffsetRange(base_offset, base_offset + 1), len(kept.batch)):
            if int(chunk.index.headers["base_offset"][i]) == base_offset and _bytes_of(chunk, i) != kept.batch:
                reason = "the source holds another batch there than the table quarantine"
                self._report_difference(segment, DifferenceKind.CHANGED, reason)

    def _compare_with_target(self, entry: QuarantineEntry, kept: QuarantinedBatch, target: LogReader) -> None:
        max_bytes = OPENED_FETCHES * target.fetch_bytes
        originals = _contents(memoryview(kept.batch), kept.source.topic_partition, max_bytes)
        originals = {offset: content for offset, content in originals.items() if offset >= kept.source_start}
        left = set(originals)
        for part in entry.released:
            assert part.target_start is not None
            assert part.target_end is not None
            copies: Contents = {}
            for chunk, i in _batches(target, OffsetRange(part.target_start, part.target_end), len(kept.batch)):
                if chunk.admission.verdicts[i] in _VISIBLE and not chunk.is_damaged[i]:
                    copies |= _contents(_bytes_of(chunk, i), target.topic_partition, max_bytes)
            for offset in range(part.source_start, part.source_end):
                at = offset - part.source_start + part.target_start
                self._compare(part, offset, originals.get(offset), copies.get(at), is_deleted=at < target.log.log_start)
            left -= set(range(part.source_start, part.source_end))
        for offset in sorted(left):
            self._report_difference(entry.segment, DifferenceKind.MISSING, "its batch was released without it", offset)

    def _compare(self, part: Segment, offset: int, original: bytes | None, copy: bytes | None, *, is_deleted: bool) -> None:
        assert self.target is not None
        if is_deleted:
            self.unchecked[Unchecked.TARGET_DELETED] += 1
        elif original is None:
            self._report_difference(
                part, DifferenceKind.EXTRA, "the map names a released copy, the batch in quarantine has no such record", offset
            )
        elif copy is None and self.target.log.is_compacted:
            self.unchecked[Unchecked.TARGET_COMPACTED] += 1
        elif copy is None:
            self._report_difference(part, DifferenceKind.MISSING, "it was released, but the target shows no record there", offset)
        elif copy != original:
            self._report_difference(part, DifferenceKind.CHANGED, f"of a released batch: {_what_differs(original, copy)}", offset)

    def _report_difference(self, segment: Segment, kind: DifferenceKind, reason: str, offset: int | None = None) -> None:
        """Add a difference of the whole segment, or of one record in it."""
        start, end = (segment.source_start, segment.source_end) if offset is None else (offset, offset + 1)
        at = None if segment.target_start is None else start - segment.source_start + segment.target_start
        self.differences.append(
            Difference(
                kind=kind,
                source=segment.source.topic_partition,
                target=segment.target.topic_partition,
                source_start=start,
                source_end=end,
                target_start=at,
                target_end=None if at is None else at + end - start,
                record_count=segment.record_count if offset is None else 1,
                reason=reason,
            )
        )


def _batches(reader: LogReader, wanted: OffsetRange, size_bytes: int) -> Iterator[tuple[Chunk, int]]:
    """Yield batches that reach into `wanted`, as far as they can be read."""
    for chunk in reader.read(wanted, size_bytes / max(1, wanted.end - wanted.start), is_first=True):
        if isinstance(chunk, Chunk):
            yield from ((chunk, i) for i in chunk.chosen.tolist())


def _bytes_of(chunk: Chunk, i: int) -> memoryview:
    start = int(chunk.index.pos[i])
    return chunk.records[start : start + int(chunk.index.size_bytes[i])]


def _contents(batch: memoryview, topic_partition: TopicPartition, max_bytes: int) -> Contents:
    """Return the records, as far as they can be read."""
    contents: Contents = {}
    with contextlib.suppress(CorruptBatchError):
        for record in open_batch(batch, topic_partition, max_bytes=max_bytes):
            contents[record.offset] = record_content(record)
    return contents


def _what_differs(original: bytes, copy: bytes) -> str:
    return difference_of_records(np.frombuffer(original, np.uint64), np.frombuffer(copy, np.uint64))

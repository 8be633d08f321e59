"""Everywhere: rows of format 1.0, which have a checksum of the whole row and none of its runs.

The checksum of a record batch leaves out its base offset, and does not say that it is the batch that was archived. So whoever
needs the right bytes reads such a row twice: at first as a whole, to compare it with its checksum and to compute those of its
runs, and then what is wanted of it, run by run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from shallow_mirror.archive_format import IndexEntry, StoredBatches
from shallow_mirror.errors import ArchiveFormatError
from shallow_mirror.object_store import READ_BYTES, ObjectStore
from shallow_mirror.reused_buffers import ReusedBuffers
from shallow_mirror.types import Segment
from shallow_mirror.wire import crc32c, joined_crc

DAMAGE_REMEDY = "Restore the object from a copy or a former version, or read without these offsets"
_MOST_KEPT = 1_000
"""Rows whose runs are known in this process: a restore reads a large row in several micro-batches."""

_log = logging.getLogger(__name__)
_known: dict[tuple[str, str, int, tuple[IndexEntry, ...]], tuple[int, ...]] = {}
_warned: set[str] = set()


def checked_runs(
    store: ObjectStore, segment: Segment, stored: StoredBatches, buffers: ReusedBuffers, *, is_read_once: bool
) -> tuple[int, ...]:
    """Return the checksums of a row's runs, once the row as a whole matches its own. READ_BYTES or one run in memory.

    Raises ArchiveFormatError, ObjectMissingError, StoreUnreachableError, ConfigError.
    """
    key = (store.root, stored.object_name, stored.crc32c, stored.index)
    known = _known.get(key)
    if known is not None:
        return known
    crcs: list[int] = []
    for runs in _gathered(stored.index):
        content = buffers.take(sum(run.size_bytes for run in runs))
        ranges = [(run.position, run.size_bytes) for run in runs]
        store.read_into(stored.object_name, ranges, content, is_read_once=is_read_once)
        start = 0
        for run in runs:
            crcs.append(crc32c(content[start : start + run.size_bytes]))
            start += run.size_bytes
        del content  # its buffer is taken again for the next runs
    if joined_crc(crcs, [run.size_bytes for run in stored.index]) != stored.crc32c:
        detail = (
            f"byte {stored.index[0].position}: the checksum of all its batches of this partition does not match; offsets "
            f"{segment.source_start} to {segment.source_end - 1} of {segment.source.topic_partition} lie in it"
        )
        raise ArchiveFormatError(stored.object_name, detail, DAMAGE_REMEDY)
    while len(_known) >= _MOST_KEPT:
        _known.pop(next(iter(_known)), None)
    known = _known[key] = tuple(crcs)
    return known


def warn_of_unverified(stored: StoredBatches) -> None:
    """Log once for each archive that parts of a row are read by the checksums of their batches alone."""
    archive_id = stored.object_name.partition("/")[0]
    if archive_id in _warned:
        return
    _warned.add(archive_id)
    _log.warning(
        "archive %s: objects of format 1.0 have no checksums for parts of them: records that are looked up there are verified by "
        "the checksums of their batches, which leave out offsets. `shallow-mirror archive verify` verifies whole objects",
        archive_id,
    )


def _gathered(index: Sequence[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield runs that follow each other, READ_BYTES at once unless one run is larger."""
    runs, size_bytes = list[IndexEntry](), 0
    for run in index:
        if runs and size_bytes + run.size_bytes > READ_BYTES:
            yield runs
            runs, size_bytes = [], 0
        runs.append(run)
        size_bytes += run.size_bytes
    if runs:
        yield runs

"""How many fillers the rows of an archive need: bounds that hold for every way in which records may lie in them."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.archives import NOW_MS, ORDERS, SmallArchive
from tests.support.record_batches import batch

from shallow_mirror.archive_format import AbortedTxn
from shallow_mirror.checkpoints.rows import ArchiveRow, SegmentState
from shallow_mirror.operations.restore.fillers import FillerCount
from shallow_mirror.types import IsolationLevel

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def row(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRow:
    """Return a row of offsets 0 to 20 with 12 records, of which transactions aborted some of 4 to 9 and of 6 to 11."""
    (stored,) = SmallArchive(tmp_path_factory.mktemp("archive")).add_object([{ORDERS: batch(0, 12)}], ends={ORDERS: 20})
    assert stored.stored is not None
    aborted = (AbortedTxn(9, 4, 9), AbortedTxn(8, 6, 11))
    stored = dataclasses.replace(stored, stored=dataclasses.replace(stored.stored, aborted=aborted))
    return ArchiveRow(stored, SegmentState.COPY_SEGMENT_FINISHED, run_epoch=1, micro_batch=1, decided_at_ms=NOW_MS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end", "isolation", "is_clipped", "least", "most"),
    [
        (0, 20, UNCOMMITTED, False, 8, 8),
        (0, 20, COMMITTED, False, 8, 15),  # no more than the 7 offsets from 4 to 11 can be aborted records
        (0, 20, UNCOMMITTED, True, 8, 20),
        (0, 10, UNCOMMITTED, False, 0, 8),
        (15, 30, UNCOMMITTED, False, 0, 5),
        (20, 30, UNCOMMITTED, False, 0, 0),
    ],
)
def test_bounds_of_a_row(
    row: ArchiveRow, start: int, end: int, isolation: IsolationLevel, is_clipped: bool, least: int, most: int
) -> None:
    count = FillerCount(is_compacted=False)
    count.add(row, start, end, isolation, is_clipped=is_clipped)
    assert (count.least, count.most) == (least, most)


def test_a_compacted_topic_has_longer_fillers() -> None:
    plain, compacted = (FillerCount(is_compacted=is_compacted, leading=10) for is_compacted in (False, True))
    assert plain.most_bytes == 110 < compacted.most_bytes
    assert plain.sentences() == ["10 fillers below its first offset (110 bytes), which are deleted later"]

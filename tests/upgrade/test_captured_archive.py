"""An archive of an earlier release is verified, read, continued and rebuilt by today's code: without Java, on captured tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.archives import ArchiveOfTest
from tests.support.record_batches import batch
from tests.upgrade.conftest import Captured
from tests.upgrade.contents import ORDERS

from shallow_mirror.archive_reading.archive_rows import record_rows
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.scan_plan import plan_scan, read_part
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive

FAR_FUTURE_MS = 4_000_000_000_000


def stored_rows(config: ArchiveConfig) -> Sequence[ArchiveRow]:
    return [replace(row, decided_at_ms=0) for row in ArchiveTable.open(config.tables).segments() if row.stored is not None]


def scanned(config: ArchiveConfig) -> int:
    """Return the number of records that SQL reads."""
    bounds, store = ReadBounds(topics=frozenset({ORDERS})), ObjectStore.open(config.objects)
    parts = plan_scan(ArchiveTable.open(config.tables), bounds)
    return sum(len(rows) for part in parts for rows in record_rows(read_part(store, part), bounds))


@pytest.mark.slow
def test_an_archive_of_an_earlier_release_is_verified_read_continued_and_rebuilt(captured: Captured, tmp_path: Path) -> None:
    config = ArchiveConfig.load(captured.folder / "archive.yaml")
    before, record_count = stored_rows(config), scanned(config)
    assert before
    assert {row.stored is not None and row.stored.run_crc32c is not None for row in before} == {captured.has_run_checksums}
    assert verify_archive(config, is_deep=True).findings.counts == {}
    read = [part for row in before for part in SegmentReader(ObjectStore.open(config.objects), [row])]
    assert sum(len(part.index) for part in read) == sum(row.segment.batch_count for row in before)

    cluster_id = ArchiveTable.open(config.tables).source_cluster_id
    archive = ArchiveOfTest(config, now_ms=FAR_FUTURE_MS, source_cluster_id=cluster_id)
    source = next(source for source in archive.owner.positions() if (source.topic, source.partition) == (ORDERS, 0))
    archive.archive({source: [batch(archive.owner.positions()[source].offset, 5)]})
    after = stored_rows(config)
    assert [row for row in after if row in before] == list(before)
    assert all(row.stored is not None and row.stored.run_crc32c is not None for row in after if row not in before)
    assert len(after) == len(before) + 1
    assert scanned(config) == record_count + 5
    assert verify_archive(config, is_deep=True).findings.counts == {}

    new = config.model_copy(update={"tables": str(tmp_path / "new")})
    rebuild(config, str(new.tables))
    assert [(row.segment, row.stored) for row in stored_rows(new)] == [(row.segment, row.stored) for row in after]
    assert verify_archive(new, is_deep=True).findings.counts == {}

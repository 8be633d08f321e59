"""The table of an archive as readers see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.archives import CLUSTER_ID, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import archive_table
from shallow_mirror.checkpoints.ledger.archive_table import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.rows.schema import PROPERTY_SCHEMA_VERSION
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.errors import ConfigError, OffsetMapConflictError
from shallow_mirror.types import SourcePartition

SECOND = SourcePartition("orders", ORDERS.topic_id, 1)
PAYMENTS = SourcePartition("payments", "paypaypaypaypaypaypayA", 0)


def written(folder: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({PAYMENTS: [batch(0, 3)], SECOND: [batch(0, 5)], ORDERS: [batch(0, 10), batch(10, 5)]})
    archive.archive({ORDERS: [batch(15, 5)]})
    archive.archive({ORDERS: [batch(25, 5)], SECOND: [batch(5, 1)]})
    return archive


@pytest.mark.slow
def test_rows_are_those_that_were_decided_in_the_order_of_partitions_and_offsets(tmp_path: Path) -> None:
    archive = written(tmp_path)
    table = ArchiveTable.open(archive.config.table_location, archive="backup")
    rows = list(table.segments())
    assert [(row.segment.source, row.segment.source_start, row.segment.source_end) for row in rows] == [
        (ORDERS, 0, 15),
        (ORDERS, 15, 20),
        (ORDERS, 20, 30),
        (SECOND, 0, 5),
        (SECOND, 5, 6),
        (PAYMENTS, 0, 3),
    ]
    assert [row.micro_batch for row in rows] == [1, 2, 3, 1, 3, 1]
    assert {row.state for row in rows} == {SegmentState.COPY_SEGMENT_FINISHED}
    assert (table.archive, table.archive_id, table.source_cluster_id) == ("backup", archive.owner.map_id, CLUSTER_ID)
    assert table.recorded() == archive.owner.recorded()
    assert table.positions() == archive.owner.positions()
    assert [row.segment.source for row in table.segments({"payments", "unknown"})] == [PAYMENTS]
    content = (tmp_path / "objects" / rows[0].stored.object_name).read_bytes()  # type: ignore[union-attr]
    (run,) = rows[0].stored.index  # type: ignore[union-attr]
    assert content[run.position : run.position + run.size_bytes] == batch(0, 10) + batch(10, 5)


@pytest.mark.slow
@pytest.mark.parametrize("most_rows", [1, 2, 4, 5])
def test_a_table_that_is_larger_than_memory_is_read_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    table = ArchiveTable.open(written(tmp_path).config.tables)
    expected = list(table.segments())
    monkeypatch.setattr(archive_table, "_READ_ROWS", most_rows)
    assert list(table.segments()) == expected
    assert list(table.segments({"orders", "payments"})) == expected


@pytest.mark.slow
def test_rows_by_condition(tmp_path: Path) -> None:
    table = ArchiveTable.open(written(tmp_path).config.tables)
    at_17 = (Comparison("source_topic", "=", "orders"), Comparison("source_start", "<=", 17), Comparison("source_end", ">", 17))
    assert [row.segment.source_start for row in table.rows(at_17)] == [15]
    assert table.rows(at_17, states=[SegmentState.DELETE_SEGMENT_FINISHED]) == []
    assert len(table.rows(at_17, states=list(SegmentState))) == 1


@pytest.mark.slow
def test_a_reader_keeps_its_version_until_it_is_refreshed(tmp_path: Path) -> None:
    archive = written(tmp_path)
    table = ArchiveTable.open(archive.config.tables)
    archive.archive({ORDERS: [batch(30, 1)]})
    assert len(list(table.segments())) == 6
    table.refresh()
    assert len(list(table.segments())) == 7
    assert table.recorded() == archive.owner.recorded()


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    config = archive_config(tmp_path)
    ArchiveOfTest(config)
    table = ArchiveTable.open(config.tables)
    assert list(table.segments()) == [] == table.rows()
    assert table.positions() == {}


def test_a_table_that_is_missing_or_of_another_archive_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no table archive_segments where `tables` says: run .* or check `tables`"):
        ArchiveTable.open(archive_config(tmp_path).tables)
    archive = written(tmp_path)
    with pytest.raises(ConfigError, match=r"was created with shallow_mirror.mirror = 'backup'.*another location for `tables`"):
        ArchiveTable.open(archive.config.tables, archive="other")


@pytest.mark.slow
def test_a_newer_schema_needs_a_newer_release(tmp_path: Path) -> None:
    config = written(tmp_path).config
    table = DeltaTable(f"{config.tables}/archive_segments")
    table.alter.set_table_properties({PROPERTY_SCHEMA_VERSION: "99"}, raise_if_not_exists=False)
    with pytest.raises(ConfigError, match=r"schema version 99.*use a newer one"):
        ArchiveTable.open(config.tables)


@pytest.mark.slow
def test_a_damaged_log_is_no_empty_archive(tmp_path: Path) -> None:
    config = written(tmp_path).config
    for commit in Path(config.tables, "archive_segments", "_delta_log").glob("*.json"):
        commit.write_text("{")
    with pytest.raises(OffsetMapConflictError, match=r"is not a readable Delta table"):
        ArchiveTable.open(config.tables)

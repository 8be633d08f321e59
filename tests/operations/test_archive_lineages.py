"""Every reader and command on an archive whose source lost ends of logs: the newest lineage by default, every other by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker, record

from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import open_records
from shallow_mirror.archive_reading.scan_plan import plan_scan, read_part
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.checkpoints import Lineages, Position, first_rows_at
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.tables import Condition
from shallow_mirror.errors import ConfigError, OffsetMapConflictError
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.findings import FindingKind
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.status import FormerLineage, gather_archive_status
from shallow_mirror.operations.archive.status_view import render
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.operations.status_view import stdout_console
from shallow_mirror.streaming.planning import RestorePlanner
from shallow_mirror.streaming.runs.next_lineages import epoch_history
from shallow_mirror.types import EpochEnd, OffsetRange, SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

OTHER = ORDERS._replace(partition=1)
TXN = 0x10
ZERO = [f"a{offset}" for offset in range(20)]
ONE = [*ZERO[:14], *(f"b{offset}" for offset in range(14, 24))]
TWO = [*ONE[:22], *(f"c{offset}" for offset in range(22, 26))]


def batches(name: str, start: int, end: int, leader_epoch: int) -> list[bytes]:
    """Return a batch for every record."""
    return [
        batch(offset, leader_epoch=leader_epoch, payload=record(0, value=f"{name}{offset}".encode()))
        for offset in range(start, end)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveOfTest:
    """Of ORDERS three lineages, each of which begins inside of a row of the one before it."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: batches("a", 0, 10, 3), OTHER: batches("o", 0, 5, 3)})
    archive.archive({ORDERS: batches("a", 10, 20, 3)})
    archive.begin_lineage(ORDERS, 14, 3)
    archive.archive({ORDERS: batches("b", 14, 24, 5)})
    archive.begin_lineage(ORDERS, 22, 5)
    archive.archive({ORDERS: batches("c", 22, 26, 7), OTHER: batches("o", 5, 7, 3)})
    return archive


def table_of(archive: ArchiveOfTest) -> ArchiveTable:
    return ArchiveTable.open(archive.config.tables)


def read(
    archive: ArchiveOfTest, source: SourcePartition = ORDERS, lineage: int | None = None, start: int = 0, end: int | None = None
) -> list[str]:
    reader = ArchiveReader.open(archive.config.tables, archive.config.objects)
    records = reader.read_records(source.topic, source.partition, start, end, lineage=lineage)
    return [(each.value or b"").decode() for each in records]


@pytest.mark.parametrize(("lineage", "values"), [(None, TWO), (2, TWO), (9, TWO), (1, ONE), (0, ZERO)])
def test_a_reader_sees_one_log_from_its_start_to_its_end(archive: ArchiveOfTest, lineage: int | None, values: list[str]) -> None:
    assert read(archive, lineage=lineage) == values
    assert read(archive, OTHER, lineage) == [f"o{offset}" for offset in range(7)]
    assert read(archive, lineage=lineage, start=12, end=18) == values[12:18]
    reader = ArchiveReader.open(archive.config.tables, archive.config.objects)
    for offset in (13, 14, 19, 21, 22, 25):
        found = reader.find_record("orders", 0, offset=offset, lineage=lineage)
        assert (found and (found.value or b"").decode()) == (values[offset] if offset < len(values) else None)


@pytest.mark.parametrize(("lineage", "values"), [(None, ["b0", "b1"]), (0, ["a0", "a1", "a2"])])
def test_a_reader_reads_a_record_once_where_rows_of_two_lineages_begin_at_one_offset(
    tmp_path: Path, lineage: int | None, values: list[str]
) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: batches("a", 0, 3, 3)})
    archive.begin_lineage(ORDERS, 0, 3)
    archive.archive({ORDERS: batches("b", 0, 2, 5)})
    assert read(archive, lineage=lineage) == values


@pytest.mark.parametrize(("lineage", "values"), [(None, TWO), (1, ONE), (0, ZERO)])
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_a_scan_reads_each_record_of_one_log_once(
    archive: ArchiveOfTest, lineage: int | None, values: list[str], part_bytes: int
) -> None:
    def scanned(bounds: ReadBounds) -> list[tuple[int, str, int]]:
        return [
            (opened.record.offset, bytes(opened.record.value or b"").decode(), part.segment.segment.lineage)
            for scan in plan_scan(table_of(archive), bounds, part_bytes, lineage=lineage)
            for part in read_part(archive.store, scan)
            for opened in open_records(part, scan.bounds)
            if part.source == ORDERS
        ]

    records = sorted(scanned(ReadBounds()))
    assert [(offset, value) for offset, value, _ in records] == list(enumerate(values))
    assert all(value[0] == "abc"[number] for _, value, number in records)
    some = ReadBounds().of_topics(frozenset({"orders"})).from_offset(13).up_to_offset(23)
    assert [value for _, value, _ in sorted(scanned(some))] == values[13:23]


def test_the_position_is_the_end_of_the_newest_lineage_with_its_own_leader_epoch(archive: ArchiveOfTest) -> None:
    target = TargetPartition(*ORDERS)
    assert table_of(archive).positions()[ORDERS] == Position(26, target, EpochEnd(7, 26), 1_000, 26, 2, start=22)
    archive.begin_lineage(ORDERS, 17, 5)
    assert table_of(archive).positions()[ORDERS] == Position(17, target, EpochEnd(5, 17), None, 0, 3, start=17)
    assert archive.owner.positions() == table_of(archive).positions()
    assert epoch_history(table_of(archive), ORDERS).epochs == ((3, 0), (5, 14))
    assert epoch_history(table_of(archive), OTHER).epochs == ((3, 0),)


@pytest.mark.parametrize("offset", [27, 30])
def test_a_lineage_cannot_begin_behind_the_position(archive: ArchiveOfTest, offset: int) -> None:
    with pytest.raises(OffsetMapConflictError, match="a lineage begins with a row without length, at or below the position"):
        archive.begin_lineage(ORDERS, offset)


def restore(archive: ArchiveOfTest, folder: Path, **until: Any) -> tuple[list[str], RestorePlanner, Any]:
    """Return what the steps of a restore read of ORDERS."""
    config = restore_runs.config(folder, archive.config, "127.0.0.1:1", until=until, read={"micro_batch_bytes": 1 << 20})
    planner = RestorePlanner(config, table_of(archive), archive.store)
    decided = planner.decide_ranges()
    values: list[str] = []
    for step in planner.steps(decided, {}):
        reader = SegmentReader(archive.store, step.rows.get(ORDERS, ()), 0, decided.ranges[ORDERS].end)
        values += [bytes(opened.record.value or b"").decode() for part in reader for opened in open_records(part, ReadBounds())]
    assert decided.ranges[ORDERS].end == (len(values) if values else decided.ranges[ORDERS].end)
    return values, planner, decided


def test_a_restore_reads_the_rows_of_lineages_once(
    archive: ArchiveOfTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions: list[object] = []
    lineages = ArchiveTable.lineages

    def recording(table: ArchiveTable, condition: Condition = ()) -> Lineages:
        conditions.append(condition)
        return lineages(table, condition)

    monkeypatch.setattr(ArchiveTable, "lineages", recording)
    _, planner, decided = restore(archive, tmp_path)
    assert planner.other_lineages(decided)
    assert len(conditions) == len(set(conditions)) == 1


@pytest.mark.parametrize(
    ("until", "values"),
    [
        ({}, TWO),
        ({"lineage": 0}, ZERO),
        ({"lineage": 1}, ONE),
        ({"lineage": {"orders": {0: 1}}}, ONE),
        ({"offsets": {"orders": {0: 18, 1: 2}}, "lineage": 0}, ZERO[:18]),
        ({"offsets": {"orders": {0: 18, 1: 2}}}, TWO[:18]),
    ],
)
def test_a_restore_takes_the_newest_lineage_or_the_one_that_is_named(
    archive: ArchiveOfTest, tmp_path: Path, until: dict[str, Any], values: list[str]
) -> None:
    assert restore(archive, tmp_path, **until)[0] == values


def test_a_cut_in_front_of_a_truncation_takes_the_lineage_of_that_time(archive: ArchiveOfTest, tmp_path: Path) -> None:
    numbers = sorted({row.micro_batch for row in table_of(archive).rows()})
    logs = [restore(archive, tmp_path, decision=number)[0] for number in numbers]
    assert logs == [ZERO[:10], ZERO, ZERO[:14], ONE, ONE[:22], TWO]


def test_what_a_restore_leaves_of_other_lineages_is_counted(archive: ArchiveOfTest, tmp_path: Path) -> None:
    _, planner, decided = restore(archive, tmp_path)
    (others,) = planner.other_lineages(decided)
    assert (others.source, others.numbers, others.restored, others.record_counts) == (ORDERS, (0, 1, 2), 2, {0: 10, 1: 10})
    assert others.sentence() == (
        "orders-0: the source's log was truncated while it was archived; of its lineages 0, 1, 2 the log of 2 is restored; not "
        "restored: at most 10 records of lineage 0, at most 10 records of lineage 1 (until.lineage)"
    )
    _, planner, decided = restore(archive, tmp_path, lineage=0)
    (others,) = planner.other_lineages(decided)
    assert (others.restored, others.record_counts, others.is_exact) == (0, {1: 10, 2: 4}, True)


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        (3, "until.lineage: no partition has a lineage above 2"),
        ({"orders": {0: 3}}, "until.lineage: orders-0 has no lineage 3, but 0, 1, 2"),
        ({"orders": {1: 1}}, "until.lineage: orders-1 has no lineage 1, but 0"),
        ({"payments": {0: 1}}, "until.lineage: the archive has no partition payments-0, or the topic is not included"),
    ],
)
def test_a_lineage_that_is_not_there_is_refused(archive: ArchiveOfTest, tmp_path: Path, lineage: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        restore(archive, tmp_path, lineage=lineage)
    assert problem in caught.value.problems


def test_the_status_names_what_only_the_archive_has(archive: ArchiveOfTest) -> None:
    status = gather_archive_status(archive.config)
    (topic,) = status.topics
    first, second = topic.partitions
    assert (first.lineage, first.position, first.first_offset, first.last_offset) == (2, 26, 0, 25)
    assert first.former_lineages == (FormerLineage(lineage=0, start=14, end=20), FormerLineage(lineage=1, start=22, end=24))
    assert first.record_count == 34
    assert (second.lineage, second.former_lineages, second.last_offset) == (0, (), 6)
    console = stdout_console()
    with console.capture() as capture:
        console.print(render(status))
    assert "offsets 14 to 19 of lineage 0 are in the archive only" in " ".join(capture.get().split())


def test_verify_accepts_lineages_and_finds_a_hole_in_front_of_one(archive: ArchiveOfTest) -> None:
    report = verify_archive(archive.config, is_deep=True)
    assert report.is_equal, report.sentences()
    table = DeltaTable(f"{archive.config.tables}/archive_segments")
    table.delete("lineage = 0 AND source_start = 10")
    table.delete("lineage = 1 AND source_start = 14 AND source_end = 14")
    findings = [finding.detail for found in verify_archive(archive.config).findings.named.values() for finding in found]
    assert "offsets 10 to 13 of orders-0 in lineage 1 are in no row" in findings


def test_verify_finds_a_row_of_a_lineage_that_has_ended(archive: ArchiveOfTest) -> None:
    table = DeltaTable(f"{archive.config.tables}/archive_segments")
    table.update(predicate="lineage = 1 AND source_start = 14 AND source_end = 24", new_values={"lineage": "3"})
    findings = [finding.detail for found in verify_archive(archive.config).findings.named.values() for finding in found]
    assert "a row of orders-0 in lineage 2 at offset 22 was decided after lineage 3 had begun" in findings
    deep = verify_archive(archive.config, is_deep=True)
    assert any("its footer has another row of orders-0" in finding.detail for finding in deep.findings.named[FindingKind.DAMAGED])


def test_a_rebuilt_table_has_every_lineage(archive: ArchiveOfTest, tmp_path: Path) -> None:
    rebuild(archive.config, str(tmp_path / "rebuilt"))
    expected = {source: position.offset for source, position in table_of(archive).positions().items()}
    archive.config = archive.config.model_copy(update={"tables": str(tmp_path / "rebuilt")})
    assert [read(archive, lineage=number) for number in range(3)] == [ZERO, ONE, TWO]
    positions = table_of(archive).positions()
    assert {source: position.offset for source, position in positions.items()} == expected
    assert positions[ORDERS].lineage == 2
    report = verify_archive(archive.config, is_deep=True)
    assert report.is_equal, report.sentences()


def test_a_rebuild_without_the_end_of_a_former_lineage_names_the_hole(archive: ArchiveOfTest, tmp_path: Path) -> None:
    (row,) = [row for row in table_of(archive).rows() if (row.segment.lineage, row.segment.source_start) == (0, 10)]
    assert row.stored is not None
    (Path(archive.config.objects) / row.stored.object_name).unlink()
    with pytest.raises(ConfigError, match="offsets 10 to 13 of orders-0 in lineage 1 are in no object"):
        rebuild(archive.config, str(tmp_path / "refused"))
    rebuild(archive.config, str(tmp_path / "rebuilt"), accepts_holes=True)
    archive.config = archive.config.model_copy(update={"tables": str(tmp_path / "rebuilt")})
    assert read(archive) == [*ZERO[:10], *TWO[14:]]


def test_retention_deletes_the_oldest_objects_first_and_clean_leaves_what_rows_name(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "5 hours"}}), now_ms=NOW_MS)
    archive.archive({ORDERS: batches("a", 0, 20, 3)})
    archive.now_ms += 4 * 3_600_000
    archive.begin_lineage(ORDERS, 14, 3)
    archive.archive({ORDERS: batches("b", 14, 24, 5)})
    assert clean(archive.config, older_than_s=0).object_count == 0
    assert expire(archive.config, takes_over=True, now_ms=lambda: archive.now_ms + 2 * 3_600_000).object_count == 1
    assert read(archive) == ONE[14:]
    assert read(archive, lineage=0) == []
    assert verify_archive(archive.config).is_equal
    (partition,) = gather_archive_status(archive.config).topics[0].partitions
    assert (partition.first_offset, partition.last_offset, partition.former_lineages) == (14, 23, ())


def test_a_restore_begins_where_retention_has_left_something(tmp_path: Path) -> None:
    """The first rows of a partition and of a lineage have no object, and stay."""
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "5 hours"}}), now_ms=NOW_MS)
    archive.decide(*first_rows_at({ORDERS: 0}, lambda source: TargetPartition(*source)))
    archive.archive({ORDERS: batches("a", 0, 20, 3)})
    archive.begin_lineage(ORDERS, 14, 3)
    archive.archive({ORDERS: batches("b", 14, 18, 5)})
    archive.now_ms += 6 * 3_600_000
    archive.archive({ORDERS: batches("b", 18, 24, 5)})
    assert expire(archive.config, takes_over=True, now_ms=lambda: archive.now_ms).object_count == 2
    config = restore_runs.config(tmp_path, archive.config, "127.0.0.1:1")
    decided = RestorePlanner(config, table_of(archive), archive.store).decide_ranges()
    assert decided.ranges == {ORDERS: OffsetRange(18, 24)}


def test_a_lineage_of_which_a_rebuild_found_nothing_is_refused(archive: ArchiveOfTest, tmp_path: Path) -> None:
    for row in table_of(archive).rows():
        if row.segment.lineage == 0 and row.stored is not None and row.segment.source == ORDERS:
            (Path(archive.config.objects) / row.stored.object_name).unlink(missing_ok=True)
    rebuild(archive.config, str(tmp_path / "rebuilt"))
    archive.config = archive.config.model_copy(update={"tables": str(tmp_path / "rebuilt")})
    with pytest.raises(ConfigError, match=r"until\.lineage: orders-0: nothing is left of lineage 0"):
        restore(archive, tmp_path, lineage=0)


def transactional(offset: int, producer_id: int, leader_epoch: int = 3) -> bytes:
    return batch(
        offset, 2, attributes=TXN, producer_id=producer_id, producer_epoch=0, base_sequence=0, leader_epoch=leader_epoch,
        payload=record(0, value=f"{producer_id}.0".encode()) + record(1, value=f"{producer_id}.1".encode()),
    )  # fmt: skip


def test_a_transaction_whose_marker_was_lost_ends_as_each_log_ended_it(tmp_path: Path) -> None:
    """Producer 7 committed and 8 aborted in the lost log; in the new one it is the other way round; 9 is aborted in both."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    lost = [transactional(0, 9), marker(2, 0, 9), transactional(3, 7), transactional(5, 8), marker(7, 1, 7), marker(8, 0, 8)]
    archive.archive({ORDERS: lost}, aborted={ORDERS: [(9, 0), (8, 5)]})
    archive.begin_lineage(ORDERS, 7, 3)
    archive.archive(
        {ORDERS: [marker(7, 0, 7), marker(8, 1, 8), batch(9, payload=record(0, value=b"n"))]}, aborted={ORDERS: [(7, 3)]}
    )
    assert read(archive, lineage=0) == ["7.0", "7.1"]
    assert read(archive) == ["8.0", "8.1", "n"]


def test_a_table_without_the_column_is_refused_with_the_remedy(archive: ArchiveOfTest) -> None:
    uri = f"{archive.config.tables}/archive_segments"
    rows = DeltaTable(uri).to_pyarrow_table().drop_columns(["lineage"])
    properties = DeltaTable(uri).metadata().configuration
    write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite", configuration=dict(properties))
    with pytest.raises(ConfigError, match=r"column lineage: missing.*archive verify FILE --rebuild TABLES"):
        table_of(archive)

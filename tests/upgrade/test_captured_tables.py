"""Today's code reads, takes over and continues what an earlier commit has written: without Java, on captured tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.status_tables import RUN
from tests.upgrade.conftest import Captured
from tests.upgrade.contents import (
    ARCHIVE,
    ARCHIVE_TABLES,
    MIRROR,
    MIRROR_TABLES,
    NARROW,
    ORDERS,
    RESTORE,
    RESTORE_TABLES,
    contents,
)

from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs import Quarantine, positions_as_of
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, OFFSET_MAP_LAYOUT, TableLayout, TableStorage
from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
from shallow_mirror.streaming.planning.offset_planning import parse_stream_offset
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition

FORMATS = (
    (MIRROR, MIRROR_TABLES, OFFSET_MAP_LAYOUT),
    (RESTORE, RESTORE_TABLES, OFFSET_MAP_LAYOUT),
    (ARCHIVE, ARCHIVE_TABLES, ARCHIVE_LAYOUT),
)
FAR_FUTURE_MS = 4_000_000_000_000


def take_over(folder: Path, mirror: str, layout: TableLayout) -> LedgerOwner:
    snapshot = TableStorage(str(folder)).decisions(layout).snapshot()
    assert snapshot is not None
    clusters = {side: snapshot.properties[f"shallow_mirror.{side}_cluster_id"] for side in ("source", "target")}
    return LedgerOwner.take_over(
        str(folder),
        layout=layout,
        name=mirror,
        source_cluster_id=clusters["source"],
        target_cluster_id=clusters["target"],
        run=RUN,
        now_ms=lambda: FAR_FUTURE_MS,
    )


def offsets_of(positions: Mapping[SourcePartition, Position]) -> dict[str, int]:
    return {f"{source.topic}-{source.partition}": position.offset for source, position in sorted(positions.items())}


@pytest.mark.slow
def test_it_reads_what_the_earlier_code_read(captured: Captured) -> None:
    assert contents(captured.folder) == captured.contents


def test_the_files_of_the_mirror_the_archive_and_the_restore_are_accepted(captured: Captured) -> None:
    assert MirrorConfig.load(captured.folder / "mirror.yaml").mirror == MIRROR
    assert ArchiveConfig.load(captured.folder / "archive.yaml").archive == ARCHIVE
    assert RestoreConfig.load(captured.folder / "restore.yaml").restore == RESTORE


@pytest.mark.slow
@pytest.mark.parametrize(("mirror", "tables", "layout"), FORMATS)
def test_it_takes_the_tables_over_as_the_next_run_with_the_same_positions(
    captured: Captured, mirror: str, tables: str, layout: TableLayout
) -> None:
    before = TableStorage(str(captured.folder / tables)).best_effort_tables().read("runs", ())
    owner = take_over(captured.folder / tables, mirror, layout)
    assert owner.run_epoch == max(row["run_epoch"] for row in before) + 1
    assert owner.unsettled() == ()
    owner.settle()
    if layout is OFFSET_MAP_LAYOUT:
        kind = "mirror" if mirror == MIRROR else "restore"
        assert offsets_of(owner.positions()) == captured.contents[kind]["positions"]


@pytest.mark.slow
def test_it_decides_behind_the_rows_of_the_earlier_code_which_stay_as_they_are(captured: Captured) -> None:
    tables = captured.folder / MIRROR_TABLES
    owner = take_over(tables, MIRROR, OFFSET_MAP_LAYOUT)
    owner.settle()
    source = next(source for source in owner.positions() if (source.topic, source.partition) == (ORDERS, 0))
    position = owner.positions()[source]
    segment = Segment(
        source=source,
        source_start=position.offset,
        source_end=position.offset + 5,
        kind=SegmentKind.DATA,
        target=position.target,
        target_start=position.target_end + 1,
        target_end=position.target_end + 6,
        record_count=5,
        batch_count=1,
        max_timestamp_ms=1,
    )
    owner.next_decision()
    owner.decide([DecidedSegment(segment, SlotTxn(f"{MIRROR}-0", 9, 9))], highest_slot=0)
    owner.settle()
    offset_map = OffsetMap.open(str(tables), mirror=MIRROR)
    assert offset_map.translate(ORDERS, 0, position.offset + 1).target_offset == position.target_end + 2
    found = [
        [translation.target_offset, translation.exact]
        for translation in (offset_map.translate(ORDERS, 0, offset) for offset in range(position.offset))
    ]
    assert found == captured.contents["mirror"]["translations"][f"{ORDERS}-0"][:-1]


@pytest.mark.parametrize(("tables", "kind"), [(MIRROR_TABLES, "mirror"), (ARCHIVE_TABLES, None)])
def test_todays_planner_reads_the_spark_checkpoint(captured: Captured, tables: str, kind: str | None) -> None:
    folder = captured.folder / tables / "_spark" / "offsets"
    newest = max((file for file in folder.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    version, _, document = newest.read_text(encoding="utf-8").splitlines()
    planned = parse_stream_offset(json.loads(document))
    assert version == "v1"
    if kind is not None:
        assert {f"{source.topic}-{source.partition}": offset for source, offset in planned.items()} == captured.contents[kind][
            "positions"
        ]
    assert planned


@pytest.mark.slow
def test_what_operators_have_done_is_still_there(captured: Captured) -> None:
    storage = TableStorage(str(captured.folder / MIRROR_TABLES))
    assert Controls.open(storage).paused().keys() == {NARROW}
    (entry,) = Quarantine.open(storage, mirror=MIRROR).entries()
    assert (entry.segment.source.topic, entry.is_released) == (NARROW, False)
    assert Quarantine.open(storage, mirror=MIRROR).batch(entry).batch
    groups = positions_as_of(storage.best_effort_tables(), datetime.now(UTC))
    assert {position.group for position in groups.positions} == {"billing"}


@pytest.mark.slow
def test_a_record_is_read_from_an_archived_object(captured: Captured) -> None:
    archive = ArchiveReader.open(str(captured.folder / ARCHIVE_TABLES), str(captured.folder / "objects"))
    records = archive.read_records(ORDERS, 0, 7, 8)
    assert [(record.offset, record.value) for record in records] == [(7, b"order 7")]


@pytest.mark.slow
def test_nothing_in_the_captured_files_names_the_machine(captured: Captured) -> None:
    hosts: set[Any] = {
        row["host"] for row in TableStorage(str(captured.folder / MIRROR_TABLES)).best_effort_tables().read("runs", ())
    }
    assert hosts == {"mirror-host"}
    for file in captured.folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(folder in content for folder in (b"/home/", b"/root/", b"/Users/")), file

"""What the writer relies on in deltalake itself: compare-and-set, zero-row commits, what compaction leaves alone."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from shallow_mirror.checkpoints.deltalake_writer import CommitFailed, DeltalakeSnapshot, DeltalakeWriter
from shallow_mirror.checkpoints.schema import OFFSET_MAP, DecidedSegment, rows_to_arrow, table_properties
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

EMPTY = OFFSET_MAP.empty_table()


def rows(start: int, txn: SlotTxn | None = None) -> object:
    source, target = SourcePartition("t", "a", 0), TargetPartition("t", "b", 0)
    segment = Segment(source=source, source_start=start, source_end=start + 1, kind=SegmentKind.GAP, target=target)
    return rows_to_arrow([DecidedSegment(segment, txn)], 1, 1, 0)


@pytest.fixture
def writer(tmp_path: Path) -> DeltalakeWriter:
    made = DeltalakeWriter(str(tmp_path / "offset_map"))
    made.create(table_properties("m", "S", "T", "deltalake"))
    return made


def opened(writer: DeltalakeWriter) -> DeltalakeSnapshot:
    snapshot = writer.snapshot()
    assert snapshot is not None
    return snapshot


def test_there_is_no_snapshot_of_a_table_that_does_not_exist(tmp_path: Path) -> None:
    assert DeltalakeWriter(str(tmp_path / "nothing")).snapshot() is None


def test_creating_at_once_leaves_the_table_of_one_with_its_properties(tmp_path: Path) -> None:
    ready, errors, created = threading.Barrier(4), list[Exception](), list[str | None]()

    def create(name: str) -> None:
        own = DeltalakeWriter(str(tmp_path / "map"))
        ready.wait(30)
        try:
            own.create(table_properties(name, "S", "T", "deltalake"))
            created.append(opened(own).properties["shallow_mirror.mirror"])
        except Exception as error:  # noqa: BLE001 - any error fails the test
            errors.append(error)

    threads = [threading.Thread(target=create, args=(f"mirror-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = opened(DeltalakeWriter(str(tmp_path / "map")))
    assert (errors, found.delta_version) == ([], 0)
    assert set(created) == {found.properties["shallow_mirror.mirror"]}


def test_any_reader_can_read_the_table(writer: DeltalakeWriter) -> None:
    protocol = DeltaTable(writer.uri).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version, protocol.reader_features) == (1, 2, None)


@pytest.mark.parametrize("newer", ["append", "delete", "compact"])
@pytest.mark.parametrize("step", ["append", "delete"])
def test_a_stale_snapshot_commits_nothing(writer: DeltalakeWriter, step: str, newer: str) -> None:
    for version in (1, 2):
        writer.append(opened(writer), rows(version), version, {})
    stale = opened(writer)
    if newer == "append":
        writer.append(opened(writer), EMPTY, 3, {})
    elif newer == "delete":
        writer.delete(opened(writer), "source_start = 1", 3, {})
    else:
        writer.compact(opened(writer), {})
    before = opened(writer)
    appends = functools.partial(writer.append, stale, rows(9), 4, {})
    deletes = functools.partial(writer.delete, stale, "source_start = 2", 4, {})
    with pytest.raises(CommitFailed):
        (appends if step == "append" else deletes)()
    after = opened(writer)
    assert (after.delta_version, after.txn_version()) == (before.delta_version, before.txn_version())


def test_a_commit_without_rows_records_its_version_and_metadata(writer: DeltalakeWriter) -> None:
    assert (opened(writer).txn_version(), opened(writer).metadata()) == (None, None)
    writer.append(opened(writer), EMPTY, 7, {"run_id": "x"})
    found = opened(writer)
    metadata = found.metadata()
    assert metadata is not None
    assert (found.txn_version(), metadata["run_id"], found.read().num_rows) == (7, "x", 0)


def test_a_delete_that_matches_nothing_commits_nothing(writer: DeltalakeWriter) -> None:
    writer.append(opened(writer), rows(1), 7, {})
    writer.delete(opened(writer), "source_start = 99", 8, {})
    assert (opened(writer).delta_version, opened(writer).txn_version()) == (1, 7)


def test_a_delete_keeps_rows_whose_triple_is_null(writer: DeltalakeWriter) -> None:
    writer.append(opened(writer), rows(1), 7, {})
    writer.append(opened(writer), rows(2, SlotTxn("m-0", 1, 1)), 8, {})
    writer.delete(opened(writer), "transactional_id = 'm-0'", 9, {"run_id": "x"})
    found = opened(writer)
    assert (found.read().column("source_start").to_pylist(), found.txn_version()) == ([1], 9)
    assert (found.metadata() or {})["run_id"] == "x"


def test_metadata_is_found_below_commits_of_other_tools(writer: DeltalakeWriter) -> None:
    for version in (1, 2):
        writer.append(opened(writer), rows(version), version, {"run_id": f"of {version}"})
    DeltaTable(writer.uri).optimize.compact()
    assert (opened(writer).metadata() or {})["run_id"] == "of 2"


def test_compaction_and_cleaning_keep_the_version_its_metadata_and_all_rows(writer: DeltalakeWriter) -> None:
    for version in range(1, 120):
        writer.append(opened(writer), rows(version), version, {"run_id": f"of {version}"})
    writer.compact(opened(writer), {"run_id": "of 119"})
    writer.clean_up()
    found = opened(writer)
    assert (found.txn_version(), (found.metadata() or {})["run_id"], found.read().num_rows) == (119, "of 119", 119)
    assert len(DeltaTable(writer.uri).file_uris()) == 1
    assert list(Path(writer.uri, "_delta_log").glob("*.checkpoint.parquet"))


def test_a_snapshot_does_not_see_later_commits(writer: DeltalakeWriter) -> None:
    writer.append(opened(writer), rows(1), 1, {"run_id": "one"})
    old = opened(writer)
    writer.append(opened(writer), rows(2), 2, {"run_id": "two"})
    assert (old.txn_version(), (old.metadata() or {})["run_id"], old.read().num_rows) == (1, "one", 1)


def test_the_columns_have_types_that_spark_knows(writer: DeltalakeWriter) -> None:
    types = {field.name: str(field.type.type) for field in DeltaTable(writer.uri).schema().fields}
    assert set(types.values()) == {"string", "integer", "long", "timestamp"}

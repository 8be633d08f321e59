"""What is deltalake's alone: compare-and-set, and a log of many commits that is cleaned. The rest is in the contract."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from shallow_mirror.checkpoints import DecidedSegment, table_properties
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, properties_of_new_map, rows_to_arrow
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeSnapshot, DeltalakeWriter, _reading_errors
from shallow_mirror.checkpoints.tables.table_protocol import DeltaCommitError
from shallow_mirror.errors import OffsetMapConflictError, StoreUnreachableError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

EMPTY = OFFSET_MAP.empty_table()


def rows(start: int, txn: SlotTxn | None = None) -> object:
    source, target = SourcePartition("t", "a", 0), TargetPartition("t", "b", 0)
    segment = Segment(source=source, source_start=start, source_end=start + 1, kind=SegmentKind.GAP, target=target)
    return rows_to_arrow([DecidedSegment(segment, txn)], 1, 1, 0)


@pytest.fixture
def writer(tmp_path: Path) -> DeltalakeWriter:
    made = DeltalakeWriter(str(tmp_path / "offset_map"))
    made.create(properties_of_new_map(table_properties("m", "S", "T", "deltalake")))
    return made


def opened(writer: DeltalakeWriter) -> DeltalakeSnapshot:
    snapshot = writer.snapshot()
    assert snapshot is not None
    return snapshot


def test_creating_at_once_leaves_the_table_of_one_with_its_properties(tmp_path: Path) -> None:
    ready, errors, created = threading.Barrier(4), list[Exception](), list[str | None]()

    def create(name: str) -> None:
        own = DeltalakeWriter(str(tmp_path / "map"))
        ready.wait(30)
        try:
            own.create(properties_of_new_map(table_properties(name, "S", "T", "deltalake")))
            created.append(opened(own).properties["shallow_mirror.mirror"])
        except Exception as error:  # noqa: BLE001 - any error fails the test
            errors.append(error)

    threads = [threading.Thread(target=create, args=(f"mirror-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    snapshot = opened(DeltalakeWriter(str(tmp_path / "map")))
    assert (errors, snapshot.delta_version) == ([], 0)
    assert set(created) == {snapshot.properties["shallow_mirror.mirror"]}


@pytest.mark.slow
@pytest.mark.parametrize("newer", ["append", "delete", "compact"])
@pytest.mark.parametrize("step", ["append", "delete"])
def test_a_stale_snapshot_commits_nothing(writer: DeltalakeWriter, step: str, newer: str) -> None:
    for version in (1, 2):
        writer.append(opened(writer), rows(version), version, {})
    stale = opened(writer)
    if newer == "append":
        writer.append(opened(writer), EMPTY, 3, {})
    elif newer == "delete":
        writer.delete(opened(writer), [(Comparison("source_start", "=", 1),)], 3, {})
    else:
        writer.compact(opened(writer), {})
    before = opened(writer)
    appends = functools.partial(writer.append, stale, rows(9), 4, {})
    deletes = functools.partial(writer.delete, stale, [(Comparison("source_start", "=", 2),)], 4, {})
    with pytest.raises(DeltaCommitError):
        (appends if step == "append" else deletes)()
    after = opened(writer)
    assert (after.delta_version, after.txn_version()) == (before.delta_version, before.txn_version())


def test_metadata_is_found_below_commits_of_other_tools(writer: DeltalakeWriter) -> None:
    for version in (1, 2):
        writer.append(opened(writer), rows(version), version, {"run_id": f"of {version}"})
    DeltaTable(writer.uri).optimize.compact()
    assert next(iter(opened(writer).commits())).metadata["run_id"] == "of 2"


@pytest.mark.thorough
def test_compaction_and_cleaning_keep_the_version_its_metadata_and_all_rows(writer: DeltalakeWriter) -> None:
    for version in range(1, 120):
        writer.append(opened(writer), rows(version), version, {"run_id": f"of {version}"})
    writer.compact(opened(writer), {"run_id": "of 119"})
    writer.clean_up()
    snapshot = opened(writer)
    assert (snapshot.txn_version(), next(iter(snapshot.commits())).metadata["run_id"], snapshot.read().num_rows) == (
        119,
        "of 119",
        119,
    )
    assert len(DeltaTable(writer.uri).file_uris()) == 1
    assert list(Path(writer.uri, "_delta_log").glob("*.checkpoint.parquet"))


def test_the_columns_have_types_that_spark_knows(writer: DeltalakeWriter) -> None:
    types = {field.name: str(field.type.type) for field in DeltaTable(writer.uri).schema().fields}
    assert set(types.values()) == {"string", "integer", "long", "timestamp"}


@pytest.mark.parametrize(
    "read", [DeltalakeSnapshot.read, lambda snapshot: list(snapshot.batches())], ids=["at once", "in pieces"]
)
def test_a_missing_file_is_named_and_no_error_of_the_library(tmp_path: Path, read: Callable[[DeltalakeSnapshot], object]) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1, 2]}))
    snapshot = DeltalakeSnapshot(DeltaTable(tmp_path))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(OffsetMapConflictError, match=r"a file of .* is missing: .* exchanged while it was read, start again"):
        read(snapshot)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def exchange(file: Path) -> None:
    file.write_bytes(b"garbage")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def overwrite_rows(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"\xff" * 100 + content[104:])


def overwrite_footer(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-60] + b"\xee" * 52 + content[-8:])


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [cut, exchange, empty, zero, overwrite_rows, overwrite_footer, make_folder])
@pytest.mark.parametrize(
    "read", [DeltalakeSnapshot.read, lambda snapshot: list(snapshot.batches())], ids=["at once", "in pieces"]
)
def test_a_damaged_file_is_an_error_that_names_the_table_and_what_to_do(
    tmp_path: Path, damage: Callable[[Path], None], read: Callable[[DeltalakeSnapshot], object]
) -> None:
    write_deltalake(tmp_path, pa.table({"a": list(range(100))}))
    snapshot = DeltalakeSnapshot(DeltaTable(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    damage(file)
    with pytest.raises(OffsetMapConflictError, match=r"is damaged: .*put the newest copy of the tables back") as caught:
        read(snapshot)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    if damage is not overwrite_rows:  # the library names no file once it reads rows
        assert f"(file {file.name})" in str(caught.value)


@pytest.mark.parametrize("reason", ["Input/output error (os error 5)", "Too many open files (os error 24)"])
def test_a_file_that_the_system_does_not_let_be_read_is_no_damage(tmp_path: Path, reason: str) -> None:
    text = f"External error: Parquet error: Failed to fetch metadata for file p.parquet: Object Store error: {reason}"
    with (
        pytest.raises(StoreUnreachableError, match=r"did not read rows: .*os error .*Remedy: check the disk"),
        _reading_errors("read rows", str(tmp_path)),
    ):
        raise pa.ArrowInvalid(text)


def test_an_error_of_a_query_is_no_damage(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1, 2]}))
    with pytest.raises(OSError, match="No field named b"):
        DeltalakeSnapshot(DeltaTable(tmp_path)).read((), ["b"])

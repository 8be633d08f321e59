"""The contract that both writers keep: who wins, what is skipped, what is read back, and what any reader sees."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.archive_format.archived_rows import data as archived_data
from tests.checkpoints.map_rows import NEWER, TARGET, TXN, Faulty, data, lose, once, run_of

from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Removal, table_properties
from shallow_mirror.checkpoints.ledger import LedgerOwner, commits, version_of
from shallow_mirror.checkpoints.logs.runs import CountedProblem, Problem, ProblemKind, read_problems
from shallow_mirror.checkpoints.logs.runs.problem_log import PROBLEMS_TABLE
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS, archive_rows_from_arrow, archive_rows_to_arrow
from shallow_mirror.checkpoints.rows.problems import PROBLEMS
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, properties_of_new_map, rows_to_arrow
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, Comparison, TableStorage, TableWriter, choose_writer
from shallow_mirror.checkpoints.tables.backends import deltalake_writer, spark_writer
from shallow_mirror.checkpoints.tables.table_protocol import TABLE_SETTINGS, DeltaCommitError, TableSnapshot, Update, WriterName
from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OffsetMapConflictError, OutcomeUnknownError
from shallow_mirror.types import SlotTxn

EMPTY = OFFSET_MAP.empty_table()


@dataclass
class Location:
    """Where the map of one test is. `spark` is None for deltalake."""

    tables: str
    name: WriterName
    spark: Any

    def writer(self) -> TableWriter:
        """Of its own, as another process would have it."""
        return TableStorage(self.tables, self.spark, writer=self.name).offset_map

    def created(self) -> TableWriter:
        made = self.writer()
        made.create(properties_of_new_map(table_properties("m", "S", "T", self.name)))
        return made

    def take(self, run: str, writer: TableWriter | None = None) -> LedgerOwner:
        return LedgerOwner.take_over(
            self.tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of(run),
            now_ms=lambda: 1_700_000_000_000, writer=writer or self.writer(),
        )  # fmt: skip

    def settled(self, run: str) -> LedgerOwner:
        owner = self.take(run)
        owner.settle()
        return owner

    def delta_version(self) -> int:
        return opened(self.writer()).delta_version


LongOnSpark = pytest.mark.parametrize(
    "location", ["deltalake", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])], indirect=True
)


@pytest.fixture(params=["deltalake", pytest.param("spark", marks=pytest.mark.spark)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    spark = request.getfixturevalue("spark") if request.param == "spark" else None
    return Location(str(tmp_path / "tables"), request.param, spark)


def opened(writer: TableWriter) -> TableSnapshot:
    snapshot = writer.snapshot()
    assert snapshot is not None
    return snapshot


def rows(start: int, txn: SlotTxn | None = None) -> pa.Table:
    return rows_to_arrow([data(start, start + 1, txn)], 1, start, 0)


def elsewhere(row: DecidedSegment) -> DecidedSegment:
    """Return the same row of the next partition."""
    segment = row.segment
    source, target = segment.source._replace(partition=1), segment.target._replace(partition=1)
    return DecidedSegment(replace(segment, source=source, target=target), row.txn)


def die() -> None:
    raise KeyboardInterrupt


def decide(owner: LedgerOwner, *segments: DecidedSegment) -> None:
    owner.next_decision()
    owner.decide(segments, 0)


# --- commits


@LongOnSpark
def test_a_created_table_is_plain_delta_with_the_columns_and_properties_of_a_map(location: Location) -> None:
    assert location.writer().snapshot() is None
    snapshot = opened(location.created())
    assert (snapshot.delta_version, snapshot.txn_version(), list(snapshot.commits())) == (0, None, [])
    assert snapshot.columns == [(field.name, str(field.type)) for field in OFFSET_MAP]
    assert snapshot.properties.items() >= table_properties("m", "S", "T", location.name).items()
    protocol = DeltaTable(f"{location.tables}/offset_map").protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version, protocol.reader_features) == (1, 2, None)
    location.writer().create(properties_of_new_map(table_properties("n", "S", "T", location.name)))
    assert opened(location.writer()).properties["shallow_mirror.mirror"] == "m", "a table that is there stays as it is"


@LongOnSpark
def test_a_commit_records_its_version_metadata_and_rows_and_older_snapshots_do_not_see_it(location: Location) -> None:
    writer = location.created()
    writer.append(opened(writer), EMPTY, 7, {"run_id": "one"})
    older = opened(writer)
    writer.append(opened(writer), rows(2), 8, {"run_id": 'it\'s "two"'})
    newer = opened(location.writer())
    assert [(commit.version, commit.metadata["run_id"]) for commit in newer.commits()] == [(8, 'it\'s "two"'), (7, "one")]
    assert (newer.txn_version(), newer.read()) == (8, rows(2))
    assert pa.Table.from_batches(newer.batches(columns=["source_start"])).to_pydict() == {"source_start": [2]}
    assert [(commit.version, older.txn_version(), older.read().num_rows) for commit in older.commits()] == [(7, 7, 0)]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def exchange(file: Path) -> None:
    file.write_bytes(b"garbage")


def lose_file(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("damage", [cut, exchange, lose_file])
def test_a_damaged_or_missing_file_is_named_and_no_error_of_the_library(
    location: Location, damage: Callable[[Path], None]
) -> None:
    writer = location.created()
    writer.append(opened(writer), rows(2), 7, {"run_id": "one"})
    storage = TableStorage(location.tables, location.spark, writer=location.name)
    controls = Controls.open(storage)
    controls.add("pause", ["orders"])
    for file in (file for table in ("offset_map", "controls") for file in Path(location.tables, table).glob("*.parquet")):
        damage(file)
    snapshot = opened(location.writer())
    for table, read in (
        ("offset_map", snapshot.read),
        ("offset_map", lambda: list(snapshot.batches())),
        ("controls", controls.read),
    ):
        with pytest.raises(OffsetMapConflictError, match=f"{table}.*: put the newest copy of the tables back") as caught:
            read()
        assert re.search(r"part-\S+\.parquet", str(caught.value))
        assert "\n" not in str(caught.value)


def test_an_append_adds_the_columns_that_an_older_release_did_not_have(location: Location) -> None:
    """They are null in the rows that were there, and in what is read before the append."""
    (column,) = ARCHIVE_LAYOUT.added_columns
    older = replace(ARCHIVE_LAYOUT, schema=ARCHIVE_SEGMENTS.remove(ARCHIVE_SEGMENTS.get_field_index(column)))
    storage = TableStorage(location.tables, location.spark, writer=location.name)
    archived = archived_data(5, 20)
    appended = archive_rows_to_arrow([DecidedSegment(archived.segment, None, archived.stored)], 1, 7, 0)
    writer = storage.decisions(older)
    writer.create(properties_of_new_map(table_properties("m", "S", "T", location.name)))
    writer.append(opened(writer), appended.drop_columns([column]), 7, {"run_id": "older"})
    assert column not in opened(writer).read().column_names
    writer = storage.decisions(ARCHIVE_LAYOUT)
    assert ARCHIVE_LAYOUT.column_problems(opened(writer).columns) == []
    (before,) = archive_rows_from_arrow(opened(writer).read())
    assert before.stored is not None
    assert before.stored.run_crc32c is None
    writer.append(opened(writer), appended, 8, {"run_id": "newer"})
    assert ARCHIVE_LAYOUT.column_problems(opened(writer).columns) == []
    rows_read = archive_rows_from_arrow(opened(writer).read())
    assert sorted([row.stored and row.stored.run_crc32c for row in rows_read], key=str) == [(12,), None]
    assert {row.stored and replace(row.stored, run_crc32c=None) for row in rows_read} == {before.stored}


@LongOnSpark
def test_rows_of_problems_extend_the_table_of_a_release_that_recorded_no_topic(location: Location) -> None:
    tables = TableStorage(location.tables, location.spark, writer=location.name).best_effort_tables()
    problem = Problem(kind=ProblemKind.CONFIG, text="source topic a was deleted", remedy="r")
    first, second = (
        CountedProblem(run_epoch=1, number=number, problem=each, occurrences=1, first_at_ms=0, last_at_ms=number)
        for number, each in ((1, problem), (2, replace(problem, topic="a")))
    )
    tables.append(PROBLEMS_TABLE, PROBLEMS.to_arrow([first]).drop_columns(["topic"]))
    assert read_problems(tables, 1) == (first,)
    assert tables.append(PROBLEMS_TABLE, PROBLEMS.to_arrow([second]))
    assert read_problems(tables, 1) == (first, second)


def test_a_version_that_is_not_higher_than_the_recorded_one_changes_nothing(location: Location) -> None:
    writer = location.created()
    writer.append(opened(writer), rows(1, TXN), 7, {"run_id": "one"})
    before = opened(writer)
    for version in (6, 7):
        with suppress(DeltaCommitError):  # deltalake says so, Spark does not
            writer.append(before, rows(9), version, {"run_id": "two"})
        with suppress(DeltaCommitError):
            writer.delete(before, [(Comparison("source_start", "=", 1),)], version, {"run_id": "two"})
    assert location.delta_version() == before.delta_version


def test_a_delete_takes_the_rows_that_match_and_commits_nothing_where_none_does(location: Location) -> None:
    writer = location.created()
    writer.append(opened(writer), pa.concat_tables([rows(1), rows(2, TXN), rows(3, SlotTxn("it's-0", 1, 1))]), 7, {})
    writer.delete(opened(writer), [(Comparison("transactional_id", "=", "nobody"),)], 8, {})
    assert opened(writer).txn_version() == 7
    writer.delete(
        opened(writer), [(Comparison("transactional_id", "=", "it's-0"), Comparison("target_producer_id", "=", 1))], 9, {}
    )
    assert sorted(opened(writer).read(columns=["source_start"])["source_start"].to_pylist()) == [1, 2]
    assert opened(writer).read((Comparison("transactional_id", "!=", "x"),)).num_rows == 1, "null is not unequal"


@LongOnSpark
def test_an_update_sets_one_column_of_the_rows_that_match_under_its_version(location: Location) -> None:
    writer = location.created()
    writer.append(opened(writer), pa.concat_tables([rows(start, SlotTxn(f"it's-{start}", 1, 1)) for start in range(4)]), 7, {})
    update = Update("kind", "marked", (Comparison("source_start", ">", 0),), "transactional_id", ["it's-0", "it's-1", "it's-3"])
    writer.update(opened(writer), update, 9, {"run_id": "a"})
    after = opened(writer)
    assert after.txn_version() == 9
    assert next(iter(after.commits())).metadata["run_id"] == "a"
    kinds = after.read(columns=["source_start", "kind"]).sort_by("source_start")["kind"].to_pylist()
    assert kinds == ["data", "marked", "data", "marked"]
    with suppress(DeltaCommitError):
        writer.update(after, update, 9, {"run_id": "b"})
    assert next(iter(opened(writer).commits())).metadata["run_id"] == "a"


@LongOnSpark
def test_compaction_and_cleaning_keep_the_version_its_metadata_and_all_rows(location: Location) -> None:
    writer = location.created()
    for version in (1, 2, 3):
        writer.append(opened(writer), rows(version), version, {"run_id": f"of {version}"})
    writer.compact(opened(writer), {"run_id": "of 3, compacted"})
    writer.clean_up()
    snapshot = opened(location.writer())
    assert (snapshot.txn_version(), next(iter(snapshot.commits())).metadata["run_id"]) == (3, "of 3, compacted")
    assert sorted(snapshot.read(columns=["source_start"])["source_start"].to_pylist()) == [1, 2, 3]
    assert len(DeltaTable(f"{location.tables}/offset_map").file_uris()) == 1


@pytest.mark.slow
@LongOnSpark
def test_cleaning_keeps_a_log_in_a_folder_short_and_the_run_and_the_next_one_continue(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltalake_writer, "COMMITS_KEPT", 4)
    monkeypatch.setattr(spark_writer, "COMMITS_KEPT", 4)
    monkeypatch.setitem(cast(dict[str, str], TABLE_SETTINGS), "delta.checkpointInterval", "2")
    writer = location.writer()
    owner = location.take("one", writer)
    owner.settle()
    for start in range(9):
        decide(owner, data(start, start + 1))
    writer.clean_up()
    log = Path(location.tables) / "offset_map" / "_delta_log"
    commits = sorted(int(file.stem) for file in log.glob("*.json"))
    assert 4 <= len(commits) <= 6
    assert commits == list(range(commits[0], commits[-1] + 1))
    assert not [file for file in log.iterdir() if file.name.lstrip(".")[:20] < f"{commits[0]:020}"]
    decide(owner, data(9, 10))
    assert [position.offset for position in location.settled("two").positions().values()] == [10]
    assert opened(location.writer()).read().num_rows == 10


@pytest.mark.long
@pytest.mark.spark
def test_a_map_of_spark_keeps_the_commits_that_a_start_needs_after_any_compaction(spark: Any, tmp_path: Path) -> None:
    """A mirror that stopped long ago, and another job that compacts its table and writes checkpoints."""
    location = Location(str(tmp_path / "tables"), "spark", spark)
    owner = location.settled("one")
    for start in range(3):
        decide(owner, data(start, start + 1))
    owner.settle()
    log = make_old(location)
    table = f"delta.`{location.tables}/offset_map`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"OPTIMIZE {table}")
    assert (log / f"{0:020}.json").exists()
    second = location.settled("two")
    assert (second.recorded().micro_batch, second.highest_slot) == (3, 0)
    assert opened(location.writer()).properties["delta.checkpointInterval"] == TABLE_SETTINGS["delta.checkpointInterval"]

    make_old(location)
    decide(second, data(3, 4))
    location.writer().clean_up()
    assert not (log / f"{0:020}.json").exists(), "the mirror cleans its log itself"
    assert opened(location.writer()).properties["delta.enableExpiredLogCleanup"] == "false"
    third = location.settled("three")
    assert [position.offset for position in third.positions().values()] == [4]


def make_old(location: Location) -> Path:
    """Return the log, all files of which are ten days old then: Spark's retention is seven."""
    log = Path(location.tables) / "offset_map" / "_delta_log"
    for file in log.iterdir():
        os.utime(file, (file.stat().st_mtime - 10 * 86_400,) * 2)  # in the same order: Spark cleans no other
    return log


# --- owners


@LongOnSpark
def test_a_take_over_fences_the_older_run_which_then_changes_nothing(location: Location) -> None:
    first = location.settled("one")
    decide(first, data(0, 5))
    second = location.take("two")
    assert (second.run_epoch, second.recorded().version, second.unsettled()) == (2, version_of(2, 0), (data(0, 5),))
    before = location.delta_version()
    for attempt in (first.check_ownership, lambda: decide(first, data(5, 6)), lambda: first.settle([Removal(TXN)])):
        with pytest.raises(FencedError, match="run two on host"):
            attempt()
    assert location.delta_version() == before


def test_of_two_that_take_over_at_once_one_wins_and_the_other_says_who(location: Location) -> None:
    location.settled("old")
    together, results = threading.Barrier(2), list[object]()

    def take(run: str) -> None:
        try:
            results.append(location.take(run, Faulty(location.writer(), once("before append", lambda: together.wait(60)))))
        except MirrorError as error:
            results.append(error)

    threads = [threading.Thread(target=take, args=(run,)) for run in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    (winner,) = (result for result in results if isinstance(result, LedgerOwner))
    (loser,) = (result for result in results if isinstance(result, FencedError))
    assert (winner.run_epoch, str(winner.recorded().run) in str(loser)) == (2, True)
    winner.check_ownership()


@pytest.mark.slow
@LongOnSpark
def test_a_take_over_knows_the_decision_that_came_in_before_it(location: Location) -> None:
    old = location.settled("old")
    new = location.take("new", Faulty(location.writer(), once("before append", lambda: decide(old, data(0, 5)))))
    assert (new.run_epoch, new.micro_batch, new.unsettled()) == (2, 1, (data(0, 5),))
    assert location.take("newer").unsettled() == (data(0, 5),)
    assert OffsetMap.open(location.tables).settled_rows().num_rows == 0


@LongOnSpark
def test_a_commit_whose_reply_was_lost_is_read_back_as_written(location: Location) -> None:
    writer = Faulty(location.writer())
    owner = location.take("one", writer)
    steps: list[Callable[[], object]] = [owner.settle, lambda: decide(owner, data(0, 5)), lambda: owner.settle([Removal(TXN)])]
    for step in steps:
        writer.fault = lambda now: lose() if now.startswith("after") else None
        step()
    decide(owner, data(0, 5))
    writer.fault = lambda now: lose() if now == "before append" else None
    with pytest.raises(OutcomeUnknownError):
        owner.settle()
    owner.check_ownership()
    assert opened(location.writer()).txn_version() == owner.recorded().version == version_of(1, 4)


@pytest.mark.slow
@LongOnSpark
def test_a_run_that_dies_between_commit_and_read_back_leaves_a_decision_to_resolve(location: Location) -> None:
    writer = Faulty(location.writer())
    owner = location.take("one", writer)
    owner.settle()
    writer.fault = once("after append", die)
    with pytest.raises(KeyboardInterrupt):
        decide(owner, data(0, 5), elsewhere(data(0, 3)))
    new = location.take("two")
    assert new.unsettled() == (data(0, 5), elsewhere(data(0, 3)))
    new.settle([Removal(TXN, TARGET)])
    assert new.unsettled() == ()
    assert list(new.positions()) == [elsewhere(data(0, 3)).segment.source]
    new.settle([Removal(TXN), Removal(NEWER)])
    new.settle([Removal(TXN)])
    assert new.recorded().version == version_of(2, 5), "a removal without rows commits its version"
    assert (new.positions(), OffsetMap.open(location.tables).positions()) == ({}, {})


@pytest.mark.slow
@LongOnSpark
def test_a_compaction_in_between_neither_stops_a_commit_nor_changes_what_is_recorded(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 2)
    writer = Faulty(location.writer())
    owner = location.take("one", writer)
    owner.settle()
    decide(owner, data(0, 5))
    decide(owner, data(5, 6, NEWER))
    writer.fault = once("before delete", lambda: DeltaTable(f"{location.tables}/offset_map").optimize.compact())
    owner.settle([Removal(NEWER)])
    decide(owner, data(5, 7))
    owner.settle()
    assert owner.compact_if_due()
    assert len(DeltaTable(f"{location.tables}/offset_map").file_uris()) == 1
    reader = OffsetMap.open(location.tables)
    assert (reader.recorded(), reader.positions()) == (owner.recorded(), owner.positions())
    assert [position.offset for position in location.settled("two").positions().values()] == [7]


# --- both on one table


def test_the_two_writers_cannot_take_turns_on_one_table(location: Location) -> None:
    location.created()
    assert choose_writer(location.tables, "auto") == location.name
    other: WriterName = "spark" if location.name == "deltalake" else "deltalake"
    stranger = Faulty(location.writer())
    stranger.name = other
    with pytest.raises(ConfigError, match=f"take turns on one table, set tables_writer: {location.name}"):
        location.take("two", stranger)
    assert location.delta_version() == 0


# --- other readers


@pytest.mark.slow
@LongOnSpark
def test_polars_and_duckdb_see_the_rows_that_the_writer_reads(location: Location) -> None:
    writer, file = location.created(), f"{location.tables}/offset_map"
    for start in (1, 2):
        writer.append(opened(writer), pa.concat_tables([rows(start), rows(start + 10, TXN)]), start, {})
    writer.delete(opened(writer), [(Comparison("source_start", "=", 11),)], 3, {})
    expected = sorted(opened(writer).read().to_pylist(), key=lambda row: row["source_start"])
    assert [row["source_start"] for row in expected] == [1, 2, 12]
    assert polars.scan_delta(file).sort("source_start").collect().to_dicts() == expected
    files = DeltaTable(file).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        actual = connection.sql("SELECT * FROM files ORDER BY source_start").to_arrow_table()
    assert actual.to_pylist() == expected
    assert files.schema.names == actual.column_names


# --- commits of others


def test_a_delete_by_another_client_is_detected_at_the_next_look(location: Location) -> None:
    owner = location.settled("one")
    owner.positions()
    decide(owner, data(0, 1))
    good = location.delta_version()
    DeltaTable(f"{location.tables}/offset_map").delete()
    with pytest.raises(OffsetMapConflictError, match=f"holds 0 rows, shallow-mirror has written 1.* TO VERSION AS OF {good}"):
        owner.check_ownership()


def test_nobody_translates_by_a_map_that_has_lost_rows(location: Location) -> None:
    owner = location.settled("one")
    for start in range(3):
        decide(owner, data(start, start + 1))
    owner.settle()
    table = DeltaTable(f"{location.tables}/offset_map")
    good = table.version()
    table.delete("source_start = 1")
    with pytest.raises(OffsetMapConflictError, match=r"holds 2 rows, shallow-mirror has written 3.*DESCRIBE HISTORY"):
        OffsetMap.open(location.tables)
    table.restore(good)
    assert OffsetMap.open(location.tables).translate("orders", 0, 1).exact


@pytest.mark.slow
@LongOnSpark
def test_rows_that_are_deleted_under_a_running_mirror_end_it_before_the_next_decision(location: Location) -> None:
    owner = location.settled("one")
    for start in range(3):
        decide(owner, data(start, start + 1))
        owner.positions()
    owner.settle()
    table = DeltaTable(f"{location.tables}/offset_map")
    good = table.version()
    table.delete("source_start = 1")
    recorded = owner.recorded()
    for attempt in (owner.check_ownership, lambda: decide(owner, data(3, 4)), lambda: owner.settle([Removal(TXN)])):
        with pytest.raises(OffsetMapConflictError, match=f"holds 2 rows, shallow-mirror has written 3.* TO VERSION AS OF {good}"):
            attempt()
    assert owner.recorded() == recorded, "nothing was decided on top of it"
    with pytest.raises(OffsetMapConflictError, match="DESCRIBE HISTORY"):
        location.settled("refused").positions()
    DeltaTable(f"{location.tables}/offset_map").restore(good)
    after = location.settled("two")
    assert [position.offset for position in after.positions().values()] == [3]
    decide(after, data(3, 4))


def put_back(location: Location, version: int) -> None:
    """Add the rows that the table had in `version` and has no more: as docs/reference/error-remedies.md says, where there is SQL."""
    path = f"{location.tables}/offset_map"
    if location.spark is not None:
        name = f"delta.`{path}`"
        before = f"SELECT * FROM {name} VERSION AS OF {version}"
        location.spark.sql(f"INSERT INTO {name} {before} EXCEPT ALL SELECT * FROM {name}")
        return
    rows_then = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    rows_now = DeltaTable(path).to_pyarrow_table().to_pylist()
    missing = [row for row in rows_then if row not in rows_now]
    write_deltalake(path, pa.Table.from_pylist(missing, schema=OFFSET_MAP), mode="append")


@pytest.mark.slow
@LongOnSpark
def test_rows_that_were_deleted_long_ago_can_be_put_back_beside_what_was_decided_since(location: Location) -> None:
    """As after a delete that an earlier version of the mirror did not notice."""
    owner = location.settled("one")
    for start in range(2):
        decide(owner, data(start, start + 1))
    owner.positions()
    table = DeltaTable(f"{location.tables}/offset_map")
    good = table.version()
    table.delete("source_start = 1")
    owner._row_count._counted_at = None
    decide(owner, data(2, 3))
    owner.settle()
    with pytest.raises(OffsetMapConflictError, match="holds 2 rows, shallow-mirror has written 3"):
        location.settled("refused").positions()
    put_back(location, good)
    after = location.settled("two")
    assert [position.offset for position in after.positions().values()] == [3]
    decide(after, data(3, 4))


@pytest.mark.slow
@LongOnSpark
def test_a_compaction_by_another_client_under_a_running_mirror_changes_nothing(location: Location) -> None:
    owner = location.settled("one")
    owner.positions()
    for start in range(3):
        decide(owner, data(start, start + 1))
        DeltaTable(f"{location.tables}/offset_map").optimize.compact()
        owner.check_ownership()
    owner.settle()
    assert [position.offset for position in location.settled("two").positions().values()] == [3]

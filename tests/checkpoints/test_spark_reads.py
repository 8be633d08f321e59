"""Spark SQL on the tables that deltalake wrote: the same rows, the same types, and the queries of the README as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from tests.conftest import _stop_spark

from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Removal
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity, commits
from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.logs.runs.run_history import MICRO_BATCHES, RUNS
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.checkpoints.tables.backends.log_durability import LocalLog
from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.streaming import local_session
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

pytestmark = pytest.mark.spark

RUN = RunIdentity(run_id="r", host="h", pid=7, started_at_ms=1_700_000_000_000)
SOURCES = [SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", partition) for partition in range(4)]
SOURCES.append(SourcePartition("orders.returns", "retretretretretretretA", 0))
README_OFFSET = 123456
SPARK_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


@pytest.fixture(scope="module")
def spark(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """In a JVM of its own: one that runs already keeps its class path, and would hand it on to later tests."""
    _stop_spark()
    yield local_session(
        "reads", delta_jars=delta_jars(), log_file=tmp_path_factory.mktemp("spark") / "spark.log", archives_classes=True
    )
    _stop_spark()


class Mirrored:
    """A map that grew as a mirror makes it grow. `clock_ms` is the time of the next decision."""

    def __init__(self, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 5)
        self.tables, self.clock_ms = str(tables), 1_700_000_000_123
        self.owner = LedgerOwner.take_over(
            self.tables, name="m", source_cluster_id="S", target_cluster_id="T", run=RUN, now_ms=lambda: self.clock_ms
        )
        self.owner.settle()
        self.reached = {source: (120_000 if source.partition == 3 else 0) for source in SOURCES}
        self.appended = dict.fromkeys(SOURCES, 0)
        self.decide(DecidedSegment(self._segment(source, SegmentKind.GAP, 0), None) for source in SOURCES)
        self.owner.settle()

    def decide(self, rows: Any) -> None:
        self.clock_ms += 1_001
        self.owner.next_decision()
        self.owner.decide(list(rows), highest_slot=1)

    def micro_batch(self, epoch: int) -> None:
        """Two slots; every kind of segment in every partition."""
        self.decide(self._rows(epoch))
        self.owner.settle()
        self.owner.compact_if_due()

    def removed_micro_batch(self, epoch: int) -> None:
        """Remove a micro-batch: the transaction of its second slot turned out not to be committed."""
        before = dict(self.reached), dict(self.appended)
        rows = list(self._rows(epoch))
        self.decide(rows)
        self.owner.settle([Removal(SlotTxn("m-1", 1001, epoch))])
        for source in SOURCES[1::2]:
            self.reached[source], self.appended[source] = before[0][source], before[1][source]

    def unsettled_micro_batch(self, epoch: int) -> None:
        self.decide(self._rows(epoch))

    def _rows(self, epoch: int) -> Iterator[DecidedSegment]:
        for number, source in enumerate(SOURCES):
            txn = SlotTxn(f"m-{number % 2}", 1000 + number % 2, epoch)
            for kind, length in (
                (SegmentKind.DATA, 1_000 + 7 * number),
                (SegmentKind.ABORTED, 40),
                (SegmentKind.ABORT, 1),
                (SegmentKind.GAP, 5),
                (SegmentKind.DATA, 300),
                (SegmentKind.COMMIT, 1),
            ):
                yield DecidedSegment(self._segment(source, kind, length), txn)
            self.appended[source] += 1  # the target's own marker

    def _segment(self, source: SourcePartition, kind: SegmentKind, length: int) -> Segment:
        start, at = self.reached[source], self.appended[source]
        self.reached[source] += length
        target = TargetPartition(f"east.{source.topic}", "tgttgttgttgttgttgttgtA", source.partition)
        segment = Segment(source=source, source_start=start, source_end=start + length, kind=kind, target=target)
        if kind is SegmentKind.GAP:
            return segment
        segment = replace(
            segment, batch_count=1, size_bytes=61 + length, max_timestamp_ms=1_700_000_000_000 + start, source_leader_epoch=4
        )
        if kind is SegmentKind.DATA:
            self.appended[source] += length
            return replace(segment, target_start=at, target_end=at + length, record_count=length)
        segment = replace(
            segment, source_producer_id=9, source_producer_epoch=2, record_count=length if kind is SegmentKind.ABORTED else 0
        )
        return segment if kind is SegmentKind.ABORTED else replace(segment, coordinator_epoch=1)


@pytest.fixture
def mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirrored:
    """Seven decisions, one of them half removed; compacted once on the way."""
    made = Mirrored(tmp_path / "tables", monkeypatch)
    for epoch in range(1, 4):
        made.micro_batch(epoch)
    made.removed_micro_batch(4)
    for epoch in range(5, 7):
        made.micro_batch(epoch)
    return made


def read_by_spark(spark: Any, tables: str, table: str = "offset_map") -> Any:
    return spark.read.format("delta").load(f"{tables}/{table}")


def assert_same(spark: Any, actual: Any, expected: pa.Table) -> None:
    assert actual.count() == expected.num_rows > 0
    assert_df_equality(actual, spark.createDataFrame(expected), ignore_row_order=True)


def test_spark_sees_the_rows_and_types_of_the_offset_map(spark: Any, mirrored: Mirrored) -> None:
    rows = read_by_spark(spark, mirrored.tables)
    assert rows.dtypes == [(field.name, SPARK_TYPES[field.type]) for field in OFFSET_MAP]
    settled = OffsetMap.open(mirrored.tables).settled_rows()
    assert set(settled.column("kind").to_pylist()) == {"data", "commit", "abort", "aborted", "gap"}
    assert_same(spark, rows, settled)


def test_spark_sees_a_row_that_may_still_be_removed_and_loses_it_with_the_newest_micro_batch(
    spark: Any, mirrored: Mirrored
) -> None:
    mirrored.unsettled_micro_batch(7)
    rows, settled = read_by_spark(spark, mirrored.tables), OffsetMap.open(mirrored.tables).settled_rows()
    assert_same(spark, rows, DeltaTable(f"{mirrored.tables}/offset_map").to_pyarrow_table())
    assert rows.count() > settled.num_rows
    assert_same(spark, rows.where(f"micro_batch < {mirrored.owner.micro_batch}"), settled)


def test_a_session_that_looked_before_the_log_was_cut_sees_the_map_as_it_is_now(spark: Any, mirrored: Mirrored) -> None:
    table = Path(mirrored.tables) / "offset_map"
    assert read_by_spark(spark, mirrored.tables).count() > 0
    looked_at = DeltaTable(table).version()
    for epoch in range(7, 20):
        mirrored.micro_batch(epoch)
    DeltaTable(table).create_checkpoint()
    for epoch in range(20, 23):
        mirrored.micro_batch(epoch)
    LocalLog(table).shorten(kept_commits=3)
    assert min(int(file.stem) for file in (table / "_delta_log").glob("*.json")) > looked_at
    assert_same(spark, read_by_spark(spark, mirrored.tables), DeltaTable(table).to_pyarrow_table())


def test_spark_reads_the_properties_that_say_whose_map_it_is(spark: Any, mirrored: Mirrored) -> None:
    shown = spark.sql(f"SHOW TBLPROPERTIES delta.`{mirrored.tables}/offset_map`").collect()
    properties = {row.key: row.value for row in shown if row.key.startswith("shallow_mirror.")}
    assert properties == {
        "shallow_mirror.map_id": mirrored.owner.map_id,
        "shallow_mirror.schema_version": "1",
        "shallow_mirror.mirror": "m",
        "shallow_mirror.source_cluster_id": "S",
        "shallow_mirror.target_cluster_id": "T",
        "shallow_mirror.writer": "deltalake",
    }


def test_spark_sees_the_rows_and_types_of_the_observations(spark: Any, tmp_path: Path) -> None:
    observations = RunHistory(TableStorage(str(tmp_path)).best_effort_tables())
    for number, lag_offsets in ((1, None), (2, 7)):
        observations.micro_batch(
            MicroBatchObservation(
                run_epoch=1, micro_batch=number, fetched_bytes=10, size_bytes=9, batch_count=3, rebuilt_batch_count=1, record_count=5,
                dropped_batch_counts={"abort": 1}, duration_ms={"Total": 2.5}, lag_offsets=lag_offsets, settled_at_ms=1_700_000_000_456,
            )
        )  # fmt: skip
    observations.run_started(1, RUN, "0.1.0")
    observations.run_ended(1, RUN, "done")
    schemas = {"micro_batches": MICRO_BATCHES.schema, "runs": RUNS.schema}
    for table, schema in schemas.items():
        rows = read_by_spark(spark, str(tmp_path), table)
        assert rows.dtypes == [(field.name, SPARK_TYPES[field.type]) for field in schema]
        assert_same(spark, rows, DeltaTable(str(tmp_path / table)).to_pyarrow_table())


# --- the queries of the README


@pytest.fixture
def readme_queries(repository: Path, mirrored: Mirrored) -> list[str]:
    """Of the block that reads the map, with the path put in."""
    text = (repository / "docs" / "how-to" / "offset-map.md").read_text(encoding="utf-8")
    (block,) = (sql for sql in re.findall(r"```sql\n(.*?)```", text, re.DOTALL) if "offset_map" in sql)
    with_path = block.replace("/path/to/tables", mirrored.tables)
    assert with_path != block
    return [query for query in with_path.split(";") if query.strip()]


def test_the_first_query_of_the_readme_lists_the_segments_of_a_topic_in_order(
    spark: Any, mirrored: Mirrored, readme_queries: list[str]
) -> None:
    actual = spark.sql(readme_queries[0])
    rows = OffsetMap.open(mirrored.tables).settled_rows().to_pylist()
    expected = [tuple(row[name] for name in actual.columns) for row in rows if row["source_topic"] == "orders"]
    assert [tuple(row) for row in actual.collect()] == sorted(expected, key=lambda row: row[:3])


def test_the_second_query_of_the_readme_answers_what_translate_answers(
    spark: Any, mirrored: Mirrored, readme_queries: list[str]
) -> None:
    offset_map = OffsetMap.open(mirrored.tables)
    exact = []
    rows = [
        row for row in offset_map.settled_rows().to_pylist() if row["source_topic"] == "orders" and row["source_partition"] == 3
    ]
    first_of_kind = {row["kind"]: row["source_start"] for row in sorted(rows, key=lambda row: -row["source_end"])}
    offsets = {
        README_OFFSET,
        *first_of_kind.values(),
        min(row["source_start"] for row in rows) - 1,
        max(row["source_end"] for row in rows),
    }
    for offset in sorted(offsets):
        actual = [tuple(row) for row in spark.sql(readme_queries[1].replace(str(README_OFFSET), str(offset))).collect()]
        translated = offset_map.translate("orders", 3, offset)
        assert actual == (
            [(translated.target_topic, translated.target_partition, translated.target_offset)] if translated.exact else []
        )
        exact.append(translated.exact)
    assert offset_map.translate("orders", 3, README_OFFSET).exact
    assert (any(exact), all(exact)) == (True, False)

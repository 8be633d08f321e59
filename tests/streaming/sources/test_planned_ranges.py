from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.fakes.strict_broker import StrictCluster
from tests.support.archives import archive_config

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks.slots import arrow_batch_of
from shallow_mirror.streaming.planning import LogEnds, PlannerConfig
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.sources import planned_ranges
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.streaming.sources.registration import register
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.types import PlannedRange, SourcePartition

A, B = SourcePartition("orders", "idA", 0), SourcePartition("users", "idB", 0)
MIB = 1 << 20


def test_the_planner_of_an_archive_knows_which_truncated_logs_wait(tmp_path: Path) -> None:
    def held(on_data_loss: str, **options: Any) -> Any:
        config = archive_config(tmp_path, read={"on_data_loss": on_data_loss})
        written = PlannerOptions(config=config, map_id="m1", parallelism=2, **options).to_spark()
        read = PlannerOptions.of_spark(written)
        assert read is not None
        return read.planner_config().held_truncations

    assert held("continue", held_truncations={A: 7}) == {A: 7}
    assert held("continue") == {}
    assert held("stop") is None
    assert PlannerConfig.of_mirror(_config(tmp_path)).held_truncations is None


def test_nothing_is_planned_from_another_cluster_than_that_of_the_run(tmp_path: Path) -> None:
    """A bootstrap name may lead to another one when a query begins again: its topics would count as created again."""
    with StrictCluster(cluster_id="other") as other:
        other.create_topic("orders")
        client = {"bootstrap.servers": other.bootstrap, "request.timeout.ms": 300}
        config = archive_config(tmp_path, source={"alias": "east", "client": client})
        written = PlannerOptions(config=config, map_id="m1", parallelism=2, source_cluster_id="east").to_spark()
        read = PlannerOptions.of_spark(written)
        assert read is not None
        with pytest.raises(RetriableError, match="answers as cluster other, not east"):
            read.make_planner().initial()


class TablePlanner:
    """A source of two topics; every batch holds one record of 16 MiB. `users` is new to a query that began without it."""

    cluster_id = "source"

    def log_ends(self, deadline: Any) -> LogEnds:
        return LogEnds(ends={A: 10, B: 3}, topic_ids={"orders": "idA", "users": "idB"})

    def starts_at_mirror_start(self, unknown: Any, known: Any, listing: Any, deadline: Any) -> dict[SourcePartition, int]:
        return {A: 0}

    def starts_of(self, sources: Any, listing: Any, deadline: Any, *, is_first_run: bool) -> dict[SourcePartition, int]:
        return dict.fromkeys(sources, 1)

    def sample(self, starts: Any, listing: Any, deadline: Any) -> dict[SourcePartition, float]:
        return dict.fromkeys(starts, 16.0 * MIB)


class TableReader(planned_ranges.RangeStreamReader):
    def make_planner(self) -> MicroBatchPlanner:
        options = PlannerOptions.of_spark(self.options)
        assert options is not None
        return MicroBatchPlanner(options.planner_config(), TablePlanner(), parallelism=options.parallelism)  # type: ignore[arg-type]


class TableSource(planned_ranges.PlannedRanges):
    def streamReader(self, schema: Any) -> TableReader:  # noqa: N802
        return TableReader(dict(self.options))


def _config(folder: Path) -> MirrorConfig:
    client = {"bootstrap.servers": "127.0.0.1:1"}
    document = {
        "mirror": "m",
        "source": {"alias": "east", "client": client},
        "target": {"alias": "west", "client": client},
        "topics": {"include": [".*"]},
        "read": {"micro_batch_bytes": 64 * MIB},
        "tables": "tables",
    }
    return MirrorConfig.from_document(document, folder=folder)


def _options(config: MirrorConfig, **options: Any) -> dict[str, str]:
    return PlannerOptions(config=config, map_id="m1", parallelism=2, **options).to_spark()


def test_an_arrow_batch_has_the_declared_schema() -> None:
    planned = PlannedRange(slot=1, source=A, start=2, end=2**62, bytes_per_offset=0.5)
    arrow_batch = arrow_batch_of([planned])
    assert arrow_batch.schema.names == planned_ranges.SCHEMA.names
    assert arrow_batch.to_pylist() == [
        {
            "slot": 1,
            "topic": "orders",
            "topic_id": "idA",
            "partition": 0,
            "range_start": 2,
            "range_end": 2**62,
            "bytes_per_offset": 0.5,
        }
    ]


def test_options_are_text_and_the_reader_connects_to_nothing_when_made(tmp_path: Path) -> None:
    options = _options(_config(tmp_path), initial={A: 7})
    assert all(isinstance(value, str) for value in options.values())
    reader = planned_ranges.RangeStreamReader(options)
    assert reader._planner is None
    assert reader.initialOffset() == {"version": 1, "topics": {"orders": {"id": "idA", "partitions": {"0": 7}}}, "map": "m1"}
    assert reader._planner is None


@pytest.mark.parametrize(("kept", "written"), [({"map": "m2"}, "for the offset map m2"), ({}, "without an offset map")])
def test_offsets_of_another_offset_map_are_refused_before_anything_is_asked(
    kept: dict[str, str], written: str, tmp_path: Path
) -> None:
    reader = planned_ranges.RangeStreamReader(_options(_config(tmp_path)))
    kept_offset = {"version": 1, "topics": {}, **kept}
    for ask in (
        lambda: reader.latestOffset(kept_offset, ReadAllAvailable()),
        lambda: reader.partitions(kept_offset, kept_offset),
    ):
        with pytest.raises(ConfigError, match=rf"was written {written}, this stream is of the map m1: .*folder of its own"):
            ask()
    assert reader._planner is None


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = spark_session.local_session(
        "ranges", cores=2, log_file=tmp_path_factory.mktemp("spark") / "spark.log", archives_classes=True
    )
    spark_session.check_session(made)
    yield made
    made.stop()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def _run_available_now(spark: Any, config: MirrorConfig) -> list[list[Row]]:
    micro_batches: list[list[Row]] = []

    def collect(frame: DataFrame, _spark_batch_id: int) -> None:
        micro_batches.append(sorted(frame.collect()))

    stream = spark.readStream.format(planned_ranges.NAME).options(**_options(config)).load()
    query = (
        stream.writeStream.foreachBatch(collect)
        .option("checkpointLocation", config.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return micro_batches


@pytest.mark.spark
def test_a_query_plans_bounded_micro_batches_takes_in_a_new_topic_and_ends(spark: Any, tmp_path: Path) -> None:
    register(spark, TableSource)
    config = _config(tmp_path)
    micro_batches = _run_available_now(spark, config)
    rows = [row for micro_batch in micro_batches for row in micro_batch]
    for source, first, last in ((A, 0, 10), (B, 1, 3)):
        ranges = [(row.range_start, row.range_end) for row in rows if row.topic == source.topic]
        assert ranges[0][0] == first
        assert ranges[-1][1] == last
        assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert {row.topic_id for row in rows} == {"idA", "idB"}
    assert all(
        sum((row.range_end - row.range_start) * row.bytes_per_offset for row in rows) <= 64 * MIB for rows in micro_batches
    )
    assert all(
        len({row.slot for row in micro_batch}) == min(2, len(micro_batch))
        for micro_batch in micro_batches
        if sum(row.range_end - row.range_start for row in micro_batch) > 2
    )
    assert [row for micro_batch in _run_available_now(spark, config) for row in micro_batch] == []


@pytest.mark.spark
def test_client_properties_do_not_show_in_plans(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    register(spark, TableSource)
    frame = spark.readStream.format(planned_ranges.NAME).options(**_options(_config(tmp_path))).load()
    frame.explain(True)
    printed = capfd.readouterr().out
    assert "Physical Plan" in printed
    assert "bootstrap.servers" not in printed


@pytest.mark.spark
def test_a_session_takes_the_source_in_while_another_that_knows_it_is_the_active_one(spark: Any) -> None:
    planned_ranges.register_planned_ranges(spark)
    other = spark.newSession()
    spark.createDataFrame([], "nothing int")  # `spark` is the active one again
    planned_ranges.register_planned_ranges(other)
    planned_ranges.register_planned_ranges(other)
    planned_ranges.register_planned_ranges(spark)

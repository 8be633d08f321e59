"""A DataFrame sink whose tables are in a catalog, where only Spark writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.streaming.dataframes.test_on_brokers import Query, Topic
from tests.support.exit_codes import exit_code
from tests.support.mirror_runs import CrashAt

from shallow_mirror import FencedError, WrittenRecords
from shallow_mirror.local_kafka.node import LocalKafka

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long]

SCHEMA = "spark_catalog.written"


@pytest.fixture
def schema(spark_with_delta: Any, tmp_path: Path) -> Iterator[str]:
    spark_with_delta.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path}/schema'")
    yield SCHEMA
    spark_with_delta.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def topic(target_cluster: LocalKafka, topic_name: str, tmp_path: Path) -> Topic:
    return Topic(target_cluster, topic_name[-80:], tmp_path)


def test_a_query_and_a_job_are_written_once_and_reported(
    spark: Any,
    topic: Topic,
    schema: str,
    crash_points: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables, query = {"schema": schema}, Query(spark, tmp_path / "query")
    query.add(20)
    with pytest.raises(Exception, match="Decide"):
        query.run(topic.sink(CrashAt("Decide"), tables=tables))
    query.run(topic.sink(tables=tables))
    rows = spark.range(20, 30).selectExpr("cast(id as string) key", "cast(id as string) value")
    with topic.sink(tables=tables) as sink:
        assert [sink.write(rows, job_id="1"), sink.write(rows, job_id="1")] == [True, False]
    assert sorted(topic.values()) == sorted(map(str, range(30)))

    written = WrittenRecords.open(f"catalog:{schema}", spark, name=topic.name)
    assert sum(written.newest()["record_count"].to_pylist()) == 20
    monkeypatch.setattr("shallow_mirror.commands.sink.submitted_session", lambda: spark)
    assert exit_code("sink", "status", f"catalog:{schema}", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["record_count"] for entry in report["micro_batches"]] == [20, 10]
    assert (report["unsettled"], sum(partition["record_count"] for partition in report["partitions"])) == ([], 30)


@pytest.mark.parametrize("point", ["TakeDecision", "RunSlots", "Decide", "EndTxn", "AwaitVisible", "Settled"])
def test_a_crash_at_any_step_repeats_nothing_in_a_catalog(
    spark: Any, topic: Topic, schema: str, crash_points: None, tmp_path: Path, point: str
) -> None:
    tables, query = {"schema": schema}, Query(spark, tmp_path / "query")
    query.add(20)
    query.run(topic.sink(tables=tables))
    query.add(20)
    query.add(5)
    with pytest.raises(Exception, match=point):
        query.run(topic.sink(CrashAt(point), tables=tables))
    query.run(topic.sink(tables=tables))
    assert sorted(topic.values()) == query.expected


def test_the_older_of_two_runs_and_a_new_query_are_refused_in_a_catalog(
    spark: Any, topic: Topic, schema: str, tmp_path: Path
) -> None:
    tables, query = {"schema": schema}, Query(spark, tmp_path / "query")
    query.add(20)
    query.run(topic.sink(tables=tables))
    with pytest.raises(Exception, match="of another query"):
        query.run(topic.sink(tables=tables), "another")
    rows = spark.range(20, 30).selectExpr("cast(id as string) key", "cast(id as string) value")
    with topic.sink(tables=tables) as older, topic.sink(tables=tables) as newer:
        assert older.write(rows, job_id="1")
        assert not newer.write(rows, job_id="1")
        with pytest.raises(FencedError):
            older.write(rows, job_id="2")
    assert len(topic.values()) == 30

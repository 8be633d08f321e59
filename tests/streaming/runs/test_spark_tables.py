"""A whole mirror whose tables are in a catalog, where only Spark writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs
from tests.support.mirror_runs import CrashAt, CrashError

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs.verify_log import AUDIT_TABLE
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP_TABLE
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import Step
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.operations.status import gather_status
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.usefixtures("crash_points")]

SCHEMA = "spark_catalog.mirrored"


@pytest.fixture
def schema(spark_with_delta: Any, tmp_path: Path) -> Iterator[str]:
    spark_with_delta.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path}/schema'")
    yield SCHEMA
    spark_with_delta.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.mark.long
def test_a_decision_in_a_catalog_whose_transactions_were_not_ended_is_rolled_forward(
    two_clusters: Any, spark: Any, schema: str, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    document = mirror_runs.document(source, target, [topic_name], mirror=topic_name, checkpoint=str(tmp_path / "checkpoint"))
    settings = MirrorConfig.from_document({**document, "tables": {"schema": schema}}, folder=tmp_path)
    mirror_runs.create_topic(source, topic_name)
    mirror_runs.write(source, topic_name, ["a", "b"])
    with pytest.raises(CrashError):
        mirror_runs.catch_up(settings, spark, CrashAt("Decide"))
    assert mirror_runs.last_stable_offset(target, topic_name) == 0
    mirror_runs.write(source, topic_name, ["c"])
    mirror_runs.catch_up(settings, spark)
    assert mirror_runs.read_values(target, topic_name) == ["a", "b", "c"]

    report = gather_status(settings, spark=spark)
    assert report.run is not None
    assert (report.run.outcome, [partition.position for partition in report.partitions]) == ("done", [3])
    assert [micro_batch.record_count for micro_batch in report.micro_batches] == [1], "the run that crashed told nothing"
    translated = OffsetMap.open(settings.tables, spark).translate(topic_name, 0, 1)
    assert translated.target_offset == 1, "had it been done again, it would lie behind an aborted transaction"
    rows = spark.table(f"{schema}.{OFFSET_MAP_TABLE}").where("kind = 'data'").collect()
    assert sorted((row.source_start, row.source_end) for row in rows) == [(0, 2), (2, 3)]

    without_spark = gather_status(settings.model_copy(update={"tables": str(tmp_path / "schema")}))
    assert (without_spark.run, without_spark.micro_batches) == (report.run, report.micro_batches)

    looked_at = preflight_mirror(settings, spark=spark)
    assert (looked_at.has_map, looked_at.is_fine, looked_at.backlog.offsets) == (True, True, 0)

    audited = verify_mirror(settings, spark=spark)
    assert (audited.is_equal, audited.record_count) == (True, 3)
    assert spark.table(f"{schema}.{AUDIT_TABLE}").where("verified_at IS NOT NULL").count() > 0


@pytest.mark.long
def test_groups_are_kept_in_step_and_remembered_with_tables_in_a_catalog(
    two_clusters: Any, spark: Any, schema: str, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    group, topic_partition = f"{topic_name}.readers", TopicPartition(topic_name, 0)
    groups = {"sync": "1 minute", "include": [re.escape(group)]}
    document = mirror_runs.document(
        source, target, [topic_name], mirror=topic_name, checkpoint=str(tmp_path / "checkpoint"), groups=groups
    )
    settings = MirrorConfig.from_document({**document, "tables": {"schema": schema}}, folder=tmp_path)
    mirror_runs.create_topic(source, topic_name)
    for values in (["a", "b"], ["c"]):
        mirror_runs.write(source, topic_name, values)
        mirror_runs.catch_up(settings, spark)
    with closing(GroupClient(settings.source.client, "the source")) as view:
        assert view.commit(group, {topic_partition: (2, "")}) == {}
    mirror_runs.catch_up(settings, spark)
    with closing(GroupClient(settings.target.client, "the target")) as view:
        (committed,) = view.committed([group])[group]
    assert (committed.topic_partition, committed.offset) == (topic_partition, 3), "behind the marker of the first transaction"
    now = sync_groups(settings, spark=spark)
    then = sync_groups(settings, spark=spark, as_of=datetime.now(UTC))
    assert (
        [partition.step for partition in now.partitions] == [partition.step for partition in then.partitions] == [Step.IN_PLACE]
    )

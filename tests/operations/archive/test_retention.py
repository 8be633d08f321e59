"""What retention of the source deletes before it is archived: the estimate, and what a cluster is asked for it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.strict_broker import StrictCluster
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config, archive_document
from tests.support.record_batches import batch
from typer.testing import CliRunner

from shallow_mirror.cli import app
from shallow_mirror.operations.archive.retention import BehindPartition, SourceRetention, threats_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AGE = "orders-0: offsets 10 to 19 are not archived, and older than 75% of retention.ms (7 days): the source may delete them"


def sentences(bytes_per_offset: float | None = None, **retention: int | None) -> list[str]:
    behind = BehindPartition(source=ORDERS, position=10, end=30, bytes_per_offset=bytes_per_offset)
    settings: dict[str, int | None] = {"log_start": 0, **retention}
    return [threat.sentence() for threat in threats_of(behind, SourceRetention(**settings))]  # type: ignore[arg-type]


def test_what_is_young_or_kept_for_ever_is_not_named() -> None:
    assert sentences() == []
    assert sentences(retention_ms=7 * DAY_MS, first_young=10) == []
    assert sentences(100.0, retention_bytes=2_800) == []
    assert sentences(retention_bytes=1) == []  # nothing is archived yet: its size is not known


def test_records_that_are_old_are_named_with_the_basis() -> None:
    assert sentences(retention_ms=7 * DAY_MS, first_young=20) == [
        f"{AGE} within 42 hours (basis: timestamps of the source's records)"
    ]
    (every,) = sentences(retention_ms=HOUR_MS, first_young=None)
    assert "offsets 10 to 29 are not archived, and older than 75% of retention.ms (60 minutes)" in every


def test_bytes_that_fill_the_retention_are_named_with_the_basis() -> None:
    assert sentences(100.0, retention_bytes=2_000) == [
        "orders-0: about 2,000 bytes from offset 10 on are not archived, of retention.bytes (2,000): the source deletes the oldest "
        "of them when as much has been written (basis: 100 bytes per offset, as archived on average)"
    ]


def test_what_is_deleted_already_is_named_first_and_the_rest_counted_from_there() -> None:
    lost, old = sentences(retention_ms=7 * DAY_MS, first_young=20, log_start=15)
    assert lost == (
        "orders-0: offsets 10 to 14 were deleted at the source before they were archived (basis: log start of the source)"
    )
    assert "offsets 15 to 19 are not archived" in old


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "is_named"), [("delete", True), ("compact,delete", True), ("compact", False)])
def test_the_status_names_partitions_of_the_source_with_its_settings_of_now(
    tmp_path: Path, policy: str, *, is_named: bool
) -> None:
    with StrictCluster(cluster_id="source-cluster") as cluster:
        configs: Any = {"retention.ms": str(7 * DAY_MS), "cleanup.policy": policy}
        cluster.create_topic("orders", **configs)
        now_ms = cluster.now_ms()
        for offset, age_ms in ((0, 6.9 * DAY_MS), (10, 6 * DAY_MS), (20, DAY_MS)):
            cluster.seed(("orders", 0), batch(offset, 10, timestamp=int(now_ms - age_ms), max_timestamp=int(now_ms - age_ms)))
        changes = {"source": {"alias": "east", "client": {"bootstrap.servers": cluster.bootstrap}}}
        archive = ArchiveOfTest(archive_config(tmp_path, **changes), now_ms=now_ms)
        topic_id = base64.urlsafe_b64encode(cluster.topic_ids["orders"].bytes).rstrip(b"=").decode()
        archive.archive({ORDERS._replace(topic_id=topic_id): [batch(0, 10)]})
        file = tmp_path / "archive.yaml"
        file.write_text(yaml.safe_dump(archive_document(**changes)), encoding="utf-8")
        result = CliRunner().invoke(app, ["archive", "status", str(file)], env={"COLUMNS": "400"})
    assert result.exit_code == 0
    assert (f"{AGE} within 42 hours (basis: timestamps of the source's records)" in result.stdout) is is_named
    assert ("raise retention.ms or retention.bytes of these topics" in result.stdout) is is_named

"""The status of an archive without its source, and with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch
from typer.testing import CliRunner

from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.cli import app
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations.archive import status as archive_status
from shallow_mirror.operations.archive.status import ArchivedPartition, gather_archive_status
from shallow_mirror.streaming.planning import LogEnds
from shallow_mirror.types import SourcePartition

SECOND = SourcePartition("orders", ORDERS.topic_id, 1)
PAYMENTS = SourcePartition("payments", "paypaypaypaypaypaypayA", 0)


def written(folder: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({ORDERS: [batch(0, 10, timestamp=5_000)], PAYMENTS: [batch(2, 1)]}, positions={PAYMENTS: 2})
    archive.archive({ORDERS: [batch(10, 5, timestamp=4_000, max_timestamp=9_000)], SECOND: [batch(0, 3, timestamp=6_000)]})
    return archive


def serve_ends(monkeypatch: pytest.MonkeyPatch, ends: dict[SourcePartition, int]) -> None:
    class ServedEnds:
        def __init__(self, *_: object) -> None:
            pass

        def log_ends(self, _deadline: object) -> LogEnds:
            ids = {source.topic: source.topic_id for source in ends}
            return LogEnds(ends=ends, topic_ids=ids, leaderless=frozenset())

    monkeypatch.setattr(archive_status, "SourceOffsets", ServedEnds)
    monkeypatch.setattr(archive_status, "retention_threats", lambda *_: ())


@pytest.mark.slow
def test_topics_have_what_is_archived_and_the_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    serve_ends(monkeypatch, {ORDERS: 25, SECOND: 3})
    status = gather_archive_status(archive.config)
    orders, payments = status.topics
    assert orders.partitions[0] == ArchivedPartition(
        partition=0, position=15, first_offset=0, last_offset=14, record_count=15, batch_count=2,
        size_bytes=len(batch(0, 10)) + len(batch(10, 5)), oldest_timestamp_ms=4_000, newest_timestamp_ms=9_000, lag_offsets=10,
    )  # fmt: skip
    assert (orders.first_offset, orders.last_offset, orders.lag_offsets, orders.record_count) == (0, 14, 10, 18)
    assert (payments.first_offset, payments.last_offset, payments.lag_offsets) == (2, 2, None)
    assert (status.micro_batch, status.decided_at_ms, status.source_problem) == (2, NOW_MS, None)
    assert status.run is not None
    assert (status.run.run_epoch, status.run.is_alive) == (1, True)
    assert status.archive_id == archive.owner.map_id


@pytest.mark.slow
def test_what_expired_is_not_counted_and_the_position_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    rows = archive.archive({SECOND: [batch(3, 1)]})
    assert rows[0].stored is not None
    archive.owner.mark([rows[0].stored.object_name], SegmentState.DELETE_SEGMENT_STARTED, (3, 3))
    serve_ends(monkeypatch, {})
    status = gather_archive_status(archive.config)
    at = status.topics[0].partitions[1]
    assert (at.position, at.last_offset, at.record_count) == (4, 2, 3)
    assert status.deleting_bytes == len(batch(3, 1))


@pytest.mark.slow
def test_a_source_that_does_not_answer_costs_the_lag_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)

    class Silent:
        def __init__(self, *_: object) -> None:
            pass

        def log_ends(self, _deadline: object) -> LogEnds:
            raise RetriableError("TIMEOUT", "no broker answers")

    monkeypatch.setattr(archive_status, "SourceOffsets", Silent)
    status = gather_archive_status(archive.config)
    assert status.source_problem is not None
    assert "no broker answers" in status.source_problem
    assert [topic.lag_offsets for topic in status.topics] == [None, None]


@pytest.mark.slow
def test_the_command_prints_a_table_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    serve_ends(monkeypatch, {ORDERS: 25, SECOND: 3, PAYMENTS: 3})
    file = tmp_path / "archive.yaml"
    document = {
        "archive": archive.config.archive,
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "topics": {"include": [".*"]},
        "objects": "objects",
        "tables": "tables",
    }
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["archive", "status", str(file)])
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if "orders" in line]
    assert [cell.strip() for cell in lines[0].split("│")[1:7]] == ["orders", "2", "0", "14", "18", f"{_size():,}"]
    assert "last decision: micro-batch 2, 2023-11-14T22:13:20+00:00" in result.stdout
    result = CliRunner().invoke(app, ["archive", "status", str(file), "--json"])
    found = json.loads(result.stdout)
    assert found["topics"][0]["partitions"][0]["last_offset"] == 14
    assert found["topics"][0]["lag_offsets"] == 10
    assert found["run"]["run_epoch"] == 1


def _size() -> int:
    return len(batch(0, 10)) + len(batch(10, 5)) + len(batch(0, 3))


def test_an_archive_that_never_ran_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run `shallow-mirror archive run` once, or check `tables`"):
        gather_archive_status(archive_config(tmp_path))

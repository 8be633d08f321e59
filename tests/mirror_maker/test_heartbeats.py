"""Heartbeats in MirrorMaker 2's format: bytes, failures, and the topics to which none may be written."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs

from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.mirror_maker.heartbeats import Heartbeats, heartbeat_batch
from shallow_mirror.mirror_maker.running.internal_records import heartbeat_key
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import verify_crcs
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.records import open_batch

AT = datetime(2026, 11, 27, 5, 55, 36, 103_000, tzinfo=UTC)
AT_MS = 1795758936103


def test_a_heartbeat_is_the_record_that_mirror_maker_writes() -> None:
    batch = memoryview(heartbeat_batch(heartbeat_key("east", "west"), AT_MS))
    index = index_batches(batch)
    assert verify_crcs(batch, index.pos, index.headers).all()
    (record,) = open_batch(batch, TopicPartition("heartbeats", 0), max_bytes=1000)
    assert record.key is not None
    assert record.value is not None
    assert (record.timestamp_ms, bytes(record.key), bytes(record.value), record.headers) == (
        AT_MS,
        b"\x00\x04east\x00\x04west",
        b"\x00\x00\x00\x00\x01\xa2\x1b\x92\xd0'",
        (),
    )


class Scripted:
    """Passes that fail as often as a test says."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.is_written = list(errors), threading.Event()

    def run_pass(self, now: datetime) -> datetime:
        if self.errors:
            raise self.errors.pop(0)
        self.is_written.set()
        return now

    def close(self) -> None:
        """Nothing is open."""


def test_a_heartbeat_that_fails_is_a_problem_and_the_next_one_follows() -> None:
    problems: list[tuple[Problem, int]] = []
    away = RetriableError("NETWORK_EXCEPTION", "no broker answers")
    scripted = Scripted(away, away, ConfigError("grant Write on topic heartbeats"))
    with Heartbeats(
        "target cluster west",
        0.001,
        lambda: scripted,
        report=lambda problem, level: problems.append((problem, level)),
        now=lambda: AT,
    ):
        assert scripted.is_written.wait(10)
    assert [level for _, level in problems] == [logging.WARNING, logging.DEBUG, logging.WARNING]
    assert {problem.kind for problem, _ in problems} == {ProblemKind.HEARTBEAT}
    assert (
        problems[2][0].text == "heartbeats: not written to the target cluster west: ConfigError: grant Write on topic heartbeats"
    )


@pytest.mark.parametrize(
    ("topics", "is_refused"),
    [
        ({"include": [".*"]}, True),
        ({"include": ["heartbeats"], "target_name": "{topic}"}, True),
        ({"include": [".*"], "exclude": ["heartbeats"]}, False),
        ({"include": [".*"], "target_name": "{source}.{topic}"}, False),
        ({"include": ["orders"]}, False),
    ],
)
def test_heartbeats_are_not_written_to_a_copy_of_a_source_topic(tmp_path: Path, topics: dict[str, Any], is_refused: bool) -> None:
    document = {**runs.document("e:1", "w:1", ["x"], heartbeats={"interval": "1 second"}), "topics": topics}
    if not is_refused:
        assert MirrorConfig.from_document(document, folder=tmp_path).heartbeats.interval_s == 1
        return
    with pytest.raises(ConfigError, match=r"heartbeats\.interval: the mirror would write to the copy of the source's topic"):
        MirrorConfig.from_document(document, folder=tmp_path)

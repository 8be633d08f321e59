"""Logs of a strict target that end below what the offset map has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.changes import Change
from tests.fakes.clients import SleepingClock, client_of as sleeping_client_of
from tests.fakes.peers import NOW_MS
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import Clusters, route_to
from tests.support.inline_session import InlineSession
from tests.support.record_batches import batch
from tests.verify.mirrored import TOPIC, Mirrored

from shallow_mirror.checkpoints import Position
from shallow_mirror.errors import RetriableError, TargetDataLossError
from shallow_mirror.streaming.runs import Mirror
from shallow_mirror.streaming.runs.target_logs import recorded_ends, require_recorded_ends
from shallow_mirror.types import TargetPartition, TopicPartition

TARGETS = [TargetPartition("copy", route_to("copy").target_topic_id, partition) for partition in (0, 1)]


def position(target: TargetPartition, end: int) -> Position:
    return replace(Position(target=target, offset=9, start=0), target_end=end)


def require(clusters: Clusters, *positions: Position, ms: float = 60_000) -> SleepingClock:
    clock = SleepingClock()
    with closing(sleeping_client_of(clusters.target, clock)) as target:
        require_recorded_ends(target, positions, clock.deadline(ms))
    return clock


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    """Five records in each target partition."""
    with StrictCluster() as source, StrictCluster() as target:
        made = Clusters(source, target)
        for partition in (0, 1):
            target.log("copy", partition).append(batch(0, 5, timestamp=NOW_MS), NOW_MS)
        yield made


def test_logs_that_end_below_what_was_committed_there_are_named_after_a_while(clusters: Clusters) -> None:
    with pytest.raises(TargetDataLossError) as raised:
        require(clusters, *(position(target, 7) for target in TARGETS))
    assert (raised.value.topic_partition, raised.value.recorded_end) == (TopicPartition("copy", 0), 7)
    assert (raised.value.base_offset, raised.value.others) == (5, 1)
    assert "copy-0: its log ended at offset 5" in str(raised.value)
    assert "reach offset 7 (and 1 more partition like it): " in str(raised.value)


def test_logs_that_hold_all_of_it_or_held_it_before_retention_are_fine(clusters: Clusters) -> None:
    clusters.target.log("copy", 1).delete_records_before(5)
    assert require(clusters, *(position(target, 5) for target in TARGETS)).sleeps == []


def test_a_log_that_a_starting_broker_reports_as_shorter_is_looked_at_again(clusters: Clusters) -> None:
    log = clusters.target.log("copy", 0)
    log.high_watermark_limit = 2

    def catch_up() -> None:
        log.high_watermark_limit = None

    clusters.target.change("ListOffsets", Change(), Change(), Change(first=catch_up))
    assert len(require(clusters, position(TARGETS[0], 5)).sleeps) == 2


def test_a_stop_or_the_end_of_the_time_is_no_loss(clusters: Clusters) -> None:
    with pytest.raises(RetriableError, match="the log of target copy-0 to reach offset 7, where the last copied record ends"):
        require(clusters, position(TARGETS[0], 7), ms=10_000)


def test_what_others_look_at_is_left_to_them(clusters: Clusters) -> None:
    """Topics that are gone or created again, partitions without a leader or without copies, and preserved offsets."""
    clusters.target.move_leader(TopicPartition("copy", 1), -1)
    others = [
        position(TargetPartition("gone", "x", 0), 7),
        position(TARGETS[0]._replace(topic_id="of another topic"), 7),
        position(TARGETS[1], 7),
        replace(position(TARGETS[0], 7), shared_producer_id=4),
        position(TARGETS[0], 0),
    ]
    require(clusters, *others)


@pytest.mark.thorough
def test_a_start_finds_a_target_that_was_put_back_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_ends, "LOSS_PATIENCE_MS", 0)
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 3, timestamp=NOW_MS), batch(3, 2, timestamp=NOW_MS))
        mirrored.target_log.truncate(3)
        session: Any = InlineSession()
        with pytest.raises(TargetDataLossError, match=rf"target {TOPIC}-0: its log ended at offset 3, .* reach offset 5: "):
            Mirror(mirrored.config).run(session)
        assert mirrored.target.asked("Produce") == 0
        assert mirrored.target_log.end_offset == 3

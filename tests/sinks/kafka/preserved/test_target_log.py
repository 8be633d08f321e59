"""What the target says of logs before they are written to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.changes import dropped_before
from tests.fakes.clients import SleepingClock, client_of
from tests.sinks.two_strict_clusters import Clusters, route_to
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster, LogDescription, ProducerState
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.preserved.log_guard import TargetLog
from shallow_mirror.sinks.kafka.preserved.target_log import TargetLogs
from shallow_mirror.types import TargetPartition

COPY = TargetPartition("copy", "id", 0)
NOW_MS = 1_700_000_000_000
P = 77


class TargetResponses:
    """A target that describes its log as this one, then as that one; the last one from then on."""

    def __init__(self, *logs: TargetLog) -> None:
        self._logs = list(logs)
        self.asked_for_leader = 0

    def retrying(self, _what: str, attempt: Any, deadline: Deadline) -> Any:
        return attempt(deadline)

    def begin_metadata(self, _topics: object, _deadline: object) -> Any:
        listed = SimpleNamespace(topics={"copy": SimpleNamespace(error_code=0, topic_id="id")})
        return SimpleNamespace(receive=lambda _deadline: listed)

    def describe_logs(self, keys: list[Any], _deadline: object) -> Any:
        log = self._logs.pop(0) if len(self._logs) > 1 else self._logs[0]
        producers = () if log.producer is None else (log.producer,)
        return dict.fromkeys(keys, LogDescription(log.start, log.end, producers))

    def forget_metadata(self) -> None:
        self.asked_for_leader += 1

    def pause(self, _tries: int, _deadline: object) -> None:
        """Do not wait."""


def log_until(end: int, written_until: int) -> TargetLog:
    return TargetLog(0, end, ProducerState(P, 0, -1, NOW_MS, -1, written_until - 1))


def learned(*logs: TargetLog, position: int, recorded_end: int) -> tuple[TargetResponses, TargetLogs]:
    target = TargetResponses(*logs)
    return target, TargetLogs(
        cast(Cluster, target),
        {COPY: P},
        {COPY: position},
        {COPY.topic_partition: recorded_end},
        GuardTimes(expiration_ms=86_400_000, quiet_ms=1_500_000),
        lambda: 0.0,
        Deadline.after_ms(1_000, time.monotonic),
        lambda: NOW_MS,
    )


@pytest.mark.parametrize("stale", [log_until(30, 30), log_until(40, 30)], ids=["old end", "old producer"])
def test_a_leader_that_does_not_know_that_it_is_deposed_is_not_taken_at_its_word(stale: TargetLog) -> None:
    target, logs = learned(stale, log_until(40, 40), position=40, recorded_end=40)
    assert logs.end_of(COPY) == 40
    assert target.asked_for_leader == 1


def test_lost_records_are_reported_where_the_leader_says_so_twice() -> None:
    target, logs = learned(log_until(30, 30), position=40, recorded_end=40)
    with pytest.raises(TargetDataLossError):
        logs.end_of(COPY)
    assert target.asked_for_leader == 1


def test_another_writer_is_reported_where_the_leader_says_so_twice() -> None:
    _, logs = learned(log_until(42, 40), position=40, recorded_end=40)
    with pytest.raises(PreservedLogDamagedError, match="another producer writes to it"):
        logs.end_of(COPY)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_deleted_records_behind_the_position_are_the_mirrors_only_if_its_producer_is_remembered(is_remembered: bool) -> None:
    producer = ProducerState(P, 0, -1, NOW_MS, -1, 41) if is_remembered else None
    _, logs = learned(TargetLog(42, 42, producer), position=40, recorded_end=40)
    if not is_remembered:
        with pytest.raises(
            PreservedLogDamagedError, match=r"offsets from 40 on .* deleted up to 42, and neither the map nor"
        ) as error:
            logs.end_of(COPY)
        assert "translated" not in str(error.value)
    else:
        with pytest.raises(RetriableError, match="was idle for so long"):
            logs.end_of(COPY)


@pytest.fixture
def target(clusters: Clusters, clock: SleepingClock) -> Iterator[Cluster]:
    with closing(client_of(clusters.target, clock)) as cluster:
        yield cluster


def logs_of(target: Cluster, clock: SleepingClock, *partitions: TargetPartition) -> TargetLogs:
    return TargetLogs(
        target,
        dict.fromkeys(partitions, P),
        dict.fromkeys(partitions, 0),
        {},
        GuardTimes(expiration_ms=86_400_000, quiet_ms=1_500_000),
        lambda: 0.0,
        clock.deadline(),
    )


COPIED = TargetPartition("copy", route_to("copy").target_topic_id, 0)


def test_topic_and_log_are_asked_for_without_waiting(clusters: Clusters, target: Cluster, clock: SleepingClock) -> None:
    target.leaders([COPIED.topic_partition], clock.deadline())
    clusters.target.await_in_flight["Metadata"] = 4  # with ListOffsets twice, and DescribeProducers
    assert logs_of(target, clock, COPIED).end_of(COPIED) == 0


@pytest.mark.parametrize("api", ["Metadata", "ListOffsets", "DescribeProducers"])
def test_what_fails_in_passing_is_asked_again(clusters: Clusters, target: Cluster, clock: SleepingClock, api: str) -> None:
    target.leaders([COPIED.topic_partition], clock.deadline())
    clusters.target.change(api, dropped_before())
    assert logs_of(target, clock, COPIED).end_of(COPIED) == 0
    assert clock.sleeps


def test_a_topic_that_was_created_again_with_fewer_partitions_is_named_and_not_waited_for(
    target: Cluster, clock: SleepingClock
) -> None:
    gone = TargetPartition("copy", "another", 5)
    with pytest.raises(PreservedLogDamagedError, match="created again"):
        logs_of(target, clock, gone).learn([gone])
    assert not clock.sleeps


def test_records_that_the_target_deletes_while_they_are_checked_are_no_loss_of_the_source(
    clusters: Clusters, target: Cluster, clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of an undecided micro-batch, and as old as what retention deletes at the source."""
    log = clusters.target.log("copy", 0)
    clusters.target.seed(("copy", 0), *(batch(at, 1, producer_id=P, producer_epoch=0, base_sequence=at) for at in range(4)))
    describe = target.describe_logs

    def describe_and_delete(*asked: Any) -> Any:
        described = describe(*asked)
        log.delete_records_before(2)
        return described

    monkeypatch.setattr(target, "describe_logs", describe_and_delete)
    with pytest.raises(RetriableError, match="copy-0 has deleted records while they were read"):
        logs_of(target, clock, COPIED).end_of(COPIED)

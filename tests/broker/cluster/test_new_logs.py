"""Waiting for the logs of new partitions, which a broker lists before it has opened them."""

from __future__ import annotations

import pytest
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster.new_logs import PATIENCE_MS, await_logs
from shallow_mirror.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_partitions_whose_logs_are_open_are_not_waited_for(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    await_logs(client, [A, B], clock.deadline())
    assert clock.sleeps == []


def test_the_log_of_one_partition_is_waited_for(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, caplog: pytest.LogCaptureFixture
) -> None:
    not_yet = error(6, ("t", 1))
    fake.change("ListOffsets", AS_IT_SHOULD, *[not_yet] * 6)
    await_logs(client, [A, B], clock.deadline())
    assert clock.sleeps
    assert clock.now < 1_000 + PATIENCE_MS / 1000
    assert not caplog.records


def test_a_leader_that_does_not_answer_is_named_and_left_to_those_who_write(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, caplog: pytest.LogCaptureFixture
) -> None:
    fake.change_always("ListOffsets", error(6, ("t", 1)))
    await_logs(client, [A, B], clock.deadline())
    assert 1_000 + PATIENCE_MS / 2_000 < clock.now <= 1_000 + PATIENCE_MS / 1_000
    (record,) = caplog.records
    assert "new partitions that do not answer yet: t-1 (NOT_LEADER_OR_FOLLOWER" in record.message


def test_a_right_that_is_missing_is_not_waited_for(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.change_always("ListOffsets", error(29, ("t", 0)))
    await_logs(client, [A, B], clock.deadline())
    assert clock.sleeps == []

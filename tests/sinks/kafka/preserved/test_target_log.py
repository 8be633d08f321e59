"""What the target says of logs before they are written to."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ProducerState
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import PreservedLogDamagedError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved.log_guard import GuardTimes, TargetLog
from shallow_mirror.sinks.kafka.preserved.target_log import TargetLogs
from shallow_mirror.types import TargetPartition

COPY = TargetPartition("copy", "id", 0)
NOW_MS = 1_700_000_000_000
P = 77
_EARLIEST = -2


class Answers:
    """A target that describes its log as this one, then as that one; the last one from then on."""

    def __init__(self, *logs: TargetLog) -> None:
        self._logs = list(logs)
        self.asked_for_leader = 0

    def metadata(self, _topics: object, _deadline: object) -> Any:
        return SimpleNamespace(topics={"copy": SimpleNamespace(error_code=0, topic_id="id")})

    def list_offsets(self, wanted: dict[Any, int], _isolation: object, _deadline: object) -> Any:
        return {
            key: SimpleNamespace(offset=self._logs[0].start if when == _EARLIEST else self._logs[0].end)
            for key, when in wanted.items()
        }

    def describe_producers(self, keys: list[Any], _deadline: object) -> Any:
        log = self._logs.pop(0) if len(self._logs) > 1 else self._logs[0]
        return dict.fromkeys(keys, () if log.producer is None else (log.producer,))

    def forget_metadata(self) -> None:
        self.asked_for_leader += 1

    def pause(self, _tries: int, _deadline: object) -> None:
        """Do not wait."""


def log_until(end: int, written_until: int) -> TargetLog:
    return TargetLog(0, end, ProducerState(P, 0, -1, NOW_MS, -1, written_until - 1))


def learned(*logs: TargetLog, position: int, recorded_end: int) -> tuple[Answers, TargetLogs]:
    target = Answers(*logs)
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

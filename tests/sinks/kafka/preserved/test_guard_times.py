"""What the target's brokers say of their times."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.preserved import read_guard_times

DAY_MS, TASK_MS = 86_400_000, 900_000


def guard_times(*configs: dict[str, str]) -> Any:
    """Return what is read of brokers with these settings."""
    target = SimpleNamespace(
        metadata=lambda _topics, _deadline: SimpleNamespace(brokers=dict.fromkeys(range(len(configs)))),
        broker_configs=lambda node_id, _deadline: configs[node_id],
    )
    return read_guard_times(cast(Cluster, target), TASK_MS, Deadline.after_ms(1_000, time.monotonic))


def settings(expiration_ms: int, max_idle_ms: int) -> dict[str, str]:
    return {"producer.id.expiration.ms": str(expiration_ms), "connections.max.idle.ms": str(max_idle_ms)}


def test_the_strictest_broker_counts() -> None:
    times = guard_times(settings(DAY_MS, 600_000), settings(2 * DAY_MS, 300_000))
    assert (times.expiration_ms, times.quiet_ms) == (DAY_MS, TASK_MS + 600_000)


def test_brokers_have_to_report_how_long_they_remember_a_producer() -> None:
    with pytest.raises(ConfigError, match=r"2 brokers do not report producer\.id\.expiration\.ms"):
        guard_times(settings(DAY_MS, 600_000), {"connections.max.idle.ms": "600000"})


def test_connections_have_to_end_some_time() -> None:
    with pytest.raises(ConfigError, match=r"connections\.max\.idle\.ms < 0"):
        guard_times(settings(DAY_MS, -1))


def test_a_producer_has_to_be_remembered_while_requests_are_on_their_way() -> None:
    with pytest.raises(ConfigError, match=r"producer\.id\.expiration\.ms=2999999, .*\(1500 s: .*Set it to 3000000 or more"):
        guard_times(settings(2_999_999, 600_000))
    assert guard_times(settings(3_000_000, 600_000)).old_after_ms == 1_500_000

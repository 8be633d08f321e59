"""A slot whose path to the target loses its bandwidth, stalls, or is cut: everything arrives once, and the log says what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.fakes.changes import AS_IT_SHOULD, after, dropped_after, dropped_before
from tests.fakes.clients import SleepingClock
from tests.faults.proxy import HOST, FaultPlan, HeldPort, Proxy
from tests.sinks.kafka.writers.test_commit_interval import SlowTarget, named_batch
from tests.sinks.two_strict_clusters import A, B, Clusters, planned

from shallow_mirror.broker.net import path_log, transport
from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import slot_task

BATCH_BYTES = 100_000
WINDOW_BYTES = 16 << 20
IN_FLIGHT = 50


class BadPath(SlowTarget):
    """The rounds of a slot in real time, over a proxy in front of the target."""

    interval_ms = 1_000.0

    def __init__(self, clusters: Clusters, proxy: Proxy) -> None:
        super().__init__(clusters, SleepingClock())
        self.proxy = proxy
        self.in_flight_requests = 1_000
        self.time_left_ms = 20_000.0

    def job(self) -> KafkaSlotJob:
        return self.clusters.job(
            dict(self.positions),
            routes=self.routes,
            commit_interval_ms=self.interval_ms,
            time_left_ms=self.time_left_ms,
            in_flight_requests=self.in_flight_requests,
            in_flight_bytes=WINDOW_BYTES,
            fetch_bytes=1 << 20,
        )

    def seed_large(self, count: int) -> None:
        self.seed(A, *(named_batch(n, [0], size=BATCH_BYTES) for n in range(count)))


@pytest.fixture
def path(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadPath]:
    """Yield a path whose times are scaled down in the log: a response is slow from 0.2 s on, and a path stalled after as long."""
    monkeypatch.setattr(slot_task, "time", SimpleNamespace(monotonic=time.monotonic))
    monkeypatch.setattr(path_log, "SLOW_S", 0.2)
    monkeypatch.setattr(path_log, "STALLED_S", 0.2)
    monkeypatch.setattr(transport, "_LOOK_MS", 20.0)
    _, broker_port = clusters.target.nodes[1]
    with HeldPort() as port, Proxy(port, broker_port, FaultPlan()) as proxy:
        clusters.target.nodes[1] = (HOST, port.number)
        yield BadPath(clusters, proxy)


def path_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == path_log.__name__]


@pytest.mark.thorough
def test_a_path_that_loses_its_bandwidth_inside_a_micro_batch_is_reported_and_what_it_carried_is_committed(
    path: BadPath, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_log, "STALLED_S", 60.0)
    path.proxy.limit(20e6)
    path.seed_large(40)
    path.clusters.target.change("Produce", *[AS_IT_SHOULD] * 4, after(lambda: path.proxy.limit(400_000)))
    assert path.rounds(planned(A, 20)) > 1
    assert ["(produce) became slow" in line for line in path_lines(caplog)] == [True]
    path.proxy.limit(20e6)
    path.rounds(planned(A, 40))
    assert ["(produce) is no longer slow" in line for line in path_lines(caplog)] == [False, True]
    assert not any(result.retried for result in path.results)


def test_a_connection_that_is_closed_with_fifty_requests_in_flight_is_retried_and_nothing_is_lost_or_there_twice(
    path: BadPath,
) -> None:
    path.seed(A, *(named_batch(n, [0]) for n in range(2 * IN_FLIGHT)))
    target = path.clusters.target
    target.await_in_flight["Produce"] = IN_FLIGHT
    target.change("Produce", *[AS_IT_SHOULD] * 3, dropped_after())
    assert path.rounds(planned(A, 2 * IN_FLIGHT)) == 1
    (result,) = path.results
    assert [error.error_name for error in result.retried] == ["NETWORK_EXCEPTION"]
    assert target.most_in_flight["Produce"] >= IN_FLIGHT
    assert target.asked("Produce") < 4 * IN_FLIGHT


@pytest.mark.long
@pytest.mark.parametrize("performed", [0, 1, 25, 49])
@pytest.mark.parametrize("is_applied", [False, True])
def test_wherever_a_connection_with_requests_in_flight_is_closed_everything_arrives_once(
    path: BadPath, performed: int, is_applied: bool
) -> None:
    for source in (A, B):
        path.seed(source, *(named_batch(n, [0, 1]) for n in range(0, 4 * IN_FLIGHT, 2)))
    target = path.clusters.target
    target.await_in_flight["Produce"] = IN_FLIGHT
    target.change("Produce", *[AS_IT_SHOULD] * performed, dropped_after() if is_applied else dropped_before())
    path.rounds(planned(A, 4 * IN_FLIGHT), planned(B, 4 * IN_FLIGHT))
    assert sum(len(result.retried) for result in path.results) == 1


@pytest.mark.long
def test_a_broker_that_always_closes_its_connection_ends_the_slot_with_an_error_and_nothing_is_visible(path: BadPath) -> None:
    path.seed(A, *(named_batch(n, [0]) for n in range(IN_FLIGHT)))
    path.clusters.target.change_always("Produce", dropped_after())
    path.time_left_ms = 3_000.0
    with pytest.raises(RetriableError, match="NETWORK_EXCEPTION"):
        path.round(planned(A, IN_FLIGHT))
    path.clusters.target.change_always("Produce", None)
    path.time_left_ms = 20_000.0
    path.rounds(planned(A, IN_FLIGHT))
    assert len(path.visible(A)) == IN_FLIGHT


@pytest.mark.long
@pytest.mark.parametrize(("seconds", "is_retried"), [(1.0, False), (8.0, True)], ids=["within", "beyond"])
def test_a_stall_is_waited_for_within_the_request_timeout_and_else_retried(
    path: BadPath, caplog: pytest.LogCaptureFixture, seconds: float, is_retried: bool
) -> None:
    """A client of these tests waits for 2 s, for a response to Produce twice as long, and for what its bytes take at 16 KiB/s."""
    path.seed(A, *(named_batch(n, [0]) for n in range(40)))
    path.interval_ms = 20_000.0
    path.rounds(planned(A, 1))  # from then on the coordinators are known, as a driver tells its tasks
    path.clusters.target.change("Produce", *[AS_IT_SHOULD] * 4, after(lambda: path.proxy.stall(seconds)))
    path.rounds(planned(A, 40))
    assert any(result.retried for result in path.results) == is_retried
    lines = path_lines(caplog)
    assert any("has sent and taken nothing" in line and "requests with" in line for line in lines), lines
    # A path that responds again may be reported as slow behind that: the stall itself has to be over.
    assert "responds again" in [line for line in lines if "taken nothing" in line or "responds again" in line][-1]


@pytest.mark.long
@pytest.mark.parametrize("way", ["requests", "replies"])
def test_a_path_that_delays_one_direction_is_filled_all_the_same(path: BadPath, way: str) -> None:
    path.seed_large(60)
    path.interval_ms = 20_000.0
    (path.proxy.delay if way == "requests" else path.proxy.delay_replies)(0.1)
    path.rounds(planned(A, 60))
    assert not any(result.retried for result in path.results)


@pytest.mark.long
def test_a_window_larger_than_the_socket_buffers_is_sent_without_being_copied(
    path: BadPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target takes nothing until as much was offered as may be in flight: the sender is blocked, and holds no second copy."""
    most_in_flight = [0]
    sent = PathLog.sent

    def spied(log: PathLog, count: int, size_bytes: int) -> None:
        sent(log, count, size_bytes)
        most_in_flight[0] = max(most_in_flight[0], log._in_flight_bytes)

    monkeypatch.setattr(PathLog, "sent", spied)
    path.seed_large(200)
    path.interval_ms = 20_000.0
    path.proxy.limit(40e6)
    path.rounds(planned(A, 200))
    assert most_in_flight[0] <= WINDOW_BYTES + BATCH_BYTES
    assert not any(result.retried for result in path.results)

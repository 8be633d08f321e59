"""What is in flight follows the path: bandwidth x round trip, within bounds, whatever the caller does in between."""

from __future__ import annotations

from collections import deque

import pytest
from tests.fakes.clients import SleepingClock

from shallow_mirror.broker.cluster.send_pace import GAIN, LEAST_BYTES, REMEMBERED_S, Flight, SendWindow

MOST_BYTES = 64 << 20


WRITE_BYTES = 256 << 10


def filled(window: SendWindow, clock: SleepingClock, bytes_per_s: float, round_trip_s: float, seconds: float = 5.0) -> int:
    """Send over a path as much as the window allows, one transaction a second; return what it allows then."""
    for _ in range(int(seconds)):
        in_flight, arrived_at = deque[tuple[Flight, float]](), 0.0
        transaction_end = clock() + 1
        while clock() < transaction_end or in_flight:
            while clock() < transaction_end and (len(in_flight) + 1) * WRITE_BYTES <= window.size_bytes(MOST_BYTES):
                arrived_at = max(arrived_at, clock() + round_trip_s) + WRITE_BYTES / bytes_per_s
                in_flight.append((window.begin(), arrived_at))
            flight, acknowledged_at = in_flight.popleft()
            clock.sleep(max(0.0, acknowledged_at - clock()))
            window.acknowledge(WRITE_BYTES, flight)
    return window.size_bytes(MOST_BYTES)


@pytest.mark.parametrize(("bytes_per_s", "round_trip_s"), [(150e6, 0.08), (300e6, 0.1), (1e9, 0.02)])
def test_a_long_path_is_filled_within_a_few_round_trips(bytes_per_s: float, round_trip_s: float) -> None:
    clock = SleepingClock()
    size = filled(SendWindow(clock), clock, bytes_per_s, round_trip_s)
    assert bytes_per_s * round_trip_s <= size <= 1.2 * GAIN * bytes_per_s * round_trip_s + GAIN * WRITE_BYTES


def test_a_short_path_needs_no_more_than_the_least() -> None:
    clock = SleepingClock()
    assert filled(SendWindow(clock), clock, 200e6, 0.001) == LEAST_BYTES


def test_no_path_gets_more_than_the_limit() -> None:
    clock = SleepingClock()
    assert filled(SendWindow(clock), clock, 1e9, 0.5) == MOST_BYTES
    assert SendWindow(clock).size_bytes(1 << 20) == 1 << 20


def test_an_acknowledgement_that_is_read_late_changes_nothing() -> None:
    clock = SleepingClock()
    window = SendWindow(clock)
    size = filled(window, clock, 150e6, 0.08)
    flight = window.begin()
    clock.sleep(REMEMBERED_S / 2)
    window.acknowledge(1000, flight)
    assert window.size_bytes(MOST_BYTES) == size


def test_a_path_that_lost_its_bandwidth_is_forgotten_after_a_while() -> None:
    clock = SleepingClock()
    window = SendWindow(clock)
    filled(window, clock, 300e6, 0.08)
    assert filled(window, clock, 10e6, 0.08, seconds=3 * REMEMBERED_S) == LEAST_BYTES
    assert (window.bytes_per_s() or 0) == pytest.approx(10e6, rel=0.1)


def test_after_an_error_nothing_is_known() -> None:
    clock = SleepingClock()
    window = SendWindow(clock)
    filled(window, clock, 300e6, 0.08)
    window.forget()
    assert (window.bytes_per_s(), window.size_bytes(MOST_BYTES)) == (None, LEAST_BYTES)

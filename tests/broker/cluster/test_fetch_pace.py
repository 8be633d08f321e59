"""How much a Fetch asks for follows what the link carries: less than a timeout's worth on a slow one, everything on a fast one."""

from __future__ import annotations

import math

import pytest
from tests.fakes.changes import after, dropped_after, throttled
from tests.fakes.clients import SleepingClock
from tests.fakes.slow_link import SlowLink
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster.fetch_pace import GROWTH, FetchPace
from shallow_mirror.broker.cluster.send_pace import FIRST_BYTES, REQUEST_S
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition

TIMEOUT_MS = 30_000
MOST = 16 << 20
A = TopicPartition("t", 0)


class Link:
    """Responses of a broker over a link of so many bytes per second."""

    def __init__(self, bytes_per_s: float, latency_s: float = 0.0, largest_batch: int = 0) -> None:
        self.clock = SleepingClock()
        self.pace = FetchPace(TIMEOUT_MS, self.clock)
        self.bytes_per_s, self.latency_s, self.largest_batch = bytes_per_s, latency_s, largest_batch

    def fetch(self, most: int = MOST, reader_s: float = 0.0) -> int:
        """Ask, work on the response before for `reader_s`, and wait for the rest. Returns what was asked for."""
        asked = self.pace.request_bytes(most)
        size = max(asked, self.largest_batch)
        self.pace.sent()
        self.clock.sleep(reader_s)
        on_the_way_s = self.latency_s + size / self.bytes_per_s - reader_s
        self.clock.sleep(max(0.0, min(on_the_way_s, self.latency_s - reader_s)))
        self.pace.began()
        self.clock.sleep(max(0.0, min(on_the_way_s, size / self.bytes_per_s)))
        self.pace.received(size)
        return asked


def test_a_fast_link_is_asked_for_all_after_a_few_responses() -> None:
    link = Link(100e6, latency_s=0.1)
    assert [link.fetch() for _ in range(6)] == [FIRST_BYTES * GROWTH**n for n in range(4)] + [MOST, MOST]


@pytest.mark.parametrize("bytes_per_s", [10e3, 40e3, 500e3, 3e6])
@pytest.mark.parametrize("latency_s", [0.0, 1.0, 5.0])
def test_a_slow_link_is_asked_for_what_it_carries_in_a_few_seconds(bytes_per_s: float, latency_s: float) -> None:
    link = Link(bytes_per_s, latency_s)
    asked = [link.fetch() for _ in range(12)]
    assert max(asked) <= max(FIRST_BYTES, GROWTH * bytes_per_s * REQUEST_S)
    assert asked[-1] == pytest.approx(max(FIRST_BYTES, bytes_per_s * REQUEST_S), rel=0.01)


def test_a_link_that_becomes_slow_is_asked_for_less_at_once_and_for_more_when_it_recovers() -> None:
    link = Link(100e6)
    for _ in range(6):
        link.fetch()
    link.bytes_per_s = 200e3
    assert [link.fetch() for _ in range(3)] == [MOST, 400_000, 400_000]
    link.bytes_per_s = 100e6
    assert [link.fetch() for _ in range(4)] == [400_000, 1_600_000, 6_400_000, MOST]


def test_a_broker_that_takes_its_time_before_it_answers_is_no_slow_link() -> None:
    link = Link(100e6, latency_s=6.0)
    assert [link.fetch() for _ in range(6)][-1] == MOST


def test_a_reader_that_is_slower_than_the_link_does_not_make_it_look_fast() -> None:
    """How long the bytes took that arrived before they were waited for is not known."""
    link = Link(100e3)
    for _ in range(30):
        link.fetch(reader_s=link.pace.request_bytes(MOST) / 80e3)
    assert link.fetch() < 80e3 * TIMEOUT_MS / 1000
    assert link.fetch() == pytest.approx(200e3, abs=1)


def test_a_batch_that_is_larger_than_what_was_asked_for_shows_the_pace_as_well() -> None:
    link = Link(50e3, largest_batch=1 << 20)
    assert [link.fetch() for _ in range(3)] == pytest.approx([FIRST_BYTES, 100_000, 100_000], abs=1)


def test_small_responses_at_the_end_of_a_log_change_nothing() -> None:
    link = Link(100e6)
    for _ in range(5):
        link.fetch()
    for _ in range(50):
        link.pace.sent()
        link.pace.began()
        link.clock.sleep(0.001)
        link.pace.received(300)
    assert link.fetch() == MOST


def test_a_fetch_without_a_response_begins_again() -> None:
    link = Link(100e6)
    for _ in range(5):
        link.fetch()
    link.pace.failed()
    assert link.fetch() == FIRST_BYTES


def test_what_would_not_arrive_in_time_is_not_asked_for() -> None:
    link = Link(200e3)
    for _ in range(4):
        link.fetch()
    assert link.pace.request_bytes(MOST, within_s=1.0) == pytest.approx(200_000, abs=1)
    assert link.pace.may_begin(FIRST_BYTES / 200e3 + 0.01)
    assert not link.pace.may_begin(FIRST_BYTES / 200e3 - 0.01)
    link.pace.failed()
    assert link.pace.may_begin(0.01), "the link is not known any more"
    assert not link.pace.may_begin(0)


def test_no_more_is_asked_for_than_the_reader_allows() -> None:
    link = Link(100e6)
    assert [link.fetch(most=1_000) for _ in range(6)] == [1_000] * 6


# --- a reader over such a link ---


def asked_bytes(fake: StrictCluster) -> list[int]:
    return [body.max_bytes for body in fake.bodies("Fetch")]


def fill(fake: StrictCluster, batches: int, payload_bytes: int) -> int:
    log = fake.log("t", 0)
    for _ in range(batches):
        log.seed(batch(log.end_offset, 1, payload=bytes(payload_bytes)))
    return log.end_offset


def reader_of(client: Cluster, end: int, deadline: Deadline) -> RangeReader:
    return RangeReader(
        client,
        [ReadRange(A, 0, end, 50_000.0)],
        isolation=IsolationLevel.READ_COMMITTED,
        fetch_bytes=MOST,
        deadline=deadline,
        max_wait_ms=10,
    )


def read(client: Cluster, end: int, deadline: Deadline) -> list[int]:
    reader = reader_of(client, end, deadline)
    return [base for response in reader for part in response for base in part.index.headers["base_offset"].tolist()]


@pytest.fixture
def slow_link(monkeypatch: pytest.MonkeyPatch, clock: SleepingClock) -> SlowLink:
    return SlowLink(monkeypatch, clock)


def test_a_range_over_a_slow_link_is_read_without_asking_for_anything_twice(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 60, 50_000)
    slow_link.bytes_per_s = 20_000
    assert read(client, end, clock.deadline(600_000)) == list(range(end))
    assert len(fake.bodies("Fetch")) > 10
    assert max(asked_bytes(fake)) <= GROWTH * FIRST_BYTES


def test_what_one_reader_learned_of_a_link_the_next_one_knows(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 40, 50_000)
    slow_link.bytes_per_s = 100_000
    read(client, end, clock.deadline(600_000))
    slow_link.bytes_per_s = math.inf
    before = len(fake.bodies("Fetch"))
    read(client, end, clock.deadline(600_000))
    assert asked_bytes(fake)[before] == pytest.approx(200_000, rel=0.05)


def test_a_batch_that_takes_longer_than_the_request_timeout_is_read_as_long_as_it_keeps_coming(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 2, 1_000_000)
    slow_link.bytes_per_s = 10_000
    assert read(client, end, clock.deadline(600_000)) == [0, 1]
    assert len(fake.bodies("Fetch")) == 2


def test_a_response_of_which_too_little_comes_is_given_up(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 1, 1_000_000)
    slow_link.bytes_per_s = 100
    with pytest.raises(RetriableError, match=r"gave up waiting for (an answer|the rest of an answer)"):
        read(client, end, clock.deadline(200_000))
    assert len(fake.bodies("Fetch")) > 2


def test_the_pace_is_forgotten_with_the_connection_and_throttling_is_not_the_link(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, 60, 50_000)
    fake.change("Fetch", after(lambda: None), after(lambda: None), throttled(20_000), dropped_after())
    assert read(client, end, clock.deadline(600_000)) == list(range(end))
    first = [FIRST_BYTES * GROWTH**n for n in range(3)]
    assert asked_bytes(fake)[:5] == [*first, first[2], FIRST_BYTES]


def test_a_reader_that_has_to_end_waits_for_no_response_any_longer(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 3, 1_000_000)
    reader = reader_of(client, end, clock.deadline(600_000))
    slow_link.bytes_per_s = 50_000
    for response in reader:
        assert len(response) == 1
        reader.end_by(clock.deadline(10_000))
    assert reader.has_ended_early
    assert (reader.positions(), reader.unfinished()) == ({A: 1}, {})


def test_a_reader_that_has_to_end_leaves_nothing_on_the_wire_that_would_come_too_late(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, slow_link: SlowLink
) -> None:
    end = fill(fake, 60, 10_000)
    reader = reader_of(client, end, clock.deadline(600_000))
    slow_link.bytes_per_s = 20_000
    until, parts = None, 0
    for response in reader:
        parts += len(response)
        until = until or clock.deadline(9_000)
        reader.end_by(until)
    assert until is not None
    assert not until.is_over()
    assert reader.has_ended_early
    assert len(fake.bodies("Fetch")) == parts, "every answer was waited for"

"""A slot that write.commit_interval ends: what it says it wrote is what is on the target, and the next round goes on behind it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
from tests.fakes.changes import after
from tests.fakes.clients import SleepingClock
from tests.fakes.slow_link import SlowLink
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import LIMITS, A, B, Clusters, create_target, planned, route_to, run_kafka_slot
from tests.support.examples import examples
from tests.support.record_batches import batch, marker, record

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, slot_task
from shallow_mirror.types import BatchLimits, PlannedRange, SegmentKind, SourcePartition
from shallow_mirror.wire import BATCH_HEADER_BYTES, CONTROL_BIT

INTERVAL_MS = 2_000.0
"""Less than a client waits for a response."""
SMALL = replace(LIMITS, max_message_bytes=250)
TOGETHER = replace(LIMITS, coalesce_bytes=1200)


class SlowTarget:
    """Two clusters whose clock only the target's Produce responses move. Rounds follow each other as the driver makes them."""

    def __init__(self, clusters: Clusters, clock: SleepingClock, limits: BatchLimits = LIMITS) -> None:
        self.clusters, self.clock = clusters, clock
        configs = {"max.message.bytes": str(limits.max_message_bytes)}
        create_target(clusters.target, "slow", 2, **configs)
        self.routes = {"orders": route_to("slow", limits)}
        self.positions = {A: 0, B: 0}
        self.results: list[SlotResult] = []
        self.in_flight_requests = 1
        self.time_left_ms = 1_000_000.0

    def seed(self, source: SourcePartition, *batches: bytes) -> None:
        self.clusters.source.seed((source.topic, source.partition), *batches)

    def responds_after(self, *seconds: float) -> None:
        for each in seconds:
            self.clusters.target.change("Produce", after(partial(self.clock.sleep, each)))

    def job(self) -> KafkaSlotJob:
        return self.clusters.job(
            dict(self.positions),
            routes=self.routes,
            quarantine=UNLIMITED_QUARANTINE,
            commit_interval_ms=INTERVAL_MS,
            time_left_ms=self.time_left_ms,
            in_flight_requests=self.in_flight_requests,
        )

    def round(self, *ranges: PlannedRange, through_spark: bool = False) -> SlotResult:
        """Commit what one round wrote, and check that its rows are what is on the target."""
        if through_spark:
            result = run_kafka_slot(self.job(), iter(rows_of(self.clusters, *ranges)), is_planned_ranges=False)
        else:
            result = self.clusters.run(self.job(), *ranges)
        self.results.append(result)
        if result.txn is not None:
            self.clusters.committed(result, A, "slow")
        for segment in result.segments:
            assert segment.source_start == self.positions[segment.source]
            self.positions[segment.source] = segment.source_end
        self.check()
        return result

    def rounds(self, *ranges: PlannedRange, through_spark: bool = False) -> int:
        """How many it takes until nothing is left."""
        for count in range(1, 1000):
            before, result = dict(self.positions), self.round(*ranges, through_spark=through_spark)
            if not result.is_partial:
                assert self.positions == {**before, **{planned_range.source: planned_range.end for planned_range in ranges}}
                return count
            assert self.positions != before, "a round without progress"
        raise AssertionError

    def visible(self, source: SourcePartition) -> dict[int, bytes]:
        """Value of each record that read_committed readers see, by target offset."""
        log = self.clusters.target.log("slow", source.partition)
        gone = [(aborted_txn.producer_id, aborted_txn.first_offset, aborted_txn.last_offset) for aborted_txn in log.aborted]
        return {
            stored.header.base_offset + delta: value
            for stored in log.batches
            if not stored.header.attributes & CONTROL_BIT
            and not any(
                producer_id == stored.header.producer_id and first <= stored.header.base_offset <= last
                for producer_id, first, last in gone
            )
            for delta, value in enumerate(values_of(stored.data))
        }

    def rows(self, source: SourcePartition) -> dict[int, int]:
        """Source offset by target offset, of every record that the rows map there."""
        return {
            segment.target_start + at: segment.source_start + at
            for result in self.results
            for segment in result.segments
            if segment.source == source and segment.kind is SegmentKind.DATA and segment.target_start is not None
            for at in range(segment.source_end - segment.source_start)
        }

    def check(self) -> None:
        for source in (A, B):
            placed = {target: value_at(offset) for target, offset in self.rows(source).items()}
            assert placed == self.visible(source)
            offsets = [offset for _, offset in sorted(self.rows(source).items())]
            assert offsets == sorted(set(offsets)), "in order, and each once"


def value_at(offset: int) -> bytes:
    return b"#%06d" % offset


def values_of(data: bytes) -> list[bytes]:
    return re.findall(rb"#\d{6}", data[BATCH_HEADER_BYTES:])


def named_batch(start: int, deltas: Sequence[int], size: int = 0, last: int | None = None) -> bytes:
    """Return a batch whose values name their offsets."""
    payload = b"".join(record(delta, value=value_at(start + delta) + bytes(size)) for delta in deltas)
    return batch(start, deltas=deltas, last_offset_delta=last, payload=payload)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    made = SleepingClock()
    monkeypatch.setattr(slot_task, "time", SimpleNamespace(monotonic=made))
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
    return made


@pytest.fixture
def slow(clusters: Clusters, clock: SleepingClock) -> SlowTarget:
    return SlowTarget(clusters, clock)


@pytest.mark.parametrize("through_spark", [False, True], ids=["direct", "through Spark"])
def test_a_slot_ends_inside_a_response_and_the_next_round_continues_behind_it_and_sends_nothing_twice(
    slow: SlowTarget, through_spark: bool
) -> None:
    slow.seed(A, *(named_batch(2 * n, [0, 1]) for n in range(6)))
    slow.responds_after(0.1, 0.1, INTERVAL_MS / 1000, 0.1, INTERVAL_MS / 1000)
    assert slow.rounds(planned(A, 12), through_spark=through_spark) == 3
    assert [result.segments[-1].source_end for result in slow.results] == [6, 10, 12]
    assert slow.clusters.target.asked("Produce") == 6
    assert len({result.txn.producer_epoch for result in slow.results if result.txn is not None}) == 3


@pytest.mark.slow
def test_what_needs_no_sending_is_recorded_as_far_as_the_first_batch_that_was_not_sent(slow: SlowTarget) -> None:
    slow.seed(
        A,
        named_batch(0, [0, 1]),
        batch(2, 1, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0),
        marker(3, 0, 9),
        batch(4, deltas=[], last_offset_delta=1),
        named_batch(8, [0]),
        named_batch(9, [0]),
    )
    slow.responds_after(INTERVAL_MS / 1000)
    assert slow.rounds(planned(A, 10)) == 2
    first, second = (
        [(segment.kind.value, segment.source_start, segment.source_end) for segment in each.segments] for each in slow.results
    )
    assert first == [("data", 0, 2), ("aborted", 2, 3), ("abort", 3, 4), ("gap", 4, 6)]
    assert second == [("gap", 6, 8), ("data", 8, 10)]


def test_the_parts_of_a_batch_that_was_split_stay_together(clusters: Clusters, clock: SleepingClock) -> None:
    slow = SlowTarget(clusters, clock, SMALL)
    slow.seed(A, named_batch(0, [0]), named_batch(1, range(8), size=60), named_batch(9, range(8), size=60), named_batch(17, [0]))
    slow.responds_after(0.1, INTERVAL_MS / 1000)
    assert slow.rounds(planned(A, 18)) == 2
    assert [(segment.source_start, segment.source_end) for segment in slow.results[0].segments] == [(0, 1), (1, 9)]


def test_batches_that_became_one_stay_together(clusters: Clusters, clock: SleepingClock) -> None:
    slow = SlowTarget(clusters, clock, TOGETHER)
    slow.seed(A, *(named_batch(n, [0], size=10) for n in range(60)))
    slow.responds_after(INTERVAL_MS / 1000)
    assert slow.rounds(planned(A, 60)) == 2
    (row,) = slow.results[0].segments
    assert row.batch_count == row.rebuilt_batch_count > 1


@pytest.mark.slow
def test_batches_that_are_set_aside_behind_the_end_are_left_to_the_next_round(slow: SlowTarget) -> None:
    slow.seed(
        A, named_batch(0, [0]), batch(1, 1, attributes=5), named_batch(2, [0]), batch(3, 1, attributes=5), named_batch(4, [0])
    )
    slow.responds_after(INTERVAL_MS / 1000)
    assert slow.rounds(planned(A, 5)) == 2
    assert [[kept.source_start for kept in result.quarantined] for result in slow.results] == [[1], [3]]


def test_a_batch_that_the_target_refuses_behind_an_end_is_met_by_the_next_round(slow: SlowTarget) -> None:
    create_target(slow.clusters.target, "young", 2, **{"message.timestamp.before.max.ms": "3600000"})
    slow.routes = {"orders": route_to("young")}
    now_ms = slow.clusters.target.now_ms()
    young = [batch(n, 1, payload=record(0, value=value_at(n)), timestamp=now_ms) for n in (0, 1, 3, 4)]
    slow.seed(A, young[0], young[1], batch(2, 1, timestamp=1_000), young[2], young[3])
    slow.responds_after(INTERVAL_MS / 1000)
    ends, set_aside = [], []
    while slow.positions[A] < 5:
        result = slow.clusters.run(slow.job(), planned(A, 5))
        slow.clusters.committed(result, A, "young")
        slow.positions[A] = result.segments[-1].source_end
        ends.append(slow.positions[A])
        set_aside += [kept.source_start for kept in result.quarantined]
    assert (ends, set_aside) == ([1, 3, 5], [2])


def test_a_slot_that_writes_nothing_ends_as_well(clusters: Clusters, clock: SleepingClock) -> None:
    """It has no transaction that could time out, but what it has read would be read again."""
    slow = SlowTarget(clusters, clock)
    for n in range(12):
        slow.seed(A, batch(n, 1, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=n, payload=bytes(30_000)))
    slow.seed(A, marker(12, 0, 9))
    clusters.source.change_always("Fetch", after(partial(clock.sleep, INTERVAL_MS / 2000)))
    assert slow.rounds(planned(A, 13)) > 1
    assert all(result.txn is None for result in slow.results)


@pytest.mark.slow
def test_a_slot_whose_source_is_slow_hands_over_what_it_has_before_its_time_is_over(
    clusters: Clusters, clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches would take 8 s to arrive, and the task has 7.5."""
    slow = SlowTarget(clusters, clock)
    for n in range(3):
        slow.seed(A, named_batch(n, [0], size=400_000))
    slow.time_left_ms = 7_500.0
    SlowLink(monkeypatch, clock, clusters.source.bootstrap).bytes_per_s = 100_000
    assert slow.rounds(planned(A, 3)) == 3
    assert [result.segments[-1].source_end for result in slow.results] == [1, 2, 3]


def test_an_early_end_says_what_was_written_and_what_was_waited_for(slow: SlowTarget) -> None:
    slow.seed(A, *(named_batch(n, [0]) for n in range(4)))
    slow.responds_after(0.5, 2.0)
    result = slow.round(planned(A, 4))
    early = result.early_end
    assert early is not None
    assert (early.seconds, early.sending_s) == (2.5, 2.5)
    assert early.sent_bytes == 2 * len(named_batch(0, [0]))
    assert slow.round(planned(A, 4)).early_end is None


def test_a_stopped_slot_takes_nothing_more(slow: SlowTarget) -> None:
    """The next sequence of what it did not send is one that the broker would refuse."""
    slow.seed(A, *(named_batch(n, [0]) for n in range(4)))
    slow.responds_after(INTERVAL_MS / 1000)
    slow.round(planned(A, 4))
    assert slow.clusters.target.asked("Produce") == 1
    assert slow.clusters.target.asked("TxnOffsetCommit") == 1


SHAPES: dict[str, Callable[[int], tuple[bytes, int]]] = {
    "raw": lambda at: (named_batch(at, range(3)), at + 3),
    "one": lambda at: (named_batch(at, [0]), at + 1),
    "holes": lambda at: (named_batch(at, [0, 2, 3], last=5), at + 6),
    "large": lambda at: (named_batch(at, range(6), size=70), at + 6),
    "empty": lambda at: (batch(at, deltas=[], last_offset_delta=1), at + 2),
    "aborted": lambda at: (
        batch(at, 1, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0),
        at + 1,
    ),
    "bad": lambda at: (batch(at, 1, attributes=5), at + 1),
    "later": lambda at: (named_batch(at + 4, [0]), at + 5),
}


@contextlib.contextmanager
def two_clusters(clock: SleepingClock) -> Iterator[Clusters]:
    with pytest.MonkeyPatch.context() as patch, StrictCluster() as source, StrictCluster() as target:
        kept: dict[object, Cluster] = {}
        patch.setattr(worker_clients, "_clusters", kept)
        patch.setattr(worker_clients, "freeze_imports_once", lambda: None)
        patch.setattr(slot_task, "time", SimpleNamespace(monotonic=clock))
        try:
            yield Clusters(source, target)
        finally:
            for cluster in kept.values():
                cluster.close()


@pytest.mark.thorough
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_wherever_slots_stop_rows_cover_exactly_what_is_on_the_target_and_all_arrives_once(data: st.DataObject) -> None:
    clock = SleepingClock()
    limits = data.draw(st.sampled_from([LIMITS, SMALL, TOGETHER, replace(SMALL, coalesce_bytes=150)]))
    with two_clusters(clock) as clusters:
        slow = SlowTarget(clusters, clock, limits)
        slow.in_flight_requests = data.draw(st.integers(1, 2))
        ends = {}
        for source in (A, B):
            at = 0
            for shape in data.draw(st.lists(st.sampled_from(sorted(SHAPES)), max_size=9)):
                made, at = SHAPES[shape](at)
                slow.seed(source, made)
                if shape == "aborted":
                    slow.seed(source, marker(at, 0, 9))
                    at += 1
            ends[source] = at
        slow.responds_after(*data.draw(st.lists(st.sampled_from([0.0, 0.4, 1.9]), max_size=25)))
        ranges = [planned(source, end) for source, end in ends.items() if end]
        if ranges:
            slow.rounds(*ranges)
        assert slow.positions == ends

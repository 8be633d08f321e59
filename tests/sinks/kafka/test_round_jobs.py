"""What a sink hands to the tasks of a round of what it has seen in those before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sinks.two_strict_clusters import A, B, Clusters, route_to

from shallow_mirror.broker import ClusterMetadata, KnownCluster, PathSpeeds, TopicMetadata
from shallow_mirror.broker.cluster.cluster_metadata import PartitionMetadata, SendSpeed
from shallow_mirror.checkpoints import Position, first_rows_at
from shallow_mirror.checkpoints.rows.positions import moved_by
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks import RoutedTopic, SlotResult, observe_nothing
from shallow_mirror.sinks.base import SlotRound
from shallow_mirror.sinks.kafka import KafkaSink, kafka_sink
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import FAR_RESPONSES, NEAR_RESPONSES
from shallow_mirror.sinks.slots.slot_task import SlotTask
from shallow_mirror.types import PlannedRange, SegmentKind, SlotTxn, SourcePartition, TopicPartition

ROUND = SlotRound(decision=1, positions={}, epoch_ends={}, time_left_ms=1_000.0, commit_interval_ms=1_000.0, left_out=frozenset())


class ClockedSink:
    """A sink, whose clock moves by hand.

    `epochs` and `known_target`: what its next round has ahead. `held`: target partitions that no transaction may include.
    `planned`: what its tasks will read. `added`: what was added to transactions for its tasks.
    """

    def __init__(self, job: KafkaSlotJob) -> None:
        self.now_s = 1_000.0
        self.epochs: dict[str, SlotTxn] = {}
        self.known_target: KnownCluster | None = None
        self.held: dict[TopicPartition, str] = {}
        self.planned: list[PlannedRange] = []
        self.added: list[dict[SlotTxn, list[TopicPartition]]] = []
        self.routes: dict[str, RoutedTopic] = {}
        self.positions: dict[SourcePartition, Position] = {}
        availability = SimpleNamespace(is_usable=lambda _name: True, is_complete=False, held_partitions=lambda: self.held)
        next_round = SimpleNamespace(
            take_epochs=lambda _deadline: self.epochs,
            take_target=lambda *_known: self.known_target,
            take_source=lambda *_known: None,
            begin_additions=lambda partitions, _deadline: self.added.append(partitions),
            require_added=lambda *_txns: None,
        )
        anything: Any = SimpleNamespace(
            positions=lambda: self.positions,
            decide=lambda _rows, **_settings: None,
            availability=availability,
            next_round=next_round,
            routes=self.routes,
            perform=lambda _action, _deadline: ROUND.decision,
            target=None,
        )
        self.sink = KafkaSink(
            job=job,
            slots=2,
            owner=anything,
            performer=anything,
            targets=anything,
            observer=observe_nothing,
            planned_ranges=lambda: self.planned,
            clock=lambda: self.now_s,
        )

    @property
    def job(self) -> KafkaSlotJob:
        return self.job_of(ROUND)

    def job_of(self, round_: SlotRound) -> KafkaSlotJob:
        return cast(KafkaSlotJob, cast(SlotTask, self.sink.task_of(round_)).job)

    def see_target(self, round_trip_s: float) -> None:
        speeds = PathSpeeds({1: SendSpeed(1e8, round_trip_s)})
        self.run(lambda _decision: (SlotResult(0, None, (), target_speeds=speeds),))

    def quiet_for_s(self) -> float:
        return self.job.quiet_for_ms / 1000

    def run(self, run_slots: Callable[[int], tuple[SlotResult, ...]]) -> None:
        deadline = Deadline.after_ms(1_000, time.monotonic)
        self.sink.run_round((), run_slots, deadline, lambda _step, _ms: None)


@pytest.fixture
def clocked(clusters: Clusters) -> ClockedSink:
    return ClockedSink(clusters.job({}))


def test_a_round_whose_requests_were_all_answered_leaves_the_logs_quiet(clocked: ClockedSink) -> None:
    clocked.now_s += 60
    clocked.run(lambda _decision: (SlotResult(0, None, ()),))
    clocked.now_s += 30
    assert clocked.quiet_for_s() == 90


def test_a_round_with_a_try_that_was_given_up_does_not(clocked: ClockedSink) -> None:
    clocked.now_s += 60
    clocked.run(lambda _decision: (SlotResult(0, None, ()), SlotResult(1, None, (), has_unanswered=True)))
    clocked.now_s += 30
    assert clocked.quiet_for_s() == 30


def test_nor_does_a_round_that_failed(clocked: ClockedSink) -> None:
    def fail(_decision: int) -> tuple[SlotResult, ...]:
        raise RetriableError("LOST", "a worker was lost")

    clocked.now_s += 60
    with pytest.raises(RetriableError, match="a worker was lost"):
        clocked.run(fail)
    clocked.now_s += 30
    assert clocked.quiet_for_s() == 30


@pytest.mark.parametrize(("round_trips_s", "responses"), [((0.001, 0.019), NEAR_RESPONSES), ((0.001, 0.08), FAR_RESPONSES)])
def test_more_responses_are_in_flight_where_a_broker_of_the_target_is_far(
    clocked: ClockedSink, round_trips_s: tuple[float, ...], responses: int
) -> None:
    assert clocked.job.responses_in_flight == NEAR_RESPONSES
    speeds = PathSpeeds({node: SendSpeed(1e8, round_trip_s) for node, round_trip_s in enumerate(round_trips_s)})
    clocked.run(lambda _decision: (SlotResult(0, None, (), target_speeds=speeds),))
    assert clocked.job.responses_in_flight == responses


TXNS = [SlotTxn(f"m-{slot}", 7 + slot, 3) for slot in range(2)]
FAR_S, NEAR_S = 0.08, 0.001


def planned(source: SourcePartition, slot: int, end: int = 9) -> PlannedRange:
    return PlannedRange(slot=slot, source=source, start=0, end=end, bytes_per_offset=100.0)


def metadata(*partitions: PartitionMetadata) -> ClusterMetadata:
    topic = TopicMetadata("copy", "id", False, 0, {partition.partition: partition for partition in partitions})
    return ClusterMetadata("T", {}, {"copy": topic})


def healthy(partition: int) -> PartitionMetadata:
    return PartitionMetadata(partition, 1, 0, replica_count=3, in_sync_count=3)


def known(of: ClusterMetadata, *, is_new: bool = True) -> KnownCluster:
    return KnownCluster(of, {}, PathSpeeds(), is_new)


@pytest.fixture
def ahead(clocked: ClockedSink) -> ClockedSink:
    """Return a sink with a far target, and two slots that have something to copy: nothing speaks against adding it."""
    clocked.epochs = {txn.transactional_id: txn for txn in TXNS}
    clocked.known_target = known(metadata(healthy(0), healthy(1)))
    clocked.planned = [planned(A, 0), planned(B, 1)]
    clocked.routes["orders"] = route_to("copy")
    clocked.see_target(FAR_S)
    return clocked


def added_to(sink: ClockedSink, round_: SlotRound) -> dict[SlotTxn, frozenset[TopicPartition]]:
    """Return the partitions that the job names, by transaction, after a check that the requests name the same."""
    job = sink.job_of(round_)
    named = {prepared.txn: prepared.adding for prepared in job.prepared.values() if prepared.adding}
    assert {txn: frozenset(partitions) for txn, partitions in sink.added[-1].items()} == named
    assert {prepared.txn for prepared in job.prepared.values()} == set(sink.epochs.values())
    return named


COPY_A, COPY_B = TopicPartition("copy", 0), TopicPartition("copy", 1)
BEGIN = replace(ROUND, positions={A: 0, B: 4})


def test_the_driver_adds_what_the_tasks_of_a_far_target_will_write_to(ahead: ClockedSink) -> None:
    assert added_to(ahead, BEGIN) == {TXNS[0]: {COPY_A}, TXNS[1]: {COPY_B}}
    ahead.planned = [planned(A, 1), planned(B, 1)]
    assert added_to(ahead, BEGIN) == {TXNS[1]: {COPY_A, COPY_B}}
    ahead.planned = []
    assert added_to(ahead, BEGIN) == {}


def test_the_driver_adds_nothing_where_the_target_is_near_or_was_not_asked_just_now(ahead: ClockedSink) -> None:
    ahead.known_target = known(metadata(healthy(0), healthy(1)), is_new=False)
    assert added_to(ahead, BEGIN) == {}
    ahead.known_target = None
    assert added_to(ahead, BEGIN) == {}
    ahead.known_target = known(metadata(healthy(0), healthy(1)))
    ahead.see_target(NEAR_S)
    assert added_to(ahead, BEGIN) == {}


def test_the_driver_adds_nothing_to_a_slot_without_a_producer_epoch(ahead: ClockedSink) -> None:
    del ahead.epochs[TXNS[0].transactional_id]
    ahead.planned.append(planned(B, 2))  # of a plan with more slots
    assert added_to(ahead, BEGIN) == {TXNS[1]: {COPY_B}}


@pytest.mark.parametrize(
    "round_",
    [replace(BEGIN, positions={A: 9, B: 4}), replace(BEGIN, positions={B: 4}), replace(BEGIN, left_out=frozenset({A}))],
    ids=["copied already", "not registered", "left out"],
)
def test_the_driver_does_not_add_what_is_not_written(ahead: ClockedSink, round_: SlotRound) -> None:
    assert added_to(ahead, round_) == {TXNS[1]: {COPY_B}}


@pytest.mark.parametrize(
    "partition",
    [replace(healthy(0), leader=-1), replace(healthy(0), in_sync_count=2), replace(healthy(0), partition=5)],
    ids=["no leader", "not in sync", "not there"],
)
def test_the_driver_does_not_add_what_may_not_take_a_marker(ahead: ClockedSink, partition: PartitionMetadata) -> None:
    ahead.known_target = known(metadata(partition, healthy(1)))
    assert added_to(ahead, BEGIN) == {TXNS[1]: {COPY_B}}


def test_nor_what_is_held_preserved_or_without_a_route(ahead: ClockedSink) -> None:
    ahead.held[COPY_A] = "its marker is missing"
    assert added_to(ahead, BEGIN) == {TXNS[1]: {COPY_B}}
    ahead.held.clear()
    ahead.routes["orders"] = replace(route_to("copy"), is_preserved=True)
    assert added_to(ahead, BEGIN) == {}
    ahead.routes.clear()
    assert added_to(ahead, BEGIN) == {}


@pytest.mark.parametrize("has_former", [False, True], ids=["first topic", "created again"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_leading_fillers_are_deleted_where_brokers_let_them_be(
    clocked: ClockedSink, monkeypatch: pytest.MonkeyPatch, is_compacted: bool, has_former: bool
) -> None:
    """DeleteRecords of a topic with cleanup.policy=compact is a policy violation; there compaction removes the fillers.

    A former target topic of the same name, which had records, says nothing of this log.
    """
    deleted: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(kafka_sink, "delete_records", lambda _target, starts, _deadline: deleted.append(starts))
    clocked.routes["orders"] = replace(route_to("copy"), is_preserved=True, is_compacted=is_compacted)
    target = clocked.routes["orders"].target_of(A)
    (first,) = first_rows_at({A: 20}, lambda _: target)
    record = replace(first.segment, source_end=21, kind=SegmentKind.DATA, target_start=20, target_end=21)
    clocked.positions |= moved_by({}, [replace(first, shared_producer_id=77)])
    if has_former:
        (former,) = first_rows_at({A._replace(topic_id="former"): 0}, lambda _: target._replace(topic_id="former-copy"))
        clocked.positions |= moved_by({}, [replace(former, shared_producer_id=77)])
    result = SlotResult(0, None, (record,), shared_producers={A: 77})
    clocked.run(lambda _decision: (result,))
    assert deleted == ([] if is_compacted else [{target.topic_partition: 20}])


def test_tasks_ask_for_the_producer_of_the_target_topic_that_is_there(clocked: ClockedSink) -> None:
    """That of a former one of the same name has not written to this log: it would be taken for forgotten."""
    clocked.routes["orders"] = replace(route_to("copy"), is_preserved=True)
    target = clocked.routes["orders"].target_of(A)
    (now,) = first_rows_at({A: 0}, lambda _: target)
    (former,) = first_rows_at({A._replace(topic_id="former"): 0}, lambda _: target._replace(topic_id="former-copy"))
    clocked.positions |= moved_by({}, [replace(now, shared_producer_id=77), replace(former, shared_producer_id=66)])
    assert dict(clocked.job.shared_producers) == {A: 77}

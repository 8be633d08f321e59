"""What a sink hands to the tasks of a round of what it has seen in those before."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sinks.two_strict_clusters import Clusters

from shallow_mirror.broker.cluster.cluster_metadata import PathSpeeds, SendSpeed
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.base import SlotRound, observe_nothing
from shallow_mirror.sinks.kafka.kafka_sink import KafkaSink
from shallow_mirror.sinks.kafka.slots.kafka_slot_job import FAR_RESPONSES, NEAR_RESPONSES, KafkaSlotJob
from shallow_mirror.sinks.slot_results import SlotResult
from shallow_mirror.sinks.slots.slot_task import SlotTask

ROUND = SlotRound(decision=1, positions={}, epoch_ends={}, time_left_ms=1_000.0, commit_interval_ms=1_000.0, left_out=frozenset())


class ClockedSink:
    """A sink, whose clock moves by hand."""

    def __init__(self, job: KafkaSlotJob) -> None:
        self.now_s = 1_000.0
        availability = SimpleNamespace(is_usable=lambda _name: True, held_partitions=dict)
        next_round = SimpleNamespace(
            take_epochs=lambda _deadline: {}, take_target=lambda *_known: None, take_source=lambda *_known: None
        )
        anything: Any = SimpleNamespace(
            positions=dict,
            availability=availability,
            next_round=next_round,
            routes={},
            perform=lambda _action, _deadline: ROUND.decision,
        )
        self.sink = KafkaSink(
            job=job,
            slots=1,
            owner=anything,
            performer=anything,
            targets=anything,
            observer=observe_nothing,
            clock=lambda: self.now_s,
        )

    @property
    def job(self) -> KafkaSlotJob:
        return cast(KafkaSlotJob, cast(SlotTask, self.sink.task_of(ROUND)).job)

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

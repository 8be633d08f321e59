"""Submissions that follow each other without waiting: in order, each with its own outcome, and never sent twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, dropped_after, error, held
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.deadlines import wait_until
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.produce import ProducePipeline, ProduceRefusedError, Submission
from shallow_mirror.broker.produce.txn import add_partitions, init_producer_id
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition

NAME = "mirror-0"
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
_INVALID_TIMESTAMP = 32


class Slot:
    """A transaction over two partitions, whose submissions continue each other's sequences."""

    def __init__(self, fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
        self.fake = fake
        self.client = client
        self.txn = init_producer_id(client, NAME, 60_000, clock.deadline())
        add_partitions(client, self.txn, [A, B], clock.deadline())
        self.window = ProducePipeline(
            client, NAME, in_flight_requests=1000, in_flight_bytes=1 << 24, deadline=clock.deadline(), until=clock.deadline()
        )
        self.sequences = {A: 0, B: 0}
        self.sent: dict[TopicPartition, list[bytes]] = {A: [], B: []}

    def submit(self, *counts: int, to: tuple[TopicPartition, ...] = (A, B)) -> Submission:
        """Submit batches of so many records to each partition."""
        queues: dict[TopicPartition, list[memoryview]] = {}
        for topic_partition in to:
            for count in counts:
                raw = batch(
                    0,
                    count,
                    attributes=0x10,
                    producer_id=self.txn.producer_id,
                    producer_epoch=self.txn.producer_epoch,
                    base_sequence=self.sequences[topic_partition],
                )
                self.sequences[topic_partition] += count
                self.sent[topic_partition].append(bytes(raw[16:]))
                queues.setdefault(topic_partition, []).append(memoryview(raw))
        submission = Submission({})
        self.window.submit(queues, submission)
        return submission

    def written(self, topic_partition: TopicPartition) -> list[bytes]:
        return [data[16:] for data in self.fake.log(topic_partition.topic, topic_partition.partition).data()]


@pytest.fixture
def slot(clock: SleepingClock) -> Iterator[Slot]:
    with StrictCluster(2) as fake, contextlib.closing(client_of(fake, clock)) as client:
        fake.create_topic("t", 2)
        yield Slot(fake, client, clock)


def test_what_follows_is_sent_before_anything_is_acknowledged(slot: Slot) -> None:
    first_acknowledged = threading.Event()
    slot.fake.change("Produce", held(first_acknowledged), held(first_acknowledged))
    first = slot.submit(1, 2)
    second = slot.submit(3)
    third = slot.submit(1, to=(B,))
    assert (first.base_offsets, second.base_offsets, third.base_offsets) == ({A: [], B: []}, {A: [], B: []}, {B: []})
    first_acknowledged.set()
    slot.window.finish(second)
    assert (first.base_offsets, second.base_offsets) == ({A: [0, 1], B: [0, 1]}, {A: [3], B: [3]})
    slot.window.finish(third)
    assert third.base_offsets == {B: [6]}
    assert {topic_partition: slot.written(topic_partition) for topic_partition in (A, B)} == slot.sent


def test_an_error_of_an_earlier_submission_is_raised_as_its_own_and_nothing_is_sent_again(slot: Slot) -> None:
    all_sent = threading.Event()
    slot.fake.change("Produce", replace(error(_INVALID_TIMESTAMP, ("t", 0)), hold=all_sent))
    first = slot.submit(1, to=(A,))
    second = slot.submit(2, to=(A,))
    all_sent.set()
    with pytest.raises(ProduceRefusedError) as refused:
        slot.window.finish(second)
    assert (refused.value.topic_partition, refused.value.index_in_queue, slot.window.failed) == (A, 0, first)
    wait_until(lambda: slot.fake.asked("Produce") == 2)


def test_a_connection_that_is_lost_with_much_in_flight_loses_the_transaction_and_repeats_nothing(slot: Slot) -> None:
    all_sent = threading.Event()
    slot.fake.change("Produce", replace(dropped_after(), hold=all_sent))
    submissions = [slot.submit(1, to=(A,)) for _ in range(3)]
    all_sent.set()
    with pytest.raises(RetriableError):
        slot.window.finish(submissions[-1])
    assert [submission.base_offsets for submission in submissions] == [{A: []}] * 3
    assert len(slot.written(A)) <= 1
    assert slot.window.failed is submissions[0]


def test_a_partition_whose_leader_moves_continues_there_once_the_earlier_leader_has_acknowledged(slot: Slot) -> None:
    first = slot.submit(1, 1, to=(A,))
    wait_until(lambda: len(slot.written(A)) == 2)
    slot.fake.move_leader(("t", 0), 3 - slot.fake.log("t", 0).leader)
    slot.client.forget_metadata()
    second = slot.submit(1, to=(A,))
    assert first.base_offsets == {A: [0, 1]}, "before the new leader is sent anything"
    slot.window.finish(second)
    assert second.base_offsets == {A: [2]}
    assert slot.written(A) == slot.sent[A]


@pytest.fixture
def received_alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of responses that were waited for, and so parsed alone."""
    sizes: list[int] = []
    receive = Connection.receive

    def counted(connection: Connection, *args: Any, **options: Any) -> memoryview:
        frame = receive(connection, *args, **options)
        sizes.append(len(frame))
        return frame

    monkeypatch.setattr(Connection, "receive", counted)
    return sizes


@pytest.fixture
def slot_of_one_leader(slot: Slot) -> Slot:
    slot.fake.move_leader(("t", 1), slot.fake.log("t", 0).leader)
    slot.client.forget_metadata()
    return slot


def test_responses_that_have_come_together_are_parsed_together(slot_of_one_leader: Slot, received_alone: list[int]) -> None:
    slot = slot_of_one_leader
    first, second = slot.submit(*[1] * 30), slot.submit(*[2] * 30)
    wait_until(lambda: len(slot.written(B)) == 60)
    received_alone.clear()
    slot.window.finish(second)
    assert (first.base_offsets[A], second.base_offsets[A]) == (list(range(30)), list(range(30, 90, 2)))
    assert (first.base_offsets[B], second.base_offsets[B]) == (first.base_offsets[A], second.base_offsets[A])
    assert len(received_alone) < 10
    assert {topic_partition: slot.written(topic_partition) for topic_partition in (A, B)} == slot.sent


def test_an_error_among_responses_that_have_come_together_is_of_its_own_request(slot_of_one_leader: Slot) -> None:
    slot = slot_of_one_leader
    slot.fake.change("Produce", *[AS_IT_SHOULD] * 20, error(_INVALID_TIMESTAMP, ("t", 0)))
    submission = slot.submit(*[1] * 30)
    wait_until(lambda: len(slot.written(B)) == 30)
    with pytest.raises(ProduceRefusedError) as refused:
        slot.window.finish(submission)
    assert (refused.value.topic_partition, refused.value.index_in_queue) == (A, 20)
    assert submission.base_offsets == {A: list(range(20)), B: list(range(21))}

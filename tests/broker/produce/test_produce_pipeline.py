"""Batches in flight to leaders that refuse, fence, move and lose responses: bounded, in order, and never sent twice."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.fakes.changes import (
    AS_IT_SHOULD,
    Change,
    after,
    cut,
    dropped_after,
    dropped_before,
    error,
    garbage,
    held,
    hostile,
    oversized,
    throttled,
    truncated,
    wrong_correlation_id,
)
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.record_rules import header_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.examples import examples
from tests.support.record_batches import batch, record

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.transport import Part
from shallow_mirror.broker.produce import ProduceRefusedError
from shallow_mirror.broker.produce.leader_pipeline import SMALL_BYTES
from shallow_mirror.broker.produce.produce_pipeline import REQUEST_BYTES, ProducePipeline
from shallow_mirror.broker.produce.txn import EndTxnAnswer, add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, ProducerEpochFencedError, RetriableError
from shallow_mirror.types import SlotTxn, TopicPartition

pytestmark = pytest.mark.thorough

NAME = "mirror-0"
A, B, C = (TopicPartition("t", partition) for partition in range(3))
LOOK_AHEAD_S = 0.02


class Slot:
    """One transaction over the three partitions, and its queues."""

    def __init__(self, client: Cluster, clock: SleepingClock) -> None:
        self.client, self.clock = client, clock
        self.txn = init_producer_id(client, NAME, 60_000, clock.deadline())
        add_partitions(client, self.txn, [A, B, C], clock.deadline())

    def batches(self, counts: Sequence[int], payload_bytes: int | None = None) -> list[memoryview]:
        return queue(self.txn, counts, payload_bytes)

    def produce(
        self,
        queues: dict[TopicPartition, list[memoryview]],
        *,
        requests: int = 5,
        size: int = 1 << 24,
        placed: dict[TopicPartition, list[int]] | None = None,
    ) -> dict[TopicPartition, list[int]]:
        deadline = self.clock.deadline()
        window = ProducePipeline(self.client, NAME, in_flight_requests=requests, in_flight_bytes=size, deadline=deadline)
        return window.produce_all(queues, placed)

    def commit(self) -> None:
        assert end_txn(self.client, self.txn, True, self.clock.deadline()) is EndTxnAnswer.ENDED


def queue(txn: SlotTxn, counts: Sequence[int], payload_bytes: int | None = None) -> list[memoryview]:
    """`payload_bytes`: a single record of about that size in each batch."""
    made, sequence = [], 0
    for count in counts:
        payload = None if payload_bytes is None else record(0, value=bytes(payload_bytes))
        raw = batch(
            0,
            count,
            attributes=0x10,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            base_sequence=sequence,
            payload=payload,
        )
        made.append(memoryview(raw))
        sequence += count
    return made


@pytest.fixture
def slot(client: Cluster, clock: SleepingClock) -> Slot:
    return Slot(client, clock)


def sent(fake: StrictCluster) -> Counter[tuple[str, int, int]]:
    """How often each batch arrived: (topic, partition, base sequence)."""
    return Counter(
        (topic.name, part.index, header_of(bytes(part.records)).base_sequence)
        for body in fake.bodies("Produce")
        for topic in body.topic_data
        for part in topic.partition_data
    )


def payloads(fake: StrictCluster, topic_partition: TopicPartition) -> list[bytes]:
    return [data[16:] for data in fake.log(topic_partition.topic, topic_partition.partition).data()]


def test_queues_are_appended_in_order_and_base_offsets_come_back(fake: StrictCluster, slot: Slot) -> None:
    queues = {A: slot.batches([3, 1, 2]), B: slot.batches([5]), C: slot.batches([1, 1, 1, 1])}
    assert slot.produce(queues) == {A: [0, 3, 4], B: [0], C: [0, 1, 2, 3]}
    slot.commit()
    for topic_partition, batches in queues.items():
        assert payloads(fake, topic_partition) == [bytes(batch[16:]) for batch in batches]
    assert set(sent(fake).values()) == {1}
    assert all(request.acks == -1 and request.transactional_id == NAME for request in fake.bodies("Produce"))


def test_nothing_to_send_is_nothing_sent(fake: StrictCluster, slot: Slot) -> None:
    assert slot.produce({}) == {}
    assert slot.produce({A: []}) == {A: []}
    assert not fake.asked("Produce")


def test_batches_of_many_partitions_share_a_request_and_those_of_one_never(fake: StrictCluster, slot: Slot) -> None:
    slot.produce({A: slot.batches([1, 1, 1]), C: slot.batches([1, 1])})
    members = [[part.index for topic in body.topic_data for part in topic.partition_data] for body in fake.bodies("Produce")]
    assert members == [[0, 2], [0, 2], [0]]


def test_a_request_is_closed_when_it_is_full(fake: StrictCluster, slot: Slot) -> None:
    fake.create_topic("wide", 8)
    topic_partitions = [TopicPartition("wide", partition) for partition in range(0, 8, 2)]
    add_partitions(slot.client, slot.txn, topic_partitions, slot.clock.deadline())
    slot.produce({topic_partition: slot.batches([1], REQUEST_BYTES // 3) for topic_partition in topic_partitions})
    assert [request.size_bytes < REQUEST_BYTES for request in fake.received if request.api == "Produce"] == [True, True]


@pytest.mark.parametrize("requests", [1, 2, 5])
def test_no_more_requests_are_in_flight_than_allowed_and_all_that_are(clock: SleepingClock, requests: int) -> None:
    with StrictCluster(look_ahead_s=LOOK_AHEAD_S) as fake:
        fake.create_topic("t", 3)
        client = client_of(fake, clock)
        slot = Slot(client, clock)
        fake.await_in_flight["Produce"] = requests
        slot.produce({A: slot.batches([1] * 7)}, requests=requests)
        client.close()
        assert fake.most_in_flight["Produce"] == requests


def test_leaders_work_at_the_same_time(fake: StrictCluster, slot: Slot) -> None:
    """One answers only when the other was asked."""
    fake.move_leader(("t", 1), 2)
    is_asked = threading.Event()
    fake.change("Produce", held(is_asked), node_id=1)
    fake.change("Produce", after(is_asked.set), node_id=2)
    assert slot.produce({A: slot.batches([1] * 5), B: slot.batches([1] * 5)}) == {A: [0, 1, 2, 3, 4], B: [0, 1, 2, 3, 4]}
    assert {request.node_id for request in fake.received if request.api == "Produce"} == {1, 2}


def test_an_error_of_one_leader_leaves_no_connection_with_unread_responses(fake: StrictCluster, slot: Slot) -> None:
    fake.move_leader(("t", 1), 2)
    fake.change("Produce", error(10), node_id=1)
    with pytest.raises(ProduceRefusedError):
        slot.produce({A: slot.batches([1] * 3), B: slot.batches([1] * 3)})
    second_slot = Slot(slot.client, slot.clock)
    actual = second_slot.produce({A: second_slot.batches([1, 1]), B: second_slot.batches([1, 1])})
    second_slot.commit()
    for topic_partition, offsets in actual.items():
        epochs = {
            header.base_offset: header.producer_epoch
            for header, _, _ in fake.log(topic_partition.topic, topic_partition.partition).batches
        }
        assert [epochs[offset] for offset in offsets] == [second_slot.txn.producer_epoch] * 2


def test_small_requests_share_a_write_and_large_ones_do_not(
    fake: StrictCluster, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot.produce({C: slot.batches([1])})
    together: list[int] = []
    send = Connection.send_several

    def counted(self: Connection, ids: list[int], parts: list[Part], patience: Deadline) -> None:
        together.append(len(ids))
        send(self, ids, parts, patience)

    monkeypatch.setattr(Connection, "send_several", counted)
    slot.produce({A: slot.batches([1] * 9)}, requests=5)
    assert together == [5, 2, 2]
    together.clear()
    slot.produce({B: slot.batches([1] * 3, SMALL_BYTES)}, requests=5)
    assert together[-3:] == [1, 1, 1]


def test_no_more_bytes_are_in_flight_than_allowed_and_a_larger_batch_travels_alone(clock: SleepingClock) -> None:
    with StrictCluster(look_ahead_s=LOOK_AHEAD_S) as fake:
        fake.create_topic("t", 3)
        client = client_of(fake, clock)
        slot = Slot(client, clock)
        sizes = [10_000, 10_000, 10_000, 10_000, 90_000, 10_000]
        fake.await_in_flight["Produce"] = 3
        one_by_one = [slot.batches([1] * len(sizes), size)[topic_partition] for topic_partition, size in enumerate(sizes)]
        slot.produce({A: one_by_one}, requests=5, size=35_000)
        client.close()
        assert fake.most_in_flight["Produce"] == 3
        assert 90_000 < fake.most_in_flight_bytes["Produce"] < 91_000


# --- a limit ---

LIMIT_MS = 5_000


class Paced:
    """A slot whose window has a limit, on a link where every Produce response takes its time on the clock."""

    def __init__(
        self, fake: StrictCluster, slot: Slot, clock: SleepingClock, seconds: Sequence[float], deadline_ms: float = 20_000
    ) -> None:
        for each in seconds:
            fake.change("Produce", after(partial(clock.sleep, each)))
        limit, deadline = clock.deadline(LIMIT_MS), clock.deadline(deadline_ms)
        self.window = ProducePipeline(
            slot.client, NAME, in_flight_requests=1, in_flight_bytes=1 << 24, deadline=deadline, until=limit
        )


@pytest.mark.parametrize("stops_after", range(1, 8))
def test_a_window_stops_sending_at_its_limit_and_answers_for_what_is_on_the_target(
    fake: StrictCluster, slot: Slot, clock: SleepingClock, stops_after: int
) -> None:
    paced = Paced(fake, slot, clock, [0.1] * (stops_after - 1) + [LIMIT_MS / 1000])
    queues = {A: slot.batches([1, 2, 3, 1, 1, 2, 1]), C: slot.batches([2, 1, 1])}
    placed = paced.window.produce_all(queues)
    slot.commit()
    assert fake.asked("Produce") == stops_after
    for topic_partition, batches in queues.items():
        assert len(placed[topic_partition]) == min(stops_after, len(batches))
        assert payloads(fake, topic_partition) == [bytes(batch[16:]) for batch in batches[: len(placed[topic_partition])]]


def test_nothing_stops_in_the_middle_of_what_one_source_batch_became(
    fake: StrictCluster, slot: Slot, clock: SleepingClock
) -> None:
    paced = Paced(fake, slot, clock, [0.1, LIMIT_MS / 1000])
    queues = {A: slot.batches([1] * 6), C: slot.batches([1] * 6)}
    placed = paced.window.produce_all(queues, continuing={A: {1, 2, 3}, C: {3, 4}})
    assert {topic_partition: len(offsets) for topic_partition, offsets in placed.items()} == {A: 4, C: 2}
    slot.commit()
    assert payloads(fake, A) == [bytes(queue[16:]) for queue in queues[A][:4]]


def test_the_first_request_of_a_transaction_is_sent_however_late_it_is_and_no_second_one(
    fake: StrictCluster, slot: Slot, clock: SleepingClock
) -> None:
    paced = Paced(fake, slot, clock, [])
    clock.sleep(LIMIT_MS / 1000)
    assert paced.window.produce_all({A: slot.batches([1, 1])}) == {A: [0]}
    assert paced.window.produce_all({A: slot.batches([1, 1])[1:]}) == {A: []}


def test_each_leader_gets_its_first_request_whatever_the_others_took(
    fake: StrictCluster, slot: Slot, clock: SleepingClock
) -> None:
    fake.move_leader(("t", 1), 2)
    fake.change("Produce", after(partial(clock.sleep, LIMIT_MS / 1000)), node_id=1)
    paced = Paced(fake, slot, clock, [])
    placed = paced.window.produce_all({A: slot.batches([1, 1]), B: slot.batches([1, 1])})
    assert len(placed[A]) >= 1
    assert len(placed[B]) >= 1


def test_on_a_slow_link_no_more_is_in_flight_than_comes_through_before_the_limit(clock: SleepingClock) -> None:
    """100 kB/s: 5 s carry the first 64 kB and some 430 kB more, not the 4 MB that may be in flight."""
    with StrictCluster(look_ahead_s=LOOK_AHEAD_S) as fake:
        fake.create_topic("t", 3)
        client = client_of(fake, clock)
        slot = Slot(client, clock)
        fake.change_always("Produce", after(partial(clock.sleep, 0.5)))
        limit = clock.deadline(LIMIT_MS)
        window = ProducePipeline(
            client, NAME, in_flight_requests=16, in_flight_bytes=4 << 20, deadline=clock.deadline(100_000), until=limit
        )
        placed = window.produce_all({A: slot.batches([1] * 100, 50_000)})
        client.close()
        assert fake.most_in_flight_bytes["Produce"] < 500_000
        assert 8 <= len(placed[A]) <= 11
        assert len(fake.log("t").data()) == len(placed[A])


def test_a_large_batch_behind_small_ones_is_sent_although_these_have_shown_no_more_than_the_latency(
    fake: StrictCluster, slot: Slot, clock: SleepingClock
) -> None:
    paced = Paced(fake, slot, clock, [0.08] * 10)
    sizes = [10, 10, 200_000, 10, 900_000]
    assert len(paced.window.produce_all({A: [slot.batches([1] * 5, size)[at] for at, size in enumerate(sizes)]})[A]) == 5


def test_a_batch_that_could_not_come_through_before_the_deadline_is_left_to_the_next_transaction(
    fake: StrictCluster, slot: Slot, clock: SleepingClock
) -> None:
    paced = Paced(fake, slot, clock, [2.0, 2.0])
    sizes = [40_000, 40_000, 900_000]
    placed = paced.window.produce_all({A: [slot.batches([1] * 3, size)[at] for at, size in enumerate(sizes)]})
    assert len(placed[A]) == 2


def test_where_not_even_the_first_request_is_acknowledged_the_error_says_what_to_change(
    fake: StrictCluster, clock: SleepingClock
) -> None:
    client = client_of(fake, clock, request_timeout_ms=100)
    slot = Slot(client, clock)
    hold = threading.Event()
    fake.change("Produce", held(hold))
    window = ProducePipeline(
        client, NAME, in_flight_requests=5, in_flight_bytes=1 << 24, deadline=clock.deadline(), until=clock.deadline(LIMIT_MS)
    )
    with pytest.raises(
        RetriableError, match=r"t-0 and 1 other partitions: .* did not acknowledge .*request\.timeout\.ms"
    ) as caught:
        window.produce_all({A: slot.batches([1, 1]), C: slot.batches([1])})
    assert caught.value.error_name == "NETWORK_EXCEPTION"
    hold.set()
    client.close()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_queue_is_sent_as_far_as_a_stop_allows_and_never_with_a_hole(data: st.DataObject) -> None:
    """Whatever the sizes, the parts of source batches and the moment of the limit."""
    clock = SleepingClock()
    with StrictCluster() as fake, contextlib.closing(client_of(fake, clock)) as client:
        fake.create_topic("t", 3)
        slot = Slot(client, clock)
        seconds = data.draw(st.lists(st.sampled_from([0.0, 0.3, 2.0, LIMIT_MS / 1000]), max_size=8))
        paced = Paced(fake, slot, clock, seconds, deadline_ms=1_000_000)
        queues = {topic_partition: slot.batches([1] * data.draw(st.integers(0, 6))) for topic_partition in (A, B, C)}
        continuing = {topic_partition: data.draw(st.sets(st.integers(1, 5))) for topic_partition in queues}
        placed = paced.window.produce_all(queues, continuing=continuing)
        slot.commit()
        for topic_partition, batches in queues.items():
            assert payloads(fake, topic_partition) == [bytes(batch[16:]) for batch in batches[: len(placed[topic_partition])]]
            assert len(placed[topic_partition]) == len(batches) or len(placed[topic_partition]) not in continuing[topic_partition]
        assert any(placed.values()) or not any(queues.values())


# --- refused, fenced, lost ---


@pytest.mark.parametrize("code", [10, 87, 18, 32, 2, -1])
def test_a_refusal_names_partition_and_batch_and_nothing_is_sent_again(fake: StrictCluster, slot: Slot, code: int) -> None:
    fake.change("Produce", AS_IT_SHOULD, AS_IT_SHOULD, error(code, ("t", 2)))
    with pytest.raises(ProduceRefusedError) as caught:
        slot.produce({A: slot.batches([1] * 6), C: slot.batches([1] * 6)}, requests=2)
    assert (caught.value.topic_partition, caught.value.index_in_queue, caught.value.error_code) == (C, 2, code)
    assert set(sent(fake).values()) == {1}
    assert fake.asked("Produce") <= 4


def test_a_missing_right_is_named_with_what_to_grant(fake: StrictCluster, slot: Slot) -> None:
    fake.change("Produce", error(29, ("t", 0)))
    with pytest.raises(
        ConfigError, match=r"Produce to t-0: the target answered TOPIC_AUTHORIZATION_FAILED: grant Write on topic t"
    ):
        slot.produce({A: slot.batches([1])})


def damaged(raw: memoryview) -> memoryview:
    out = bytearray(raw)
    out[-1] ^= 1
    return memoryview(out)


def test_a_batch_that_is_damaged_holed_or_too_large_is_refused_by_what_is_wrong_with_it(fake: StrictCluster, slot: Slot) -> None:
    at_most_100_bytes: dict[str, Any] = {"max.message.bytes": "100"}
    keyed_only: dict[str, Any] = {"cleanup.policy": "compact"}
    fake.create_topic("small", **at_most_100_bytes)
    fake.create_topic("compacted", **keyed_only)
    small, compacted = TopicPartition("small", 0), TopicPartition("compacted", 0)
    add_partitions(slot.client, slot.txn, [small, compacted], slot.clock.deadline())
    good = slot.batches([1, 1, 1])
    holed = memoryview(
        batch(0, deltas=[0, 2], attributes=0x10, producer_id=slot.txn.producer_id, producer_epoch=0, base_sequence=2)
    )
    for topic_partition, batches, index, message in [
        (A, [good[0], damaged(good[1])], 1, "CORRUPT_MESSAGE"),
        (C, [good[0], good[1], holed], 2, "INVALID_RECORD: count is not"),
        (small, [good[0], slot.batches([1, 1], 200)[1]], 1, "MESSAGE_TOO_LARGE"),
        (compacted, [good[0]], 0, "INVALID_RECORD: a record of a compacted topic without a key"),
    ]:
        with pytest.raises(ProduceRefusedError, match=message) as caught:
            slot.produce({topic_partition: batches}, requests=1)
        assert (caught.value.topic_partition, caught.value.index_in_queue) == (topic_partition, index)


@pytest.mark.parametrize("code", [45, 47, 48, 49, 59, 90])
def test_a_fencing_code_ends_the_transaction(fake: StrictCluster, slot: Slot, code: int) -> None:
    fake.change("Produce", AS_IT_SHOULD, error(code, ("t", 0)))
    with pytest.raises(ProducerEpochFencedError, match="Produce to t-0"):
        slot.produce({A: slot.batches([1] * 4), C: slot.batches([1] * 4)}, requests=1)
    assert fake.asked("Produce") == 2


def test_a_producer_whose_id_was_initialised_again_is_fenced(fake: StrictCluster, slot: Slot) -> None:
    slot.produce({A: slot.batches([1])})
    init_producer_id(slot.client, NAME, 60_000, slot.clock.deadline())
    with pytest.raises(ProducerEpochFencedError, match="INVALID_PRODUCER_EPOCH"):
        slot.produce({A: slot.batches([1, 1])[1:]})
    assert len(payloads(fake, A)) == 1


def test_a_partition_outside_the_transaction_is_fenced(fake: StrictCluster, slot: Slot) -> None:
    fake.create_topic("other")
    with pytest.raises(ProducerEpochFencedError, match="INVALID_TXN_STATE"):
        slot.produce({TopicPartition("other", 0): slot.batches([1])})


LOST = {
    "dropped before": dropped_before(),
    "dropped after": dropped_after(),
    "cut": cut(9),
    "garbage": garbage(),
    "garbage behind the header": garbage(9),
    "content ends early": truncated(5),
    "oversized": oversized(),
    "another correlation id": wrong_correlation_id(),
    "not leader": error(6, ("t", 0)),
    "timed out": error(7, ("t", 0), is_performed=True),
    "too few replicas": error(19),
    "too few replicas after the append": error(20, is_performed=True),
    "storage": error(56),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_lost_or_retriable_answer_is_reported_and_nothing_is_sent_again(
    fake: StrictCluster, slot: Slot, lost: Change, nth: int
) -> None:
    fake.change("Produce", *[AS_IT_SHOULD] * (nth - 1), lost)
    with pytest.raises(RetriableError) as caught:
        slot.produce({A: slot.batches([1] * 5)}, requests=2)
    assert type(caught.value) is RetriableError
    assert set(sent(fake).values()) <= {1}
    assert fake.asked("Produce") <= nth + 1


@pytest.mark.parametrize("failed", [dropped_after(), error(10), error(47), garbage()])
@pytest.mark.parametrize("is_moved", [True, False])
def test_after_a_failure_the_next_transaction_starts_on_a_clean_connection_with_fresh_leaders(
    fake: StrictCluster, slot: Slot, failed: Change, is_moved: bool
) -> None:
    fake.change("Produce", failed)
    with pytest.raises(MirrorError):
        slot.produce({A: slot.batches([1] * 5)}, requests=3)
    if is_moved:
        fake.move_leader(("t", 0), 2)
    second_slot = Slot(slot.client, slot.clock)
    (first,) = second_slot.produce({A: second_slot.batches([1, 1, 1])}).values()
    assert len(first) == 3
    second_slot.commit()
    log = fake.log("t")
    aborted = {aborted_txn.producer_id for aborted_txn in log.aborted}
    assert aborted <= {slot.txn.producer_id}
    visible = [header for header, _, _ in log.batches if header.base_offset in first]
    assert [header.producer_epoch for header in visible] == [second_slot.txn.producer_epoch] * 3


def test_what_was_acknowledged_in_front_of_an_error_is_known(fake: StrictCluster, slot: Slot) -> None:
    fake.change("Produce", AS_IT_SHOULD, error(10, ("t", 0)))
    placed: dict[TopicPartition, list[int]] = {}
    with pytest.raises(ProduceRefusedError):
        slot.produce({A: slot.batches([1, 1]), C: slot.batches([1, 1])}, requests=1, placed=placed)
    assert placed == {A: [0], C: [0, 1]}


def test_a_response_for_other_partitions_is_not_believed(fake: StrictCluster, slot: Slot) -> None:
    def alter(response: Any) -> None:
        response.responses[0].partition_responses[0].index = 9

    fake.alter_responses("Produce", alter)
    with pytest.raises(RetriableError, match="answered for other partitions"):
        slot.produce({A: slot.batches([1])})


@pytest.mark.parametrize("seed", range(60))
def test_changed_bytes_of_a_response_end_in_an_error_of_ours_or_in_an_offset(fake: StrictCluster, slot: Slot, seed: int) -> None:
    fake.change("Produce", hostile(random.Random(seed)))
    with contextlib.suppress(MirrorError):
        slot.produce({A: slot.batches([1, 1]), C: slot.batches([1])})
    assert set(sent(fake).values()) == {1}


def test_a_leader_that_moved_before_the_request_refuses_it_and_nothing_was_appended(fake: StrictCluster, slot: Slot) -> None:
    slot.client.leaders([A], slot.clock.deadline())
    fake.move_leader(("t", 0), 2)
    with pytest.raises(RetriableError, match="NOT_LEADER_OR_FOLLOWER"):
        slot.produce({A: slot.batches([1])})
    assert not payloads(fake, A)
    assert slot.produce({A: slot.batches([1])}) == {A: [0]}


def test_without_a_leader_nothing_is_sent(fake: StrictCluster, slot: Slot) -> None:
    fake.stop_node(2)
    with pytest.raises(RetriableError, match="t-1 has no leader"):
        slot.produce({A: slot.batches([1]), B: slot.batches([1])})
    assert not fake.asked("Produce")


def test_a_silent_leader_is_given_up(fake: StrictCluster, clock: SleepingClock) -> None:
    client = client_of(fake, clock, request_timeout_ms=100)
    slot = Slot(client, clock)
    fake.change("Produce", held(threading.Event()))
    with pytest.raises(RetriableError, match="NETWORK_EXCEPTION"):
        slot.produce({A: slot.batches([1])})
    client.close()


def test_a_leader_that_takes_no_bytes_any_more_is_given_up(fake: StrictCluster, clock: SleepingClock) -> None:
    client = client_of(fake, clock, request_timeout_ms=200)
    slot = Slot(client, clock)
    fake.change("Produce", held(threading.Event()))
    path = client.send_window(client.leaders([A], clock.deadline())[A].leader)
    first = path.begin()
    clock.sleep(0.1)
    path.acknowledge(1 << 30, first)
    window = ProducePipeline(client, NAME, in_flight_requests=100, in_flight_bytes=1 << 30, deadline=clock.deadline(3_600_000))
    with pytest.raises(RetriableError, match="sending to"):
        window.produce_all({A: slot.batches([1] * 40, 1 << 20)})
    client.close()


def test_a_throttled_response_is_a_response(fake: StrictCluster, slot: Slot) -> None:
    fake.change("Produce", throttled(5_000))
    assert slot.produce({A: slot.batches([2, 1])}) == {A: [0, 2]}


def test_sequences_wrap_at_the_brokers_too(fake: StrictCluster, slot: Slot) -> None:
    txn = slot.txn
    made = [
        batch(0, 2, attributes=0x10, producer_id=txn.producer_id, producer_epoch=txn.producer_epoch, base_sequence=first)
        for first in (2**31 - 4, 2**31 - 2, 0)
    ]
    assert slot.produce({A: [memoryview(raw) for raw in made]}) == {A: [0, 2, 4]}

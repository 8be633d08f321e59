"""Ranges of a source that cuts, moves, cleans and breaks: every batch of a range comes once, in order, and nothing is missed."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from tests.fakes.changes import (
    AS_IT_SHOULD,
    Change,
    after,
    append_records,
    cut,
    dropped_after,
    dropped_before,
    error,
    garbage,
    hostile,
    oversized,
    throttled,
    truncated,
    wrong_correlation_id,
)
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster
from tests.support.range_readings import COMMITTED, UNCOMMITTED, A, B, C, Reading, fill, stored, whole, with_id
from tests.support.record_batches import batch, marker, message

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster.fetch_pace import FetchPace
from shallow_mirror.broker.fetch.range_reader import RangeReader, receive_buffer
from shallow_mirror.errors import ConfigError, CorruptBatchError, DataLossError, MirrorError, RetriableError, TopicRecreatedError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.records import open_batch


def test_ranges_of_several_leaders_are_read_completely_and_in_order(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {
        topic_partition: fill(fake, topic_partition, [3, 1, 4] * (topic_partition.partition + 1)) for topic_partition in (A, B, C)
    }
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items())).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


def test_no_partition_waits_until_another_one_is_done(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [1] * 6, payload_bytes=300) for topic_partition in (A, C)}
    reading = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=400)
    reading.run()
    assert {topic_partition for topic_partition, _ in reading.parts[:3]} == {A, C}


def test_a_broker_that_is_far_away_has_two_requests_on_the_way_and_all_comes_once(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchPace, "is_far", True)
    fake.move_leader(("t", 1), 1)
    ends = {topic_partition: fill(fake, topic_partition, [1] * 9, payload_bytes=300) for topic_partition in (A, B, C)}
    reading = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=700)
    assert reading.run() == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    lanes = {path.lane for path in reading.reader._sent}
    assert lanes == {0, 1}


@pytest.mark.parametrize(("payload_bytes", "joined"), [(300, 2), (70_000, 1)])
def test_small_batches_of_a_broker_that_is_far_away_come_together(
    fake: StrictCluster,
    client: Cluster,
    clock: SleepingClock,
    monkeypatch: pytest.MonkeyPatch,
    payload_bytes: int,
    joined: int,
) -> None:
    monkeypatch.setattr(FetchPace, "is_far", True)
    monkeypatch.setattr(FetchPace, "round_trip_s", 5.0)
    fake.move_leader(("t", 1), 1)
    ends = {topic_partition: fill(fake, topic_partition, [1] * 12, payload_bytes=payload_bytes) for topic_partition in (A, B)}
    ranges = [whole(topic_partition, end) for topic_partition, end in ends.items()]
    reading = Reading(client, clock, *ranges, fetch_bytes=4 * payload_bytes, responses=2)
    assert reading.run() == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    assert reading.joined == joined


def test_small_batches_of_a_single_partition_are_requested_in_full_size(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchPace, "is_far", True)
    end = fill(fake, A, [1] * 12, payload_bytes=300)
    reading = Reading(client, clock, whole(A, end), fetch_bytes=1_200, responses=2)
    assert reading.run()[A] == stored(fake, A, 0, end)
    assert {sent.size_bytes for sent in reading.reader._sent.values()} == {1_200}


@pytest.mark.parametrize("fetch_bytes", [70, 100, 250, 333, 1000])
def test_a_batch_that_was_cut_comes_whole_with_the_next_response(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, fetch_bytes: int
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [1, 2, 3] * 5, payload_bytes=40) for topic_partition in (A, C)}
    reading = Reading(
        client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=fetch_bytes
    )
    assert reading.run() == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    assert len(reading.parts) > 2


def test_a_batch_larger_than_the_buffer_makes_it_grow(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [1, 1], payload_bytes=300_000)
    reading = Reading(client, clock, whole(A, end), fetch_bytes=1_000)
    assert reading.run()[A] == stored(fake, A, 0, end)
    assert reading.parts == [(A, 1), (A, 1)]


def test_a_response_ends_with_its_log_segment_and_the_next_one_continues(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fill(fake, A, [2, 2])
    fake.log("t").roll()
    end = fill(fake, A, [2, 2])
    reading = Reading(client, clock, whole(A, end))
    assert reading.run()[A] == stored(fake, A, 0, end)
    assert reading.parts == [(A, 2), (A, 2)]


def test_a_range_may_begin_and_end_inside_batches_and_owns_those_whose_base_it_holds(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fill(fake, A, [10, 10, 10])
    assert [base for base, _ in Reading(client, clock, whole(A, 15, position=5)).run()[A]] == [0, 10]


def test_batches_behind_the_end_come_along_and_are_not_owned(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fill(fake, A, [1] * 10)
    reading = Reading(client, clock, whole(A, 4))
    assert [base for base, _ in reading.run()[A]] == [0, 1, 2, 3]
    assert reading.parts == [(A, 10)]
    assert reading.reader.positions() == {A: 4}


@pytest.mark.parametrize(("is_newest", "version"), [(True, 13), (False, 12)])
def test_a_topic_is_read_by_its_id_where_the_broker_knows_how(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, is_newest: bool, version: int
) -> None:
    fake.is_newest = is_newest
    end = fill(fake, A, [3, 1, 4])
    read = Reading(client, clock, with_id(fake, client, clock, A, end)).run()
    assert read == {A: stored(fake, A, 0, end)}
    assert {request.version for request in fake.bodies("Fetch")} == {version}


def test_a_topic_that_was_created_again_is_not_read_instead_of_the_one_that_was_asked_for(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [3, 1, 4])
    wanted = with_id(fake, client, clock, A, end)
    fake.delete_topic(A.topic)
    fake.create_topic(A.topic, 3)
    fill(fake, A, [3, 1, 4])
    with pytest.raises(TopicRecreatedError, match=f"expected offset 0: .*topic id {wanted.topic_id} became"):
        Reading(client, clock, wanted).run()


def test_an_empty_range_asks_nothing(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    assert Reading(client, clock, whole(A, 0)).run() == {A: []}
    assert not fake.asked("Fetch")


# --- compaction ---


@pytest.mark.parametrize(("start", "end"), [(0, 2), (4, 6), (8, 10), (0, 10), (2, 9)])
@pytest.mark.parametrize("is_more_behind", [True, False])
def test_batches_that_the_cleaner_took_away_are_passed(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, start: int, end: int, is_more_behind: bool
) -> None:
    fill(fake, A, [2] * 5)
    if is_more_behind:
        fill(fake, A, [2])
    fake.log("t").compact_away(start, end)
    assert Reading(client, clock, whole(A, 10)).run()[A] == stored(fake, A, 0, 10)


def test_many_ranges_that_end_in_holes_are_ended_by_the_same_few_responses(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.create_topic("wide", 40)
    topic_partitions = [TopicPartition("wide", partition) for partition in range(40)]
    for topic_partition in topic_partitions:
        fill(fake, topic_partition, [2, 2])
        fake.log(*(topic_partition.topic, topic_partition.partition)).compact_away(2, 4)
    read = Reading(client, clock, *(whole(topic_partition, 4) for topic_partition in topic_partitions)).run()
    assert all([base for base, _ in read[topic_partition]] == [0] for topic_partition in topic_partitions)
    assert fake.asked("Fetch") <= 2 * 4


@pytest.mark.parametrize("remote_responses", [2, 3, 7])
def test_batches_in_remote_storage_are_waited_for_however_often_the_broker_answers_without(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, remote_responses: int
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [3, 1, 4] * 3) for topic_partition in (A, B)}
    fake.log("t", 0).local_start_offset, fake.log("t", 0).remote_responses = 17, remote_responses
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=400).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


def test_a_hole_at_the_end_is_a_hole_where_brokers_know_no_remote_storage(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.is_newest = False
    end = fill(fake, A, [3, 1, 4])
    fake.log("t", 0).compact_away(4, 8)
    assert Reading(client, clock, whole(A, end)).run() == {A: stored(fake, A, 0, end)}


def test_a_broker_that_cannot_reach_its_remote_storage_is_asked_again(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [3, 1, 4])
    fake.log("t", 0).local_start_offset = end
    fake.change("Fetch", error(-1, ("t", 0)), error(-1, ("t", 0)))
    assert Reading(client, clock, whole(A, end)).run() == {A: stored(fake, A, 0, end)}


def test_an_end_that_is_not_visible_yet_is_waited_for(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    """A hole and a lagging high watermark look the same at first: nothing comes."""
    log = fake.log("t")
    end = fill(fake, A, [2, 2, 2])
    log.high_watermark_limit = 4

    def show() -> None:
        log.high_watermark_limit = None

    fake.change("Fetch", *[AS_IT_SHOULD] * 4, after(show))
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert fake.asked("Fetch") >= 5


def test_an_open_transaction_in_front_of_the_end_is_waited_for_and_its_abort_is_reported(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    log = fake.log("t")
    log.seed(batch(0, 2, attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0), batch(2, 2))
    fake.change("Fetch", *[AS_IT_SHOULD] * 2, after(lambda: log.seed(marker(4, 0, 7))))
    reading = Reading(client, clock, whole(A, 4))
    assert [base for base, _ in reading.run()[A]] == [0, 2]
    assert reading.aborted == {(7, 0)}


def test_a_reader_of_everything_does_not_wait_for_transactions(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.log("t").seed(batch(0, 2, attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0))
    assert len(Reading(client, clock, whole(A, 2), isolation=UNCOMMITTED).run()[A]) == 1


# --- faults ---

FAULTS = {
    "dropped before": dropped_before(),
    "dropped after": dropped_after(),
    "cut in the length": cut(3),
    "cut in the header": cut(20),
    "cut in a batch": cut(150),
    "garbage": garbage(),
    "garbage behind the header": garbage(9),
    "content ends early": truncated(7),
    "oversized": oversized(),
    "another correlation id": wrong_correlation_id(),
    "leader unknown": error(5, ("t", 0)),
    "leader moved": error(6, ("t", 0)),
    "unknown topic": error(3),
    "old leader epoch": error(74, ("t", 1)),
    "new leader epoch": error(75, ("t", 1)),
    "storage": error(56, ("t", 0)),
    "not available yet": error(78, ("t", 0)),
    "error of the whole answer": error(70),
    "throttled": throttled(800),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_after_a_fault_nothing_is_lost_and_nothing_comes_twice(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, fault: Change, nth: int
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [2, 1, 3] * 4, payload_bytes=40) for topic_partition in (A, B, C)}
    fake.change("Fetch", *[AS_IT_SHOULD] * (nth - 1), fault, fault)
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=300).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


def test_a_leader_that_moves_in_the_middle_of_a_range_is_followed(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [1] * 20, payload_bytes=40) for topic_partition in (A, C)}
    moves = [after(partial(fake.move_leader, ("t", 0), node)) for node in (2, 1, 2)]
    fake.change("Fetch", AS_IT_SHOULD, AS_IT_SHOULD, moves[0], AS_IT_SHOULD, AS_IT_SHOULD, moves[1], AS_IT_SHOULD, moves[2])
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=350).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    assert fake.log("t").leader_epoch == 3


def test_a_deleted_topic_ends_the_reading_long_before_the_deadline(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [1] * 3)
    client.leaders([A], clock.deadline())
    fake.delete_topic("t")
    with pytest.raises(RetriableError, match=r"UNKNOWN_TOPIC_OR_PARTITION: the cluster at .* has no topic t any more"):
        Reading(client, clock, whole(A, end), ms=600_000).run()
    assert clock.now < 1_060


def test_a_moved_partition_is_found_while_the_others_of_its_old_leader_continue(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {A: fill(fake, A, [1] * 3), C: fill(fake, C, [1] * 60, payload_bytes=100)}
    client.leaders([A, C], clock.deadline())
    fake.move_leader(("t", 0), 2)
    reading = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items()), fetch_bytes=500)
    assert reading.run() == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    at_a = [index for index, (topic_partition, _) in enumerate(reading.parts) if topic_partition == A]
    assert at_a[0] < len(reading.parts) // 2


def test_a_leader_that_is_down_does_not_keep_the_others_from_being_read(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {A: fill(fake, A, [1] * 3), B: fill(fake, B, [1] * 3)}
    client.leaders([A, B], clock.deadline())
    stale = dict(fake.nodes)
    fake.stop_node(1)
    fake.nodes.update(stale)  # as long as the controller has not noticed
    reading = Reading(client, clock, whole(A, ends[A]), whole(B, ends[B]), ms=3_000)
    with pytest.raises(RetriableError, match="NETWORK_EXCEPTION"):
        reading.run()
    assert reading.batches[B] == stored(fake, B, 0, ends[B])


def test_a_partition_whose_leader_moved_while_its_response_was_under_way_comes_once(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [2, 2]) for topic_partition in (B, A)}
    is_answered, is_asked_again = threading.Event(), threading.Event()

    def delay(frame: bytes) -> bytes:
        is_answered.set()
        is_asked_again.wait(10)
        return frame

    def move() -> None:
        is_answered.wait(10)
        fake.move_leader(("t", 0), 2)

    fake.change("Fetch", Change(reply=delay), node_id=1)
    fake.change("Fetch", Change(first=move, error_code=6), after(is_asked_again.set), node_id=2)
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items())).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


def test_a_broker_that_is_unreachable_for_a_while_is_waited_for(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [1] * 8, payload_bytes=40)
    sleep = clock.sleep

    def sleep_and_return(seconds: float) -> None:
        sleep(seconds)
        if len(clock.sleeps) == 5:
            fake.start_node(1)

    client._retries._sleep = sleep_and_return
    reading = Reading(client, clock, whole(A, end), fetch_bytes=150)
    iteration = iter(reading.reader)
    for part in next(iteration):
        reading._take_part(part)
    fake.stop_node(1)
    for response in iteration:
        for part in response:
            reading._take_part(part)
    assert reading.batches[A] == stored(fake, A, 0, end)


def test_throttling_is_obeyed_and_no_sign_of_a_hole(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [2, 2])
    fake.change("Fetch", *[throttled(1_500)] * 5)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert clock.sleeps.count(1.5) == 5


def test_a_throttled_response_that_names_its_partitions_is_no_sign_of_a_hole_either(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [2, 2])
    throttled_answers: list[Any] = []

    def throttle(response: Any) -> None:
        if len(throttled_answers) < 5:
            throttled_answers.append(response)
            response.throttle_time_ms = 100
            response.responses[0].partitions[0].records = b""

    fake.alter_responses("Fetch", throttle)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert clock.sleeps.count(0.1) == 5


def test_throttling_ends_with_the_deadline(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [2, 2])
    fake.change_always("Fetch", throttled(60_000))
    with pytest.raises(RetriableError, match="gave up waiting for batches of t-0 from offset 0"):
        Reading(client, clock, whole(A, end), ms=5_000).run()
    assert sum(clock.sleeps) == pytest.approx(5.0)


def test_a_response_with_partitions_that_were_not_asked_for_or_twice_is_not_believed(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [2, 2]) for topic_partition in (A, C)}
    altered: list[Any] = []

    def alter(response: Any) -> None:
        if not altered:
            partitions = response.responses[0].partitions
            altered.append(partitions)
            partitions[1].partition_index = 9
            partitions.append(partitions[0])

    fake.alter_responses("Fetch", alter)
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items())).run()
    assert altered
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


def test_what_never_comes_is_given_up_at_the_deadline(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.change_always("Fetch", error(6))
    with pytest.raises(RetriableError, match="NOT_LEADER_OR_FOLLOWER"):
        Reading(client, clock, whole(A, fill(fake, A, [2])), ms=3_000).run()


def test_a_reader_that_is_left_early_leaves_no_response_on_the_wire(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [1] * 20, payload_bytes=40)
    iteration = iter(Reading(client, clock, whole(A, end), fetch_bytes=200).reader)
    next(iteration)
    connection = client.connection(1, "fetch", clock.deadline())
    assert isinstance(iteration, Generator)
    iteration.close()
    assert connection.is_closed
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


# --- what cannot be read ---


def test_a_position_below_the_log_start_is_data_loss(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [2] * 5)
    fake.log("t").delete_records_before(5)
    with pytest.raises(DataLossError, match="expected offset 2, source log starts at 5: retention or DeleteRecords") as caught:
        Reading(client, clock, whole(A, end, position=2)).run()
    assert (caught.value.expected_offset, caught.value.log_start_offset) == (2, 5)


def test_a_log_that_shrinks_in_the_middle_of_a_range_is_data_loss_after_what_was_read(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [2] * 5, payload_bytes=40)
    fake.change("Fetch", AS_IT_SHOULD, after(lambda: fake.log("t").truncate(0)))
    reading = Reading(client, clock, whole(A, end), fetch_bytes=150)
    with pytest.raises(DataLossError, match=r"expected offset 2: the log ends at 0: .* the log was truncated, or the topic"):
        reading.run()
    assert [base for base, _ in reading.batches[A]] == [0]


def test_a_log_whose_ends_its_leader_does_not_say_does_not_keep_the_others_from_being_read(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    """An offset out of range is looked into, and the leader may be lost in between."""
    ends = {topic_partition: fill(fake, topic_partition, [2] * 3) for topic_partition in (A, B)}
    fake.change("Fetch", error(1, ("t", 0)), error(1, ("t", 0)))
    fake.change_always("ListOffsets", error(6))
    read = Reading(client, clock, *(whole(topic_partition, end) for topic_partition, end in ends.items())).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}


@pytest.mark.parametrize(
    ("bad", "expected", "expected_message"),
    [
        (batch(4, 1, magic=1), CorruptBatchError, "base offset 4.*message of magic 1: its CRC"),
        (message(4, magic=0)[:-1] + b"x", CorruptBatchError, "base offset 4.*message of magic 0: its CRC"),
        (message(4)[:8] + b"\0\0\0\5" + message(4)[12:], CorruptBatchError, "base offset 4.*magic 1: 17 bytes are no message"),
        (message(4) + batch(5, 1, magic=3), CorruptBatchError, "base offset 5.*unknown record format: magic 3"),
        (batch(4, 1, magic=3), CorruptBatchError, "base offset 4.*unknown record format: magic 3"),
        (batch(4, 1)[:8] + (40).to_bytes(4, "big") + batch(4, 1)[12:], CorruptBatchError, "impossible batch length"),
    ],
)
def test_what_is_no_batch_is_named_after_the_good_ones_in_front_of_it(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, bad: bytes, expected: type[Exception], expected_message: str
) -> None:
    fill(fake, A, [2, 2])
    good = stored(fake, A, 0, 4)
    fake.alter_responses("Fetch", lambda response: append_records(response, bad))
    reading = Reading(client, clock, whole(A, 9))
    with pytest.raises(expected, match=expected_message):
        reading.run()
    assert reading.batches[A][: len(good)] == good


def test_messages_of_older_formats_are_read_as_batches_with_their_offsets(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fill(fake, A, [2])
    old = message(2, b"k", b"v", magic=0) + message(4, b"k", b"v", timestamp=77) + message(9)[:-1]
    fake.alter_responses("Fetch", lambda response: append_records(response, old))
    reading = Reading(client, clock, whole(A, 5))
    reading.run()
    ((_, first), (base, converted)) = reading.batches[A]
    assert (base, first) == (2, stored(fake, A, 0, 2)[0][1])
    actual = list(open_batch(memoryview(converted), A, max_bytes=1000))
    assert [(record.offset, record.timestamp_ms) for record in actual] == [(2, -1), (4, 77)]


def test_messages_of_older_formats_behind_the_end_of_a_range_are_in_no_batch_of_it(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    """A reader of the next range fetches from its begin, and gets them in a batch of their own."""
    fill(fake, A, [2])
    old = b"".join(message(offset) for offset in range(2, 6))
    fake.alter_responses("Fetch", lambda response: append_records(response, old))
    reading = Reading(client, clock, whole(A, 4))
    reading.run()
    (_, (base, converted)) = reading.batches[A]
    opened = list(open_batch(memoryview(converted), A, max_bytes=1000))
    assert (base, [record.offset for record in opened]) == (2, [2, 3])


@pytest.mark.parametrize(
    ("code", "expected", "message"),
    [
        (2, CorruptBatchError, "CORRUPT_MESSAGE"),
        (-1, CorruptBatchError, "UNKNOWN_SERVER_ERROR"),
        (29, ConfigError, "Fetch of t-0: the cluster at .* answered TOPIC_AUTHORIZATION_FAILED: grant Read on topic t$"),
        (35, ConfigError, "UNSUPPORTED_VERSION"),
    ],
)
def test_a_definite_code_is_not_retried_and_its_error_says_who_must_act(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, code: int, expected: type[Exception], message: str
) -> None:
    end = fill(fake, A, [2])
    fake.change("Fetch", error(code, ("t", 0)))
    with pytest.raises(expected, match=message):
        Reading(client, clock, whole(A, end)).run()
    assert fake.asked("Fetch") == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_changed_bytes_of_a_response_end_in_an_error_of_ours_or_in_nothing(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, seed: int
) -> None:
    dice = random.Random(seed)
    log = fake.log("t")
    log.seed(batch(0, 2, attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0), marker(2, 0, 7), batch(3, 2))
    fake.change("Fetch", *[hostile(dice)] * 3)
    with contextlib.suppress(MirrorError):
        Reading(client, clock, whole(A, 5), ms=3_000).run()


# --- everything at once ---


def _random_log(fake: StrictCluster, topic_partition: TopicPartition, dice: random.Random) -> int:
    log = fake.log(topic_partition.topic, topic_partition.partition)
    for _ in range(dice.randint(1, 25)):
        if dice.random() < 0.15:
            log.roll()
        fill(fake, topic_partition, [dice.randint(1, 9)], payload_bytes=dice.choice([0, 5, 60, 400, 3_000]))
    for _ in range(dice.randint(0, 3)):
        start = dice.randrange(log.end_offset)
        log.compact_away(start, start + dice.randint(1, 12))
    return log.end_offset


def _random_fault(fake: StrictCluster, dice: random.Random) -> Change:
    def move() -> None:
        fake.move_leader(("t", dice.randrange(3)), dice.choice([1, 2]))

    return dice.choice([AS_IT_SHOULD, AS_IT_SHOULD, after(move), dice.choice(list(FAULTS.values()))])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_every_batch_comes_once_and_in_order(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(FetchPace, "is_far", seed % 2 == 1)
    ranges = []
    for topic_partition in (A, B, C):
        log_end = _random_log(fake, topic_partition, dice)
        position = dice.randint(0, log_end)
        end = dice.randint(position, log_end)
        ranges.append(whole(topic_partition, end, position, bytes_per_offset=dice.choice([0.0, 10.0, 1_000.0])))
    fake.change("Fetch", *[_random_fault(fake, dice) for _ in range(25)])
    sizes = {"fetch_bytes": dice.choice([64, 500, 4_000, 100_000]), "responses": dice.choice([1, 2, 3])}
    read = Reading(client, clock, *ranges, ms=600_000, **sizes).run()
    for read_range in ranges:
        expected = (
            stored(fake, read_range.topic_partition, read_range.position, read_range.end)
            if read_range.position < read_range.end
            else []
        )
        assert read[read_range.topic_partition] == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_response_names_each_partition_once_also_where_both_lanes_come_together(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane is done with its partitions, and gets the next request of the other one, which is answered at once."""
    dice = random.Random(seed)
    monkeypatch.setattr(FetchPace, "is_far", True)
    monkeypatch.setattr(FetchPace, "round_trip_s", 5.0)
    for partition in (1, 2):
        fake.move_leader(("t", partition), 1)
    ends = {
        topic_partition: fill(fake, topic_partition, [1] * dice.randint(1, 60), payload_bytes=100)
        for topic_partition in (A, B, C)
    }
    fetch_bytes = dice.choice([200, 500, 1_000])
    reader = RangeReader(
        client,
        [whole(topic_partition, end) for topic_partition, end in ends.items()],
        isolation=COMMITTED,
        fetch_bytes=fetch_bytes,
        deadline=clock.deadline(),
        max_wait_ms=10,
        buffers=[receive_buffer(fetch_bytes) for _ in range(6)],
        responses=3,
    )
    for response in reader:
        names = [part.topic_partition for part in response]
        assert len(names) == len(set(names))
    assert reader.positions() == ends


# --- a partition that cannot be read ---


def test_a_partition_without_a_leader_is_left_where_it_stands_once_the_others_are_done(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    ends = {topic_partition: fill(fake, topic_partition, [1] * 3) for topic_partition in (A, B)}
    fake.move_leader(("t", 0), -1)
    reader = RangeReader(
        client,
        [whole(topic_partition, end) for topic_partition, end in ends.items()],
        isolation=COMMITTED,
        fetch_bytes=1 << 16,
        deadline=clock.deadline(),
        max_wait_ms=10,
        patience_ms=5_000,
    )
    assert [part.topic_partition for response in reader for part in response] == [B]
    assert {topic_partition: error.error_name for topic_partition, error in reader.unfinished().items()} == {
        A: "LEADER_NOT_AVAILABLE"
    }
    assert reader.positions() == {A: 0, B: 3}


def test_without_patience_it_is_waited_for_until_the_deadline(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [1] * 3)
    fake.move_leader(("t", 0), -1)
    with pytest.raises(RetriableError, match="LEADER_NOT_AVAILABLE"):
        Reading(client, clock, whole(A, end)).run()


def test_what_comes_along_damaged_behind_a_range_is_not_its_business(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    end = fill(fake, A, [2])
    damaged = bytearray(batch(2, 1))
    damaged[16] = 9
    fake.seed(("t", 0), bytes(damaged))
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    with pytest.raises(CorruptBatchError):
        Reading(client, clock, whole(A, end + 1)).run()

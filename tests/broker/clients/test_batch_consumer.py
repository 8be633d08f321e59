"""Against a fake cluster that can also answer wrongly. What real brokers answer: test_batch_client.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fakes import changes
from tests.fakes.changes import append_records
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch, marker

from shallow_mirror.broker.clients import BatchConsumer, ClientConfig, IsolationLevel, StaleBatchError, TopicPartition
from shallow_mirror.errors import BatchRefusedError, ConfigError, DataLossError, RetriableError, TopicRecreatedError

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PATIENCE_MS = 20_000


@pytest.fixture
def cluster() -> Iterator[StrictCluster]:
    with StrictCluster(nodes=2) as fake:
        fake.create_topic("orders", 2)
        yield fake


def consumer_of(cluster: StrictCluster, **more: Any) -> BatchConsumer:
    return BatchConsumer({"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": 5_000}, **more)


def polled(consumer: BatchConsumer, count: int, *, max_bytes: int = 1 << 20) -> list[tuple[TopicPartition, int]]:
    """Partitions and base offsets of the next batches, `count` at least."""
    base_offsets: list[tuple[TopicPartition, int]] = []
    while len(base_offsets) < count:
        batches = consumer.poll_batches(max_bytes, PATIENCE_MS)
        assert len(batches)
        base_offsets += [(batch.topic_partition, batch.base_offset) for batch in batches]
    return base_offsets


def transactional(base: int, producer: int, count: int = 1) -> bytes:
    return batch(base, count, attributes=0x10, producer_id=producer, producer_epoch=0, base_sequence=base)


def test_batches_of_partitions_of_several_leaders_arrive_each_once_and_in_order(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(50)])
    cluster.seed(("orders", 1), *[batch(2 * i, 2) for i in range(40)])
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0, P1: "earliest"})
        actual = polled(consumer, 90, max_bytes=300)
        assert [offset for topic_partition, offset in actual if topic_partition == P0] == list(range(50))
        assert [offset for topic_partition, offset in actual if topic_partition == P1] == list(range(0, 80, 2))
        assert (consumer.position(P0), consumer.position(P1)) == (50, 80)


def test_a_poll_without_data_is_empty_and_the_next_one_gets_what_came_meanwhile(cluster: StrictCluster) -> None:
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: "latest"})
        assert len(consumer.poll_batches(1 << 20, 0)) == 0
        cluster.seed(("orders", 0), batch(0, 3))
        assert polled(consumer, 1) == [(P0, 0)]


def test_a_topic_that_is_created_again_is_not_read_in_place_of_the_assigned_one(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 3))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1) == [(P0, 0)]
        cluster.delete_topic("orders")
        cluster.create_topic("orders", 2)
        cluster.seed(("orders", 0), batch(0, 2), batch(2, 2))
        with pytest.raises(TopicRecreatedError, match="deleted and created again"):
            polled(consumer, 1)
        assert consumer.position(P0) == 3
        consumer.assign({P0: "earliest"})
        assert polled(consumer, 2) == [(P0, 0), (P0, 2)]


def test_read_committed_leaves_out_aborted_batches_and_markers_while_the_position_passes_them(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), transactional(0, 1), transactional(1, 2), marker(2, 0, 1), marker(3, 1, 2), marker(4, 1, 3))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1) == [(P0, 1)]
        assert consumer.position(P0) == 5


def test_a_poll_of_markers_and_aborted_batches_alone_continues_until_something_is_visible(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), transactional(0, 1), marker(1, 0, 1), batch(2, 1))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1, max_bytes=100) == [(P0, 2)]


def test_read_uncommitted_hands_out_all_that_the_log_holds(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), transactional(0, 1), marker(1, 0, 1), transactional(2, 2))
    with consumer_of(cluster, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign({P0: 0})
        batches = consumer.poll_batches(1 << 20, PATIENCE_MS)
        assert [(batch.base_offset, batch.is_control) for batch in batches] == [(0, False), (1, True), (2, False)]


def test_a_batch_that_holds_the_assigned_offset_is_handed_out_whole(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 10), batch(10, 2))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 4})
        assert polled(consumer, 2) == [(P0, 0), (P0, 10)]


def test_a_batch_with_holes_is_handed_out(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, deltas=[0, 4]))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        (polled_batch,) = consumer.poll_batches(1 << 20, PATIENCE_MS)
        assert (polled_batch.record_count, polled_batch.last_offset) == (2, 4)


def test_one_buffer_serves_all_polls_unless_it_is_still_viewed(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(4)])
    size = len(batch(0, 1))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        (first,) = consumer.poll_batches(size, PATIENCE_MS)
        before, buffer, view = bytes(first.view), consumer._buffer, first.view
        (second,) = consumer.poll_batches(size, PATIENCE_MS)
        assert consumer._buffer is buffer
        with pytest.raises(ValueError, match="released"):
            bytes(view)
        with pytest.raises(StaleBatchError):
            _ = first.view
        array = np.frombuffer(second.view, np.uint8)
        seen = array.tobytes()
        (_third,) = consumer.poll_batches(size, PATIENCE_MS)
        assert consumer._buffer is not buffer
        assert array.tobytes() == seen != before


@pytest.mark.slow
@pytest.mark.parametrize("node_id", [1, 2])
def test_a_broker_that_goes_away_is_an_error_of_the_poll_and_no_batch_is_lost(cluster: StrictCluster, node_id: int) -> None:
    cluster.seed(("orders", node_id - 1), batch(0, 1))
    topic_partition = TopicPartition("orders", node_id - 1)
    with consumer_of(cluster) as consumer:
        consumer.assign({topic_partition: 0})
        assert polled(consumer, 1) == [(topic_partition, 0)]
        cluster.stop_node(node_id)
        with pytest.raises(RetriableError):
            consumer.poll_batches(1 << 20, 200)
        cluster.start_node(node_id)
        cluster.seed(("orders", node_id - 1), batch(1, 1))
        assert polled(consumer, 1) == [(topic_partition, 1)]


@pytest.mark.parametrize(
    "change",
    [
        changes.dropped_before(),
        changes.dropped_after(),
        changes.garbage(),
        changes.cut(20),
        changes.truncated(3),
        changes.oversized(),
        changes.wrong_correlation_id(),
        changes.throttled(5),
        changes.error(6),
        changes.error(74, only=("orders", 0)),
        changes.error(56),
    ],
)
def test_after_a_broken_or_failed_response_the_same_batches_come(cluster: StrictCluster, change: changes.Change) -> None:
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(6)])
    cluster.change("Fetch", change, changes.AS_IT_SHOULD, change)
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 6, max_bytes=100) == [(P0, i) for i in range(6)]


def test_a_leader_that_moves_is_followed(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 1))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1) == [(P0, 0)]
        cluster.move_leader(("orders", 0), 2)
        cluster.seed(("orders", 0), batch(1, 1))
        assert polled(consumer, 1) == [(P0, 1)]


def test_a_leader_that_moves_is_followed_while_batches_of_other_partitions_arrive(cluster: StrictCluster) -> None:
    cluster.move_leader(("orders", 1), 1)
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(200)])
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0, P1: 0})
        assert polled(consumer, 1, max_bytes=200)
        cluster.move_leader(("orders", 1), 2)
        cluster.seed(("orders", 1), batch(0, 1))
        assert (P1, 0) in polled(consumer, 20, max_bytes=200)


def test_a_partition_without_a_leader_does_not_hold_up_the_others(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(5)])
    cluster.move_leader(("orders", 1), -1)
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0, P1: 0})
        assert polled(consumer, 5) == [(P0, i) for i in range(5)]
        with pytest.raises(RetriableError, match="orders-1 has no leader"):
            consumer.poll_batches(1 << 20, 200)
        cluster.move_leader(("orders", 1), 1)
        cluster.seed(("orders", 1), batch(0, 1))
        assert polled(consumer, 1) == [(P1, 0)]


def test_a_slow_leader_does_not_hold_up_the_others(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 1))
    cluster.seed(("orders", 1), batch(0, 1))
    until = threading.Event()
    cluster.change("Fetch", changes.held(until))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0, P1: 0})
        ((quick, _),) = polled(consumer, 1)
        until.set()
        ((slow, _),) = polled(consumer, 1)
        assert {quick, slow} == {P0, P1}


def test_what_is_lost_is_said_after_the_good_batches_and_again_until_it_is_assigned_again(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 3), batch(3, 3))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        cluster.log("orders", 0).delete_records_before(3)
        for _ in range(2):
            with pytest.raises(DataLossError, match="expected offset 0, source log starts at 3"):
                consumer.poll_batches(1 << 20, PATIENCE_MS)
            assert consumer.position(P0) == 0
        consumer.assign({P0: "earliest"})
        assert polled(consumer, 1) == [(P0, 3)]


def test_batches_of_old_formats_are_refused_after_the_good_ones(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 1))
    old = batch(1, 1, magic=1)
    cluster.alter_responses("Fetch", lambda response: append_records(response, old))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1) == [(P0, 0)]
        with pytest.raises(BatchRefusedError, match=r"older than Kafka 0\.11"):
            consumer.poll_batches(1 << 20, PATIENCE_MS)


def test_a_batch_of_an_unknown_codec_is_refused_after_the_good_ones(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 1), batch(1, 1, attributes=6), batch(2, 1))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1) == [(P0, 0)]
        assert consumer.position(P0) == 1
        for _ in range(2):
            with pytest.raises(BatchRefusedError, match="base offset 1 refused: unknown compression codec"):
                consumer.poll_batches(1 << 20, PATIENCE_MS)


def test_a_broker_that_may_not_be_asked_is_named(cluster: StrictCluster) -> None:
    cluster.change("Fetch", changes.error(29, only=("orders", 0)))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll_batches(1 << 20, PATIENCE_MS)


def poll_without_end(consumer: BatchConsumer) -> None:
    """Make a response take longer than a short poll."""
    while True:
        consumer.poll_batches(1 << 20, 100)


def test_a_response_for_another_partition_is_a_broken_one(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), batch(0, 1))

    def renumber(response: Any) -> None:
        for topic in response.responses:
            for partition in topic.partitions:
                partition.partition_index += 5

    cluster.alter_responses("Fetch", renumber)
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        with pytest.raises(RetriableError, match="other partitions than were asked for"):
            poll_without_end(consumer)


@pytest.mark.slow
def test_what_does_not_exist_is_named_all_at_once_and_nothing_is_created(cluster: StrictCluster) -> None:
    with consumer_of(cluster) as consumer:
        with pytest.raises(ConfigError) as caught:
            consumer.assign({TopicPartition("nowhere", 0): 0, TopicPartition("nowhere", 1): 0, TopicPartition("orders", 7): 0})
        assert [problem.split(";")[0] for problem in caught.value.problems] == [
            "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION",
            "orders-7: the topic has 2 partitions, 0 to 1",
        ]
    assert not cluster.auto_created


def test_a_topic_that_was_only_just_created_is_waited_for(cluster: StrictCluster) -> None:
    cluster.change("Metadata", changes.after(lambda: None), changes.after(lambda: None))
    timer = threading.Timer(0.05, cluster.create_topic, ("late", 1))
    timer.start()
    with consumer_of(cluster) as consumer:
        consumer.assign({TopicPartition("late", 0): "earliest"})
        assert consumer.position(TopicPartition("late", 0)) == 0
    timer.join()


def test_a_new_assignment_replaces_the_old_one_and_its_responses(cluster: StrictCluster) -> None:
    cluster.seed(("orders", 0), *[batch(i, 1) for i in range(5)])
    cluster.seed(("orders", 1), batch(0, 1))
    with consumer_of(cluster) as consumer:
        consumer.assign({P0: 0})
        assert polled(consumer, 1, max_bytes=100) == [(P0, 0)]
        consumer.assign({P0: 4})
        assert polled(consumer, 1) == [(P0, 4)]
        consumer.assign({P1: 0})
        assert polled(consumer, 1) == [(P1, 0)]
        with pytest.raises(KeyError):
            consumer.position(P0)


def test_polling_without_an_assignment_is_refused(cluster: StrictCluster) -> None:
    with consumer_of(cluster) as consumer, pytest.raises(ConfigError, match=r"call assign\(\) first"):
        consumer.poll_batches(1 << 20, 0)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"group.id": "g"}, "client.group.id: batch clients have no groups"),
        ({"isolation.level": "read_committed"}, "client.isolation.level: give isolation="),
        ({"auto.offset.reset": "latest"}, "earliest"),
        ({"value.deserializer": "x"}, "client.value.deserializer: has no effect on record batches"),
        ({"fetch.max.byte": 7}, "client.fetch.max.byte: unknown property; known are"),
        ({"fetch.max.bytes": 7}, "give max_bytes to"),
        ({}, "client.bootstrap.servers: is missing"),
    ],
)
def test_a_setting_that_does_nothing_here_is_refused_with_what_to_do(properties: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BatchConsumer({**({"bootstrap.servers": "x:1"} if properties else {}), **properties})
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


def test_all_wrong_settings_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BatchConsumer({"group.id": "g", "linger.ms": 5, "no.such": 1})
    assert len(caught.value.problems) == 4


def test_wrong_numbers_and_offsets_are_refused_by_name() -> None:
    with BatchConsumer(ClientConfig.from_properties({"bootstrap.servers": "x:1"})) as consumer:
        with pytest.raises(ConfigError, match="max_bytes: 0 is not a number of at least 1\ntimeout_ms: -1"):
            consumer.poll_batches(0, -1)
        with pytest.raises(ConfigError, match="-3 of orders-0 is neither an offset"):
            consumer.assign({P0: -3})
        with pytest.raises(ConfigError, match="'newest' of orders-0"):
            consumer.assign({P0: "newest"})  # type: ignore[dict-item]

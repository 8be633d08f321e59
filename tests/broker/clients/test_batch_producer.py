"""Against a fake cluster that loses responses and refuses on demand. What real brokers do: test_batch_client.py."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes import changes
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch, marker

from shallow_mirror.broker.clients import (
    BatchConsumer,
    BatchesInFlightError,
    BatchProducer,
    Delivery,
    FetchedBatch,
    IsolationLevel,
    LogAppendTimePolicy,
    StaleBatchError,
    TopicPartition,
    TxnState,
    TxnStateError,
)
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    MirrorError,
    OutcomeUnknownError,
    ProducerEpochFencedError,
    RetriableError,
)
from shallow_mirror.wire import BATCH_HEADER_BYTES

pytestmark = pytest.mark.thorough

SOURCE, T0, T1 = TopicPartition("source", 0), TopicPartition("target", 0), TopicPartition("target", 1)
NOW_MS = int(time.time() * 1000)
PATIENCE_MS = 20_000


@pytest.fixture
def cluster() -> Iterator[StrictCluster]:
    with StrictCluster(nodes=2) as fake:
        fake.create_topic("source")
        fake.create_topic("target", 2)
        yield fake


def producer_of(cluster: StrictCluster, transactional_id: str | None = None, **more: Any) -> BatchProducer:
    settings = {"delivery_timeout_ms": 5_000, **more}
    return BatchProducer({"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": 2_000}, transactional_id, **settings)


def polled(cluster: StrictCluster, *batches: bytes) -> list[FetchedBatch]:
    """Return the batches as a consumer of the source hands them out."""
    cluster.seed(("source", 0), *batches)
    copies: list[FetchedBatch] = []
    with BatchConsumer({"bootstrap.servers": cluster.bootstrap}, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign({SOURCE: 0})
        while len(copies) < len(batches):
            copies += [polled_batch.copy() for polled_batch in consumer.poll_batches(1 << 20, PATIENCE_MS)]
    return copies


def several(count: int, *, timestamp: int = NOW_MS) -> list[bytes]:
    return [batch(2 * i, 2, timestamp=timestamp, leader_epoch=9) for i in range(count)]


def payloads(cluster: StrictCluster, partition: int = 0) -> list[bytes]:
    return [batch[BATCH_HEADER_BYTES:] for batch in cluster.log("target", partition).data()]


def visible(cluster: StrictCluster, partition: int = 0) -> list[tuple[int, int]]:
    """Return (base offset, record count) of what a read_committed reader sees."""
    with BatchConsumer({"bootstrap.servers": cluster.bootstrap}) as consumer:
        consumer.assign({TopicPartition("target", partition): 0})
        return [
            (polled_batch.base_offset, polled_batch.record_count)
            for polled_batch in consumer.poll_batches(1 << 20, 0 if not payloads(cluster) else 300)
        ]


def test_without_a_transactional_id_batches_are_written_idempotent_with_the_same_payload(cluster: StrictCluster) -> None:
    made = several(7)
    with producer_of(cluster) as producer:
        deliveries = [producer.send_batch(T0, polled_batch) for polled_batch in polled(cluster, *made)]
        assert not any(delivery.is_done for delivery in deliveries)
        with pytest.raises(OutcomeUnknownError, match=r"flush\(\) first"):
            _ = deliveries[0].base_offset
        producer.flush()
        assert [delivery.base_offset for delivery in deliveries] == list(range(0, 14, 2))
    assert payloads(cluster) == [batch[BATCH_HEADER_BYTES:] for batch in made]
    (request,) = {request.transactional_id for request in cluster.bodies("InitProducerId")}
    assert request is None
    assert [state.epoch for state in cluster.log("target").producers.values()] == [0]


def test_sequences_continue_from_flush_to_flush_and_partition_by_partition(cluster: StrictCluster) -> None:
    batches = polled(cluster, *several(6))
    with producer_of(cluster) as producer:
        for batch in batches:
            producer.send_batch(T0, batch)
            producer.flush()
            producer.send_batch(T1, batch)
        producer.flush()
    assert len(payloads(cluster, 0)) == len(payloads(cluster, 1)) == 6


def test_a_producer_that_is_closed_in_order_has_flushed(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster) as producer:
        delivery = producer.send_batch(T0, polled_batch)
    assert delivery.base_offset == 0
    assert producer.state is TxnState.CLOSED
    with pytest.raises(TxnStateError, match="closed"):
        producer.send_batch(T0, polled_batch)


def test_a_committed_transaction_is_visible_and_an_aborted_one_is_not(cluster: StrictCluster) -> None:
    first, second, third = polled(cluster, *several(3))
    with producer_of(cluster, "t") as producer:
        for transaction_batch, commit in ((first, True), (second, False), (third, True)):
            producer.begin_txn()
            producer.send_batch(T0, transaction_batch)
            producer.send_batch(T1, transaction_batch)
            producer.flush()
            producer.end_txn(commit=commit)
            assert producer.state is TxnState.READY
    assert visible(cluster, 0) == visible(cluster, 1) == [(0, 2), (6, 2)]
    epochs = [request.producer_epoch for request in cluster.bodies("EndTxn")]
    assert epochs == sorted(set(epochs))


def test_a_commit_sends_what_is_queued_and_an_abort_drops_it(cluster: StrictCluster) -> None:
    first, second = polled(cluster, *several(2))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        delivery = producer.send_batch(T0, first)
        producer.end_txn(commit=True)
        assert delivery.base_offset == 0
        producer.begin_txn()
        dropped = producer.send_batch(T0, second)
        producer.end_txn(commit=False)
        assert dropped.is_done
        with pytest.raises(OutcomeUnknownError, match="aborted before this batch was sent"):
            _ = dropped.base_offset
    assert cluster.asked("Produce") == 1


def test_an_empty_transaction_asks_nothing_to_end(cluster: StrictCluster) -> None:
    with producer_of(cluster, "t") as producer:
        for commit in (True, False):
            producer.begin_txn()
            producer.end_txn(commit=commit)
    assert cluster.asked("EndTxn") == 0


def test_leaving_the_block_never_commits(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        producer.send_batch(T0, polled_batch)
        producer.flush()
    assert [request.committed for request in cluster.bodies("EndTxn")] == [False]
    deliveries: list[Delivery] = []

    def fail_with_one_flushed_and_one_queued() -> None:
        with producer_of(cluster, "t") as producer:
            producer.begin_txn()
            deliveries.append(producer.send_batch(T0, polled_batch))
            producer.flush()
            deliveries.append(producer.send_batch(T0, polled_batch))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_one_flushed_and_one_queued()
    assert deliveries[0].base_offset == 3
    with pytest.raises(OutcomeUnknownError, match="because of ZeroDivisionError"):
        _ = deliveries[1].base_offset
    assert [request.committed for request in cluster.bodies("EndTxn")] == [False, False]
    assert visible(cluster) == []


def test_what_goes_wrong_while_closing_after_an_error_is_a_note_of_it(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))

    def fail_while_the_coordinator_is_loading() -> None:
        with producer_of(cluster, "t", delivery_timeout_ms=300) as producer:
            producer.begin_txn()
            producer.send_batch(T0, polled_batch)
            producer.flush()
            cluster.change_always("EndTxn", changes.error(14))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail_while_the_coordinator_is_loading()
    assert "closing the BatchProducer failed as well" in caught.value.__notes__[0]


@pytest.mark.parametrize("code", [7, 10, 19, 87])
def test_after_a_produce_error_a_transaction_can_only_be_aborted(cluster: StrictCluster, code: int) -> None:
    first, second = polled(cluster, *several(2))
    cluster.change("Produce", changes.error(code))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        producer.send_batch(T0, first)
        with pytest.raises(MirrorError) as caught:
            producer.flush()
        assert producer.state is TxnState.MUST_ABORT
        calls: list[Any] = [
            lambda: producer.send_batch(T0, second),
            producer.flush,
            producer.begin_txn,
            lambda: producer.end_txn(commit=True),
        ]
        for call in calls:
            with pytest.raises(TxnStateError, match="can only be aborted") as refused:
                call()
            assert refused.value.because is caught.value
        producer.end_txn(commit=False)
        producer.begin_txn()
        producer.send_batch(T0, second)
        producer.end_txn(commit=True)
    assert cluster.asked("Produce") == 2
    assert [count for _, count in visible(cluster)] == [2]


def test_after_a_lost_response_an_abort_takes_a_new_epoch_so_that_nothing_late_can_arrive(cluster: StrictCluster) -> None:
    first, second = polled(cluster, *several(2))
    cluster.change("Produce", changes.dropped_after())
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        delivery = producer.send_batch(T0, first)
        with pytest.raises(RetriableError):
            producer.flush()
        with pytest.raises(OutcomeUnknownError, match="may be written"):
            _ = delivery.base_offset
        producer.end_txn(commit=False)
        assert cluster.asked("EndTxn") == 0
        asked = cluster.asked("InitProducerId")
        producer.begin_txn()
        assert cluster.asked("InitProducerId") == asked
        producer.send_batch(T0, second)
        producer.end_txn(commit=True)
    assert visible(cluster) == [(3, 2)]


def test_a_refused_batch_is_named_with_a_remedy_and_the_acknowledged_ones_keep_their_offsets(cluster: StrictCluster) -> None:
    made = several(3)
    batches = polled(cluster, *made)
    cluster.change("Produce", changes.AS_IT_SHOULD, changes.error(10))
    with producer_of(cluster, "t", in_flight_requests=1) as producer:
        producer.begin_txn()
        deliveries = [producer.send_batch(T0, batch) for batch in batches]
        with pytest.raises(
            BatchRefusedError, match=r"source-0: batch at base offset 2 refused.*MESSAGE_TOO_LARGE.*max\.message\.bytes"
        ):
            producer.flush()
        assert deliveries[0].base_offset == 0
        with pytest.raises(BatchRefusedError):
            _ = deliveries[1].base_offset
        with pytest.raises(OutcomeUnknownError, match="MESSAGE_TOO_LARGE"):
            _ = deliveries[2].base_offset
        producer.end_txn(commit=False)


def test_bytes_that_were_damaged_before_are_called_corrupt_and_not_the_targets_fault(cluster: StrictCluster) -> None:
    damaged = bytearray(several(1)[0])
    damaged[-1] ^= 1
    (polled_batch,) = polled(cluster, bytes(damaged))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        producer.send_batch(T0, polled_batch)
        with pytest.raises(CorruptBatchError, match="CRC does not match"):
            producer.flush()
        producer.end_txn(commit=False)


def test_a_producer_that_was_taken_over_stops_and_fences_no_other(cluster: StrictCluster) -> None:
    first, second = polled(cluster, *several(2))
    with producer_of(cluster, "t") as old, producer_of(cluster, "t") as new:
        old.begin_txn()
        old.send_batch(T0, first)
        old.flush()
        new.begin_txn()
        old.send_batch(T0, first)
        with pytest.raises(ProducerEpochFencedError):
            old.flush()
        assert old.state is TxnState.FENCED
        asked = cluster.asked("InitProducerId")
        old.end_txn(commit=False)
        with pytest.raises(TxnStateError, match="took over"):
            old.begin_txn()
        assert cluster.asked("InitProducerId") == asked
        new.send_batch(T0, second)
        new.end_txn(commit=True)
    assert len(visible(cluster)) == 1


def test_a_transaction_that_timed_out_cannot_be_committed(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        producer.send_batch(T0, polled_batch)
        producer.flush()
        cluster.time_out("t")
        with pytest.raises(ProducerEpochFencedError, match="timed out"):
            producer.end_txn(commit=True)
        assert producer.state is TxnState.FENCED
    assert visible(cluster) == []


def test_a_commit_without_a_response_may_be_asked_for_again_and_nothing_else(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster, "t", delivery_timeout_ms=400) as producer:
        producer.begin_txn()
        producer.send_batch(T0, polled_batch)
        producer.flush()
        cluster.change_always("EndTxn", changes.dropped_after())
        with pytest.raises(OutcomeUnknownError):
            producer.end_txn(commit=True)
        state: TxnState = producer.state
        assert state is TxnState.COMMIT_UNKNOWN
        with pytest.raises(TxnStateError, match="may be committed"):
            producer.end_txn(commit=False)
        cluster.change_always("EndTxn", None)
        producer.end_txn(commit=True)
        assert producer.state is TxnState.READY
    assert visible(cluster) == [(0, 2)]


@pytest.mark.parametrize("change", [changes.dropped_after(), changes.dropped_before(), changes.garbage(), changes.error(7)])
def test_without_a_transaction_what_was_not_acknowledged_is_sent_again_and_stored_once(
    cluster: StrictCluster, change: changes.Change
) -> None:
    made = several(12)
    cluster.change("Produce", changes.AS_IT_SHOULD, changes.AS_IT_SHOULD, change, changes.AS_IT_SHOULD, change)
    with producer_of(cluster) as producer:
        deliveries = [producer.send_batch(T0, polled_batch) for polled_batch in polled(cluster, *made)]
        producer.flush()
    assert payloads(cluster) == [batch[BATCH_HEADER_BYTES:] for batch in made]
    assert [delivery.base_offset for delivery in deliveries] == list(range(0, 24, 2))


def test_old_records_are_not_sent_again_because_brokers_may_have_forgotten_their_producer(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1, timestamp=NOW_MS - 7_200_000))
    cluster.change("Produce", changes.dropped_after())
    with producer_of(cluster) as producer:
        delivery = producer.send_batch(T0, polled_batch)
        with pytest.raises(RetriableError):
            producer.flush()
        with pytest.raises(OutcomeUnknownError, match="may be written"):
            _ = delivery.base_offset
        assert producer.state is TxnState.BROKEN
        with pytest.raises(TxnStateError, match="create a new producer"):
            producer.send_batch(T0, polled_batch)
    assert cluster.asked("Produce") == 1


def test_a_producer_id_that_cannot_be_had_yet_leaves_the_queue_as_it_is(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster, delivery_timeout_ms=200) as producer:
        delivery = producer.send_batch(T0, polled_batch)
        cluster.change_always("InitProducerId", changes.error(14))
        with pytest.raises(RetriableError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            producer.flush()
        cluster.change_always("InitProducerId", None)
        producer.flush()
        assert delivery.base_offset == 0


def test_a_full_queue_is_sent_without_being_asked_to(cluster: StrictCluster) -> None:
    first, second, third = polled(cluster, *several(3))
    with producer_of(cluster, queue_bytes=2 * first.size_bytes) as producer:
        deliveries = [producer.send_batch(T0, polled_batch) for polled_batch in (first, second, third)]
        assert [delivery.is_done for delivery in deliveries] == [True, True, False]


@pytest.mark.parametrize(("requests", "size_bytes"), [(1, 1 << 20), (3, 1 << 20), (5, 1 << 20), (5, 250)])
def test_no_more_is_in_flight_than_the_settings_say(requests: int, size_bytes: int) -> None:
    with StrictCluster(look_ahead_s=0.02) as cluster:
        cluster.create_topic("source")
        cluster.create_topic("target", 2)
        batches = polled(cluster, *several(12))
        most = min(requests, size_bytes // batches[0].size_bytes)
        cluster.await_in_flight["Produce"] = most
        with producer_of(cluster, in_flight_requests=requests, in_flight_bytes=size_bytes) as producer:
            for batch in batches:
                producer.send_batch(T0, batch)
        assert cluster.most_in_flight["Produce"] == most


def test_a_consumer_refuses_to_poll_while_its_batches_wait_in_a_producer(cluster: StrictCluster) -> None:
    made = several(3)
    cluster.seed(("source", 0), *made)
    with (
        BatchConsumer({"bootstrap.servers": cluster.bootstrap}) as consumer,
        producer_of(cluster) as producer,
    ):
        consumer.assign({SOURCE: 0})
        (first,) = consumer.poll_batches(100, PATIENCE_MS)
        producer.send_batch(T0, first)
        with pytest.raises(BatchesInFlightError, match=r"batches of the last poll are.*: 1; .*flush\(\)"):
            consumer.poll_batches(100, PATIENCE_MS)
        producer.flush()
        (second,) = consumer.poll_batches(100, PATIENCE_MS)
        delivery = producer.send_batch(T0, second.copy())
        (_third,) = consumer.poll_batches(100, PATIENCE_MS)
        producer.flush()
        assert delivery.base_offset == 2
        with pytest.raises(StaleBatchError):
            producer.send_batch(T0, second)
    assert payloads(cluster) == [batch[BATCH_HEADER_BYTES:] for batch in made[:2]]


def test_a_failed_produce_gives_the_batches_back_to_their_consumer(cluster: StrictCluster) -> None:
    cluster.seed(("source", 0), *several(2))
    cluster.change("Produce", changes.error(10))
    with (
        BatchConsumer({"bootstrap.servers": cluster.bootstrap}) as consumer,
        producer_of(cluster, "t") as producer,
    ):
        consumer.assign({SOURCE: 0})
        producer.begin_txn()
        for polled_batch in consumer.poll_batches(100, PATIENCE_MS):
            producer.send_batch(T0, polled_batch)
        with pytest.raises(BatchRefusedError):
            producer.flush()
        assert len(consumer.poll_batches(100, PATIENCE_MS)) == 1


def test_sending_a_batch_leaves_it_as_it_was_fetched(cluster: StrictCluster) -> None:
    (raw,) = several(1)
    (polled_batch,) = polled(cluster, raw)
    with producer_of(cluster) as producer:
        producer.send_batch(T0, polled_batch)
        producer.send_batch(T1, polled_batch)
    assert polled_batch.view == raw
    assert payloads(cluster, 0) == payloads(cluster, 1)


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (marker(0, 1, 9), "it is a control batch"),
        (batch(0, deltas=[], last_offset_delta=3), "no record is left"),
        (batch(0, deltas=[0, 2]), "records are missing inside the batch"),
        (batch(0, 1, attributes=0x08), "LogAppendTime"),
    ],
)
def test_what_no_broker_stores_unchanged_is_refused_before_it_is_sent(cluster: StrictCluster, raw: bytes, rule: str) -> None:
    (polled_batch,) = polled(cluster, raw)
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        with pytest.raises(BatchRefusedError, match=rule):
            producer.send_batch(T0, polled_batch)
        assert producer.state is TxnState.OPEN
    assert cluster.asked("Produce") == 0


def test_append_times_can_be_given_up_for_the_producers_times(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, batch(0, 1, attributes=0x08, timestamp=NOW_MS))
    with producer_of(cluster, log_append_time=LogAppendTimePolicy.PRODUCER) as producer:
        assert producer.send_batch(T0, polled_batch) is not None
    (stored,) = cluster.log("target").data()
    assert stored[22] & 0x08 == 0


def test_a_target_that_does_not_exist_is_named_and_the_transaction_continues(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster, "t") as producer:
        producer.begin_txn()
        with pytest.raises(ConfigError, match="topic nowhere: UNKNOWN_TOPIC_OR_PARTITION; create it"):
            producer.send_batch(TopicPartition("nowhere", 0), polled_batch)
        with pytest.raises(ConfigError, match="target-2: the topic has 2 partitions, 0 to 1"):
            producer.send_batch(TopicPartition("target", 2), polled_batch)
        delivery = producer.send_batch(T0, polled_batch)
        producer.end_txn(commit=True)
        assert delivery.base_offset == 0


def test_transactions_need_a_transactional_id_and_sending_needs_a_transaction(cluster: StrictCluster) -> None:
    (polled_batch,) = polled(cluster, *several(1))
    with producer_of(cluster) as producer:
        for call in (producer.begin_txn, lambda: producer.end_txn(commit=True), lambda: producer.end_txn(commit=False)):
            with pytest.raises(TxnStateError, match="without a transactional id"):
                call()
    with producer_of(cluster, "t") as producer:
        with pytest.raises(TxnStateError, match="no transaction is begun"):
            producer.send_batch(T0, polled_batch)
        with pytest.raises(TxnStateError, match=r"end_txn\(commit=True\): no transaction"):
            producer.end_txn(commit=True)
        producer.begin_txn()
        with pytest.raises(TxnStateError, match="a transaction is open") as caught:
            producer.begin_txn()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_flight_requests": 6}, "in_flight_requests: 6 is not a number of 1 to 5"),
        ({"in_flight_requests": 0, "in_flight_bytes": 0}, "in_flight_bytes: 0 is not a number of at least 1"),
        ({"queue_bytes": "much"}, "queue_bytes: 'much'"),
        ({"transactional_id": ""}, "must not be empty"),
    ],
)
def test_a_wrong_bound_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BatchProducer({"bootstrap.servers": "x:1"}, **settings)
    assert len(caught.value.problems) == len(settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["value.serializer", "compression.type", "linger.ms", "batch.size", "acks", "transactional.id"])
def test_a_setting_of_record_level_producers_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"client\.{name}: .*(?i:remove it|give )"):
        BatchProducer({"bootstrap.servers": "x:1", name: "1"})


def test_a_delivery_that_was_not_settled_is_not_done() -> None:
    assert not Delivery(T0).is_done

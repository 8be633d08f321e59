from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from tests.support.record_batches import batch, marker, view

from shallow_mirror.broker.clients.fetched_batches import BatchesInFlightError, FetchedBatches, FetchedPart, StaleBatchError
from shallow_mirror.broker.net import ReceiveBuffer
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import Codec
from shallow_mirror.wire.batches import index_batches

ORDERS_0 = TopicPartition("orders", 3)


def part(records: memoryview) -> FetchedPart:
    index = index_batches(records)
    return FetchedPart(ORDERS_0, index, records, np.arange(len(index)))


def fetched(*batches: bytes) -> FetchedBatches:
    return FetchedBatches([part(view(*batches))])


def test_a_batch_has_the_values_of_its_header() -> None:
    raw = batch(5, 3, attributes=0x1C, producer_id=7, producer_epoch=2, base_sequence=9, leader_epoch=4, timestamp=1234)
    (fetched_batch,) = fetched(raw)
    assert (fetched_batch.topic_partition, fetched_batch.base_offset, fetched_batch.last_offset, fetched_batch.record_count) == (
        ORDERS_0,
        5,
        7,
        3,
    )
    assert (fetched_batch.size_bytes, fetched_batch.codec, fetched_batch.leader_epoch) == (len(raw), Codec.ZSTD, 4)
    assert (fetched_batch.base_timestamp_ms, fetched_batch.max_timestamp_ms) == (1234, 1234)
    assert (fetched_batch.producer_id, fetched_batch.producer_epoch, fetched_batch.base_sequence) == (7, 2, 9)
    assert (fetched_batch.is_transactional, fetched_batch.is_log_append_time, fetched_batch.is_control) == (True, True, False)
    assert fetched_batch.view == raw


def test_batches_of_several_partitions_are_one_sequence() -> None:
    parts = [batch(0, 2), batch(2, 1), marker(0, 1, 9)]
    both = FetchedBatches([part(view(*parts[:2])), part(view(parts[2]))])
    assert len(both) == 3
    assert both.size_bytes == sum(len(part) for part in parts)
    assert [batch.base_offset for batch in both[1:]] == [2, 0]
    assert [bytes(batch.view) for batch in both] == parts
    assert [batch.is_control for batch in both] == [False, False, True]


def test_a_batch_cannot_be_changed_through_it() -> None:
    (fetched_batch,) = fetched(batch(0, 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fetched_batch.base_offset = 7  # type: ignore[misc]
    with pytest.raises(TypeError, match="read-only"):
        fetched_batch.view[0] = 1


def test_after_the_end_of_the_loan_a_batch_has_no_bytes_and_views_are_released() -> None:
    both = fetched(batch(0, 1), batch(1, 1))
    kept_view = both[0].view
    both.loan.end()
    with pytest.raises(StaleBatchError, match="before the next poll"):
        _ = both[1].view
    with pytest.raises(StaleBatchError):
        both[1].copy()
    with pytest.raises(ValueError, match="released"):
        bytes(kept_view)
    assert both[1].base_offset == 1


def test_a_copy_is_valid_after_the_loan_and_equal() -> None:
    raw = batch(0, 2)
    (fetched_batch,) = lent = fetched(raw)
    kept = fetched_batch.copy()
    assert kept == fetched_batch
    lent.loan.end()
    assert kept.view == raw
    assert kept.copy().view == raw


def test_a_held_loan_cannot_be_ended_and_stays_usable() -> None:
    raw = batch(0, 2)
    lent = fetched(raw)
    lent.loan.hold()
    lent.loan.hold()
    with pytest.raises(BatchesInFlightError, match="not yet acknowledged: 2;") as caught:
        lent.loan.end()
    assert pickle.loads(pickle.dumps(caught.value)).held == 2
    assert lent[0].view == raw
    lent.loan.release()
    lent.loan.release()
    lent.loan.end()


def test_a_buffer_knows_whether_slices_or_arrays_still_look_into_it() -> None:
    buffer = ReceiveBuffer(0, 1 << 20)
    assert not buffer.is_viewed()
    raw = batch(0, 2)
    received = buffer.view(len(raw))
    received[:] = raw
    lent = FetchedBatches([part(received)])
    del received
    array = np.frombuffer(lent[0].view[61:], np.uint8)
    lent.loan.end()
    assert buffer.is_viewed()
    del array
    assert not buffer.is_viewed()
    assert buffer.view(len(raw)) == raw

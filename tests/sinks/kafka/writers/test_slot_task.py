"""One slot between two strict clusters: what it writes, what it says it wrote, and what it does when the target fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, dropped_after, error
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import A, B, Clusters, client_of, create_target, payloads, planned, route_to, run_kafka_slot
from tests.support.record_batches import batch, marker, record

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import add_partitions_and_offsets, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    ProducerEpochFencedError,
    RetriableError,
    TargetDataLossError,
)
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import PreparedTxn
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.types import (
    BatchLimits,
    EpochEnd,
    IsolationLevel,
    LogAppendTimePolicy,
    SegmentKind,
    TopicPartition,
)

COPIES = (TopicPartition("copy", 0), TopicPartition("copy", 1))


def test_a_slot_copies_from_the_position_whatever_the_plan_s_start_says(clusters: Clusters) -> None:
    clusters.write(A, 2, 3, 1)
    clusters.write(B, 4)
    result = clusters.run(clusters.job({A: 2, B: 0}), planned(A, 6, start=5), planned(B, 4, start=4))
    segments = {segment.source: segment for segment in result.segments}
    assert (segments[A].source_start, segments[A].source_end, segments[A].kind) == (2, 6, SegmentKind.DATA)
    assert (segments[A].target_start, segments[A].record_count, segments[A].batch_count) == (0, 4, 2)
    assert (segments[B].source_start, segments[B].source_end) == (0, 4)
    assert result.txn is not None
    assert result.txn.transactional_id == "m-3"
    assert clusters.committed(result, A) == payloads(clusters.written[A][1:])
    assert clusters.committed(result, B) == payloads(clusters.written[B])


def prepared(
    clusters: Clusters, *, adding: Sequence[TopicPartition] = (), added: Sequence[TopicPartition] = ()
) -> dict[str, PreparedTxn]:
    """Return what a driver has prepared. `adding`: partitions that the job names; `added`: those that the coordinator has."""
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(5_000, time.monotonic)
    txn = init_producer_id(target, "m-3", 60_000, deadline)
    if added:
        add_partitions_and_offsets(target, txn, added, deadline)
    target.close()
    return {"m-3": PreparedTxn(txn, frozenset(adding))}


def test_a_slot_uses_the_producer_epoch_that_was_taken_ahead_and_adds_its_partitions_at_once(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    ahead = prepared(clusters)
    result = clusters.run(clusters.job({A: 0, B: 0}, prepared=ahead), planned(A, 2), planned(B, 4))
    assert result.txn == ahead["m-3"].txn
    assert clusters.target.asked("InitProducerId") == 1
    assert clusters.target.asked("AddPartitionsToTxn") == 1
    assert result.stable_ends == {TopicPartition("copy", 0): 0, TopicPartition("copy", 1): 0}
    assert clusters.committed(result, A) == payloads(clusters.written[A])
    assert clusters.committed(result, B) == payloads(clusters.written[B])


def test_a_slot_adds_nothing_that_the_driver_adds(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    ahead = prepared(clusters, adding=COPIES, added=COPIES)
    asked = clusters.target.asked("AddPartitionsToTxn"), clusters.target.asked("AddOffsetsToTxn")
    result = clusters.run(clusters.job({A: 0, B: 0}, prepared=ahead), planned(A, 2), planned(B, 4))
    assert (clusters.target.asked("AddPartitionsToTxn"), clusters.target.asked("AddOffsetsToTxn")) == asked
    assert result.txn == ahead["m-3"].txn
    assert clusters.committed(result, A) == payloads(clusters.written[A])
    assert clusters.committed(result, B) == payloads(clusters.written[B])


def test_a_slot_adds_what_the_driver_does_not_add(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    ahead = prepared(clusters, adding=COPIES[:1], added=COPIES[:1])
    result = clusters.run(clusters.job({A: 0, B: 0}, prepared=ahead), planned(A, 2), planned(B, 4))
    assert (clusters.target.asked("AddPartitionsToTxn"), clusters.target.asked("AddOffsetsToTxn")) == (2, 1)
    assert result.txn == ahead["m-3"].txn
    assert clusters.committed(result, B) == payloads(clusters.written[B])


@pytest.mark.parametrize("added", [(), (TopicPartition("copy", 1),)])
def test_a_partition_that_the_driver_has_not_added_yet_is_added_by_another_try(
    clusters: Clusters, added: Sequence[TopicPartition]
) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    ahead = prepared(clusters, adding=COPIES, added=added)
    result = clusters.run(clusters.job({A: 0, B: 0}, prepared=ahead), planned(A, 2), planned(B, 4))
    assert [error.error_name for error in result.retried] == ["PARTITION_NOT_ADDED"]
    assert result.txn is not None
    assert result.txn.producer_epoch > ahead["m-3"].txn.producer_epoch
    assert clusters.committed(result, A) == payloads(clusters.written[A])
    assert clusters.committed(result, B) == payloads(clusters.written[B])


def test_a_receipt_is_sent_behind_the_batches_where_their_leader_is_the_coordinator_of_the_group(clusters: Clusters) -> None:
    """Two checks of one transaction at the same time make the broker fail the first one, which would be that of the batches."""
    clusters.write(A, 2)
    clusters.run(clusters.job({A: 0}), planned(A, 2))
    sent = [(request.api, request.connection) for request in clusters.target.received]
    (produced,) = (connection for api, connection in sent if api == "Produce")
    assert [connection for api, connection in sent if api == "TxnOffsetCommit"] == [produced]
    assert sent.index(("Produce", produced)) < sent.index(("TxnOffsetCommit", produced))


def test_a_further_try_takes_another_producer_epoch_than_the_one_that_was_taken_ahead(clusters: Clusters) -> None:
    clusters.write(A, 2)
    ahead = prepared(clusters)
    clusters.target.change("Produce", dropped_after())
    result = clusters.run(clusters.job({A: 0}, prepared=ahead), planned(A, 2))
    assert result.txn is not None
    assert result.txn.producer_epoch > ahead["m-3"].txn.producer_epoch
    assert clusters.committed(result, A) == payloads(clusters.written[A])


def test_a_range_that_was_copied_already_begins_no_transaction(clusters: Clusters) -> None:
    clusters.write(A, 2)
    result = clusters.run(clusters.job({A: 2}, prepared=prepared(clusters)), planned(A, 2))
    assert result.txn is None
    assert clusters.target.asked("AddPartitionsToTxn") == 0


def test_a_slot_that_has_nothing_to_write_opens_no_transaction(clusters: Clusters) -> None:
    clusters.source.seed(("orders", 0), batch(0, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), marker(2, 0, 9))
    result = clusters.run(clusters.job({A: 0}), planned(A, 3))
    assert [(segment.kind, segment.source_start, segment.source_end) for segment in result.segments] == [
        (SegmentKind.ABORTED, 0, 2),
        (SegmentKind.ABORT, 2, 3),
    ]
    assert result.txn is None
    assert clusters.target.asked("InitProducerId") == 0


@pytest.mark.parametrize(
    "failure", [error(6), error(19), dropped_after()], ids=["leader moved", "too few replicas", "reply lost"]
)
def test_a_failed_produce_starts_the_slot_again_under_a_new_epoch_and_nothing_is_there_twice(
    clusters: Clusters, failure: Any
) -> None:
    clusters.write(A, 2, 3, 1)
    clusters.write(B, 4, 4)
    clusters.target.change("Produce", AS_IT_SHOULD, failure)
    result = clusters.run(clusters.job({A: 0, B: 0}), planned(A, 6), planned(B, 8))
    assert clusters.target.asked("InitProducerId") >= 2
    assert result.txn is not None
    assert result.txn.producer_epoch >= 1
    assert len(result.retried) == 1
    assert [(segment.source, segment.source_start, segment.source_end) for segment in result.segments] == [(A, 0, 6), (B, 0, 8)]
    assert clusters.committed(result, A) == payloads(clusters.written[A])
    assert clusters.committed(result, B) == payloads(clusters.written[B])
    first = next(
        batch for batch in clusters.target.log("copy", 0).batches if batch.header.producer_epoch == result.txn.producer_epoch
    )
    assert result.segments[0].target_start == first.header.base_offset


@pytest.mark.parametrize("adds", [False, True], ids=["task adds", "driver adds"])
def test_a_target_topic_that_was_created_again_is_refused_though_an_aborted_try_has_left_its_marker_there(
    clusters: Clusters, adds: bool
) -> None:
    clusters.write(A, 2)
    clusters.target.delete_topic("copy")
    clusters.target.create_topic("copy", 2)
    clusters.target.seed(("copy", 0), batch(0, 1))  # as far as the map goes: base offsets show nothing
    ahead = prepared(clusters, adding=COPIES[:1], added=COPIES[:1]) if adds else {}
    with pytest.raises(ConfigError, match=r"target topic copy \(for orders\) was deleted and created again \(topic id "):
        clusters.run(clusters.job({A: 0}, target_ends={TopicPartition("copy", 0): 1}, prepared=ahead), planned(A, 2))
    assert len(clusters.target.log("copy", 0).batches) == 1


@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_slot_does_not_initialise_again_because_another_run_may_own_the_id(clusters: Clusters, code: int) -> None:
    clusters.write(A, 2)
    clusters.target.change("Produce", error(code))
    with pytest.raises(ProducerEpochFencedError):
        clusters.run(clusters.job({A: 0}), planned(A, 2))
    assert clusters.target.asked("InitProducerId") == 1


def test_a_target_that_keeps_failing_is_given_up_to_the_driver(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_task, "SLOT_PATIENCE_MS", 50.0)
    clusters.write(A, 2)
    clusters.target.change_always("Produce", error(6))
    with pytest.raises(RetriableError) as raised:
        clusters.run(clusters.job({A: 0}), planned(A, 2))
    assert raised.value.error_name == "NOT_LEADER_OR_FOLLOWER"


def test_a_batch_that_the_target_refuses_is_named_by_its_source_offset_and_the_setting_to_change(clusters: Clusters) -> None:
    clusters.write(A, 2, 3)
    clusters.write(B, 1)
    clusters.target.change("Produce", AS_IT_SHOULD, error(10, ("copy", 0)))
    with pytest.raises(BatchRefusedError) as raised:
        clusters.run(clusters.job({A: 0, B: 0}), planned(A, 5), planned(B, 1))
    assert (raised.value.topic_partition, raised.value.base_offset) == (A.topic_partition, 2)
    assert "max.message.bytes" in raised.value.remedy


def test_a_target_whose_log_continues_below_what_was_copied_before_is_named(clusters: Clusters) -> None:
    clusters.write(A, 2)
    with pytest.raises(
        TargetDataLossError, match=r"^target copy-0: its log ended at offset 0, .* reach offset 7: .*created again"
    ):
        clusters.run(clusters.job({A: 0}, target_ends={TopicPartition("copy", 0): 7}), planned(A, 2))


@pytest.fixture
def two_epochs(clusters: Clusters) -> Clusters:
    """Source offsets 0 to 4 of leader epoch 0, 5 to 8 of epoch 1; then the log is cut at 3, and epoch 2 goes on from there."""
    source, log = clusters.source, clusters.source.log("orders", 0)
    source.seed(("orders", 0), batch(0, 3, leader_epoch=0), batch(3, 2, leader_epoch=0))
    log.move(1)
    source.seed(("orders", 0), batch(5, 4, leader_epoch=1))
    return clusters


def cut_at(clusters: Clusters, offset: int) -> None:
    clusters.source.log("orders", 0).truncate(offset)
    clusters.source.seed(("orders", 0), batch(offset, 10, leader_epoch=2))


@pytest.mark.parametrize(("known_end", "asked"), [(EpochEnd(0, 5), 1), (EpochEnd(1, 5), 0), (None, 0)])
def test_a_log_that_continues_with_a_new_leader_is_asked_about_once(
    two_epochs: Clusters, known_end: EpochEnd | None, asked: int
) -> None:
    result = two_epochs.run(two_epochs.job({A: 5}, epoch_ends={A: known_end} if known_end else {}), planned(A, 9))
    assert [(segment.source_start, segment.source_end) for segment in result.segments] == [(5, 9)]
    assert two_epochs.source.asked("OffsetForLeaderEpoch") == asked


@pytest.mark.parametrize(
    ("cut", "known_end", "differs"),
    [
        (3, EpochEnd(0, 5), "up to 5 records of leader epoch 0 were copied, and it holds others from offset 3 on"),
        (7, EpochEnd(1, 9), "up to 9 records of leader epoch 1 were copied, and it holds others from offset 7 on"),
        (3, EpochEnd(1, 9), "up to 9 records of leader epoch 1 were copied, and it holds others from offset 3 on"),
        (
            3,
            EpochEnd(7, 9),
            "up to 9 records of leader epoch 7 were copied, and it holds others at an offset that cannot be found out",
        ),
    ],
)
def test_a_log_that_was_cut_and_went_on_is_refused_before_anything_is_written(
    two_epochs: Clusters, cut: int, known_end: EpochEnd, differs: str
) -> None:
    cut_at(two_epochs, cut)
    with pytest.raises(DataLossError, match=differs):
        two_epochs.run(two_epochs.job({A: known_end.end}, epoch_ends={A: known_end}), planned(A, cut + 10))
    assert two_epochs.target.log("copy", 0).batches == []


def test_a_log_that_is_cut_between_two_responses_is_refused(two_epochs: Clusters) -> None:
    source = two_epochs.source
    alter_once: Iterator[Callable[[], None]] = iter([lambda: cut_at(two_epochs, 7)])

    def cut(response: Any) -> None:
        for partition in alter_once:
            partition()

    source.alter_responses("Fetch", cut)
    job = two_epochs.job({A: 5}, epoch_ends={A: EpochEnd(0, 5)})
    with pytest.raises(
        DataLossError, match="up to 9 records of leader epoch 1 were copied, and it holds others from offset 7 on"
    ):
        two_epochs.run(job, planned(A, 17))


def compact_epoch_away(clusters: Clusters, policy: str) -> None:
    """Compaction removes all of epoch 1; a new replica, which never heard of it, leads epoch 2 from offset 9 on."""
    log = clusters.source.log("orders", 0)
    log.move(1)
    clusters.source.seed(("orders", 0), batch(9, 3, leader_epoch=2))
    log.compact_away(5, 9)
    log.configs["cleanup.policy"] = policy
    log.build_epochs_anew()
    assert log.end_of_epoch(1) == (0, 9)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_an_epoch_that_compaction_removed_is_no_cut(two_epochs: Clusters, policy: str) -> None:
    compact_epoch_away(two_epochs, policy)
    result = two_epochs.run(two_epochs.job({A: 9}, epoch_ends={A: EpochEnd(1, 9)}), planned(A, 12))
    assert [(segment.source_start, segment.source_end, segment.kind.value) for segment in result.segments] == [(9, 12, "data")]


@pytest.mark.parametrize(
    ("policy", "code", "message"),
    [
        (
            "delete",
            0,
            "it holds others at an offset that cannot be found out any more .*What lies before that was copied as it is$",
        ),
        ("compact", 29, "Whether compaction removed the epoch is not known: .* grant DescribeConfigs on topic orders"),
    ],
)
def test_an_epoch_that_is_gone_is_a_cut_where_compaction_is_not_known_to_have_removed_it(
    two_epochs: Clusters, policy: str, code: int, message: str
) -> None:
    compact_epoch_away(two_epochs, policy)
    two_epochs.source.change_always("DescribeConfigs", error(code) if code else None)
    with pytest.raises(LogTruncatedError, match=message) as caught:
        two_epochs.run(two_epochs.job({A: 9}, epoch_ends={A: EpochEnd(1, 9)}), planned(A, 12))
    assert (caught.value.expected_offset, caught.value.divergent_offset, caught.value.log_end) == (9, None, None)
    assert caught.value.topic_id == A.topic_id


def test_a_compacted_log_that_was_cut_is_refused_as_any_other(two_epochs: Clusters) -> None:
    two_epochs.source.log("orders", 0).configs["cleanup.policy"] = "compact"
    cut_at(two_epochs, 7)
    with pytest.raises(LogTruncatedError, match="it holds others from offset 7 on") as caught:
        two_epochs.run(two_epochs.job({A: 9}, epoch_ends={A: EpochEnd(1, 9)}), planned(A, 17))
    assert (caught.value.expected_offset, caught.value.divergent_offset) == (9, 7)


def test_bytes_that_were_damaged_behind_their_producer_are_named_corrupt(clusters: Clusters) -> None:
    damaged = bytearray(batch(0, 1, payload=record(0, value=b"something longer")))
    damaged[-3] ^= 0xFF
    clusters.source.seed(("orders", 0), bytes(damaged))
    with pytest.raises(CorruptBatchError) as raised:
        clusters.run(clusters.job({A: 0}), planned(A, 1))
    assert (raised.value.topic_partition, raised.value.base_offset) == (A.topic_partition, 0)


def test_a_rebuilt_batch_goes_in_order_between_raw_ones_and_every_offset_of_it_has_a_row(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.source.seed(("orders", 0), batch(2, deltas=[1, 3, 4], last_offset_delta=6))
    clusters.write(A, 1)
    result = clusters.run(clusters.job({A: 0}), planned(A, 10))
    assert [(segment.kind, segment.source_start, segment.source_end, segment.target_start) for segment in result.segments] == [
        (SegmentKind.DATA, 0, 2, 0),
        (SegmentKind.GAP, 2, 3, None),
        (SegmentKind.DATA, 3, 4, 2),
        (SegmentKind.GAP, 4, 5, None),
        (SegmentKind.DATA, 5, 7, 3),
        (SegmentKind.GAP, 7, 9, None),
        (SegmentKind.DATA, 9, 10, 5),
    ]
    assert [segment.rebuilt_batch_count for segment in result.segments] == [0, 0, 1, 0, 0, 0, 0]
    first, last = payloads(clusters.written[A])
    assert clusters.committed(result, A) == [first, record(0) + record(1) + record(2), last]


def test_a_batch_that_the_position_is_in_loses_what_lies_below_it(clusters: Clusters) -> None:
    clusters.write(A, 5)
    clusters.source.log("orders", 0).delete_records_before(3)
    result = clusters.run(clusters.job({A: 3}), planned(A, 5))
    assert [
        (segment.source_start, segment.source_end, segment.target_start, segment.record_count) for segment in result.segments
    ] == [(3, 5, 0, 2)]
    assert clusters.committed(result, A) == [record(0, value=b"3") + record(1, value=b"4")]


def test_a_batch_that_is_too_large_for_the_target_is_split_and_one_too_large_record_is_refused(clusters: Clusters) -> None:
    create_target(clusters.target, "small", 2, **{"max.message.bytes": "200"})
    small = BatchLimits(
        max_message_bytes=200, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
    )
    routes = {"orders": route_to("small", small)}
    clusters.write(A, 40)
    result = clusters.run(clusters.job({A: 0}, routes=routes), planned(A, 40))
    (segment,) = result.segments
    assert (segment.source_end, segment.record_count, segment.batch_count, segment.rebuilt_batch_count) == (40, 40, 1, 1)
    assert len(clusters.committed(result, A, "small")) > 1
    clusters.source.seed(("orders", 1), batch(0, 2, payload=record(0) + record(1, value=bytes(150))))
    with pytest.raises(
        BatchRefusedError, match=r"its record at offset 1 alone .* larger than max\.message\.bytes=200"
    ) as refused:
        clusters.run(clusters.job({B: 0}, routes=routes), planned(B, 2))
    assert (refused.value.topic_partition, refused.value.base_offset) == (B.topic_partition, 0)


def test_a_batch_of_which_the_position_leaves_nothing_is_a_gap_without_a_transaction(clusters: Clusters) -> None:
    clusters.source.seed(("orders", 0), batch(0, deltas=[0, 1], last_offset_delta=5))
    result = clusters.run(clusters.job({A: 3}), planned(A, 6))
    assert [(segment.kind, segment.source_start, segment.source_end) for segment in result.segments] == [(SegmentKind.GAP, 3, 6)]
    assert clusters.target.asked("InitProducerId") == 0


def test_a_damaged_batch_is_not_rebuilt_and_nothing_is_written(clusters: Clusters) -> None:
    damaged = bytearray(batch(0, deltas=[0, 2]))
    damaged[-3] ^= 0xFF
    clusters.source.seed(("orders", 0), bytes(damaged))
    with pytest.raises(CorruptBatchError, match=r"orders-0: .* base offset 0: .*CRC"):
        clusters.run(clusters.job({A: 0}), planned(A, 3))
    assert clusters.target.asked("Produce") == 0


def test_a_rebuilt_batch_that_the_target_refuses_is_named_by_its_source_offset(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.source.seed(("orders", 0), batch(2, deltas=[0, 2]))
    clusters.target.change("Produce", AS_IT_SHOULD, error(32))
    with pytest.raises(BatchRefusedError, match="INVALID_TIMESTAMP") as refused:
        clusters.run(clusters.job({A: 0}), planned(A, 5))
    assert (refused.value.topic_partition, refused.value.base_offset) == (A.topic_partition, 2)


def test_a_partition_without_a_position_is_left_alone_and_reported(clusters: Clusters) -> None:
    clusters.write(A, 1)
    clusters.write(B, 1)
    result = clusters.run(clusters.job({A: 0}), planned(A, 1), planned(B, 1))
    assert [segment.source for segment in result.segments] == [A]
    assert [planned_range.source for planned_range in result.unknown] == [B]


def test_a_slot_with_too_many_segments_stops_at_a_batch_boundary(clusters: Clusters) -> None:
    for number in range(20):
        clusters.source.seed(("orders", 0), batch(2 * number, 1, payload=record(0, value=b"x" * 10_000)))
    result = clusters.run(clusters.job({A: 0}, max_segments=5, fetch_bytes=1 << 16), planned(A, 40))
    assert result.is_partial
    assert 5 < len(result.segments) < 39
    assert result.segments[-1].kind is SegmentKind.DATA


@pytest.fixture
def in_slot_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)


@pytest.mark.slow
@pytest.mark.usefixtures("in_slot_3")
@pytest.mark.parametrize("position", [0, 2, 5], ids=["in front of the rows", "at the rows", "inside the rows"])
def test_rows_that_spark_hands_over_are_copied_from_the_position_as_direct_reading_would(
    clusters: Clusters, position: int
) -> None:
    clusters.write(A, 2, 3)
    clusters.source.seed(("orders", 0), batch(7, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), marker(9, 0, 9))
    clusters.write(A, 4)
    clusters.source.seed(("orders", 1), batch(0, deltas=[0, 2, 3]))
    rows = rows_of(clusters, planned(A, 14, start=2), planned(B, 4))
    through = run_kafka_slot(clusters.job({A: position, B: 0}), iter(rows), is_planned_ranges=False)
    copied = clusters.committed(through, A)
    direct = clusters.run(clusters.job({A: position, B: 0}), planned(A, 14, start=2), planned(B, 4))

    def segments_of(result: SlotResult) -> list[tuple[Any, ...]]:
        return [
            (segment.source, segment.kind, segment.source_start, segment.source_end, segment.record_count)
            for segment in result.segments
        ]

    assert sorted(segments_of(through)) == sorted(segments_of(direct))
    assert [segment.source_end for segment in through.segments if segment.source == A][-1] == 14
    assert copied == payloads([raw for raw in clusters.written[A] if int.from_bytes(raw[:8], "big") >= position])


@pytest.mark.usefixtures("in_slot_3")
def test_an_error_of_the_reader_of_the_rows_keeps_its_type_and_fields(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.source.log("orders", 0).delete_records_before(2)
    with pytest.raises(DataLossError) as raised:
        run_kafka_slot(clusters.job({A: 0}), iter(rows_of(clusters, planned(A, 2))), is_planned_ranges=False)
    assert (raised.value.topic_partition, raised.value.expected_offset, raised.value.log_start_offset) == (
        A.topic_partition,
        0,
        2,
    )


@pytest.mark.usefixtures("in_slot_3")
def test_expired_rows_are_for_the_driver_to_give_up_first(clusters: Clusters) -> None:
    clusters.write(A, 2, 3, 4)
    clusters.source.log("orders", 0).delete_records_before(5)
    rows = rows_of(clusters, planned(A, 9), is_data_loss_fatal=False)
    with pytest.raises(DataLossError, match="expected offset 2, source log starts at 5: retention"):
        run_kafka_slot(clusters.job({A: 2}), iter(rows), is_planned_ranges=False)
    result = run_kafka_slot(clusters.job({A: 5}), iter(rows), is_planned_ranges=False)
    assert [(segment.kind, segment.source_start, segment.source_end) for segment in result.segments] == [(SegmentKind.DATA, 5, 9)]


@pytest.mark.usefixtures("in_slot_3")
def test_rows_of_a_partition_without_a_position_are_left_alone_and_reported_once(clusters: Clusters) -> None:
    clusters.write(A, 1)
    clusters.write(B, 1, 2, 1)
    rows = rows_of(clusters, planned(A, 1), planned(B, 4))
    result = run_kafka_slot(clusters.job({A: 0}), iter(rows), is_planned_ranges=False)
    assert [segment.source for segment in result.segments] == [A]
    assert [(planned_range.source, planned_range.start, planned_range.end) for planned_range in result.unknown] == [(B, 0, 4)]

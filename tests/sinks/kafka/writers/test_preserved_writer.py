"""A slot that preserves offsets, between two strict clusters: whatever fails, every record is at its own offset, once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.fakes.changes import AS_IT_SHOULD, Change, dropped_after, dropped_before, error
from tests.fakes.record_rules import header_of
from tests.sinks.two_strict_clusters import LIMITS, A, B, Clusters, client_of, create_target, planned, route_to
from tests.support.record_batches import batch, marker, record

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster.send_pace import SendPace
from shallow_mirror.broker.net import PRODUCER_FORGOTTEN
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefusedError, PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.sinks import RoutedTopic, SlotResult
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob, slot_target
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.types import IsolationLevel, SegmentKind, SourcePartition, TopicPartition
from shallow_mirror.wire.batches import BatchIndex, index_batches, restamp
from shallow_mirror.wire.records import Fillers, find_fillers

P = 77
TIMES = GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000)


def topic_id(clusters: Clusters) -> str:
    target = Cluster(client_of(clusters.target))
    try:
        return target.metadata(["copy"], Deadline.after_ms(5_000, time.monotonic)).topics["copy"].topic_id
    finally:
        target.close()


def preserving(clusters: Clusters, positions: dict[SourcePartition, int], **changes: Any) -> KafkaSlotJob:
    limits = dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS))
    clusters.target.log("copy").configs |= {**limits, **target_topic_policy.FORCED_WHERE_PRESERVED}  # as a start requires it
    route = RoutedTopic(target_topic="copy", target_topic_id=topic_id(clusters), limits=LIMITS, is_preserved=True)
    settings: dict[str, Any] = {
        "routes": {"orders": route},
        "shared_producers": dict.fromkeys(positions, P),
        "guard_times": TIMES,
    }
    return clusters.job(positions, **settings | changes)


def placed(clusters: Clusters, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return offset, sequence and number of records of each batch of the target, all of the shared producer."""
    log = clusters.target.log("copy", partition)
    assert {(each.header.producer_id, each.header.producer_epoch) for each in log.batches} <= {(P, 0)}
    return [(each.header.base_offset, each.header.base_sequence, each.header.records_count) for each in log.batches]


def ranges(result: SlotResult, source: SourcePartition = A) -> list[tuple[SegmentKind, int, int, int | None]]:
    return [
        (segment.kind, segment.source_start, segment.source_end, segment.target_start)
        for segment in result.segments
        if segment.source == source
    ]


def require_same_bytes(clusters: Clusters, source: SourcePartition) -> None:
    """Payloads of the target are those of the source, at the same offsets."""
    copies = {each.header.base_offset: each.data[61:] for each in clusters.target.log("copy", source.partition).batches}
    assert copies == {header_of(raw).base_offset: raw[61:] for raw in clusters.written[source]}


def test_batches_are_appended_at_their_offsets_without_a_transaction(clusters: Clusters) -> None:
    clusters.write(A, 2, 3, 1)
    clusters.write(B, 4)
    result = clusters.run(preserving(clusters, {A: 0, B: 0}), planned(A, 6), planned(B, 4))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3), (5, 5, 1)]
    require_same_bytes(clusters, A)
    require_same_bytes(clusters, B)
    assert result.txn is None
    assert result.shared_producers == {A: P, B: P}
    assert ranges(result) == [(SegmentKind.DATA, 0, 6, 0)]
    assert all((row.txn, row.shared_producer_id) == (None, P) for row in result.rows_of_map())
    assert clusters.target.asked("InitProducerId") == clusters.target.asked("AddPartitionsToTxn") == 0


def test_markers_and_deleted_offsets_are_taken_by_fillers(clusters: Clusters) -> None:
    clusters.source.seed(("orders", 0), batch(4, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), marker(6, 0, 9))
    clusters.source.seed(("orders", 0), batch(7, 1), batch(9, 1))
    result = clusters.run(preserving(clusters, {A: 4}), planned(A, 10))
    assert placed(clusters) == [(0, 0, 7), (7, 7, 1), (8, 8, 1), (9, 9, 1)]
    assert ranges(result) == [
        (SegmentKind.ABORTED, 4, 6, None),
        (SegmentKind.ABORT, 6, 7, None),
        (SegmentKind.DATA, 7, 8, 7),
        (SegmentKind.GAP, 8, 9, None),
        (SegmentKind.DATA, 9, 10, 9),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "failures",
    [
        [error(6)],
        [AS_IT_SHOULD, error(19)],
        [AS_IT_SHOULD, error(20, is_performed=True)],
        [AS_IT_SHOULD, AS_IT_SHOULD, error(7, is_performed=True)],
        [dropped_before()],
        [dropped_after()],
        [AS_IT_SHOULD, dropped_after()],
        [AS_IT_SHOULD, error(19), error(19), dropped_after()],
    ],
    ids=["moved", "too few", "too few after", "timed out", "lost", "answer lost", "second answer lost", "many"],
)
def test_a_failed_request_is_followed_by_what_the_log_lacks(clusters: Clusters, failures: Sequence[Change]) -> None:
    clusters.write(A, 2, 3, 1, 4)
    clusters.target.change("Produce", *failures)
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 10))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3), (5, 5, 1), (6, 6, 4)]
    require_same_bytes(clusters, A)
    assert ranges(result) == [(SegmentKind.DATA, 0, 10, 0)]
    assert result.retried


def test_what_an_undecided_round_wrote_is_recorded_and_not_sent_again(clusters: Clusters) -> None:
    clusters.write(A, 2, 3)
    clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    clusters.write(A, 1)
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 6))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3), (5, 5, 1)]
    assert ranges(result) == [(SegmentKind.DATA, 0, 6, 0)]


@pytest.mark.parametrize(
    ("before", "kind", "visible"),
    [("read_committed", SegmentKind.ABORTED, [0, 7]), ("read_uncommitted", SegmentKind.DATA, [0, 4, 7])],
)
def test_what_an_undecided_round_wrote_with_another_isolation_level_is_recorded_as_it_is(
    clusters: Clusters, before: str, kind: SegmentKind, visible: list[int]
) -> None:
    levels = [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED]
    first, second = levels if before == "read_committed" else reversed(levels)
    clusters.source.seed(("orders", 0), batch(0, 4))
    clusters.source.seed(("orders", 0), batch(4, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), marker(6, 0, 9))
    clusters.run(reading(clusters, first), planned(A, 7))
    clusters.source.seed(("orders", 0), batch(7, 1))
    result = clusters.run(reading(clusters, second), planned(A, 8))
    filled = find_fillers(*indexed(each.data for each in clusters.target.log("copy").batches))
    at = [each.header.base_offset for each in clusters.target.log("copy").batches]
    assert [offset for offset, is_filler in zip(at, filled, strict=True) if not is_filler] == visible
    rows = ranges(result)
    assert (SegmentKind.ABORT, 6, 7, None) in rows
    assert {row[0] for row in rows if row[1] <= 4 < row[2]} == {kind}
    assert rows[-1] == (SegmentKind.DATA, 7, 8, 7)


@pytest.mark.parametrize("is_record", [True, False])
def test_a_batch_in_which_the_log_ends_is_completed_as_it_was_begun(clusters: Clusters, is_record: bool) -> None:
    """An aborted batch, of which an undecided round with another isolation level wrote the first of three offsets."""
    clusters.source.seed(("orders", 0), batch(0, 3, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    clusters.source.seed(("orders", 0), marker(3, 0, 9))
    now_ms = int(time.time() * 1000)
    begun = memoryview(bytearray(batch(0, 1, timestamp=now_ms)) if is_record else Fillers(None, 1000).batch(1, now_ms))
    restamp(
        begun,
        index_batches(begun),
        np.zeros(1, np.int64),
        producer_id=P,
        producer_epoch=0,
        first_sequence=0,
        transactional=False,
    )
    clusters.target.seed(("copy", 0), bytes(begun))
    level = IsolationLevel.READ_COMMITTED if is_record else IsolationLevel.READ_UNCOMMITTED
    result = clusters.run(reading(clusters, level), planned(A, 4))
    filled = find_fillers(*indexed(each.data for each in clusters.target.log("copy").batches))
    batches = [(*each, is_filler) for each, is_filler in zip(placed(clusters), filled.tolist(), strict=True)]
    if is_record:
        assert batches == [(0, 0, 1, False), (1, 1, 2, False), (3, 3, 1, True)]
        assert ranges(result) == [(SegmentKind.DATA, 0, 3, 0), (SegmentKind.ABORT, 3, 4, None)]
    else:
        assert batches == [(0, 0, 1, True), (1, 1, 3, True)]
        assert ranges(result) == [(SegmentKind.ABORTED, 0, 3, None), (SegmentKind.ABORT, 3, 4, None)]


def reading(clusters: Clusters, isolation: IsolationLevel) -> KafkaSlotJob:
    job = preserving(clusters, {A: 0}, isolation=isolation)
    routes = {name: replace(route, limits=replace(route.limits, isolation_level=isolation)) for name, route in job.routes.items()}
    return replace(job, routes=routes)


def indexed(batches: Iterable[bytes]) -> tuple[BatchIndex, memoryview]:
    records = memoryview(b"".join(batches))
    return index_batches(records), records


def test_two_tasks_that_write_at_once_leave_one_copy(clusters: Clusters) -> None:
    """Another one writes after this one has learned where the log ends, in batches of its own."""
    clusters.write(A, 2, 3, 1)
    now_ms = int(time.time() * 1000)
    others = [batch(at, 2, producer_id=P, producer_epoch=0, base_sequence=at, timestamp=now_ms) for at in (0, 2)]
    clusters.target.change("Produce", Change(first=lambda: clusters.target.seed(("copy", 0), *others)))
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 6))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 2), (4, 4, 1), (5, 5, 1)]
    assert ranges(result) == [(SegmentKind.DATA, 0, 6, 0)]


def test_a_batch_that_another_task_has_written_before_is_no_sign_of_append_times(clusters: Clusters) -> None:
    """A broker answers a repeated batch with the time of the first one."""
    clusters.write(A, 2, 3)
    same = batch(0, 2, producer_id=P, producer_epoch=0, base_sequence=0, timestamp=int(time.time() * 1000))
    clusters.target.change("Produce", Change(first=lambda: clusters.target.seed(("copy", 0), same)))
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3)]
    assert not result.retried
    assert result.stamped_topics == ()


def test_a_foreign_record_behind_the_end_is_found_before_anything_is_sent(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.run(preserving(clusters, {A: 0}), planned(A, 2))
    clusters.target.seed(("copy", 0), batch(2, 1, producer_id=5, producer_epoch=0, base_sequence=0))
    clusters.write(A, 1)
    with pytest.raises(PreservedLogDamagedError, match=r"target copy-0: offsets from 2 on .*another producer writes to it"):
        clusters.run(preserving(clusters, {A: 2}), planned(A, 3))
    assert clusters.target.log("copy", 0).end_offset == 3


def test_a_foreign_record_in_a_log_that_the_mirror_has_not_written_to_is_found(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.target.seed(("copy", 0), batch(0, 1, producer_id=5, producer_epoch=0, base_sequence=0))
    with pytest.raises(PreservedLogDamagedError, match=r"offsets from 0 on .*a batch of producer id 5, the mirror's is 77"):
        clusters.run(preserving(clusters, {A: 0}, quiet_for_ms=TIMES.quiet_ms), planned(A, 2))


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_log_that_was_mirrored_with_translated_offsets_meanwhile_is_not_continued(
    clusters: Clusters, is_forgotten: bool
) -> None:
    """Nothing was copied meanwhile, so the map does not show it. The batch that ends preservation has the offset of a record."""
    clusters.write(A, 2)
    now_ms = int(time.time() * 1000)
    fence = batch(0, 1, producer_id=P, producer_epoch=1, base_sequence=0, timestamp=now_ms)
    clusters.target.seed(("copy", 0), fence)
    if is_forgotten:
        clusters.target.log("copy", 0).producers.clear()
    with pytest.raises(PreservedLogDamagedError, match=r"offsets from 0 on .*Set topics.offsets to translated") as raised:
        clusters.run(preserving(clusters, {A: 0}, quiet_for_ms=TIMES.quiet_ms), planned(A, 2))
    assert "other writer" not in str(raised.value)
    assert clusters.target.log("copy", 0).end_offset == 1


def test_a_foreign_record_in_between_is_found_by_the_response(clusters: Clusters) -> None:
    clusters.write(A, 2, 3)
    foreign = batch(0, 1, producer_id=5, producer_epoch=0, base_sequence=0)
    clusters.target.change("Produce", Change(first=lambda: clusters.target.seed(("copy", 0), foreign)))
    with pytest.raises(PreservedLogDamagedError, match=r"offsets from 0 on .*the batch of offset 0 was appended at 1"):
        clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    assert clusters.target.log("copy", 0).end_offset == 3  # nothing is sent behind it


def test_a_partition_with_a_damaged_target_is_left_out_alone(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 2)
    job = preserving(clusters, {A: 0, B: 0}, leaves_out=True, isolates=True)
    clusters.target.seed(("copy", 0), batch(0, 1, producer_id=5, producer_epoch=0, base_sequence=0))
    result = clusters.run(preserving(clusters, {A: 0, B: 0}, leaves_out=True, isolates=True, quiet_for_ms=TIMES.quiet_ms),
                          planned(A, 2), planned(B, 2))  # fmt: skip
    assert job.isolates
    assert [(left.source, left.error_name) for left in result.unfinished] == [(A, "PreservedLogDamagedError")]
    assert placed(clusters, 1) == [(0, 0, 2)]


def test_a_log_whose_producer_is_forgotten_waits_until_nothing_can_be_on_its_way(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_task, "SLOT_PATIENCE_MS", 50.0)
    clusters.write(A, 2)
    clusters.run(preserving(clusters, {A: 0}), planned(A, 2))
    clusters.target.log("copy", 0).producers.clear()  # expired
    clusters.write(A, 3, 4)
    with pytest.raises(RetriableError, match=r"target copy-0 was idle for so long .* written to in 900 s") as raised:
        clusters.run(preserving(clusters, {A: 2}), planned(A, 9))
    assert raised.value.error_name == PRODUCER_FORGOTTEN
    result = clusters.run(preserving(clusters, {A: 2}, leaves_out=True), planned(A, 9))
    assert [(left.source, left.error_name) for left in result.unfinished] == [(A, PRODUCER_FORGOTTEN)]
    clusters.run(preserving(clusters, {A: 2}, quiet_for_ms=TIMES.quiet_ms), planned(A, 9))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3), (5, 5, 4)]


def test_the_first_batch_of_a_log_without_a_producer_is_sent_alone(clusters: Clusters) -> None:
    """A broker that refuses the first of two requests appends the second one in its place, as it knows no sequence yet."""
    clusters.write(A, 2, 3)
    clusters.target.change("Produce", error(19))
    clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3)]


def test_batches_behind_a_long_hole_follow_a_first_batch_that_was_sent_alone(clusters: Clusters) -> None:
    clusters.source.seed(("orders", 0), batch(0, 1), *(batch(2_000 + i, 1) for i in range(4)))
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 2_004))
    assert placed(clusters) == [(0, 0, 1), (1, 1, 1_999), *((2_000 + i, 2_000 + i, 1) for i in range(4))]
    assert not result.retried


def test_an_error_in_front_of_batches_behind_a_long_hole_is_followed_by_another_try(clusters: Clusters) -> None:
    clusters.source.seed(("orders", 0), batch(0, 1), *(batch(2_000 + i, 1) for i in range(4)))
    clusters.target.change("Produce", error(6))
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 2_004))
    assert placed(clusters) == [(0, 0, 1), (1, 1, 1_999), *((2_000 + i, 2_000 + i, 1) for i in range(4))]
    assert result.retried


def test_nothing_is_sent_behind_a_first_batch_that_was_not(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow link there may be too little time for a large batch, and enough for the small one behind it."""
    monkeypatch.setattr(SendPace, "may_begin", lambda _pace, size_bytes: size_bytes < 10_000)
    clusters.source.seed(("orders", 0), batch(0, 1, payload=record(0, value=bytes(20_000))), batch(1, 1), batch(2, 1))
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 3))
    assert placed(clusters) == []
    assert result.is_partial
    assert not result.segments


def test_another_attempt_of_a_task_takes_the_log_for_one_that_was_just_written_to(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_task, "SLOT_PATIENCE_MS", 50.0)
    clusters.write(A, 2)
    clusters.run(preserving(clusters, {A: 0}), planned(A, 2))
    clusters.target.log("copy", 0).producers.clear()
    clusters.write(A, 3)
    job = preserving(clusters, {A: 2}, quiet_for_ms=TIMES.quiet_ms, leaves_out=True)
    with monkeypatch.context() as attempts:
        for module in (slot_task, slot_target):
            attempts.setattr(module, "spark_attempt", lambda: 1)
        result = clusters.run(job, planned(A, 5))
    assert [(left.source, left.error_name) for left in result.unfinished] == [(A, PRODUCER_FORGOTTEN)]
    assert result.has_unanswered
    result = clusters.run(job, planned(A, 5))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3)]
    assert not result.has_unanswered


def test_a_try_that_is_given_up_for_one_partition_is_noted(clusters: Clusters) -> None:
    """What it sent to others may still be on its way, so the driver must not take their logs for quiet."""
    clusters.write(A, 2)
    clusters.write(B, 2)
    foreign = batch(0, 1, producer_id=5, producer_epoch=0, base_sequence=0)
    clusters.target.change("Produce", Change(first=lambda: clusters.target.seed(("copy", 0), foreign)))
    result = clusters.run(preserving(clusters, {A: 0, B: 0}, leaves_out=True, isolates=True), planned(A, 2), planned(B, 2))
    assert [(left.source, left.error_name) for left in result.unfinished] == [(A, "PreservedLogDamagedError")]
    assert not result.retried
    assert result.has_unanswered


def test_a_target_that_lost_records_is_named(clusters: Clusters) -> None:
    clusters.write(A, 2)
    with pytest.raises(TargetDataLossError, match=r"target copy-0: .*reach offset 7"):
        clusters.run(preserving(clusters, {A: 0}, target_ends={TopicPartition("copy", 0): 7}), planned(A, 2))


def test_a_target_topic_that_was_created_again_is_named(clusters: Clusters) -> None:
    clusters.write(A, 2)
    route = RoutedTopic(target_topic="copy", target_topic_id="another", limits=LIMITS, is_preserved=True)
    with pytest.raises(PreservedLogDamagedError, match="the topic was deleted and created again"):
        clusters.run(preserving(clusters, {A: 0}, routes={"orders": route}), planned(A, 2))


def test_a_batch_that_the_target_refuses_is_named_by_its_source_offset(clusters: Clusters) -> None:
    clusters.write(A, 2, 3)
    clusters.target.change("Produce", AS_IT_SHOULD, error(10))
    with pytest.raises(BatchRefusedError) as raised:
        clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    assert (raised.value.topic_partition, raised.value.base_offset) == (A.topic_partition, 2)
    assert "max.message.bytes" in raised.value.remedy


def test_old_records_keep_their_times_and_the_producer_is_remembered_by_now(clusters: Clusters) -> None:
    clusters.write(A, 2)  # records of 1970
    before_ms = int(time.time() * 1000)
    clusters.run(preserving(clusters, {A: 0}), planned(A, 2))
    require_same_bytes(clusters, A)
    assert clusters.target.log("copy", 0).producers[P].last_timestamp >= before_ms


def test_a_slot_of_both_kinds_writes_a_transaction_for_the_translated_topic_alone(clusters: Clusters) -> None:
    clusters.source.create_topic("other", 1)
    source = Cluster(client_of(clusters.source))
    other_id = source.metadata(["other"], Deadline.after_ms(5_000, time.monotonic)).topics["other"].topic_id
    source.close()
    other = SourcePartition("other", other_id, 0)
    create_target(clusters.target, "other", 1)
    clusters.write(A, 2)
    clusters.source.seed(("other", 0), batch(0, 3))
    job = preserving(clusters, {A: 0})
    routes = {**job.routes, "other": route_to("other")}
    result = clusters.run(clusters.job({A: 0, other: 0}, routes=routes, shared_producers={A: P}, guard_times=TIMES),
                          planned(A, 2), planned(other, 3))  # fmt: skip
    assert placed(clusters) == [(0, 0, 2)]
    assert result.txn is not None
    assert {row.segment.source: (row.txn, row.shared_producer_id) for row in result.rows_of_map()} == {
        A: (None, P),
        other: (result.txn, None),
    }
    assert clusters.target.log("other", 0).last_stable_offset == 0
    assert clusters.target.log("copy", 0).last_stable_offset == 2


@pytest.mark.slow
def test_a_slot_that_follows_copies_what_appears_behind_its_plan(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.target.change("Produce", AS_IT_SHOULD, Change(first=lambda: clusters.write(A, 4)))
    clusters.source.change("Fetch", AS_IT_SHOULD, Change(first=lambda: clusters.write(A, 3)))
    result = clusters.run(preserving(clusters, {A: 0}, follow_ms=1_500.0), planned(A, 2))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3), (5, 5, 4)]
    assert ranges(result) == [(SegmentKind.DATA, 0, 9, 0)]
    assert not result.is_partial


def held_by_an_application(clusters: Clusters, count: int) -> None:
    """Let both hold the same batch of an idempotent producer, which the target's broker remembers."""
    now_ms = int(time.time() * 1000)
    for cluster, topic in ((clusters.source, "orders"), (clusters.target, "copy")):
        cluster.seed((topic, 0), batch(0, count, producer_id=5, producer_epoch=0, base_sequence=0, timestamp=now_ms))


def continuing(clusters: Clusters, end: int, **changes: Any) -> KafkaSlotJob:
    """Return the job of a log that is continued at `end`, right after the agreement."""
    copy = TopicPartition("copy", 0)
    return preserving(clusters, {A: end}, **{"target_ends": {copy: end}, "origins": {copy: end}} | changes)


@pytest.mark.slow
def test_a_log_that_is_continued_is_written_to_at_once_its_first_batch_alone(clusters: Clusters) -> None:
    held_by_an_application(clusters, 4)
    clusters.write(A, 2, 3, 1)
    clusters.target.change("Produce", error(19))  # others behind a first batch that was refused would be in its place
    result = clusters.run(continuing(clusters, 4), planned(A, 10))
    own = [each.header for each in clusters.target.log("copy", 0).batches if each.header.producer_id == P]
    assert [(header.base_offset, header.base_sequence) for header in own] == [(4, 4), (6, 6), (9, 9)]
    assert ranges(result) == [(SegmentKind.DATA, 4, 10, 4)]
    assert result.has_unanswered


@pytest.mark.slow
def test_behind_its_first_batches_a_log_that_is_continued_waits_like_others(clusters: Clusters) -> None:
    held_by_an_application(clusters, 4)
    clusters.write(A, 2)
    clusters.run(continuing(clusters, 4), planned(A, 6))
    del clusters.target.log("copy", 0).producers[P]  # expired
    clusters.write(A, 3)
    result = clusters.run(continuing(clusters, 4, leaves_out=True), planned(A, 9))
    assert [(left.source, left.error_name) for left in result.unfinished] == [(A, PRODUCER_FORGOTTEN)]
    clusters.run(continuing(clusters, 4, quiet_for_ms=float(TIMES.quiet_ms)), planned(A, 9))
    assert clusters.target.log("copy", 0).end_offset == 9


def test_an_application_that_writes_on_is_found_before_the_first_batch(clusters: Clusters) -> None:
    held_by_an_application(clusters, 4)
    now_ms = int(time.time() * 1000)
    clusters.target.seed(("copy", 0), batch(4, 1, producer_id=5, producer_epoch=0, base_sequence=4, timestamp=now_ms))
    clusters.write(A, 2)
    with pytest.raises(PreservedLogDamagedError, match=r"target copy-0: offsets from 4 on .*producer id 5, the mirror's is 77"):
        clusters.run(continuing(clusters, 4, quiet_for_ms=float(TIMES.quiet_ms)), planned(A, 6))
    assert clusters.target.asked("Produce") == 0


def test_an_application_that_writes_on_later_is_found_by_the_first_response(clusters: Clusters) -> None:
    held_by_an_application(clusters, 4)
    clusters.write(A, 2, 3)
    now_ms = int(time.time() * 1000)
    late = batch(4, 1, producer_id=5, producer_epoch=0, base_sequence=4, timestamp=now_ms)
    clusters.target.change("Produce", Change(first=lambda: clusters.target.seed(("copy", 0), late)))
    with pytest.raises(PreservedLogDamagedError, match="the batch of offset 4 was appended at 5"):
        clusters.run(continuing(clusters, 4), planned(A, 9))
    assert clusters.target.log("copy", 0).end_offset == 7, "nothing behind the first batch was sent"


def test_a_log_is_continued_within_a_batch_of_the_source(clusters: Clusters) -> None:
    clusters.target.seed(("copy", 0), batch(0, 2, payload=b"".join(record(delta, value=b"%d" % delta) for delta in range(2))))
    clusters.write(A, 5, 1)
    result = clusters.run(continuing(clusters, 2), planned(A, 6, start=2))
    own = [each.header for each in clusters.target.log("copy", 0).batches if each.header.producer_id == P]
    assert [(header.base_offset, header.base_sequence, header.records_count) for header in own] == [(2, 2, 3), (5, 5, 1)]
    assert ranges(result) == [(SegmentKind.DATA, 2, 5, 2), (SegmentKind.DATA, 5, 6, 5)]

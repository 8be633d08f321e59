"""One slot, one broken partition: the others are copied, and what is left out says how far it was copied and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, Change, error
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import ORDERS, A, B, Clusters, create_target, payloads, planned, route_to, run_kafka_slot
from tests.support.record_batches import batch

from shallow_mirror.broker.fetch import range_reader
from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    MirrorError,
    RetriableError,
    TopicAccessError,
)
from shallow_mirror.sinks import RoutedTopic, SlotResult
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.streaming.sources import kafka_batches
from shallow_mirror.types import SourcePartition

Run = Callable[..., SlotResult]

USERS = SourcePartition("users", "dXNlcnMgb2YgYSB0ZXN0IQ", 0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (range_reader, slot_task, kafka_batches):
        monkeypatch.setattr(module, "PARTITION_PATIENCE_MS", 150.0)


def job_of(clusters: Clusters, positions: dict[SourcePartition, int], **changes: Any) -> KafkaSlotJob:
    return clusters.job(positions, leaves_out=True, **changes)


def left(result: SlotResult) -> dict[SourcePartition, tuple[int, str, str, bool]]:
    return {
        unfinished.source: (unfinished.reached, unfinished.side.value, unfinished.error_name, unfinished.is_definite)
        for unfinished in result.unfinished
    }


def copied(result: SlotResult) -> dict[SourcePartition, int]:
    """Up to where rows of the map reach."""
    return {segment.source: segment.source_end for segment in result.segments}


# --- the source ---


def without_leader(clusters: Clusters) -> None:
    clusters.source.move_leader(("orders", 0), -1)


def unreadable(clusters: Clusters) -> None:
    clusters.source.change_always("Fetch", error(56, ("orders", 0)))


def cut_behind_the_plan(clusters: Clusters) -> None:
    clusters.source.log("orders", 0).truncate(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "name", "reached"),
    [
        (without_leader, "LEADER_NOT_AVAILABLE", 0),
        (unreadable, "KAFKA_STORAGE_ERROR", 0),
        (cut_behind_the_plan, "LOG_ENDS_EARLY", 2),
    ],
)
def test_a_source_partition_that_cannot_be_read_to_its_planned_end_is_left_out_and_the_others_are_copied(
    clusters: Clusters, run: Run, breaks: Callable[[Clusters], None], name: str, reached: int
) -> None:
    clusters.write(A, 2, 3)
    clusters.write(B, 4, 4)
    breaks(clusters)
    result = run(job_of(clusters, {A: 0, B: 0}), planned(A, 5), planned(B, 8))
    assert left(result) == {A: (reached, "source", name, False)}
    assert not result.is_partial
    assert {source: end for source, end in copied(result).items() if end} == ({A: reached} if reached else {}) | {B: 8}
    assert clusters.committed(result, B) == payloads(clusters.written[B])


@pytest.mark.slow
def test_a_source_without_any_broker_is_not_left_out_but_waited_for(clusters: Clusters) -> None:
    clusters.write(A, 2)
    job = job_of(clusters, {A: 0}, time_left_ms=500.0)
    clusters.source.stop_node(1)
    with pytest.raises(RetriableError, match="NETWORK_EXCEPTION"):
        clusters.run(job, planned(A, 2))


def test_a_partition_that_comes_back_in_time_is_not_left_out(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    clusters.source.change("Fetch", *[error(6, ("orders", 0))] * 3)
    result = clusters.run(job_of(clusters, {A: 0, B: 0}), planned(A, 2), planned(B, 4))
    assert (left(result), copied(result)) == ({}, {A: 2, B: 4})


@pytest.mark.slow
def test_a_partition_that_has_no_position_yet_gets_one_where_its_reading_was_left(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next plan, which begins at the end of this one, would begin behind what was not read."""
    clusters.write(A, 2)
    clusters.write(B, 4)
    without_leader(clusters)
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
    rows = rows_of(clusters, planned(A, 2, start=1), planned(B, 4))
    result = run_kafka_slot(job_of(clusters, {B: 0}), iter(rows), is_planned_ranges=False)
    assert [(planned_range.source, planned_range.start) for planned_range in result.unknown] == [(A, 1)]
    assert copied(result) == {B: 4}


def test_what_an_earlier_round_left_out_is_not_read_again(clusters: Clusters, run: Run) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    result = run(job_of(clusters, {A: 0, B: 0}, left_out=frozenset({A})), planned(A, 2), planned(B, 4))
    assert (left(result), copied(result)) == ({}, {B: 4})


# --- the target ---


def target_without_leader(clusters: Clusters) -> None:
    clusters.target.move_leader(("copy", 0), -1)


def too_few_in_sync(clusters: Clusters) -> None:
    log = clusters.target.log("copy", 0)
    log.configs["min.insync.replicas"], log.replicas = "2", 2
    other = clusters.target.log("copy", 1)
    other.replicas = other.in_sync = 2


def test_a_partition_with_fewer_replicas_than_the_setting_needs_all_of_them(clusters: Clusters, run: Run) -> None:
    clusters.write(A, 2, 3)
    clusters.write(B, 4)
    broken, whole = clusters.target.log("copy", 0), clusters.target.log("copy", 1)
    broken.configs["min.insync.replicas"], broken.replicas, broken.in_sync = "2", 2, 1
    whole.configs["min.insync.replicas"], whole.replicas, whole.in_sync = "2", 1, 1
    result = run(job_of(clusters, {A: 0, B: 0}), planned(A, 5), planned(B, 4))
    assert (set(left(result)), copied(result)) == ({A}, {B: 4})


@pytest.mark.parametrize(
    ("breaks", "name"), [(target_without_leader, "LEADER_NOT_AVAILABLE"), (too_few_in_sync, "NOT_ENOUGH_REPLICAS")]
)
def test_a_target_partition_that_could_not_take_markers_is_in_no_transaction(
    clusters: Clusters, run: Run, breaks: Callable[[Clusters], None], name: str
) -> None:
    clusters.write(A, 2, 3)
    clusters.write(B, 4)
    breaks(clusters)
    result = run(job_of(clusters, {A: 0, B: 0}), planned(A, 5), planned(B, 4))
    assert left(result) == {A: (0, "target", name, False)}
    assert copied(result) == {B: 4}
    added = [topic.partitions for body in clusters.target.bodies("AddPartitionsToTxn") for topic in body.v3_and_below_topics]
    assert added == [[1]]
    assert clusters.committed(result, B) == payloads(clusters.written[B])


def test_a_target_partition_whose_leader_cannot_be_reached_is_in_no_transaction(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    clusters.target.nodes[2] = ("127.0.0.1", 1)  # listed, and nothing listens there
    clusters.target.move_leader(("copy", 0), 2)
    result = clusters.run(job_of(clusters, {A: 0, B: 0}), planned(A, 2), planned(B, 4))
    assert left(result) == {A: (0, "target", "NETWORK_EXCEPTION", False)}
    assert copied(result) == {B: 4}


def test_replicas_that_are_not_in_sync_do_not_matter_while_there_are_enough(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.target.log("copy", 0).replicas = 3
    result = clusters.run(job_of(clusters, {A: 0}), planned(A, 2))
    assert (left(result), copied(result)) == ({}, {A: 2})


def test_a_slot_that_starts_again_cleans_up_without_the_partitions_that_it_leaves_out(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    target_without_leader(clusters)
    clusters.target.change("Produce", error(6))
    result = clusters.run(job_of(clusters, {A: 0, B: 0}), planned(A, 2), planned(B, 4))
    assert len(result.retried) == 1
    assert (set(left(result)), copied(result)) == ({A}, {B: 4})


# --- what a person has to mend ---


def corrupt(clusters: Clusters) -> None:
    damaged = bytearray(batch(2, 1))
    damaged[16] = 9  # no magic of any Kafka
    clusters.source.seed(("orders", 0), bytes(damaged))


def refused_by_the_target(clusters: Clusters) -> None:
    clusters.write(A, 3)
    clusters.target.change("Produce", AS_IT_SHOULD, error(10, ("copy", 0)))


def lost(clusters: Clusters) -> None:
    clusters.write(A, 3)
    clusters.source.log("orders", 0).delete_records_before(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "reached", "error_type", "side"),
    [
        (corrupt, 2, CorruptBatchError, "source"),
        (refused_by_the_target, 2, BatchRefusedError, "target"),
        (lost, 0, DataLossError, "source"),
    ],
)
def test_a_partition_s_own_error_leaves_it_out_in_front_of_what_cannot_be_copied_if_it_is_isolated(
    clusters: Clusters, breaks: Callable[[Clusters], None], reached: int, error_type: type[MirrorError], side: str
) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4, 4)
    breaks(clusters)
    result = clusters.run(job_of(clusters, {A: 0, B: 0}, isolates=True), planned(A, 3), planned(B, 8))
    assert left(result) == {A: (reached, side, error_type.__name__, True)}
    assert copied(result) == ({A: reached} if reached else {}) | {B: 8}
    assert clusters.committed(result, B) == payloads(clusters.written[B])
    if reached:
        log = clusters.target.log("copy", 0)
        base_offsets = [batch.header.base_offset for batch in log.batches if not batch.header.is_control]
        assert len(base_offsets) >= 1


@pytest.mark.parametrize(
    ("breaks", "error_type"), [(corrupt, CorruptBatchError), (refused_by_the_target, BatchRefusedError), (lost, DataLossError)]
)
def test_without_isolation_it_ends_the_slot(
    clusters: Clusters, breaks: Callable[[Clusters], None], error_type: type[MirrorError]
) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    breaks(clusters)
    with pytest.raises(error_type):
        clusters.run(job_of(clusters, {A: 0, B: 0}), planned(A, 3), planned(B, 4))


def test_through_spark_what_the_source_cannot_give_is_isolated_where_it_is_read(clusters: Clusters, run: Run) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    corrupt(clusters)
    result = run(job_of(clusters, {A: 0, B: 0}, isolates=True), planned(A, 3), planned(B, 4))
    assert left(result) == {A: (2, "source", "CorruptBatchError", True)}
    assert copied(result) == {A: 2, B: 4}


def test_through_spark_what_the_target_refuses_ends_the_round_in_front_of_it(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.write(A, 2)
    clusters.write(B, 4)
    refused_by_the_target(clusters)
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
    rows = rows_of(clusters, planned(A, 5), planned(B, 4), isolates=True)
    result = run_kafka_slot(job_of(clusters, {A: 0, B: 0}, isolates=True), iter(rows), is_planned_ranges=False)
    assert left(result) == {A: (2, "target", "BatchRefusedError", True)}
    assert result.is_partial, "the rest of the rows comes again in the next round, without A"


def with_users(clusters: Clusters) -> dict[str, RoutedTopic]:
    clusters.source.create_topic("users", 1, topic_id=type(ORDERS)(bytes=b"users of a test!"))
    create_target(clusters.target, "people", 1)
    clusters.source.seed(("users", 0), batch(0, 3))
    return {
        "orders": route_to("copy"),
        "users": route_to("people"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "api", "change"),
    [
        ("source", "Fetch", error(29, ("orders", 0))),
        ("target", "AddPartitionsToTxn", error(29, ("copy", 0))),
        ("target", "Produce", error(29, ("copy", 0))),
    ],
)
@pytest.mark.parametrize("isolates", [True, False])
def test_a_right_that_is_revoked_leaves_out_all_partitions_of_its_topic_and_no_other_topic(
    clusters: Clusters, side: str, api: str, change: Change, isolates: bool
) -> None:
    routes = with_users(clusters)
    clusters.write(A, 2)
    clusters.write(B, 2)
    (clusters.source if side == "source" else clusters.target).change_always(api, change)
    job = job_of(clusters, {A: 0, B: 0, USERS: 0}, isolates=isolates, routes=routes)
    ranges = planned(A, 2), planned(B, 2), planned(USERS, 3)
    if not isolates:
        with pytest.raises(TopicAccessError):
            clusters.run(job, *ranges)
        return
    result = clusters.run(job, *ranges)
    expected = (0, side, "TopicAccessError", True)
    assert left(result) == {A: expected, B: expected}
    assert copied(result) == {USERS: 3}
    assert len(clusters.committed(result, USERS, "people")) == 1


def test_strict_cluster_is_as_strict_about_replicas_as_a_broker(clusters: Clusters) -> None:
    """Produce is refused, and a transaction stays prepared until its partitions can take markers."""
    clusters.write(A, 2)
    result = clusters.run(clusters.job({A: 0}), planned(A, 2))
    too_few_in_sync(clusters)
    assert result.txn is not None
    target: StrictCluster = clusters.target
    with target.lock:
        target.transactions.end("m-3", result.txn.producer_id, result.txn.producer_epoch, is_commit=True)
        assert target.log("copy", 0).last_stable_offset == 0
    target.log("copy", 0).in_sync = 2
    target.write_markers()
    assert target.log("copy", 0).last_stable_offset == 3

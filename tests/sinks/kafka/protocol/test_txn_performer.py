"""A start between a real offset map and a strict target: what it makes sure of before anything is copied."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.changes import error, held
from tests.fakes.clients import SleepingClock, client_of as sleeping_client_of
from tests.fakes.peers import NOW_MS, transactional
from tests.sinks.two_strict_clusters import A, B, Clusters, client_of, planned, route_to
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import add_partitions, end_txn, init_producer_id
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.protocol import DecidedTxn, LogEvidence, WrittenRange, actions, inspect_logs, txn_performer
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.kafka.protocol.txn_performer import TxnPerformer, recover
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition, TopicPartition

NAME = "m-0"


def _take_over(folder: Path, run_id: str) -> LedgerOwner:
    run = RunIdentity(run_id=run_id, host="here", pid=7, started_at_ms=1)
    return LedgerOwner.take_over(
        str(folder), name="m", source_cluster_id="S", target_cluster_id="T", run=run, now_ms=lambda: 1, slots=1
    )


def _decide(owner: LedgerOwner, txn: SlotTxn | None, *sources: SourcePartition) -> None:
    rows = [
        Segment(
            source=source,
            source_start=0,
            source_end=0,
            kind=SegmentKind.GAP,
            target=TargetPartition("copy", "t", source.partition),
        )
        for source in sources
    ]
    owner.next_decision()
    owner.decide([DecidedSegment(row, txn) for row in rows], highest_slot=0)
    owner.settle()


def _start(owner: LedgerOwner, target: Cluster) -> None:
    performer = TxnPerformer(owner, target, transaction_timeout_ms=60_000)
    recover(owner, performer, mirror="m", deadline=Deadline.after_ms(5_000, time.monotonic), guard=None)


def test_a_start_ends_what_an_expired_transactional_id_left_open_or_waits_for_who_may(tmp_path: Path, clusters: Clusters) -> None:
    """An undecided transaction: its abort was forgotten, and its id has expired while the mirror was stopped."""
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(20_000, time.monotonic)
    first = _take_over(tmp_path, "first")
    first.settle()
    txn = init_producer_id(target, NAME, 60_000, deadline)
    _decide(first, txn, A)
    _decide(first, None, B)
    later = init_producer_id(target, NAME, 60_000, deadline)
    assert (later.producer_id, later.producer_epoch) == (txn.producer_id, txn.producer_epoch + 1)
    topic_partition = TopicPartition("copy", 1)
    add_partitions(target, later, [topic_partition], deadline)
    log = clusters.target.log(*topic_partition)
    log.append(transactional(0, (later.producer_id, later.producer_epoch)), NOW_MS)
    clusters.target.forget_txn(NAME)

    owner = _take_over(tmp_path, "second")
    clusters.target.change_always("WriteTxnMarkers", error(31))
    with pytest.raises(
        RetriableError, match=r"target copy-1: .* of the own transactional id m-0, which.* --partition 1 --start-offset 0"
    ):
        _start(owner, target)
    assert log.last_stable_offset == 0
    clusters.target.change_always("WriteTxnMarkers", None)
    _start(owner, target)
    assert log.last_stable_offset == log.end_offset == 2
    assert [aborted_txn.producer_id for aborted_txn in log.aborted] == [txn.producer_id]
    target.close()


def test_who_holds_back_what_was_decided_is_named_with_what_ends_it(
    tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction of a producer id that the map does not name: it may be going on, so the mirror leaves it alone."""
    monkeypatch.setattr(txn_performer, "SETTLE_PATIENCE_MS", 50)
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(20_000, time.monotonic)
    topic_partition, log = TopicPartition("copy", 0), clusters.target.log("copy", 0)
    other, ours = (init_producer_id(target, name, 60_000, deadline) for name in ("another-application", NAME))
    for txn in (other, ours):
        add_partitions(target, txn, [topic_partition], deadline)
        log.append(transactional(0, (txn.producer_id, txn.producer_epoch)), NOW_MS)
    owner = _take_over(tmp_path, "first")
    owner.settle()
    clock = SleepingClock()  # requests take no time, so the deadline ends a pause between them
    performer = TxnPerformer(owner, target, transaction_timeout_ms=60_000, clock=clock, sleep=clock.sleep)
    decided = DecidedTxn(ours, (WrittenRange(TargetPartition("copy", route_to("copy").target_topic_id, 0), 1, 2),))
    assert performer.perform(actions.EndTxn(ours), deadline)
    with pytest.raises(RetriableError) as raised:
        performer.perform(actions.AwaitVisible(decided), clock.deadline(500))
    assert "gave up waiting for the last stable offset of copy-0 to pass 2; target copy-0" in str(raised.value)
    assert f"the transaction of producer id {other.producer_id} (epoch 0) is open from offset 0 on" in str(raised.value)
    assert "if that producer no longer runs, abort it with kafka-transactions.sh" in str(raised.value)
    assert clusters.target.asked("WriteTxnMarkers") == 0
    target.close()


def test_no_operator_is_told_to_abort_what_another_slot_has_decided(
    tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a DataFrame write into the same partitions: the markers of one transaction come later than those of another."""
    monkeypatch.setattr(txn_performer, "SETTLE_PATIENCE_MS", 50)
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(20_000, time.monotonic)
    log, written = clusters.target.log("copy", 0), TargetPartition("copy", route_to("copy").target_topic_id, 0)
    first, second = (init_producer_id(target, name, 60_000, deadline) for name in ("m-1", NAME))
    for txn in (first, second):
        add_partitions(target, txn, [written.topic_partition], deadline)
        log.append(transactional(0, (txn.producer_id, txn.producer_epoch)), NOW_MS)
    owner = _take_over(tmp_path, "first")
    owner.settle()
    clock = SleepingClock()
    performer = TxnPerformer(owner, target, transaction_timeout_ms=60_000, clock=clock, sleep=clock.sleep)
    decided = [DecidedTxn(txn, (WrittenRange(written, at, at + 1),)) for txn, at in ((second, 1), (first, 0))]
    assert performer.perform(actions.EndTxn(second), deadline)
    with pytest.raises(RetriableError, match="it is one of the own transactional id m-1, and is not to be aborted") as raised:
        performer.perform(actions.AwaitVisible(decided[0], tuple(decided)), clock.deadline(500))
    assert "kafka-transactions.sh" not in str(raised.value)
    target.close()


def test_nothing_is_decided_behind_what_another_id_of_this_mirror_has_left_open(tmp_path: Path, clusters: Clusters) -> None:
    """Kafka 4.3 calls an aborted transaction complete while a partition of it has no leader, and writes no marker there."""
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(20_000, time.monotonic)
    topic_partition, log = TopicPartition("copy", 0), clusters.target.log("copy", 0)
    forgotten, ours = (init_producer_id(target, name, 60_000, deadline) for name in ("m-1", NAME))
    for txn in (forgotten, ours):
        add_partitions(target, txn, [topic_partition], deadline)
        log.append(transactional(0, (txn.producer_id, txn.producer_epoch)), NOW_MS)
    written = actions.RefuseHangingTxns(
        (DecidedTxn(ours, (WrittenRange(TargetPartition("copy", route_to("copy").target_topic_id, 0), 1, 2),)),)
    )
    owner = _take_over(tmp_path, "first")

    another_application = TargetAvailability(fenced={NAME: ours})
    TxnPerformer(owner, target, transaction_timeout_ms=60_000, availability=another_application).perform(written, deadline)
    of_this_mirror = TargetAvailability(fenced={NAME: ours, "m-1": forgotten})
    performer = TxnPerformer(owner, target, transaction_timeout_ms=60_000, availability=of_this_mirror)
    with pytest.raises(RetriableError, match=f"producer id {forgotten.producer_id} are still open from offset 0") as raised:
        performer.perform(written, deadline)
    assert raised.value.error_name == "FORGOTTEN_MARKER"
    target.close()


@pytest.mark.parametrize("deleted", [1, 2, 4, 6], ids=lambda offset: f"up to offset {offset}")
def test_an_open_transaction_whose_records_retention_deletes_is_not_taken_for_aborted(
    tmp_path: Path, clusters: Clusters, deleted: int
) -> None:
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(20_000, time.monotonic)
    topic_partition, log = TopicPartition("copy", 0), clusters.target.log("copy", 0)
    log.append(batch(0, 1, timestamp=NOW_MS), NOW_MS)
    txn = init_producer_id(target, NAME, 60_000, deadline)
    add_partitions(target, txn, [topic_partition], deadline)
    for first in (0, 2):
        log.append(transactional(first, (txn.producer_id, txn.producer_epoch), 2), NOW_MS)
    log.append(batch(0, 1, timestamp=NOW_MS), NOW_MS)
    performer = TxnPerformer(_take_over(tmp_path, "first"), target, transaction_timeout_ms=60_000)
    written = actions.RefuseHangingTxns((DecidedTxn(txn, (WrittenRange(TargetPartition("copy", "t", 0), 1, 5),)),))
    log.delete_records_before(deleted)
    performer.perform(written, deadline)

    end_txn(target, txn, False, deadline)
    with pytest.raises(RetriableError, match="were aborted before they were decided") as raised:
        performer.perform(written, deadline)
    assert raised.value.error_name == "TRANSACTION_ABORTED"
    target.close()


@pytest.mark.parametrize(
    ("ended_by", "deleted", "evidence"),
    [
        ("commit", 3, LogEvidence.OURS),
        ("commit", 5, LogEvidence.NOTHING),
        ("commit", 8, LogEvidence.NOTHING),
        ("abort", 3, LogEvidence.OURS_ABORTED),
        ("abort", 5, LogEvidence.NOTHING),
        ("nobody", 3, LogEvidence.OPEN),
        ("nobody", 5, LogEvidence.NOTHING),
    ],
)
def test_what_retention_left_of_a_transaction_says_how_it_ended(
    clusters: Clusters, ended_by: str, deleted: int, evidence: LogEvidence
) -> None:
    target, deadline = Cluster(client_of(clusters.target)), Deadline.after_ms(5_000, time.monotonic)
    whole, cut = TopicPartition("copy", 0), TopicPartition("copy", 1)
    txn = init_producer_id(target, NAME, 60_000, deadline)
    add_partitions(target, txn, [whole, cut], deadline)
    for topic_partition in (whole, cut):
        clusters.target.log(*topic_partition).append(batch(0, 1, timestamp=NOW_MS), NOW_MS)
        for first in (0, 2):
            clusters.target.log(*topic_partition).append(transactional(first, (txn.producer_id, txn.producer_epoch), 2), NOW_MS)
    if ended_by != "nobody":
        end_txn(target, txn, ended_by == "commit", deadline)
    for topic_partition in (whole, cut):
        clusters.target.log(*topic_partition).append(batch(0, 3, timestamp=NOW_MS), NOW_MS)
    clusters.target.log(*cut).delete_records_before(deleted)
    written = [
        WrittenRange(TargetPartition("copy", route_to("copy").target_topic_id, topic_partition.partition), 1, 5)
        for topic_partition in (whole, cut)
    ]
    of_whole = {"commit": LogEvidence.OURS, "abort": LogEvidence.OURS_ABORTED, "nobody": LogEvidence.OPEN}[ended_by]

    def never(_polls: int) -> None:
        raise AssertionError("the log can say all that it will ever say")

    assert inspect_logs(target, txn, written, deadline, never) == (of_whole, evidence)
    target.close()


def test_a_look_at_partitions_without_a_leader_does_not_wait_for_them(tmp_path: Path, clusters: Clusters) -> None:
    """Micro-batches of the others wait for the look, every few seconds for as long as a broker is away."""
    clock, topic_partition = SleepingClock(), TopicPartition("copy", 0)
    target = sleeping_client_of(clusters.target, clock)
    txn = init_producer_id(target, NAME, 60_000, clock.deadline())
    written = WrittenRange(TargetPartition("copy", route_to("copy").target_topic_id, 0), 0, 1)
    availability = TargetAvailability(fenced={NAME: txn}, pending={txn: (written,)}, unchecked=frozenset({topic_partition}))
    owner = _take_over(tmp_path, "first")
    performer = TxnPerformer(
        owner, target, transaction_timeout_ms=60_000, clock=clock, sleep=clock.sleep, availability=availability
    )
    clusters.target.move_leader(topic_partition, -1)
    assert performer.recheck_unavailable(clock.deadline()) == ()
    assert clock.sleeps == []
    assert availability.unchecked == {topic_partition}
    assert set(availability.pending) == {txn}

    availability.pending.clear()
    clusters.target.move_leader(topic_partition, 1)
    assert performer.recheck_unavailable(clock.deadline()) == ()
    assert availability.is_complete
    target.close()


@pytest.mark.slow
def test_last_stable_offsets_are_asked_for_while_end_txn_is_on_its_way(
    tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.write(A, 2)
    txn = clusters.run(clusters.job({A: 0}), planned(A, 2)).txn
    assert txn is not None
    owner, target = _take_over(tmp_path, "r"), Cluster(client_of(clusters.target))
    owner.settle()
    performer, is_asked = TxnPerformer(owner, target, transaction_timeout_ms=60_000), threading.Event()
    clusters.target.change("EndTxn", held(is_asked))
    begin = target.begin_latest_offsets

    def begin_and_let_end_txn_go_on(*asked: Any) -> Any:
        begun = begin(*asked)
        is_asked.set()
        return begun

    def refuse(*_asked: object, **_settings: object) -> None:
        raise AssertionError("last stable offsets were asked for again")

    monkeypatch.setattr(target, "begin_latest_offsets", begin_and_let_end_txn_go_on)
    monkeypatch.setattr(target, "latest_offsets", refuse)
    deadline, topic_partition = (
        Deadline.after_ms(5_000, time.monotonic),
        TargetPartition("copy", route_to("copy").target_topic_id, 0),
    )
    assert performer.perform(actions.EndTxn(txn, (txn,), (topic_partition.topic_partition,)), deadline)
    decided = DecidedTxn(txn, (WrittenRange(topic_partition, 0, 2),))
    assert performer.perform(actions.AwaitVisible(decided), deadline) == actions.Visibility()
    target.close()

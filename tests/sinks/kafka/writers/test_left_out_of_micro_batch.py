"""The driver's part of leaving a partition out: the micro-batch ends as done, and its end says what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.map_rows import SOURCE, TARGET, run_of
from tests.sinks.micro_batches import NothingAhead, micro_batch_sink, planned_frame
from tests.sinks.two_strict_clusters import Clusters

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.errors import MirrorError, RetriableError, TransactionBlockedError
from shallow_mirror.sinks import Side, SlotResult, UnfinishedRange
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches.micro_batch import refuse_left_out
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition

A, B = (SOURCE._replace(partition=partition) for partition in (0, 1))
LEFT = UnfinishedRange.of(A, 0, Side.SOURCE, RetriableError("LEADER_NOT_AVAILABLE", "no leader"))


def copied(start: int, end: int, txn: SlotTxn | None = None, **more: Any) -> SlotResult:
    """Return the result of a slot that accounted for offsets of B which held nothing to copy."""
    target = TARGET._replace(partition=1)
    segment = Segment(source=B, source_start=start, source_end=end, kind=SegmentKind.GAP, target=target)
    return SlotResult(0, txn, (segment,), **more)


class Driver:
    """A sink without a target: what slots answer is given, round by round, and their jobs are kept."""

    leaves_out = False
    next_round: NothingAhead

    def __init__(self, tables: str, clusters: Clusters, **settings: Any) -> None:
        self.owner = LedgerOwner.take_over(
            tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of("r"), now_ms=lambda: 1
        )
        self.owner.settle()
        self.ended: list[tuple[tuple[UnfinishedRange, ...], dict[SourcePartition, int]]] = []
        self.jobs: list[KafkaSlotJob] = []
        self.raises: dict[type, Exception] = {}
        self.availability = TargetAvailability()
        given = {"left_out": self._left_out} | settings
        job = replace(clusters.job({}), mirror="m", leaves_out=self.leaves_out)
        self.sink = micro_batch_sink(self.owner, self, job, **given)

    def _left_out(self, unfinished: Sequence[UnfinishedRange], known: Mapping[SourcePartition, Position]) -> None:
        self.ended.append((tuple(unfinished), {source: at.offset for source, at in known.items()}))

    def perform(self, action: actions.Action, _deadline: object) -> Any:
        if type(action) in self.raises:
            raise self.raises[type(action)]
        if isinstance(action, actions.AwaitVisible):
            return actions.Visibility()
        return self.owner.next_decision() if isinstance(action, actions.TakeDecision) else isinstance(action, actions.EndTxn)

    def recheck_unavailable(self, _deadline: object) -> tuple[SlotTxn, ...]:
        return ()  # what is blocked stays so

    def copy(self, *rounds: Sequence[SlotResult | MirrorError]) -> None:
        self.sink(planned_frame(iter(rounds), self.jobs), 0)


def test_a_micro_batch_ends_without_what_slots_left_out_and_says_so_with_the_positions_of_the_map(
    tmp_path: Path, clusters: Clusters
) -> None:
    driver = Driver(str(tmp_path), clusters)
    driver.copy([copied(0, 5, unfinished=(LEFT,))])
    assert driver.ended == [((LEFT,), {B: 5})]
    assert driver.sink.failure is None


def test_further_rounds_leave_alone_what_an_earlier_one_left_out_and_the_end_names_all_of_it_once(
    tmp_path: Path, clusters: Clusters
) -> None:
    driver = Driver(str(tmp_path), clusters)
    driver.copy([copied(0, 5, unfinished=(LEFT,), is_partial=True)], [copied(5, 9)])
    assert [job.left_out for job in driver.jobs] == [frozenset(), {A}]
    assert driver.ended == [((LEFT,), {B: 9})]
    driver.copy([copied(9, 10)])
    assert driver.jobs[-1].left_out == frozenset()
    assert driver.ended[-1] == ((), {B: 10})


def test_a_sink_that_may_leave_nothing_out_fails_instead(tmp_path: Path, clusters: Clusters) -> None:
    driver = Driver(str(tmp_path), clusters, left_out=refuse_left_out)
    with pytest.raises(RetriableError, match="no leader"):
        driver.copy([copied(0, 5, unfinished=(LEFT,))])


BLOCKED = TransactionBlockedError("m-0", "PrepareAbort", 7, 3)


def test_a_slot_whose_id_is_blocked_takes_another_one_in_the_next_round(tmp_path: Path, clusters: Clusters) -> None:
    driver = Driver(str(tmp_path), clusters)
    driver.copy([BLOCKED], [copied(0, 5)])
    assert [job.id_numbers for job in driver.jobs] == [(0,), (1,)]
    assert driver.ended == [((), {B: 5})]
    with pytest.raises(RetriableError, match="NO_TRANSACTIONAL_ID"):
        driver.copy([TransactionBlockedError("m-1", "PrepareAbort", 8, 1)])


def test_what_is_blocked_behind_the_decision_ends_the_query_so_that_the_decision_is_resolved(
    tmp_path: Path, clusters: Clusters
) -> None:
    """Another round would take the decision for settled."""
    driver = Driver(str(tmp_path), clusters)
    driver.raises[actions.AwaitVisible] = BLOCKED
    with pytest.raises(TransactionBlockedError):
        driver.copy([copied(0, 5, txn=SlotTxn("m-0", 7, 3))], [copied(5, 9)])
    assert len(driver.jobs) == 1
    assert driver.owner.recorded().unsettled_micro_batch == 1


def test_what_the_last_rounds_have_used_is_asked_for_ahead_and_what_is_blocked_is_not(tmp_path: Path, clusters: Clusters) -> None:
    driver = Driver(str(tmp_path), clusters)
    ahead = driver.next_round
    driver.copy([copied(0, 5, txn=SlotTxn("m-0", 7, 3))])
    driver.copy([copied(5, 9, txn=SlotTxn("m-1", 8, 3))])
    assert [names for names, *_ in ahead.begun] == [["m-0"], ["m-0", "m-1"]]
    assert {(*topics, *source_topics) for _, topics, source_topics in ahead.begun} == {("orders", "orders")}
    driver.availability.block(BLOCKED)
    driver.copy([copied(9, 10)])
    assert len(ahead.begun) == 2


def written(txn: SlotTxn, **more: Any) -> SlotResult:
    """Return the result of a slot that wrote the first records of B."""
    segment = Segment(
        source=B, source_start=0, source_end=5, kind=SegmentKind.DATA, target=TARGET._replace(partition=1),
        target_start=0, target_end=5, record_count=5, batch_count=1, size_bytes=100,
    )  # fmt: skip
    return SlotResult(0, txn, (segment,), **more)


class LosingDriver(Driver):
    """RefuseHangingTxns fails once; then `held_partitions` cannot be read."""

    failure = RetriableError("LEADER_NOT_AVAILABLE", "a target partition has no leader")
    held_partitions = frozenset({TARGET._replace(partition=1).topic_partition})
    is_lost = False
    leaves_out = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.performed: list[actions.Action] = []

    def perform(self, action: actions.Action, deadline: object) -> Any:
        self.performed.append(action)
        if isinstance(action, actions.RefuseHangingTxns) and not self.is_lost:
            self.is_lost = True
            raise self.failure
        if isinstance(action, actions.AbortHangingTxns):
            self.availability.unchecked = self.held_partitions
        if isinstance(action, actions.AwaitVisible):
            return actions.Visibility()
        return super().perform(action, deadline)


def test_a_target_that_is_lost_in_front_of_the_decision_is_left_out_by_another_round_of_the_same_query(
    tmp_path: Path, clusters: Clusters
) -> None:
    driver = LosingDriver(str(tmp_path), clusters)
    left = UnfinishedRange.of(B, 0, Side.TARGET, RetriableError("MARKER_PENDING", "not looked at"))
    driver.copy([written(SlotTxn("m-0", 7, 3))], [copied(0, 0, unfinished=(left,))])
    names = [type(action).__name__ for action in driver.performed]
    assert names[:5] == ["TakeDecision", "RefuseHangingTxns", "InitProducerId", "AbortHangingTxns", "TakeDecision"]
    aborted = driver.performed[3]
    assert aborted == actions.AbortHangingTxns(("m-0",), tuple(driver.held_partitions))
    assert [job.held.keys() for job in driver.jobs] == [set(), driver.held_partitions]
    assert [unfinished for unfinished, _ in driver.ended] == [(left,)]
    assert B not in driver.owner.positions() or driver.owner.positions()[B].offset == 0, "nothing of the first round is decided"


@pytest.mark.parametrize("failure", ["TRANSACTION_ABORTED", "FORGOTTEN_MARKER"])
def test_what_is_wrong_with_a_transaction_itself_ends_the_query_in_front_of_the_decision(
    tmp_path: Path, clusters: Clusters, failure: str
) -> None:
    driver = LosingDriver(str(tmp_path), clusters)
    driver.failure = RetriableError(failure, "copy-1")
    with pytest.raises(RetriableError, match=failure):
        driver.copy([written(SlotTxn("m-0", 7, 3))])
    assert isinstance(driver.performed[-1], actions.RefuseHangingTxns)


def test_a_target_that_answers_again_at_once_ends_the_query_in_front_of_the_decision(tmp_path: Path, clusters: Clusters) -> None:
    """The next round would leave nothing out, and might fail in the same way without end."""
    driver = LosingDriver(str(tmp_path), clusters)
    driver.held_partitions = frozenset()
    with pytest.raises(RetriableError, match="LEADER_NOT_AVAILABLE"):
        driver.copy([written(SlotTxn("m-0", 7, 3))])
    assert isinstance(driver.performed[-1], actions.AbortHangingTxns)

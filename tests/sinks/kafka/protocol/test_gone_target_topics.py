"""What the driver makes of a decision whose target topic is deleted, or created again: nobody has to choose, and nothing waits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkpoints.map_rows import run_of
from tests.fakes.clients import SleepingClock, client_of as sleeping_client_of
from tests.sinks.two_strict_clusters import A, B, Clusters, planned, route_to

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.protocol import (
    DecidedTxn,
    LogEvidence,
    ReceiptEvidence,
    TxnFate,
    TxnPerformer,
    WrittenRange,
    actions,
    judge,
)
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.types import SlotTxn, TargetPartition

TOPIC_ID = route_to("copy").target_topic_id
WRITTEN = tuple(WrittenRange(TargetPartition("copy", TOPIC_ID, partition), 0, 2) for partition in (0, 1))


def deleted(clusters: Clusters) -> None:
    clusters.target.delete_topic("copy")


def recreated(clusters: Clusters) -> None:
    clusters.target.delete_topic("copy")
    clusters.target.create_topic("copy", 2, topic_id=uuid.uuid4())


CHANGES = pytest.mark.parametrize("change", [deleted, recreated])


class Driver:
    """The performer of a slot's transaction that was written, with a clock that only waiting moves."""

    def __init__(self, tables: str, clusters: Clusters, target: Cluster, clock: SleepingClock) -> None:
        clusters.write(A, 2)
        clusters.write(B, 2)
        txn = clusters.run(clusters.job({A: 0, B: 0}), planned(A, 2), planned(B, 2)).txn
        assert txn is not None
        self.txn: SlotTxn = txn
        self.decided = DecidedTxn(txn, WRITTEN)
        self.clock = clock
        owner = LedgerOwner.take_over(
            tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of("r"), now_ms=lambda: 1
        )
        owner.settle()
        self.availability = TargetAvailability()
        self.performer = TxnPerformer(
            owner, target, transaction_timeout_ms=60_000, clock=clock, sleep=clock.sleep, availability=self.availability
        )


@pytest.fixture
def driver(tmp_path: Path, clusters: Clusters) -> Iterator[Driver]:
    clock = SleepingClock()
    target = sleeping_client_of(clusters.target, clock)
    yield Driver(str(tmp_path), clusters, target, clock)
    target.close()


@CHANGES
def test_what_was_committed_to_a_topic_that_is_gone_is_not_waited_for_and_not_lost(
    driver: Driver, clusters: Clusters, change: Callable[[Clusters], None]
) -> None:
    deadline = driver.clock.deadline(60_000)
    assert driver.performer.perform(actions.EndTxn(driver.txn), deadline)
    change(clusters)
    began = driver.clock()
    assert driver.performer.perform(actions.AwaitVisible(driver.decided), deadline) == actions.Visibility()
    assert driver.clock() - began < 5.0


@CHANGES
def test_a_start_resolves_a_decision_whose_topic_is_gone_without_the_operator(
    driver: Driver, clusters: Clusters, change: Callable[[Clusters], None]
) -> None:
    """Without a receipt, which the broker deletes with the topic, and without its log."""
    deadline = driver.clock.deadline(60_000)
    change(clusters)
    evidence = driver.performer.perform(actions.ReadTargetLog(driver.decided), deadline)
    assert evidence == (LogEvidence.GONE, LogEvidence.GONE)
    assert judge(ReceiptEvidence.ABSENT, evidence) is TxnFate.NOT_COMMITTED


def test_in_front_of_the_decision_a_topic_that_was_deleted_is_named_within_seconds(driver: Driver, clusters: Clusters) -> None:
    deleted(clusters)
    began = driver.clock()
    with pytest.raises(RetriableError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*has no topic copy"):
        driver.performer.perform(actions.RefuseHangingTxns((driver.decided,)), driver.clock.deadline(60_000))
    assert driver.clock() - began < 3.0


@CHANGES
def test_a_marker_that_is_missing_in_a_topic_that_is_gone_holds_nothing(
    driver: Driver, clusters: Clusters, change: Callable[[Clusters], None]
) -> None:
    driver.availability.pending[driver.txn] = WRITTEN[1:]
    driver.availability.unchecked = frozenset({WRITTEN[0].topic_partition})
    change(clusters)
    driver.performer.recheck_unavailable(driver.clock.deadline(60_000))
    assert not driver.availability.unchecked
    assert driver.performer._is_complete(driver.txn, WRITTEN[1:], driver.clock.deadline(60_000))

"""What a round is given ahead: producer epochs that no other task has, and metadata that is new."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.changes import dropped_after, dropped_before, error
from tests.sinks.two_strict_clusters import Clusters, client_of

from shallow_mirror.broker import Cluster, PathSpeeds
from shallow_mirror.broker.cluster.cluster_metadata import FetchSpeed, SendSpeed
from shallow_mirror.broker.net.error_codes import CONCURRENT_TRANSACTIONS
from shallow_mirror.broker.produce.txn import EndTxnAnswer, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ProducerEpochFencedError
from shallow_mirror.sinks.kafka.protocol.next_round import EPOCHS_FOR_S, METADATA_FOR_S, NextRound
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.types import SlotTxn, TopicPartition

NAMES = ("m-0", "m-1")
SPEEDS = PathSpeeds({1: SendSpeed(100e6, 0.08)}, {1: FetchSpeed(16e6, 200e6, 0.08)})


class Ahead:
    """A next round between two strict clusters, and a clock that stands still."""

    def __init__(self, clusters: Clusters) -> None:
        self.now_s = 100.0
        self.availability = TargetAvailability()
        self.target, self.source = Cluster(client_of(clusters.target)), Cluster(client_of(clusters.source))
        self.deadline = Deadline.after_ms(5_000, time.monotonic)
        self.round = NextRound(
            self.target, self.availability, transaction_timeout_ms=60_000, clock=lambda: self.now_s, source=self.source
        )

    def begin(self) -> None:
        self.round.begin(NAMES, ("copy",), ("orders",), self.deadline)

    def close(self) -> None:
        self.target.close()
        self.source.close()


def test_each_producer_epoch_is_taken_once_and_is_the_newest_of_its_id(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    before = {name: init_producer_id(ahead.target, name, 60_000, ahead.deadline) for name in NAMES}
    ahead.begin()
    taken = ahead.round.take_epochs(ahead.deadline)
    assert {name: (txn.producer_id, txn.producer_epoch - 1) for name, txn in taken.items()} == {
        name: (txn.producer_id, txn.producer_epoch) for name, txn in before.items()
    }
    assert ahead.availability.fenced == taken
    assert ahead.round.take_epochs(ahead.deadline) == {}
    ahead.close()


def test_what_a_coordinator_does_not_give_is_left_to_the_task(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    clusters.target.change("InitProducerId", error(CONCURRENT_TRANSACTIONS))
    ahead.begin()
    assert set(ahead.round.take_epochs(ahead.deadline)) == {NAMES[1]}
    clusters.target.change("InitProducerId", dropped_before())
    ahead.begin()
    assert ahead.round.take_epochs(ahead.deadline) == {}
    ahead.close()


COPIES = [TopicPartition("copy", 0), TopicPartition("copy", 1)]


def marked(clusters: Clusters, ahead: Ahead, *txns: SlotTxn) -> list[TopicPartition]:
    """Commit transactions; return the partitions that got a marker."""
    for txn in txns:
        assert end_txn(ahead.target, txn, True, ahead.deadline) is EndTxnAnswer.ENDED
    return [copy for copy in COPIES if clusters.target.log(*copy).batches]


def test_what_the_driver_adds_is_in_the_transactions_that_are_decided(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    first, second = (init_producer_id(ahead.target, name, 60_000, ahead.deadline) for name in NAMES)
    ahead.round.begin_additions({first: COPIES[:1], second: COPIES[1:]}, ahead.deadline)
    ahead.round.require_added([first, second], ahead.deadline)
    assert (clusters.target.asked("AddPartitionsToTxn"), clusters.target.asked("AddOffsetsToTxn")) == (2, 2)
    ahead.round.require_added([first, second], ahead.deadline)
    assert clusters.target.asked("AddPartitionsToTxn") == 2
    assert marked(clusters, ahead, first, second) == COPIES
    ahead.close()


@pytest.mark.parametrize("change", [dropped_before(), dropped_after(), error(CONCURRENT_TRANSACTIONS)])
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "AddOffsetsToTxn"])
def test_what_was_not_confirmed_is_added_again_before_the_decision(clusters: Clusters, api: str, change: Any) -> None:
    ahead = Ahead(clusters)
    txn = init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    clusters.target.change(api, change)
    ahead.round.begin_additions({txn: COPIES}, ahead.deadline)
    ahead.round.require_added([txn], ahead.deadline)
    assert clusters.target.asked(api) == 2
    assert marked(clusters, ahead, txn) == COPIES
    ahead.close()


def test_a_transaction_that_another_epoch_has_ended_is_not_decided(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    txn = init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    ahead.round.begin_additions({txn: COPIES}, ahead.deadline)
    with pytest.raises(ProducerEpochFencedError):
        ahead.round.require_added([txn], ahead.deadline)
    ahead.close()


def test_what_was_added_for_a_try_that_was_given_up_is_of_no_concern(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    txn = init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    again = init_producer_id(ahead.target, NAMES[0], 60_000, ahead.deadline)
    ahead.round.begin_additions({txn: COPIES}, ahead.deadline)
    ahead.round.require_added([again], ahead.deadline)
    assert end_txn(ahead.target, again, True, ahead.deadline) is EndTxnAnswer.AMBIGUOUS  # it is empty
    ahead.close()


def test_an_id_that_is_initialised_again_has_nothing_ahead(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    ahead.begin()
    ahead.round.forget(NAMES[0], ahead.deadline)
    assert set(ahead.round.take_epochs(ahead.deadline)) == {NAMES[1]}
    ahead.close()


def test_what_was_asked_for_long_ago_is_for_workers_that_know_nothing(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    assert ahead.round.take_target(NAMES, SPEEDS, ahead.deadline) is None
    assert ahead.round.take_source(SPEEDS, ahead.deadline) is None
    ahead.begin()
    ahead.now_s += METADATA_FOR_S + 1
    known, source = ahead.round.take_target(NAMES, SPEEDS, ahead.deadline), ahead.round.take_source(SPEEDS, ahead.deadline)
    assert known is not None
    assert source is not None
    assert (known.is_new, source.is_new) == (False, False)
    assert ahead.round.take_target(NAMES, SPEEDS, ahead.deadline) == known
    worker = Cluster(client_of(clusters.target))
    worker.learn(known)
    assert worker.path_speeds() == SPEEDS
    worker.learn(replace(known, speeds=PathSpeeds({2: SendSpeed(1e6, 0.1)})))
    assert worker.path_speeds() == SPEEDS
    worker.close()
    ahead.now_s += EPOCHS_FOR_S
    assert ahead.round.take_epochs(ahead.deadline) == {}
    ahead.close()


def test_tasks_need_not_ask_for_leaders_and_coordinators(clusters: Clusters) -> None:
    ahead = Ahead(clusters)
    ahead.begin()
    known, source = ahead.round.take_target(NAMES, SPEEDS, ahead.deadline), ahead.round.take_source(SPEEDS, ahead.deadline)
    assert known is not None
    assert source is not None
    assert set(known.metadata.topics) == {"copy"}
    assert {key for _, key in known.coordinators} == set(NAMES)
    assert set(source.metadata.topics) == {"orders"}
    worker = Cluster(client_of(clusters.target))
    worker.learn(known)
    assert worker.path_speeds() == SPEEDS
    asked = clusters.target.asked("Metadata"), clusters.target.asked("FindCoordinator")
    init_producer_id(worker, NAMES[0], 60_000, ahead.deadline)
    assert (clusters.target.asked("Metadata"), clusters.target.asked("FindCoordinator")) == asked
    worker.close()
    ahead.close()

"""Everywhere: transactions that are over for their coordinator and still open in the logs of their partitions.

A broker that is killed and started again can end a transaction before it knows its topics; seen with 4.3.0: it takes the
partitions for deleted, writes no marker to them, and calls the transaction complete. Its records then stay open, hold the
last stable offset, and the next marker of the same producer id ends them together with its own: an aborted copy would
become visible behind a committed one. So whoever takes a producer id up again after a failure has to look, and an empty
transaction over the same partitions writes the markers that never came.

A coordinator forgets an unused transactional id after transactional.id.expiration.ms, a week by default, and gives it a new
producer id when it comes again. An empty transaction has that one, and its markers end nothing of the old one. What is open
under a producer id that the offset map names is ended as `kafka-transactions.sh abort` does it (KIP-664): WriteTxnMarkers to
the leader of the partition, which needs ClusterAction on the cluster (or Alter, from Kafka 3.8 on).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shallow_mirror.broker.cluster.cluster import CONTROL, Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ProducerState
from shallow_mirror.broker.net.error_codes import ErrorClass, error_class, error_name, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.broker.produce.transactions import add_offsets, add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, RetriableError
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition

_log = logging.getLogger(__name__)

_LAST_EPOCH = 32766
"""A coordinator never gives a higher one."""


@dataclass(frozen=True, slots=True)
class OpenTxn:
    """What a producer has open at a partition of the target."""

    place: TopicPartition
    producer: ProducerState

    def __str__(self) -> str:
        since = ""
        if self.producer.last_timestamp_ms >= 0:
            at = datetime.fromtimestamp(self.producer.last_timestamp_ms / 1000, UTC)
            since = f"; its newest record there is of {at.isoformat(timespec='seconds')}"
        return (
            f"target {self.place}: the transaction of producer id {self.producer.producer_id} (epoch "
            f"{self.producer.producer_epoch}) is open from offset {self.producer.current_txn_start_offset} on{since}"
        )

    def abort_command(self, target: Cluster) -> str:
        """Return the command that ends it, for an operator."""
        host, port = target.config.bootstrap[0]
        return (
            f"kafka-transactions.sh --bootstrap-server {host}:{port} abort --topic {self.place.topic} --partition "
            f"{self.place.partition} --start-offset {self.producer.current_txn_start_offset}"
        )


ProducersOfMap = Callable[[], Mapping[int, str]]
"""The transactional id of every producer id that the offset map names."""


def abort_forgotten(
    target: Cluster,
    fenced: Sequence[SlotTxn],
    places: Collection[TopicPartition],
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    named: ProducersOfMap | None = None,
) -> None:
    """Abort what is still open at `places` under the transactional ids of `fenced`, the answers of InitProducerId a moment ago.

    Because of those answers nothing of theirs can be open rightly, neither under the producer ids that they have now nor, with
    `named`, under those that they had before. Places that the target does not have are left out.

    Raises RetriableError("HANGING_TRANSACTION") with what an operator has to do, where an earlier producer id has something open
    and the target does not let us end it: readers of that partition wait for it, and so would every micro-batch.
    """
    found = open_transactions(target, places, deadline)
    current = {txn.producer_id: txn.transactional_id for txn in fenced}
    again: dict[str, list[TopicPartition]] = {}
    for one in found:
        if one.producer.producer_id in current:
            again.setdefault(current[one.producer.producer_id], []).append(one.place)
    for transactional_id, members in again.items():
        _log.warning("%s: its abort was forgotten by the target: aborting it again", transactional_id)
        write_markers(target, transactional_id, members, False, transaction_timeout_ms, deadline)
    others = [one for one in found if one.producer.producer_id not in current]
    if named is not None and others:  # hardly ever: so the map is read for it only now
        _abort_earlier_producers(target, others, named(), frozenset(current.values()), deadline)


def _abort_earlier_producers(
    target: Cluster, found: Sequence[OpenTxn], named: Mapping[int, str], fenced_ids: Collection[str], deadline: Deadline
) -> None:
    """Nothing can be written under these producer ids any more: the coordinator knows them no longer, and the only transactional
    id that they ever had has another one now."""
    refused = list[str]()
    for one in found:
        transactional_id = named.get(one.producer.producer_id)
        if transactional_id not in fenced_ids:
            continue  # another application's, or of a slot that was not fenced: it may be going on
        _log.warning("%s; the target has forgotten its transactional id %s: aborting it", one, transactional_id)
        reason = _abort_at(target, one.place, one.producer.producer_id, deadline)
        if reason is not None:
            refused.append(
                f"{one}, of transactional id {transactional_id} of this mirror, which the target has forgotten since: readers of "
                f"that partition wait for its end. WriteTxnMarkers: {reason}. Or end it by: {one.abort_command(target)}"
            )
    if refused:
        raise RetriableError("HANGING_TRANSACTION", "; ".join(refused))


def _abort_at(target: Cluster, place: TopicPartition, producer_id: int, deadline: Deadline) -> str | None:
    """Write an abort marker to the leader of `place`. Return why that is refused for good, None when nothing is open any more.

    Raises RetriableError. Each try looks at the producer's state again: a marker of old epochs is refused.
    """

    def attempt(left: Deadline) -> str | None:
        states = target.describe_producers([place], left)[place]
        for state in states:
            if state.producer_id == producer_id and state.current_txn_start_offset >= 0:
                return _write_abort_marker(target, place, state, left)
        return None

    return target.retrying(f"aborting the transaction of producer id {producer_id} at {place}", attempt, deadline)


def _write_abort_marker(target: Cluster, place: TopicPartition, producer: ProducerState, deadline: Deadline) -> str | None:
    request = request_class("WriteTxnMarkers").WritableTxnMarker
    marker = request(
        producer_id=producer.producer_id,
        # The next epoch, as InitProducerId has it: the leader then refuses whatever a task of an earlier run still sends. Before
        # Kafka 3.6 it does not ask the coordinator, and would open another transaction with it.
        producer_epoch=max(producer.producer_epoch, min(producer.producer_epoch + 1, _LAST_EPOCH)),
        transaction_result=False,
        topics=[request.WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])],
        # A lower one than that of the producer's last marker is refused. -1: there was none; coordinators have 0 at least.
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    try:
        leader = target.leaders([place], deadline)[place].leader
        answer = call(target.connection(leader, CONTROL, deadline), "WriteTxnMarkers", deadline, markers=[marker])
    except BrokerTooOldError as error:
        return str(error)
    code = int(answer.markers[0].topics[0].partitions[0].error_code)
    if code and error_class(code) is not ErrorClass.DEFINITE:
        raise RetriableError(error_name(code), f"WriteTxnMarkers to {place}")
    return refusal(code, "WriteTxnMarkers") if code else None


def open_places(
    target: Cluster, producer_ids: Collection[int], places: Collection[TopicPartition], deadline: Deadline
) -> dict[int, list[TopicPartition]]:
    """Where these producers have open transactions."""
    found: dict[int, list[TopicPartition]] = {}
    for one in open_transactions(target, places, deadline):
        if one.producer.producer_id in producer_ids:
            found.setdefault(one.producer.producer_id, []).append(one.place)
    return found


def open_transactions(target: Cluster, places: Collection[TopicPartition], deadline: Deadline) -> list[OpenTxn]:
    """Return what is open at `places`, of whatever producer. Producers are only asked for where something is open at all."""
    if not places:
        return []
    listed = target.metadata(sorted({place.topic for place in places}), deadline)
    there = [place for place in places if listed.has(place)]
    latest = dict.fromkeys(there, -1)
    stable = target.list_offsets(latest, IsolationLevel.READ_COMMITTED, deadline)
    ends = target.list_offsets(latest, IsolationLevel.READ_UNCOMMITTED, deadline)
    held = sorted(place for place in there if stable[place].offset < ends[place].offset)
    described = target.describe_producers(held, deadline) if held else {}
    return [OpenTxn(place, state) for place in held for state in described[place] if state.current_txn_start_offset >= 0]


def held_back_by(target: Cluster, transactions: Iterable[OpenTxn], ours: int) -> str:
    """Return what other producers than `ours` have open, as the end of a sentence; empty where nothing is."""
    others = [transaction for transaction in transactions if transaction.producer.producer_id != ours]
    return "".join(f"; {other}: if that producer is gone, end it by {other.abort_command(target)}" for other in others)


def write_markers(
    target: Cluster,
    transactional_id: str,
    places: Sequence[TopicPartition],
    commit: bool,
    transaction_timeout_ms: int,
    deadline: Deadline,
) -> None:
    """An empty transaction over `places` and the receipt's group."""
    empty = init_producer_id(target, transactional_id, transaction_timeout_ms, deadline)
    add_partitions(target, empty, places, deadline)
    add_offsets(target, empty, deadline)
    end_txn(target, empty, commit, deadline)

"""Everywhere: hanging transactions: ended for their coordinator and still open in the logs of their partitions (KIP-664).

A broker that is killed and started again can end a transaction before it has loaded its topics; observed with 4.3.0: it takes
the partitions for deleted, writes no marker to them, and reports the transaction complete. It does the same while a partition
has no leader (KAFKA-20734). The records then stay open, hold the last stable offset, and the next marker of the same producer
id ends them together with its own: an aborted copy would become visible behind a committed one. So a producer id that is used
again after a failure has to be checked, and an empty transaction over the same partitions writes the missing markers.

A coordinator removes an unused transactional id after transactional.id.expiration.ms, a week by default, and gives it a new
producer id when it is used again. Markers of an empty transaction then have that one, and end nothing of the old one. What
is open under a producer id that the offset map names is ended as `kafka-transactions.sh abort` does it: WriteTxnMarkers to
the leader of the partition, which needs ClusterAction on the cluster (or Alter, from Kafka 3.8 on).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ProducerState
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.net.error_codes import ErrorClass, error_class, error_name, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.broker.produce.txn.transactions import EndTxnAnswer, end_txn, init_producer_id
from shallow_mirror.broker.produce.txn.txn_additions import add_offsets, add_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, RetriableError
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition

_log = logging.getLogger(__name__)

_LAST_EPOCH = 32766
"""A coordinator never gives a higher one."""


@dataclass(frozen=True, slots=True)
class OpenTxn:
    """An open transaction of a producer at a partition of the target."""

    topic_partition: TopicPartition
    producer: ProducerState

    def __str__(self) -> str:
        at = self.producer.last_written_at
        since = "" if at is None else f"; its last record there was written at {at}"
        return (
            f"target {self.topic_partition}: the transaction of producer id {self.producer.producer_id} (epoch "
            f"{self.producer.producer_epoch}) is open from offset {self.producer.current_txn_start_offset} on{since}"
        )

    def abort_command(self, target: Cluster) -> str:
        """Return the command that ends it, for an operator."""
        host, port = target.config.bootstrap[0]
        return (
            f"kafka-transactions.sh --bootstrap-server {host}:{port} abort --topic {self.topic_partition.topic} --partition "
            f"{self.topic_partition.partition} --start-offset {self.producer.current_txn_start_offset}"
        )


ProducersOfMap = Callable[[], Mapping[int, str]]
"""The transactional id of every producer id that the offset map names."""


def abort_hanging(
    target: Cluster,
    fenced: Sequence[SlotTxn],
    topic_partitions: Collection[TopicPartition],
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    named: ProducersOfMap | None = None,
) -> None:
    """Abort open transactions at `topic_partitions` under the transactional ids of `fenced`, fresh from InitProducerId.

    InitProducerId succeeds when nothing of an id is open for the coordinator: a transaction open in a log hangs, under the
    producer ids of now and, with `named`, under earlier ones. Topic-partitions that the target does not have are left out.

    Raises RetriableError("INVALID_PRODUCER_EPOCH") if an abort timed out itself: it may be forgotten like the one before.
    Raises RetriableError("HANGING_TRANSACTION") with the remedy for an operator, if an earlier producer id has something open
    and the target does not permit to end it: readers of that partition wait for it, and so would every micro-batch.
    """
    current = {txn.producer_id: txn.transactional_id for txn in fenced}
    open_txns = open_transactions(target, topic_partitions, deadline)
    # The markers of the abort that is written again can be forgotten like those before it, so what is open is read again after
    # it. Markers that are only late cost one more round: its InitProducerId waits for them.
    while hanging := {
        txn.transactional_id: partitions for txn in fenced if (partitions := open_partitions(open_txns, txn.producer_id))
    }:
        for transactional_id, partitions in hanging.items():
            deadline.require(f"the markers of the abort of {transactional_id} at {partitions[0]}")
            _log.warning("%s: its abort was forgotten by the target: aborting it again", transactional_id)
            answer = write_markers(target, transactional_id, partitions, False, transaction_timeout_ms, deadline)
            if answer is EndTxnAnswer.AMBIGUOUS:
                # It timed out. It is not repeated here: where another run has taken the id over, this run has to find that out
                # before it fences the other.
                raise RetriableError("INVALID_PRODUCER_EPOCH", f"{transactional_id}: the transaction that aborts again timed out")
        open_txns = open_transactions(target, topic_partitions, deadline)
    earlier = [open_txn for open_txn in open_txns if open_txn.producer.producer_id not in current]
    # Hardly ever: so the offset map is read for it only now.
    if named is not None and earlier:
        _abort_earlier_producers(target, earlier, named(), frozenset(current.values()), deadline)


def _abort_earlier_producers(
    target: Cluster, open_txns: Sequence[OpenTxn], named: Mapping[int, str], fenced_ids: Collection[str], deadline: Deadline
) -> None:
    """Abort transactions of producer ids of expired transactional ids, with markers of our own.

    Nothing can be written under these producer ids any more: the coordinator has removed them, and the transactional id that they
    belonged to has another one now.
    """
    refused = list[str]()
    for open_txn in open_txns:
        transactional_id = named.get(open_txn.producer.producer_id)
        if transactional_id not in fenced_ids:
            # Another application's, or of a slot that was not fenced: it may still be in use.
            continue
        _log.warning("%s; the target has forgotten its transactional id %s: aborting it", open_txn, transactional_id)
        reason = _abort_at(target, open_txn.topic_partition, open_txn.producer.producer_id, deadline)
        if reason is not None:
            refused.append(
                f"{open_txn}, of the own transactional id {transactional_id}, which the target has forgotten "
                f"since: readers of that partition wait for its end. WriteTxnMarkers: {reason}. "
                f"Or end it by: {open_txn.abort_command(target)}"
            )
    if refused:
        raise RetriableError("HANGING_TRANSACTION", "; ".join(refused))


def _abort_at(target: Cluster, topic_partition: TopicPartition, producer_id: int, deadline: Deadline) -> str | None:
    """Write an abort marker to the leader. Return why that is rejected permanently, None when nothing is open any more.

    Raises RetriableError. Each try looks at the producer's state again: a marker of old epochs is refused.
    """

    def attempt(attempt_deadline: Deadline) -> str | None:
        states = target.describe_producers([topic_partition], attempt_deadline)[topic_partition]
        for state in states:
            if state.producer_id == producer_id and state.current_txn_start_offset >= 0:
                return _write_abort_marker(target, topic_partition, state, attempt_deadline)
        return None

    return target.retrying(f"aborting the transaction of producer id {producer_id} at {topic_partition}", attempt, deadline)


def _write_abort_marker(
    target: Cluster, topic_partition: TopicPartition, producer: ProducerState, deadline: Deadline
) -> str | None:
    request = request_class("WriteTxnMarkers").WritableTxnMarker
    marker = request(
        producer_id=producer.producer_id,
        # The next epoch, as InitProducerId has it: the leader then refuses whatever a task of an earlier run still sends. Before
        # Kafka 3.6 it does not ask the coordinator, and would open another transaction with it.
        producer_epoch=max(producer.producer_epoch, min(producer.producer_epoch + 1, _LAST_EPOCH)),
        transaction_result=False,
        topics=[request.WritableTxnMarkerTopic(name=topic_partition.topic, partition_indexes=[topic_partition.partition])],
        # A lower one than that of the producer's last marker is refused. -1: there was none; coordinators have 0 at least.
        coordinator_epoch=max(0, producer.coordinator_epoch),
    )
    try:
        leader = target.leaders([topic_partition], deadline)[topic_partition].leader
        response = call(target.connection(leader, CONTROL, deadline), "WriteTxnMarkers", deadline, markers=[marker])
    except BrokerTooOldError as error:
        return str(error)
    code = int(response.markers[0].topics[0].partitions[0].error_code)
    if code and error_class(code) is not ErrorClass.DEFINITE:
        raise RetriableError(error_name(code), f"WriteTxnMarkers to {topic_partition}")
    return refusal(code, "WriteTxnMarkers") if code else None


def open_transactions(target: Cluster, topic_partitions: Collection[TopicPartition], deadline: Deadline) -> list[OpenTxn]:
    """Return the open transactions at `topic_partitions`, of any producer. Producers are described only if something is open."""
    if not topic_partitions:
        return []
    metadata = target.metadata(sorted({topic_partition.topic for topic_partition in topic_partitions}), deadline)
    existing = [topic_partition for topic_partition in topic_partitions if metadata.has(topic_partition)]
    latest = dict.fromkeys(existing, -1)
    stable = target.list_offsets(latest, IsolationLevel.READ_COMMITTED, deadline)
    ends = target.list_offsets(latest, IsolationLevel.READ_UNCOMMITTED, deadline)
    waiting = sorted(
        topic_partition for topic_partition in existing if stable[topic_partition].offset < ends[topic_partition].offset
    )
    described = target.describe_producers(waiting, deadline) if waiting else {}
    return [
        OpenTxn(topic_partition, state)
        for topic_partition in waiting
        for state in described[topic_partition]
        if state.current_txn_start_offset >= 0
    ]


def open_partitions(open_txns: Iterable[OpenTxn], producer_id: int) -> list[TopicPartition]:
    """Return the partitions at which this producer has a transaction open."""
    return [open_txn.topic_partition for open_txn in open_txns if open_txn.producer.producer_id == producer_id]


def blocking_producers(
    target: Cluster, transactions: Iterable[OpenTxn], own_producer_id: int, own_ids: Mapping[int, str]
) -> dict[TopicPartition, str]:
    """Return what other producers than `own_producer_id` have open, and what ends it, by partition.

    `own_ids`: transactional ids of this run by producer id, whose transactions may be decided: no operator may abort them.
    Partitions where the own one has a transaction open as well are left out.
    """
    transactions = list(transactions)
    own = set(open_partitions(transactions, own_producer_id))
    texts: dict[TopicPartition, list[str]] = {}
    for transaction in transactions:
        if transaction.topic_partition not in own:
            own_id = own_ids.get(transaction.producer.producer_id)
            remedy = f"if that producer no longer runs, abort it with {transaction.abort_command(target)}"
            remedy = remedy if own_id is None else f"it is one of the own transactional id {own_id}, and is not to be aborted"
            texts.setdefault(transaction.topic_partition, []).append(f"{transaction}: {remedy}")
    return {topic_partition: "; ".join(lines) for topic_partition, lines in texts.items()}


def write_markers(
    target: Cluster,
    transactional_id: str,
    topic_partitions: Sequence[TopicPartition],
    commit: bool,
    transaction_timeout_ms: int,
    deadline: Deadline,
) -> EndTxnAnswer:
    """Write markers to `topic_partitions` and the receipt's group by an empty transaction, and return how that ended."""
    empty = init_producer_id(target, transactional_id, transaction_timeout_ms, deadline)
    add_partitions(target, empty, topic_partitions, deadline)
    add_offsets(target, empty, deadline)
    return end_txn(target, empty, commit, deadline)

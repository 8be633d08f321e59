"""Everywhere: the transaction protocol of one transactional id (the versions before KIP-890 part 2), and its receipt.

Each function repeats its request until a definite answer or the deadline. Repeating is safe: all of them are idempotent
for one (transactional id, producer id, producer epoch).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BrokerTooOldError,
    ConfigError,
    OutcomeUnknownError,
    ProducerEpochFencedError,
    RetriableError,
    TopicAccessError,
    TransactionBlockedError,
)
from shallow_mirror.types import SlotTxn, TopicPartition

RECEIPT_VERSION = 1

_AMBIGUOUS = frozenset({47, 48, 49, 90})
_LOOK_FOR_COORDINATOR = frozenset({15, 16})
_UNSTABLE_OFFSET_COMMIT = 88
_NOT_ATTEMPTED = 55
_CONCURRENT_TRANSACTIONS = 51
_TRANSACTIONAL_ID_NOT_FOUND = 105
_ENDING = frozenset({"PrepareCommit", "PrepareAbort"})

MARKER_PATIENCE_MS = 2_000
"""How long a coordinator may answer that it is still writing markers before it is asked what keeps it."""
_NO_TXN_TIMEOUT_MS = 60_000
"""The field is there also without a transactional id, and means nothing."""


class EndTxnAnswer(enum.Enum):
    ENDED = "ended"
    COMMITTING = "committed, and a partition does not take its marker yet"
    AMBIGUOUS = "timed out, taken over, or committed and initialised again"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What batches are stamped with."""

    producer_id: int
    producer_epoch: int


class PendingReceipt(enum.Enum):
    PENDING = "the markers of the group's partition are not written yet"


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The last transaction of a transactional id as its coordinator knows it; `state` is Kafka's word (KIP-664)."""

    state: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Committed by the transaction it names."""

    producer_id: int
    producer_epoch: int
    decision: int
    map_id: str
    """Of the offset map that the decision is in."""
    run_id: str


def init_producer_id(cluster: Cluster, transactional_id: str, transaction_timeout_ms: int, deadline: Deadline) -> SlotTxn:
    """A fresh producer epoch. Success means that the previous transaction of this id is wholly over.

    Always with producer id and epoch -1: with the current ones, coordinators before KIP-890 fence the sender.
    Raises TransactionBlockedError where the previous transaction cannot complete, ConfigError, RetriableError.
    """
    answer = _ask_unless_blocked(
        cluster,
        transactional_id,
        lambda one: ask_coordinator(
            cluster,
            CoordinatorKind.TXN,
            transactional_id,
            "InitProducerId",
            lambda answer: answer.error_code,
            one,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        ),
        deadline,
    )
    if answer.error_code == 50:
        raise ConfigError(
            f"write.transaction_timeout_ms: {transaction_timeout_ms} is above transaction.max.timeout.ms of the target's brokers"
        )
    _raise_for(answer.error_code, "InitProducerId", f"InitProducerId of {transactional_id}", key=transactional_id)
    return SlotTxn(transactional_id, answer.producer_id, answer.producer_epoch)


def new_producer_id(cluster: Cluster, deadline: Deadline) -> ProducerIdentity:
    """A producer id that nobody had before, epoch 0, without a transactional id: any broker gives one.

    Repeated until an answer comes, which costs nothing but unused ids. Raises ConfigError, RetriableError.
    """

    def attempt(one: Deadline) -> ProducerIdentity:
        answer = call(
            cluster.any_broker(one),
            "InitProducerId",
            one,
            transactional_id=None,
            transaction_timeout_ms=_NO_TXN_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        _raise_for(answer.error_code, "InitProducerId", "InitProducerId without a transactional id")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    return cluster.retrying("asking for a producer id", attempt, deadline)


def add_partitions(cluster: Cluster, txn: SlotTxn, places: Sequence[TopicPartition], deadline: Deadline) -> None:
    """Before the first Produce to a partition in each transaction. All or nothing."""
    topic = request_class("AddPartitionsToTxn").AddPartitionsToTxnTopic
    by_topic: dict[str, list[int]] = {}
    for place in places:
        by_topic.setdefault(place.topic, []).append(place.partition)
    answer = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        txn.transactional_id,
        "AddPartitionsToTxn",
        _worst_of_partitions,
        deadline,
        v3_and_below_transactional_id=txn.transactional_id,
        v3_and_below_producer_id=txn.producer_id,
        v3_and_below_producer_epoch=txn.producer_epoch,
        v3_and_below_topics=[topic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
    )
    worst = _worst_of_partitions(answer)
    if worst:
        topics, what = _topics_that_answered(worst, answer), f"AddPartitionsToTxn of {txn}"
        if worst == TOPIC_AUTHORIZATION_FAILED:
            forbidden = refusal(worst, "AddPartitionsToTxn", topic=", ".join(topics))
            raise TopicAccessError(f"{what}: the target answered {forbidden}", topics)
        _raise_for(worst, "AddPartitionsToTxn", f"{what}: {', '.join(topics)}", key=txn.transactional_id)


def _topics_that_answered(code: int, answer: Any) -> list[str]:
    return sorted(
        topic.name
        for topic in answer.results_by_topic_v3_and_below
        if any(one.partition_error_code == code for one in topic.results_by_partition)
    )


def add_offsets(cluster: Cluster, txn: SlotTxn, deadline: Deadline) -> None:
    """Makes the receipt's group part of the transaction."""
    answer = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        txn.transactional_id,
        "AddOffsetsToTxn",
        lambda answer: answer.error_code,
        deadline,
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        group_id=txn.transactional_id,
    )
    _raise_for(answer.error_code, "AddOffsetsToTxn", f"AddOffsetsToTxn of {txn}", key=txn.transactional_id)


def write_receipt(
    cluster: Cluster, txn: SlotTxn, place: TopicPartition, *, decision: int, map_id: str, run_id: str, deadline: Deadline
) -> None:
    """A group offset that exists only if the transaction commits. Group: the transactional id; offset: the decision."""
    add_offsets(cluster, txn, deadline)
    topic = request_class("TxnOffsetCommit").TxnOffsetCommitRequestTopic
    metadata = {
        "v": RECEIPT_VERSION,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "decision": decision,
        "map": map_id,
        "run": run_id,
    }
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=place.partition,
        committed_offset=decision,
        committed_leader_epoch=-1,
        committed_metadata=json.dumps(metadata, separators=(",", ":")),
    )
    answer = ask_coordinator(
        cluster,
        CoordinatorKind.GROUP,
        txn.transactional_id,
        "TxnOffsetCommit",
        lambda answer: answer.topics[0].partitions[0].error_code,
        deadline,
        transactional_id=txn.transactional_id,
        group_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic(name=place.topic, partitions=[partition])],
    )
    code = answer.topics[0].partitions[0].error_code
    _raise_for(code, "TxnOffsetCommit", f"receipt of {txn} on {place}", topic=place.topic, key=txn.transactional_id)


def read_receipt(
    cluster: Cluster, transactional_id: str, place: TopicPartition, deadline: Deadline
) -> Receipt | PendingReceipt | None:
    """None: no receipt there (never written, or expired). Always asks for the stable offset and names the partition."""
    topic = request_class("OffsetFetch").OffsetFetchRequestTopic
    asked = [topic(name=place.topic, partition_indexes=[place.partition])]
    found = _fetch_offsets(cluster, transactional_id, asked, deadline, require_stable=True)[0].partitions[0]
    if found.error_code == _UNSTABLE_OFFSET_COMMIT:
        return PendingReceipt.PENDING
    what = f"reading the receipt of {transactional_id} on {place}"
    _raise_for(found.error_code, "OffsetFetch", what, topic=place.topic, key=transactional_id)
    if found.committed_offset < 0:
        return None
    return _parse_receipt(found.metadata or "", transactional_id)


def read_receipts(cluster: Cluster, transactional_id: str, deadline: Deadline) -> list[Receipt]:
    """Every committed receipt of the group; what is pending at the moment is left out."""
    topics = _fetch_offsets(cluster, transactional_id, None, deadline, require_stable=False)
    return [_parse_receipt(one.metadata or "", transactional_id) for topic in topics for one in topic.partitions]


def _fetch_offsets(
    cluster: Cluster, group: str, topics: list[Any] | None, deadline: Deadline, *, require_stable: bool
) -> list[Any]:
    """`topics`: None for all that the group has."""
    answer = ask_coordinator(
        cluster,
        CoordinatorKind.GROUP,
        group,
        "OffsetFetch",
        lambda answer: answer.error_code,
        deadline,
        group_id=group,
        topics=topics,
        require_stable=require_stable,
    )
    _raise_for(answer.error_code, "OffsetFetch", f"reading the receipt of {group}", key=group)
    found: list[Any] = answer.topics
    return found


def _parse_receipt(metadata: str, transactional_id: str) -> Receipt:
    try:
        fields = json.loads(metadata)
        if fields["v"] != RECEIPT_VERSION:
            raise ValueError(f"version {fields['v']}")
        return Receipt(
            producer_id=int(fields["producer_id"]),
            producer_epoch=int(fields["producer_epoch"]),
            decision=int(fields["decision"]),
            map_id=str(fields["map"]),
            run_id=str(fields["run"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"consumer group {transactional_id} on the target holds an offset that is not a receipt of this mirror ({error}): "
            "another application uses this group id; give the mirror another name"
        ) from error


def is_receipt(metadata: str) -> bool:
    """Whether an offset was committed by a mirror, for itself: it is nobody's position."""
    try:
        _parse_receipt(metadata, "")
    except ConfigError:
        return False
    return True


def end_txn(cluster: Cluster, txn: SlotTxn, commit: bool, deadline: Deadline) -> EndTxnAnswer:
    """Raises OutcomeUnknownError where no definite answer came before the deadline: the transaction may have ended."""
    try:
        answer = _ask_unless_blocked(
            cluster,
            txn.transactional_id,
            lambda one: ask_coordinator(
                cluster,
                CoordinatorKind.TXN,
                txn.transactional_id,
                "EndTxn",
                lambda answer: answer.error_code,
                one,
                transactional_id=txn.transactional_id,
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                committed=commit,
            ),
            deadline,
        )
    except RetriableError as error:
        if isinstance(error, TransactionBlockedError) and commit and _is_committing(error, txn):
            return EndTxnAnswer.COMMITTING
        raise OutcomeUnknownError(f"EndTxn of {txn}: {error}") from error
    if answer.error_code in _AMBIGUOUS:
        return EndTxnAnswer.AMBIGUOUS
    _raise_for(answer.error_code, "EndTxn", f"EndTxn of {txn}", key=txn.transactional_id)
    return EndTxnAnswer.ENDED


def describe_txn(cluster: Cluster, transactional_id: str, deadline: Deadline) -> CoordinatorState | None:
    """None when the coordinator does not know the id (any more). Raises BrokerTooOldError in front of Kafka 3.0."""

    def code_of(answer: Any) -> int:
        return int(answer.transaction_states[0].error_code)

    answer = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        transactional_id,
        "DescribeTransactions",
        code_of,
        deadline,
        transactional_ids=[transactional_id],
    )
    if code_of(answer) == _TRANSACTIONAL_ID_NOT_FOUND:
        return None
    _raise_for(code_of(answer), "DescribeTransactions", f"DescribeTransactions of {transactional_id}", key=transactional_id)
    found = answer.transaction_states[0]
    return CoordinatorState(found.transaction_state, found.producer_id, found.producer_epoch)


def _is_committing(blocked: TransactionBlockedError, txn: SlotTxn) -> bool:
    ours = (txn.producer_id, txn.producer_epoch)
    return blocked.state == "PrepareCommit" and (blocked.producer_id, blocked.producer_epoch) == ours


def blocked_txn(cluster: Cluster, transactional_id: str, deadline: Deadline) -> TransactionBlockedError | None:
    """Say what keeps a transactional id from being used: an ended transaction whose markers are not written everywhere.

    None where there is no such transaction, and where brokers cannot tell (Kafka before 3.0). Raises RetriableError.
    """
    try:
        found = describe_txn(cluster, transactional_id, deadline)
    except BrokerTooOldError:
        return None
    if found is None or found.state not in _ENDING:
        return None
    return TransactionBlockedError(transactional_id, found.state, found.producer_id, found.producer_epoch)


def _ask_unless_blocked(cluster: Cluster, transactional_id: str, ask: Callable[[Deadline], Any], deadline: Deadline) -> Any:
    """Repeat `ask` until it answers or the deadline is over. Raises TransactionBlockedError, RetriableError.

    CONCURRENT_TRANSACTIONS passes in milliseconds as a rule. It lasts where a partition does not take its marker, which may
    take until a broker is repaired.
    """
    while True:
        try:
            return ask(deadline.sooner(MARKER_PATIENCE_MS))
        except RetriableError as error:
            is_ending = error.error_name == error_name(_CONCURRENT_TRANSACTIONS)
            blocked = blocked_txn(cluster, transactional_id, deadline) if is_ending else None
            if blocked is not None:
                raise blocked from error
            if type(error) is not RetriableError or deadline.is_over():
                raise


def ask_coordinator(
    cluster: Cluster,
    kind: CoordinatorKind,
    key: str,
    api: str,
    code_of: Callable[[Any], int],
    deadline: Deadline,
    **fields: Any,
) -> Any:
    """Ask the coordinator until its answer is not retriable. The code is the caller's to judge."""
    tries = 0
    while True:
        try:
            one = deadline.sooner(cluster.config.request_timeout_ms)
            answer = call(cluster.coordinator(kind, key, one), api, one, **fields)
            code = code_of(answer)
            if code in _LOOK_FOR_COORDINATOR:
                cluster.forget_coordinator(kind, key)
            if code == 0 or error_class(code) not in (ErrorClass.RETRIABLE, ErrorClass.UNKNOWN):
                return answer
            reason = RetriableError(error_name(code), f"{api} of {key}")
        except RetriableError as error:
            cluster.forget_coordinator(kind, key)
            reason = error
        cluster.pause(tries, deadline)
        tries += 1
        if deadline.is_over():
            raise RetriableError(reason.error_name, f"gave up {api} of {key}: {reason.detail}") from reason


def _worst_of_partitions(answer: Any) -> int:
    """55 says that another partition of the request failed: that one's code is the reason, but 55 alone is no success."""
    codes = {one.partition_error_code for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition}
    return max(codes - {0, _NOT_ATTEMPTED}, key=abs, default=max(codes, default=0))


def _raise_for(code: int, api: str, what: str, *, topic: str = "", key: str = "") -> None:
    if code == 0:
        return
    if error_class(code) is ErrorClass.FENCED:
        raise ProducerEpochFencedError(error_name(code), what)
    if error_class(code) is ErrorClass.DEFINITE:
        raise ConfigError(f"{what}: the target answered {refusal(code, api, topic=topic, key=key)}")
    raise RetriableError(error_name(code), what)

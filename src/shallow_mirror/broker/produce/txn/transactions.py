"""Everywhere: transactions of one transactional id, begun and ended (the versions of the protocol before KIP-890 part 2).

Each function repeats its request until a definite answer or the deadline. Repeating is safe: all of them are idempotent
for one (transactional id, producer id, producer epoch).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_NOT_FOUND,
    error_name,
)
from shallow_mirror.broker.net.requests import call
from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest, ask_coordinator, raise_for_code
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BrokerTooOldError,
    ConfigError,
    OutcomeUnknownError,
    RetriableError,
    TransactionBlockedError,
)
from shallow_mirror.types import SlotTxn

_log = logging.getLogger(__name__)

_AMBIGUOUS = frozenset({INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED})
"""Answers to EndTxn that leave open whether it happened."""
_ENDING = frozenset({"PrepareCommit", "PrepareAbort"})

MARKER_PATIENCE_MS = 2_000
"""How long a coordinator may answer that it is still writing markers before it is asked what keeps it."""
_NO_TXN_TIMEOUT_MS = 60_000
"""The field is there also without a transactional id, and means nothing."""


class EndTxnAnswer(enum.Enum):
    ENDED = "ended"
    COMMITTING = "committed, but a partition has not accepted its marker yet"
    AMBIGUOUS = "timed out, taken over, or committed and initialised again"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer's identity in the headers of batches."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The last transaction of a transactional id as its coordinator knows it; `state` is Kafka's word (KIP-664)."""

    state: str
    producer_id: int
    producer_epoch: int


def init_producer_id(
    cluster: Cluster,
    transactional_id: str,
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    begun: BegunRequest | None = None,
) -> SlotTxn:
    """Return a fresh producer epoch. Success means that the previous transaction of this id is wholly over.

    `begun`: the request was sent already (`begin_init_producer_id`); it counts as the first try. Raises
    TransactionBlockedError if the previous transaction cannot complete, ConfigError, RetriableError.
    """
    first = [begun]
    response = _retry_unless_blocked(
        cluster,
        transactional_id,
        lambda attempt: ask_coordinator(
            cluster,
            CoordinatorKind.TXN,
            transactional_id,
            "InitProducerId",
            lambda response: response.error_code,
            attempt,
            begun=first.pop() if first else None,
            **_initialized(transactional_id, transaction_timeout_ms),
        ),
        deadline,
    )
    if response.error_code == INVALID_TRANSACTION_TIMEOUT:
        raise ConfigError(timeout_problem(transaction_timeout_ms))
    raise_for_code(response.error_code, "InitProducerId", f"InitProducerId of {transactional_id}", key=transactional_id)
    return SlotTxn(transactional_id, response.producer_id, response.producer_epoch)


def timeout_problem(transaction_timeout_ms: int) -> str:
    return (
        f"write.transaction_timeout_ms: {transaction_timeout_ms} is above transaction.max.timeout.ms of the target's brokers: "
        "lower it, or raise that"
    )


def begin_init_producer_id(
    cluster: Cluster, transactional_id: str, transaction_timeout_ms: int, deadline: Deadline
) -> BegunRequest:
    """Send the request of `init_producer_id`, for a transaction that begins later."""
    fields = _initialized(transactional_id, transaction_timeout_ms)
    return BegunRequest(cluster, CoordinatorKind.TXN, transactional_id, "InitProducerId", fields, deadline)


def finish_init_producer_id(begun: BegunRequest, deadline: Deadline) -> SlotTxn | None:
    """Return the fresh producer epoch; None if the coordinator gave none now, and `init_producer_id` finds out why."""
    try:
        response = begun.receive(deadline)
    except RetriableError as error:
        _log.debug("no producer epoch ahead for %s: %s", begun.key, error)
        return None
    if response.error_code:
        _log.debug("no producer epoch ahead for %s: %s", begun.key, error_name(response.error_code))
        return None
    return SlotTxn(begun.key, response.producer_id, response.producer_epoch)


def _initialized(transactional_id: str, transaction_timeout_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": transaction_timeout_ms,
        # Never the current id and epoch: with those, coordinators before KIP-890 fence the sender.
        "producer_id": -1,
        "producer_epoch": -1,
    }


def new_producer_id(cluster: Cluster, deadline: Deadline) -> ProducerIdentity:
    """Return a producer id that was never given before, epoch 0, without a transactional id: any broker gives one.

    Repeated until a response comes, which costs nothing but unused ids. Raises ConfigError, RetriableError.
    """

    def attempt(attempt_deadline: Deadline) -> ProducerIdentity:
        response = call(
            cluster.any_broker(attempt_deadline),
            "InitProducerId",
            attempt_deadline,
            transactional_id=None,
            transaction_timeout_ms=_NO_TXN_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        raise_for_code(response.error_code, "InitProducerId", "InitProducerId without a transactional id")
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    return cluster.retrying("asking for a producer id", attempt, deadline)


def begin_end_txn(cluster: Cluster, txn: SlotTxn, commit: bool, deadline: Deadline) -> BegunRequest:
    """Send the request that ends a transaction. `end_txn` tells the outcome."""
    return BegunRequest(cluster, CoordinatorKind.TXN, txn.transactional_id, "EndTxn", _ended(txn, commit), deadline)


def _ended(txn: SlotTxn, commit: bool) -> dict[str, Any]:
    return {
        "transactional_id": txn.transactional_id,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "committed": commit,
    }


def end_txn(cluster: Cluster, txn: SlotTxn, commit: bool, deadline: Deadline, begun: BegunRequest | None = None) -> EndTxnAnswer:
    """End the transaction. Raises OutcomeUnknownError if no definite answer came: the transaction may have ended.

    `begun`: the request was sent already (`begin_end_txn`); it counts as the first try.
    """
    first = [begun]
    try:
        response = _retry_unless_blocked(
            cluster,
            txn.transactional_id,
            lambda attempt: ask_coordinator(
                cluster,
                CoordinatorKind.TXN,
                txn.transactional_id,
                "EndTxn",
                lambda response: response.error_code,
                attempt,
                begun=first.pop() if first else None,
                **_ended(txn, commit),
            ),
            deadline,
        )
    except RetriableError as error:
        # The decision of the coordinator is durable: PrepareCommit of this very epoch can only become CompleteCommit.
        if (
            commit
            and isinstance(error, TransactionBlockedError)
            and error.state == "PrepareCommit"
            and (error.producer_id, error.producer_epoch) == (txn.producer_id, txn.producer_epoch)
        ):
            return EndTxnAnswer.COMMITTING
        raise OutcomeUnknownError(f"EndTxn of {txn}: {error}") from error
    if response.error_code in _AMBIGUOUS:
        return EndTxnAnswer.AMBIGUOUS
    raise_for_code(response.error_code, "EndTxn", f"EndTxn of {txn}", key=txn.transactional_id)
    return EndTxnAnswer.ENDED


def begin_describe_txn(cluster: Cluster, transactional_id: str, deadline: Deadline) -> BegunRequest:
    """Send the request of `describe_txn`, which raises the failure, if any."""
    fields = {"transactional_ids": [transactional_id]}
    return BegunRequest(cluster, CoordinatorKind.TXN, transactional_id, "DescribeTransactions", fields, deadline)


def describe_txn(
    cluster: Cluster, transactional_id: str, deadline: Deadline, *, begun: BegunRequest | None = None
) -> CoordinatorState | None:
    """Return None when the coordinator has no such id (any more). Raises BrokerTooOldError before Kafka 3.0.

    `begun`: the request was sent already.
    """

    def code_of(response: Any) -> int:
        return int(response.transaction_states[0].error_code)

    response = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        transactional_id,
        "DescribeTransactions",
        code_of,
        deadline,
        begun=begun,
        transactional_ids=[transactional_id],
    )
    if code_of(response) == TRANSACTIONAL_ID_NOT_FOUND:
        return None
    raise_for_code(code_of(response), "DescribeTransactions", f"DescribeTransactions of {transactional_id}", key=transactional_id)
    state = response.transaction_states[0]
    return CoordinatorState(state.transaction_state, state.producer_id, state.producer_epoch)


def blocked_txn(cluster: Cluster, transactional_id: str, deadline: Deadline) -> TransactionBlockedError | None:
    """Return what blocks a transactional id: an ended transaction whose markers are not written everywhere.

    None if there is no such transaction, and if brokers do not report it (Kafka before 3.0). Raises RetriableError.
    """
    try:
        state = describe_txn(cluster, transactional_id, deadline)
    except BrokerTooOldError:
        return None
    if state is None or state.state not in _ENDING:
        return None
    return TransactionBlockedError(transactional_id, state.state, state.producer_id, state.producer_epoch)


def _retry_unless_blocked(cluster: Cluster, transactional_id: str, ask: Callable[[Deadline], Any], deadline: Deadline) -> Any:
    """Repeat `ask` until it answers or the deadline is over. Raises TransactionBlockedError, RetriableError.

    CONCURRENT_TRANSACTIONS passes in milliseconds as a rule. It lasts if a partition does not accept its marker, which may
    take until a broker is repaired.
    """
    while True:
        try:
            return ask(deadline.sooner(MARKER_PATIENCE_MS))
        except RetriableError as error:
            is_ending = error.error_name == error_name(CONCURRENT_TRANSACTIONS)
            blocked = blocked_txn(cluster, transactional_id, deadline) if is_ending else None
            if blocked is not None:
                raise blocked from error
            if type(error) is not RetriableError or deadline.is_over():
                raise

"""Pure: the actions of the mirror and their order, for a micro-batch and for a start.

The protocol is a generator: it yields an action, a performer carries it out and sends back the answer. Nothing here
does I/O, so the order can be run against a model, and a crash test is "perform the first n actions, start again".

Invariants, cited where they are kept:
  A  Nothing is decided before every slot has answered, and EndTxn(commit) never precedes the decision.
  B  A source topic-partition belongs to one slot of a micro-batch.
  C  No transactional id is initialised between a decision that names it and the end of that transaction.
     (Where EndTxn's answer was ambiguous the transaction is already over; initialising it is what makes that sure.)
  D  Evidence is read only after InitProducerId answered 0.
  E  An odd version (settled) is written only when every transaction of the decision is definite, and the same commit
     removes the rows of transactions that were not committed.
  F  Nothing is decided behind records of the same producer id whose marker was never written, nor after records of the
     micro-batch were ended by another application.
  G  A start reads the log of every partition that an unsettled decision names: markers can be written by others
     (an operator, an abort of the same producer id), whatever the coordinator answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from shallow_mirror.checkpoints import DecidedSegment, Removal
from shallow_mirror.errors import RecoverNeededError
from shallow_mirror.sinks.kafka.protocol.txn_outcome import (
    DecidedTxn,
    LogEvidence,
    ReceiptEvidence,
    TxnFate,
    WrittenRange,
    decided_txns,
    judge,
)
from shallow_mirror.sinks.slot_values import MicroBatchOutcome, SlotResult
from shallow_mirror.types import SlotTxn, TopicPartition


@dataclass(frozen=True, slots=True)
class TakeDecision:
    """Step 2: check ownership, take the next version. Answer: the version."""


@dataclass(frozen=True, slots=True)
class RunSlots:
    """Steps 3 to 5 of docs/design/exactly-once.md. Answer: a `SlotResult` per slot."""

    decision: int


@dataclass(frozen=True, slots=True)
class RefuseHangingTxns:
    """Raise RetriableError if records of an older transaction are open under a producer id, in front of its newest ones.

    Its EndTxn(commit) would make them visible as well. Nothing can come in front of it later: one check is enough.
    Raises RetriableError as well if the transaction that wrote now is no longer open: it timed out or an operator aborted it.
    """

    decided: tuple[DecidedTxn, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """Step 6: one fenced Delta commit. No answer; an unknown outcome raises."""

    decision: int
    rows: tuple[DecidedSegment, ...]


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Step 7. Answer: True when the commit is durable, False when the coordinator's answer is ambiguous.

    `together`: all transactions that are ended one after the other; their requests may be in flight at the same time.
    `written`: their partitions, whose last stable offsets may be asked for meanwhile.
    """

    txn: SlotTxn
    together: tuple[SlotTxn, ...] = ()
    written: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitVisible:
    """Settle: until the LSO has passed the batches of the transaction, repairing markers that never came. Answer: `Visibility`.

    `together`: all transactions that were ended before and are awaited one after the other: one request may ask about them.
    """

    decided: DecidedTxn
    together: tuple[DecidedTxn, ...] = ()


@dataclass(frozen=True, slots=True)
class Visibility:
    """`lost`: ranges that the target has lost (truncated, topic deleted), which no reader will see; normally none.

    `was_repaired`: markers were missing and have been written by an empty transaction, which may itself have been aborted.
    `pending`: ranges of partitions without a leader, or with too few in-sync replicas to accept the marker.
    """

    lost: tuple[WrittenRange, ...] = ()
    was_repaired: bool = False
    pending: tuple[WrittenRange, ...] = ()


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Fence a transactional id and end its open transaction.

    Answer: False if its last transaction cannot complete (its outcome is decided, and a partition does not accept the marker):
    the id is fenced all the same, and is not used until it can be initialised.
    `together`: all ids that are initialised one after the other; their requests may be in flight at the same time.
    """

    transactional_id: str
    together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortHangingTxns:
    """Make sure that nothing of these ids is open any more in these partitions; None: in all that have records in the map.

    Only after InitProducerId for each of them. Partitions that cannot be read now are recorded: nothing is written to them before
    they have been checked. No answer.
    """

    transactional_ids: tuple[str, ...]
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """Answer: a `ReceiptEvidence`."""

    decided: DecidedTxn


@dataclass(frozen=True, slots=True)
class ReadTargetLog:
    """Answer: a sequence of `LogEvidence`, one per partition asked."""

    decided: DecidedTxn


@dataclass(frozen=True, slots=True)
class Settle:
    """The odd version: all rows before it are final, except those of `removals`, which the same commit removes. No answer.

    `pending` are committed transactions of which a partition does not accept the marker: they are checked again, also
    by the next start. `confirmed` are those that need no further look.
    """

    removals: tuple[Removal, ...] = ()
    pending: tuple[SlotTxn, ...] = ()
    confirmed: tuple[SlotTxn, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckOwnership:
    """Continue only as the owner of the map. No answer."""


@dataclass(frozen=True, slots=True)
class ReportFate:
    """Log the fate of a transaction that had to be resolved. No answer."""

    txn: SlotTxn
    fate: TxnFate


_Outcome = TypeVar("_Outcome")

Action = (
    TakeDecision
    | RunSlots
    | RefuseHangingTxns
    | Decide
    | EndTxn
    | AwaitVisible
    | InitProducerId
    | AbortHangingTxns
    | ReadReceipt
    | ReadTargetLog
    | Settle
    | CheckOwnership
    | ReportFate
)


Choices = Mapping[SlotTxn, TxnFate]
"""The operator's choices for transactions of whose fate no evidence is left: COMMITTED or NOT_COMMITTED."""

NO_CHOICES: Choices = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unclear:
    """A decided transaction that needs the operator: no evidence at all, or committed and then `lost` by the target."""

    decided: DecidedTxn
    lost: tuple[WrittenRange, ...]

    def __str__(self) -> str:
        if self.lost:
            ranges = ", ".join(str(written) for written in self.lost)
            lost = f"the Kafka transaction {self.decided.txn} was committed, but the target has lost its records at {ranges}"
            kept = ", ".join(str(written) for written in self.decided.kept(self.lost))
            # A choice is taken for the transaction: its rows are removed as a whole.
            return f"{lost}; `recover --redo` writes a second time what it still has at {kept}" if kept else lost
        ranges = ", ".join(str(written) for written in self.decided.written)
        return (
            f"there is no evidence whether the Kafka transaction {self.decided.txn} was committed: its receipt is gone and the "
            f"target holds none of its records at {ranges}"
        )


def run_micro_batch(first_rows: Sequence[DecidedSegment]) -> Generator[Action, Any, MicroBatchOutcome]:
    """Yield steps 2-7. `first_rows` are rows without a transaction, which the same decision adds."""
    decision: int = yield TakeDecision()
    results: tuple[SlotResult, ...] = yield RunSlots(decision)
    rows = tuple(first_rows) + tuple(row for result in results for row in result.rows_of_map())
    if not rows:
        return MicroBatchOutcome(slots=results)
    decided = decided_txns(rows)
    yield RefuseHangingTxns(decided)  # invariant F
    yield Decide(decision, rows)  # invariant A
    ended = yield from end_all(decided)
    if ended.removals or ended.pending:
        yield ended.settle  # invariant E
    return MicroBatchOutcome(rows, ended.removed, results)


def start_up(
    unsettled: Sequence[DecidedSegment], transactional_ids: Sequence[str], choices: Choices = NO_CHOICES
) -> Generator[Action, Any, tuple[SlotTxn, ...]]:
    """After the take-over: resolve the last decision, fence every slot, settle. Returns the removed transactions.

    Slots that the decision does not name are fenced first: their open transactions would hide decided records.
    """
    decided = decided_txns(unsettled)
    named = {txn.txn.transactional_id for txn in decided}
    unnamed = tuple(transactional_id for transactional_id in transactional_ids if transactional_id not in named)
    for transactional_id in unnamed:
        yield InitProducerId(transactional_id, unnamed)
    if decided:
        yield AbortHangingTxns(unnamed, tuple(sorted({written.topic_partition for txn in decided for written in txn.written})))
    ended = yield from end_all(decided, choices, reads_log=True)
    yield ended.settle  # invariant E
    resolved = tuple(transactional_id for transactional_id in transactional_ids if transactional_id in named)
    for transactional_id in resolved:  # invariant C: after resolution
        yield InitProducerId(transactional_id, resolved)
    yield AbortHangingTxns(tuple(transactional_ids))  # invariant F
    return ended.removed


def confirm_pending(rows: Sequence[DecidedSegment]) -> Generator[Action, Any, tuple[SlotTxn, ...]]:
    """Judge committed transactions whose markers a partition did not take. Returns those of which rows were removed."""
    ended = yield from end_all(decided_txns(rows), reads_log=True)
    yield ended.settle
    return ended.removed


@dataclass(frozen=True, slots=True)
class Ended:
    """Fates of the transactions of a decision; the rows of `removals` are still to be removed."""

    removals: tuple[Removal, ...] = ()
    pending: tuple[SlotTxn, ...] = ()
    confirmed: tuple[SlotTxn, ...] = ()

    @property
    def removed(self) -> tuple[SlotTxn, ...]:
        return tuple(dict.fromkeys(removal.txn for removal in self.removals))

    @property
    def settle(self) -> Settle:
        return Settle(self.removals, self.pending, self.confirmed)


def end_all(
    decided: Sequence[DecidedTxn], choices: Choices = NO_CHOICES, *, reads_log: bool = False
) -> Generator[Action, Any, Ended]:
    """Commit every transaction, then make sure of each. The caller settles with the result.

    `choices` count only for transactions that need one. `reads_log`: whatever EndTxn answered (invariant G).
    Raises RecoverNeededError when a transaction needs a choice and has none.
    """
    together, txns = tuple(decided), tuple(decided_txn.txn for decided_txn in decided)
    partitions = tuple(sorted({written.topic_partition for decided_txn in decided for written in decided_txn.written}))
    ended: list[tuple[DecidedTxn, bool]] = []
    # All of them before anything is awaited: readers of one target partition do not wait for the markers of another.
    for txn in decided:
        ended.append((txn, (yield EndTxn(txn.txn, txns, partitions))))
    removals: list[Removal] = []
    pending: list[SlotTxn] = []
    unclear: list[Unclear] = []
    for txn, is_definite in ended:
        fate, visibility, aborted = yield from _fate_of(txn, is_definite, together, reads_log=reads_log)
        if fate is TxnFate.UNDECIDABLE or visibility.lost:
            chosen = choices.get(txn.txn)
            if chosen is None:
                unclear.append(Unclear(txn, visibility.lost))
                continue
            fate = yield from _follow(txn, fate, chosen)
        if reads_log or not is_definite:
            yield ReportFate(txn.txn, fate)
        if visibility.pending:
            pending.append(txn.txn)
        if fate is TxnFate.NOT_COMMITTED:
            # What a forgotten abort left open would become visible with the next commit marker of the same producer id.
            yield AbortHangingTxns((txn.txn.transactional_id,), tuple(written.topic_partition for written in txn.written))
            removals.append(Removal(txn.txn))
        else:
            removals += [Removal(txn.txn, written.target) for written in aborted]
    if unclear:
        yield CheckOwnership()  # where another run took over, the operator has nothing to choose
        # Nothing is removed yet, not even what is definite: the next start finds the whole decision and the same evidence.
        raise RecoverNeededError("; ".join(str(txn) for txn in unclear))
    confirmed = tuple(txn.txn for txn in decided if txn.txn not in pending)
    return Ended(tuple(removals), tuple(pending), confirmed)


def _fate_of(
    decided: DecidedTxn, is_definite: bool, together: tuple[DecidedTxn, ...], *, reads_log: bool
) -> Generator[Action, Any, tuple[TxnFate, Visibility, tuple[WrittenRange, ...]]]:
    """Return the fate of a transaction, its visibility, and its ranges that ended as aborted although it was committed.

    A coordinator forgot its markers there, and the empty commit that was to write them again was aborted (it timed out, or its
    sender was killed); or an operator aborted the transaction in one partition. No reader has seen these records.
    """
    fate = TxnFate.COMMITTED if is_definite else (yield from _resolve(decided))
    if fate is not TxnFate.COMMITTED:
        return fate, Visibility(), ()
    visibility: Visibility = yield AwaitVisible(decided, together)
    readable = tuple(written for written in decided.written if written not in (*visibility.lost, *visibility.pending))
    if not readable or (is_definite and not visibility.was_repaired and not reads_log):
        return fate, visibility, ()
    yield InitProducerId(decided.txn.transactional_id)  # invariant D
    evidence: Sequence[LogEvidence] = yield ReadTargetLog(DecidedTxn(decided.txn, readable))
    aborted = tuple(written for written, ended_as in zip(readable, evidence, strict=True) if ended_as is LogEvidence.OURS_ABORTED)
    # Only the log of all partitions can say that nothing was committed: what is pending is judged when it can be read.
    return (TxnFate.NOT_COMMITTED, visibility, ()) if aborted == decided.written else (fate, visibility, aborted)


def _follow(decided: DecidedTxn, fate: TxnFate, chosen: TxnFate) -> Generator[Action, Any, TxnFate]:
    """Return the operator's choice for a transaction that is over, and end its open partitions the same way."""
    yield InitProducerId(decided.txn.transactional_id)
    if chosen is TxnFate.COMMITTED and fate is TxnFate.UNDECIDABLE:
        yield AwaitVisible(decided)
    return chosen


def _resolve(decided: DecidedTxn) -> Generator[Action, Any, TxnFate]:
    yield InitProducerId(decided.txn.transactional_id)  # invariant D
    receipt: ReceiptEvidence = yield ReadReceipt(decided)
    if receipt is ReceiptEvidence.OURS:
        return TxnFate.COMMITTED  # which partitions were aborted all the same is read after the markers are complete
    evidence: Sequence[LogEvidence] = yield ReadTargetLog(decided)
    return judge(receipt, evidence)


def drive(
    steps: Generator[Action, Any, _Outcome],
    perform: Callable[[Action], Any],
    observer: Callable[[str], None] = lambda _name: None,
) -> _Outcome:
    """Run a protocol to its end. The observer hears the name of each action when it has been performed."""
    answer: Any = None
    while True:
        try:
            action = steps.send(answer)
        except StopIteration as end:
            outcome: _Outcome = end.value
            return outcome
        answer = perform(action)
        observer(type(action).__name__)

"""Pure: evidence about one decided Kafka transaction -> committed, not committed, undecidable.

Evidence is asked for in a fixed order, and only after InitProducerId answered 0 for the transactional id: then the
transaction is over, one way or the other, and its log cannot change any more.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.plurals import listed
from shallow_mirror.types import SlotTxn, TargetPartition, TopicPartition


class TxnFate(enum.Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNDECIDABLE = "undecidable"


class ReceiptEvidence(enum.Enum):
    """Evidence of the receipt of the slot.

    An absent receipt is no evidence: it may have expired. Nor is one that stays pending: its marker was forgotten.
    """

    OURS = "ours"
    ANOTHERS = "another's"
    ABSENT = "absent"
    PENDING = "pending"


class LogEvidence(enum.Enum):
    """Evidence of one target partition's log at the first recorded offset that is left. Anything else there is no evidence."""

    OURS = "ours"
    OURS_ABORTED = "ours, aborted"
    OPEN = "ours, and its marker was never written"
    NOTHING = "nothing"
    GONE = "the topic is gone"


@dataclass(frozen=True, slots=True, order=True)
class WrittenRange:
    """Target offsets [start, end) that one transaction wrote to one target topic-partition."""

    target: TargetPartition
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return self.target.topic_partition

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class DecidedTxn:
    """A transaction that the offset map names, with the places of its data and its receipt."""

    txn: SlotTxn
    written: tuple[WrittenRange, ...]

    @property
    def receipt_partition(self) -> TopicPartition:
        """The lowest target topic-partition of the slot's data rows."""
        return self.written[0].topic_partition

    def kept(self, lost: Collection[WrittenRange]) -> tuple[WrittenRange, ...]:
        """Return the ranges that are not among the `lost` ones."""
        return tuple(written for written in self.written if written not in lost)


def decided_txns(rows: Iterable[DecidedSegment]) -> tuple[DecidedTxn, ...]:
    """Return the transactions of a decision, ordered. Rows without a transaction are final and need nothing."""
    spans: dict[SlotTxn, dict[TargetPartition, tuple[int, int]]] = {}
    for row in rows:
        if row.txn is None:
            continue
        written = spans.setdefault(row.txn, {})
        segment = row.segment
        if segment.target_start is None or segment.target_end is None:
            continue
        start, end = written.get(segment.target, (segment.target_start, segment.target_end))
        written[segment.target] = (min(start, segment.target_start), max(end, segment.target_end))
    return tuple(
        DecidedTxn(txn, tuple(WrittenRange(target, start, end) for target, (start, end) in sorted(written.items())))
        for txn, written in sorted(spans.items())
    )


def pending_sentences(rows: Iterable[DecidedSegment]) -> tuple[str, ...]:
    """Return a sentence for each transaction of `rows`, which are committed and not visible everywhere yet."""
    return tuple(
        f"{listed(str(written.topic_partition) for written in decided.written)} (records of {decided.txn} are committed, and are "
        "visible once each of these partitions has accepted its marker, and no other producer has a transaction open in front "
        "of them)"
        for decided in decided_txns(rows)
    )


def judge(receipt: ReceiptEvidence, log: Sequence[LogEvidence]) -> TxnFate:
    """Return the fate of a transaction that is over, by its receipt and by the log of each partition that it wrote.

    One commit marker proves the commit: markers are only asked for after the decision, and whoever is missing one gets it
    written again or has its rows removed. A receipt that is not ours proves less: its own marker can have been forgotten and
    then been written as an abort, so it counts only if no partition was committed. If no marker was written, no reader has
    seen any of it: aborting it now is as good as having aborted it then. Batches in a topic that is gone cannot be read any
    more, and need no choice.
    """
    if receipt is ReceiptEvidence.OURS or LogEvidence.OURS in log:
        return TxnFate.COMMITTED
    if receipt is ReceiptEvidence.ANOTHERS:
        return TxnFate.NOT_COMMITTED
    is_known_everywhere = bool(log) and LogEvidence.NOTHING not in log
    return TxnFate.NOT_COMMITTED if is_known_everywhere else TxnFate.UNDECIDABLE

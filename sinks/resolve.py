"""Pure: evidence about one decided Kafka transaction -> committed, not committed, undecidable.

Evidence is asked for in a fixed order, and only after InitProducerId answered 0 for the transactional id: then the
transaction is over, one way or the other, and what is read cannot change any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.types import SlotTxn, TargetPartition, TopicPartition


class TxnFate(enum.Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNDECIDABLE = "undecidable"


class ReceiptEvidence(enum.Enum):
    """What the receipt of the slot says. An absent receipt is no evidence: it may have expired. Nor is one that stays
    pending: its marker was forgotten."""

    OURS = "ours"
    ANOTHERS = "another's"
    ABSENT = "absent"
    PENDING = "pending"


class LogEvidence(enum.Enum):
    """What one target partition's log says at the first recorded offset. Anything else there is no evidence."""

    OURS = "ours"
    OURS_ABORTED = "ours, aborted"
    OPEN = "ours, and its marker was never written"
    NOTHING = "nothing"


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
    """A transaction that the offset map names, with where its data and its receipt are."""

    txn: SlotTxn
    written: tuple[WrittenRange, ...]

    @property
    def receipt_partition(self) -> TopicPartition:
        """The lowest target topic-partition of the slot's data rows."""
        return self.written[0].topic_partition


def decided_txns(rows: Iterable[DecidedSegment]) -> tuple[DecidedTxn, ...]:
    """The transactions of a decision, ordered. Rows without a transaction are final and need nothing."""
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


def judge_receipt(receipt: ReceiptEvidence) -> TxnFate:
    return {
        ReceiptEvidence.OURS: TxnFate.COMMITTED,
        ReceiptEvidence.ANOTHERS: TxnFate.NOT_COMMITTED,
        ReceiptEvidence.ABSENT: TxnFate.UNDECIDABLE,
        ReceiptEvidence.PENDING: TxnFate.UNDECIDABLE,
    }[receipt]


def judge_log(evidence: Sequence[LogEvidence]) -> TxnFate:
    """A transaction commits or aborts in all its partitions alike: the first partition that says something decides.

    Where markers were written nowhere, nobody has seen any of it: aborting it now is as good as having aborted it then.
    """
    for one in evidence:
        if one is LogEvidence.OURS:
            return TxnFate.COMMITTED
        if one is LogEvidence.OURS_ABORTED:
            return TxnFate.NOT_COMMITTED
    is_open_everywhere = bool(evidence) and all(one is LogEvidence.OPEN for one in evidence)
    return TxnFate.NOT_COMMITTED if is_open_everywhere else TxnFate.UNDECIDABLE

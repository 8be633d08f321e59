"""Driver, for the cli: what is known of the transactions of the last decision, and the operator's choice for those that need one.

Looking changes nothing. A choice takes the mirror over, as a start does, and counts only where evidence still says nothing.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import reach
from shallow_mirror.broker.produce.transactions import CoordinatorState, describe_txn
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError
from shallow_mirror.operations.operator_session import taken_over
from shallow_mirror.sinks.kafka.protocol.recovery import recover
from shallow_mirror.sinks.kafka.protocol.txn_inspection import inspect_logs, inspect_receipt, lost_ranges
from shallow_mirror.sinks.kafka.protocol.txn_outcome import (
    DecidedTxn,
    LogEvidence,
    ReceiptEvidence,
    TxnFate,
    WrittenRange,
    decided_txns,
    judge,
)
from shallow_mirror.types import SourcePartition

LOOK_MS = 20_000
CHOICE_MS = 120_000

_WILL_BE_COMMITTED = frozenset({"Ongoing", "PrepareCommit", "CompleteCommit"})
_ENDED = frozenset({LogEvidence.OURS, LogEvidence.OURS_ABORTED})
_PAUSE_S = 0.1


class Untold(enum.Enum):
    BEFORE_KAFKA_3 = "not known (Kafka before 3.0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """What is known of one transaction. `log` has one entry for each of `decided.written`; `copied` are source ranges.

    `coordinator` is None where it does not know the transactional id (any more).
    """

    decided: DecidedTxn
    copied: Mapping[SourcePartition, tuple[int, int]]
    record_count: int
    coordinator: CoordinatorState | Untold | None
    receipt: ReceiptEvidence
    log: tuple[LogEvidence, ...]
    lost: tuple[WrittenRange, ...]

    @property
    def slot(self) -> int:
        return int(self.decided.txn.transactional_id.rpartition("-")[2])

    @property
    def fate(self) -> TxnFate | None:
        """What the next start will find. An open transaction of ours it commits. None: whether it still can, nobody tells."""
        ours = (self.decided.txn.producer_id, self.decided.txn.producer_epoch)
        if self.coordinator in [CoordinatorState(state, *ours) for state in _WILL_BE_COMMITTED]:
            return TxnFate.COMMITTED
        is_open = LogEvidence.OPEN in self.log and not _ENDED & set(self.log)
        has_receipt = self.receipt in (ReceiptEvidence.OURS, ReceiptEvidence.ANOTHERS)
        if is_open and not has_receipt and isinstance(self.coordinator, Untold):
            return None
        return judge(self.receipt, self.log)

    @property
    def needs_choice(self) -> bool:
        return self.fate is TxnFate.UNDECIDABLE or (self.fate is TxnFate.COMMITTED and bool(self.lost))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        txn, fate = self.decided.txn, self.fate
        return {
            "slot": self.slot,
            "transactional_id": txn.transactional_id,
            "producer_id": txn.producer_id,
            "producer_epoch": txn.producer_epoch,
            "record_count": self.record_count,
            "copied": [
                {"topic": one.topic, "partition": one.partition, "source_start": start, "source_end": end}
                for one, (start, end) in self.copied.items()
            ],
            "written": [
                {
                    "target_topic": one.target.topic,
                    "target_partition": one.target.partition,
                    "target_start": one.start,
                    "target_end": one.end,
                    "log": evidence.value,
                    "is_lost": one in self.lost,
                }
                for one, evidence in zip(self.decided.written, self.log, strict=True)
            ],
            "coordinator": self._coordinator_document(),
            "receipt": self.receipt.value,
            "fate": None if fate is None else fate.value,
            "needs_choice": self.needs_choice,
        }

    def _coordinator_document(self) -> dict[str, Any] | None:
        match self.coordinator:
            case CoordinatorState(state, producer_id, producer_epoch):
                return {"state": state, "producer_id": producer_id, "producer_epoch": producer_epoch}
            case Untold() as untold:
                return {"state": untold.value, "producer_id": None, "producer_epoch": None}
            case None:
                return None


def look(config: MirrorConfig, spark: Any = None) -> tuple[SlotReport, ...]:
    """One for each transaction of the last decision, unless it is settled. Raises ConfigError, OffsetMapConflictError,
    RetriableError.

    `spark`: the session of `session_for_tables`.
    """
    offset_map = OffsetMap.open(config.table_storage, spark, mirror=config.mirror)
    rows = offset_map.unsettled_rows()
    deadline = Deadline.after_ms(LOOK_MS, time.monotonic)
    with closing(Cluster(config.target.client)) as target:
        offset_map.require_clusters(target=reach(target, config.target_cluster_name, deadline).cluster_id)
        return tuple(_report(target, one, rows, offset_map.map_id, deadline) for one in decided_txns(rows))


def _report(target: Cluster, decided: DecidedTxn, rows: Sequence[DecidedSegment], map_id: str, deadline: Deadline) -> SlotReport:
    segments = [row.segment for row in rows if row.txn == decided.txn]
    copied: dict[SourcePartition, tuple[int, int]] = {}
    for one in segments:
        start, _ = copied.get(one.source, (one.source_start, 0))
        copied[one.source] = (start, one.source_end)
    return SlotReport(
        decided=decided,
        copied=copied,
        record_count=sum(one.record_count for one in segments),
        coordinator=_ask_coordinator(target, decided, deadline),
        receipt=inspect_receipt(target, decided, map_id, deadline),
        log=inspect_logs(target, decided.txn, decided.written, deadline, lambda _: time.sleep(_PAUSE_S)),
        lost=lost_ranges(target, decided.written, deadline),
    )


def _ask_coordinator(target: Cluster, decided: DecidedTxn, deadline: Deadline) -> CoordinatorState | Untold | None:
    try:
        return describe_txn(target, decided.txn.transactional_id, deadline)
    except BrokerTooOldError:
        return Untold.BEFORE_KAFKA_3


def choose(
    config: MirrorConfig, reports: Sequence[SlotReport], fate: TxnFate, slots: Collection[int] = (), spark: Any = None
) -> None:
    """Resolve the last decision with `fate` for the slots that need a choice, only for `slots` where some are named.

    `spark`: the session of `session_for_tables`.

    Raises ConfigError (a slot that needs none), RecoverNeededError (others are left), FencedError, OutcomeUnknownError,
    RetriableError: it may be called again after each of them.
    """
    open_slots = {one.slot: one for one in reports if one.needs_choice}
    problems = [f"--slot {slot}: it needs no choice" for slot in sorted(set(slots) - open_slots.keys())]
    if problems:
        raise ConfigError([*problems, f"slots that need one: {', '.join(map(str, sorted(open_slots))) or 'none'}"])
    chosen = {one.decided.txn: fate for slot, one in open_slots.items() if not slots or slot in slots}
    deadline = Deadline.after_ms(CHOICE_MS, time.monotonic)
    with taken_over(config, "recover", deadline, spark=spark) as taken:
        recover(taken.owner, taken.performer, mirror=config.mirror, deadline=deadline, choices=chosen)
        taken.outcome = f"recover: {', '.join(txn.transactional_id for txn in chosen)} {fate.value}"

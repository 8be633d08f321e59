"""Driver, for the cli: the state of the transactions that a start resolves, and the operator's choice for those that need one.

These are the ones of the last decision, if it is not settled, and those that are pending.

Inspecting changes nothing. A choice takes over the offset map, as a start does, and is used only if evidence is still missing.
The source is not asked for anything: it may be gone.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.broker.produce.txn import CoordinatorState, describe_txn
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, OlderTablesError
from shallow_mirror.operations.operator_session import open_operator_session
from shallow_mirror.sinks.kafka import NewestControl, transactional_ids
from shallow_mirror.sinks.kafka.protocol import (
    DecidedTxn,
    LogEvidence,
    ReceiptEvidence,
    TxnFate,
    WrittenRange,
    decided_txns,
    gone_ranges,
    inspect_logs,
    inspect_receipt,
    judge,
    lost_ranges,
    readable_ends,
    require_known_receipts,
)
from shallow_mirror.types import SourcePartition

INSPECT_MS = 20_000
RESOLVE_MS = 120_000

_WILL_BE_COMMITTED = frozenset({"Ongoing", "PrepareCommit", "CompleteCommit"})
_ENDED = frozenset({LogEvidence.OURS, LogEvidence.OURS_ABORTED})
_PAUSE_S = 0.1


class UnknownState(enum.Enum):
    BEFORE_KAFKA_3 = "not known (Kafka before 3.0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """State of one transaction. `log` has one entry for each of `decided.written`; `copied` are source ranges.

    `coordinator` is None if it has no such transactional id (it expired, or never existed).
    """

    decided: DecidedTxn
    copied: Mapping[SourcePartition, tuple[int, int]]
    record_count: int
    coordinator: CoordinatorState | UnknownState | None
    receipt: ReceiptEvidence
    log: tuple[LogEvidence, ...]
    lost: tuple[WrittenRange, ...]

    @property
    def slot(self) -> int:
        return int(self.decided.txn.transactional_id.rpartition("-")[2])

    @property
    def fate(self) -> TxnFate | None:
        """Return the fate that the next start will see; it commits our open transactions. None: whether it can is unknown."""
        own_ids = (self.decided.txn.producer_id, self.decided.txn.producer_epoch)
        if self.coordinator in [CoordinatorState(state, *own_ids) for state in _WILL_BE_COMMITTED]:
            return TxnFate.COMMITTED
        is_open = LogEvidence.OPEN in self.log and not _ENDED & set(self.log)
        has_receipt = self.receipt in (ReceiptEvidence.OURS, ReceiptEvidence.ANOTHERS)
        if is_open and not has_receipt and isinstance(self.coordinator, UnknownState):
            return None
        return judge(self.receipt, self.log)

    @property
    def needs_choice(self) -> bool:
        return self.fate is TxnFate.UNDECIDABLE or (self.fate is TxnFate.COMMITTED and bool(self.lost))

    @property
    def repeated_by_redo(self) -> tuple[WrittenRange, ...]:
        """Return the ranges that the target still has whole, and that `--redo` writes a second time with the lost ones."""
        return self.decided.kept(self.lost) if self.fate is TxnFate.COMMITTED and self.lost else ()

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        txn, fate, repeated = self.decided.txn, self.fate, self.repeated_by_redo
        return {
            "slot": self.slot,
            "transactional_id": txn.transactional_id,
            "producer_id": txn.producer_id,
            "producer_epoch": txn.producer_epoch,
            "record_count": self.record_count,
            "copied": [
                {"topic": source.topic, "partition": source.partition, "source_start": start, "source_end": end}
                for source, (start, end) in self.copied.items()
            ],
            "written": [
                {
                    "target_topic": written.target.topic,
                    "target_partition": written.target.partition,
                    "target_start": written.start,
                    "target_end": written.end,
                    "log": evidence.value,
                    "is_lost": written in self.lost,
                    "is_repeated_by_redo": written in repeated,
                }
                for written, evidence in zip(self.decided.written, self.log, strict=True)
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
            case UnknownState() as unknown:
                return {"state": unknown.value, "producer_id": None, "producer_epoch": None}
            case None:
                return None


def inspect(config: MirrorConfig | RestoreConfig, spark: Any = None) -> tuple[SlotReport, ...]:
    """Return a report for each transaction of the last decision, unless it is settled, and for each pending one.

    A pending transaction with a partition whose leader does not answer is left out: it stays pending at a start.
    `spark`: the session of `session_for_tables`. Raises ConfigError, OffsetMapConflictError, RetriableError.
    """
    offset_map = OffsetMap.open(config.table_location, spark, mirror=config.mirror)
    offset_map.positions()  # a start reads them too: a table that it cannot read is not to be called one that needs no choice
    rows, pending_rows = offset_map.unsettled_rows(), offset_map.pending_rows()
    deadline = Deadline.after_ms(INSPECT_MS, time.monotonic)
    with closing(Cluster(config.target.client)) as target:
        offset_map.require_clusters(target=reach(target, config.target_cluster_name, deadline).cluster_id)
        pending = decided_txns(pending_rows)
        waiting = _without_leader(target, [written for decided in pending for written in decided.written], deadline)
        to_inspect = [*decided_txns(rows), *(decided for decided in pending if waiting.isdisjoint(decided.written))]
        rows += pending_rows
        return tuple(_report(target, decided, rows, offset_map.map_id, deadline) for decided in to_inspect)


def _without_leader(target: Cluster, written: Sequence[WrittenRange], deadline: Deadline) -> set[WrittenRange]:
    """Return the ranges whose leaders do not answer, without those of topics that are gone."""
    if not written:
        return set()
    answered = readable_ends(target, [each.topic_partition for each in written], deadline)
    silent = [each for each in written if each.topic_partition not in answered]
    return set(silent) - set(gone_ranges(target, silent, deadline))


def older_tables(
    config: MirrorConfig | RestoreConfig, spark: Any = None, *, patience_ms: float | None = None
) -> OlderTablesError | None:
    """Return the target's evidence of decisions or commands that the tables lack; None if they have all. Raises as `inspect`.

    A run may decide meanwhile: tables are older only where they are still the same after the target's evidence was read.
    `patience_ms`: for all responses of the target.
    """
    offset_map = OffsetMap.open(config.table_location, spark, mirror=config.mirror, counts_rows=False)
    deadline = Deadline.after_ms(INSPECT_MS if patience_ms is None else patience_ms, time.monotonic)
    with closing(Cluster(config.target.client)) as target:
        while (recorded := offset_map.recorded()) is not None:
            offset_map.require_clusters(target=reach(target, config.target_cluster_name, deadline).cluster_id)
            names = transactional_ids(config.mirror, recorded.highest_slot + 1)
            try:
                require_known_receipts(target, names, offset_map.map_id, recorded, offset_map.run_id_of, deadline)
                _require_newest_controls(config, offset_map.map_id, spark, None if patience_ms is None else deadline)
                return None
            except OlderTablesError as older:
                offset_map = OffsetMap.open(config.table_location, spark, mirror=config.mirror, counts_rows=False)
                if offset_map.recorded() == recorded:
                    return older
    return None


def require_newest_tables(config: MirrorConfig | RestoreConfig, spark: Any = None) -> None:
    """Raise OlderTablesError where the target knows more than the tables. Raises as `inspect`."""
    if (older := older_tables(config, spark)) is not None:
        raise older


def _require_newest_controls(config: MirrorConfig | RestoreConfig, map_id: str, spark: Any, deadline: Deadline | None) -> None:
    if isinstance(config, MirrorConfig):
        controls = Controls.open(TableStorage(config.table_location, spark))
        NewestControl(config.target.client, config.mirror, map_id).require_in(controls.read, deadline)


def accept_repeats(config: MirrorConfig | RestoreConfig, older: OlderTablesError, spark: Any = None) -> None:
    """Let a start continue from tables that are older than the target: records that they lack are copied again.

    Takes over the offset map and the guard, so that a run with the newer tables ends. Raises as `resolve`.
    """
    deadline = Deadline.after_ms(RESOLVE_MS, time.monotonic)
    with open_operator_session(
        config, "recover", deadline, spark=spark, accepted_version=older.version, reads_source=False
    ) as session:
        session.recover(deadline)
        if isinstance(config, MirrorConfig):
            rows = Controls.open(TableStorage(config.table_location, spark)).read().rows
            NewestControl(config.target.client, config.mirror, session.owner.map_id).write(rows)
        session.end.outcome = f"recover: continues from older tables, whose newest {older.what} was {older.known}"


def _report(target: Cluster, decided: DecidedTxn, rows: Sequence[DecidedSegment], map_id: str, deadline: Deadline) -> SlotReport:
    segments = [row.segment for row in rows if row.txn == decided.txn]
    copied: dict[SourcePartition, tuple[int, int]] = {}
    for segment in segments:
        start, _ = copied.get(segment.source, (segment.source_start, 0))
        copied[segment.source] = (start, segment.source_end)
    return SlotReport(
        decided=decided,
        copied=copied,
        record_count=sum(segment.record_count for segment in segments),
        coordinator=_describe_txn(target, decided, deadline),
        receipt=inspect_receipt(target, decided, map_id, deadline),
        log=inspect_logs(target, decided.txn, decided.written, deadline, lambda _: time.sleep(_PAUSE_S)),
        lost=lost_ranges(target, decided.written, deadline),
    )


def _describe_txn(target: Cluster, decided: DecidedTxn, deadline: Deadline) -> CoordinatorState | UnknownState | None:
    try:
        return describe_txn(target, decided.txn.transactional_id, deadline)
    except BrokerTooOldError:
        return UnknownState.BEFORE_KAFKA_3


def resolve(
    config: MirrorConfig | RestoreConfig,
    reports: Sequence[SlotReport],
    fate: TxnFate,
    slots: Collection[int] = (),
    spark: Any = None,
) -> None:
    """Resolve all that a start resolves, with `fate` for the slots that need a choice, only for `slots` if some are named.

    `spark`: the session of `session_for_tables`.

    Raises ConfigError (a slot that needs none), RecoverNeededError (others are left), FencedError, OutcomeUnknownError,
    RetriableError: it may be called again after each of them.
    """
    undecided = [report for report in reports if report.needs_choice]
    needing = {report.slot for report in undecided}
    problems = [f"--slot {slot}: it needs no choice" for slot in sorted(set(slots) - needing)]
    if problems:
        raise ConfigError([*problems, f"slots that need one: {', '.join(map(str, sorted(needing))) or 'none'}"])
    chosen = {report.decided.txn: fate for report in undecided if not slots or report.slot in slots}
    deadline = Deadline.after_ms(RESOLVE_MS, time.monotonic)
    with open_operator_session(config, "recover", deadline, spark=spark, reads_source=False) as session:
        session.recover(deadline, chosen)
        session.end.outcome = f"recover: {', '.join(txn.transactional_id for txn in chosen)} {fate.value}"

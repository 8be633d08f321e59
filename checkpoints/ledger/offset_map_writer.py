"""Driver: the owner of a table of decisions (`TableLayout`): take-over, decisions, removals, settling, compaction.

After each commit, and after each commit error, version and run_id are read back: nothing else says what happened.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from shallow_mirror.checkpoints.ledger.commit_metadata import (
    UNKNOWN_RUN,
    Recorded,
    RunIdentity,
    is_settled,
    read_recorded,
    run_id_of,
    taken_over_error,
)
from shallow_mirror.checkpoints.ledger.commits import ATTEMPTS, claim, compact_if_due, read_back, read_snapshot, try_commit
from shallow_mirror.checkpoints.ledger.row_count_check import CountedPieces, RowCountCheck
from shallow_mirror.checkpoints.rows.archive_schema import SegmentState
from shallow_mirror.checkpoints.rows.positions import Position
from shallow_mirror.checkpoints.rows.schema import (
    DecidedSegment,
    Removal,
    in_source_order,
    table_properties,
)
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT, TableLayout
from shallow_mirror.checkpoints.tables.storage import TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.checkpoints.tables.table_protocol import (
    Comparison,
    Condition,
    Conditions,
    TableSnapshot,
    TableWriter,
    Update,
)
from shallow_mirror.errors import OffsetMapConflictError, OutcomeUnknownError
from shallow_mirror.types import SlotTxn, SourcePartition

_log = logging.getLogger(__name__)


class LedgerOwner:
    """The only writer, until another run takes over. One thread at a time.

    It begins unresolved: `unsettled` is the decision of the last run; after `settle` decisions and positions are allowed.
    An OutcomeUnknownError makes it unresolved again: `check_ownership` finds out whether it was written, then the same way.
    """

    def __init__(
        self,
        writer: TableWriter,
        recorded: Recorded,
        map_id: str,
        now_ms: Callable[[], int],
        layout: TableLayout = OFFSET_MAP_LAYOUT,
    ) -> None:
        self.map_id = map_id
        self._layout = layout
        self._writer, self._now_ms = writer, now_ms
        self._recorded = recorded
        self._highest_version = recorded.version
        self._highest_micro_batch = recorded.micro_batch
        self._next: int | None = None
        self._is_resolved = False
        self._positions: dict[SourcePartition, Position] | None = None
        self._checked: TableSnapshot | None = None
        """What the next commit may be made on: whatever came into the log since makes it fail, or lose to a higher version."""
        self._row_count = RowCountCheck(layout.title)
        self.on_decided: Callable[[Sequence[DecidedSegment], Recorded], None] = lambda _rows, _recorded: None
        """Called after the commit of a decision. If it raises, the decision was made nevertheless."""

    @classmethod
    def take_over(
        cls,
        storage: TableStorage | Tables,
        *,
        layout: TableLayout = OFFSET_MAP_LAYOUT,
        name: str,
        source_cluster_id: str,
        target_cluster_id: str,
        run: RunIdentity,
        now_ms: Callable[[], int],
        writer: TableWriter | None = None,
        before_creation: Callable[[], None] = lambda: None,
        slots: int = 0,
        accepted_version: int = 0,
    ) -> LedgerOwner:
        """Create the table if there is none, unless `before_creation` raises, and fence every older run.

        `name`: of the mirror, archive or restore. `slots` is how many this run may use: the next one fences them also if this one
        decides nothing. `writer` takes the place of that of `storage`. `accepted_version`: of a decision that these tables do not
        have, and that the operator does without.

        Raises FencedError (another run took over at the same time and won), OutcomeUnknownError (call again with the same `run`:
        a take-over that was written is recognised), ConfigError and OffsetMapConflictError (the table is another one's).
        """
        writer = TableStorage.of(storage).decisions(layout) if writer is None else writer
        expected = table_properties(name, source_cluster_id, target_cluster_id, writer.name)
        recorded, map_id = claim(writer, layout, expected, run, slots, before_creation, accepted_version)
        return cls(writer, recorded, map_id, now_ms, layout)

    @property
    def run_epoch(self) -> int:
        return self._recorded.run_epoch

    @property
    def highest_slot(self) -> int:
        """Return the highest of all runs and decisions over the life of the map; -1 when no slot was ever used."""
        return self._recorded.highest_slot

    @property
    def micro_batch(self) -> int:
        """Return the number of the newest decision; 0 before the first."""
        return self._recorded.micro_batch

    def recorded(self) -> Recorded:
        return self._recorded

    def run_id_of(self, epoch: int) -> str | None:
        """Return the run of a run epoch; None where the log of the table does not say. Raises as `check_ownership`."""
        return run_id_of(epoch, self._snapshot().commits())

    def check_ownership(self) -> None:
        """Raise FencedError, OutcomeUnknownError (the map cannot be read; nothing was written), or OffsetMapConflictError.

        A commit of ours of unknown outcome that was written after all is taken over; it has to be resolved then.
        """
        snapshot = self._snapshot()
        newest = self._read_newest(snapshot)
        if newest.version == self._recorded.version:
            self._row_count.require(snapshot, self._recorded.row_count)
            self._checked = snapshot
            return
        if not self._recorded.version < newest.version <= self._highest_version:
            raise OffsetMapConflictError(
                f"{self._layout.title} records version {newest.version}, this run wrote {self._recorded.version} last: "
                "the table was restored or written by another application"
            )
        _log.warning("a commit of unknown outcome is in %s: version %d", self._layout.title, newest.version)
        self._adopt(newest)

    def next_decision(self) -> int:
        """Return the version that the next `decide` will carry. Everything decided so far is settled."""
        self._require_resolved()
        self._next = self._next_version(is_odd=False)
        return self._next

    def decide(self, rows: Sequence[DecidedSegment], highest_slot: int) -> None:
        """Commit once, under the version of `next_decision`. Rows begin at the positions of their partitions.

        Raises OffsetMapConflictError (nothing was written, or a restored table), FencedError (if it was written, its new owner
        resolves it), OutcomeUnknownError (it may have been written, or may still be).
        """
        if self._next is None or not rows:
            raise ValueError("a decision needs rows and a version from next_decision")
        moved = self._layout.moved_by(self.positions(), rows)
        version, self._next = self._next, None
        self._highest_micro_batch += 1
        decision = replace(
            self._recorded,
            version=version,
            highest_slot=max(self._recorded.highest_slot, highest_slot),
            micro_batch=self._highest_micro_batch,
            unsettled_micro_batch=self._highest_micro_batch,
            decided_at_ms=max(self._now_ms(), self._recorded.decided_at_ms),
            row_count=self._recorded.row_count + len(rows),
            decided_version=max(version, self._recorded.decided_version),
            decided_run_id=self._recorded.run.run_id,
        )
        table = self._layout.rows_to_arrow(rows, self.run_epoch, decision.micro_batch, decision.decided_at_ms)
        self._commit(decision, lambda snapshot: self._append(snapshot, table, decision))
        self._positions = moved
        self.on_decided(rows, decision)

    def unsettled(self) -> tuple[DecidedSegment, ...]:
        """Return the rows that a start has to resolve: of the last decision, if it was not settled, and of pending transactions.

        Raises as `check_ownership`.
        """
        micro_batch = self._recorded.unsettled_micro_batch
        conditions = [] if micro_batch is None else [(Comparison("micro_batch", "=", micro_batch),)]
        return self._rows_that_match([*conditions, *self._pending_conditions()])

    def pending_rows(self) -> tuple[DecidedSegment, ...]:
        """Return the rows of the transactions that are pending. Raises as `check_ownership`."""
        return self._rows_that_match(self._pending_conditions())

    def rows_where(self, condition: Condition) -> tuple[DecidedSegment, ...]:
        """Return the rows that match, settled or not. Raises as `check_ownership`."""
        return self._rows_that_match([condition])

    def pieces(self, columns: list[str]) -> Iterable[pa.RecordBatch]:
        """Return all rows, settled or not, piece by piece. Raises as `check_ownership`."""
        return self._own_snapshot().batches(columns=columns)

    def finished_producer_ids(self) -> dict[int, str]:
        """Return the transactional id of each producer id of the target that a row names, without those of pending transactions.

        Raises as `check_ownership`.
        """
        transactional_ids: dict[int, str] = {}
        for piece in self._own_snapshot().batches(columns=["transactional_id", "target_producer_id"]):
            rows = pa.Table.from_batches([piece]).group_by(["transactional_id", "target_producer_id"]).aggregate([])
            named = (row for row in rows.to_pylist() if row["transactional_id"] is not None)  # a slot may open no transaction
            transactional_ids.update((row["target_producer_id"], row["transactional_id"]) for row in named)
        for txn in self._recorded.pending_txns:
            transactional_ids.pop(txn.producer_id, None)  # committed: what is open under it is to become visible
        return transactional_ids

    def _pending_conditions(self) -> list[Condition]:
        return [rows_of_removal(Removal(txn)) for txn in self._recorded.pending_txns]

    def _rows_that_match(self, conditions: Conditions) -> tuple[DecidedSegment, ...]:
        """Return the rows of conditions of which no row matches two, in the order of the source."""
        snapshot = self._own_snapshot()
        rows = [row for condition in conditions for row in self._layout.rows_from_arrow(snapshot.read(condition))]
        return tuple(sorted(rows, key=in_source_order))

    def settle(
        self, removals: Sequence[Removal] = (), pending: Sequence[SlotTxn] = (), confirmed: Sequence[SlotTxn] = ()
    ) -> None:
        """Record in an odd version that all rows are settled, except those of `removals`, which the same commit removes.

        Removing rows in commits of their own would leave a transaction behind that lacks some of its partitions, and whoever
        resolves it later would look for its evidence in the wrong places. Positions fall back to removed rows. Without
        removals there is nothing to do when it is recorded already; after an unknown outcome it is written in any case,
        because its place in the log keeps a late commit out. Raises as `decide`.

        `pending`: transactions to look at again, recorded until they are `confirmed`.
        """
        kept = [txn for txn in self._recorded.pending_txns if txn not in confirmed and txn not in pending]
        pending_txns = tuple(sorted((*kept, *pending)))
        is_recorded = is_settled(self._recorded.version) and pending_txns == self._recorded.pending_txns
        if is_recorded and self._is_resolved and not removals:
            return
        conditions = tuple(rows_of_removal(removal) for removal in removals)
        count = self._row_count_of(conditions) if conditions else 0
        row_count = self._recorded.row_count - count
        version = self._next_version(is_odd=True)
        settled = replace(
            self._recorded, version=version, unsettled_micro_batch=None, row_count=row_count, pending_txns=pending_txns
        )

        def write(snapshot: TableSnapshot) -> None:
            if count:
                self._writer.delete(snapshot, conditions, settled.version, settled.metadata())
            else:
                self._append(snapshot, self._layout.schema.empty_table(), settled)

        if removals:
            self._positions = None  # before the commit: its outcome may stay unknown
        self._commit(settled, write)
        self._is_resolved = True

    def mark(self, objects: Collection[str], state: SegmentState, micro_batches: tuple[int, int]) -> None:
        """Set the state of all rows of these objects of an archive in one commit; nothing if they have it already.

        `micro_batches`: the first and the last one of the rows, which keeps other files from being read. No row is added or
        removed and no position moves. It also settles a decision that is not settled yet. Raises as `decide`; after an
        OutcomeUnknownError it is to be called again once the archive is resolved.
        """
        self._require_resolved()
        first, last = micro_batches
        condition = (
            Comparison("micro_batch", ">", first - 1),
            Comparison("micro_batch", "<=", last),
            Comparison("state", "!=", state.value),
        )
        wanted = set(objects)
        if not any(name in wanted for name in self._own_snapshot().read(condition, ["object_name"])["object_name"].to_pylist()):
            return
        update = Update("state", state.value, condition, "object_name", sorted(wanted))
        self._next = None
        record = replace(self._recorded, version=self._next_version(is_odd=True), unsettled_micro_batch=None)
        self._commit(record, lambda snapshot: self._writer.update(snapshot, update, record.version, record.metadata()))

    def _row_count_of(self, conditions: Conditions) -> int:
        """Count the rows that a delete would remove; no row matches two of these conditions."""
        snapshot = self._own_snapshot()
        return sum(snapshot.read(condition, columns=["run_epoch"]).num_rows for condition in conditions)

    def positions(self) -> dict[SourcePartition, Position]:
        """Return the position of each partition, kept once they are read. Raises as `check_ownership`.

        Every row is seen here, so rows that another application removed or added are detected here: OffsetMapConflictError.
        """
        self._require_resolved()
        if self._positions is None:
            snapshot = self._own_snapshot()
            pieces = CountedPieces(snapshot.batches(columns=list(self._layout.position_columns)))
            positions = self._layout.positions_of(pieces)
            self._row_count.confirm(snapshot, pieces.row_count, self._recorded.row_count)
            self._positions = positions
        return dict(self._positions)

    def compact_if_due(self) -> bool:
        """Rewrite small files between micro-batches, and less often clean up. No row and no version changes.

        Raises as `check_ownership`; other failures are logged, and it is tried again after the next decision.
        """
        compacted = compact_if_due(self._writer, self._recorded, self._own_snapshot, self._layout.title)
        if compacted is None:
            return False
        self._recorded = compacted
        return True

    def _append(self, snapshot: TableSnapshot, rows: pa.Table, record: Recorded) -> None:
        self._writer.append(snapshot, rows, record.version, record.metadata())

    def _commit(self, record: Recorded, write: Callable[[TableSnapshot], None]) -> None:
        """Write, then read back. Retry only if another commit surely took the version of the table that this one was for."""
        self._highest_version = record.version
        for _ in range(ATTEMPTS):
            before, self._checked = self._checked or self._own_snapshot(), None
            try:
                failure = try_commit(functools.partial(write, before))
                after = read_back(self._writer, failure, before, self._layout.title)
                newest = self._read_newest(after)
            except OutcomeUnknownError:  # also where the store opens the table and then does not say who wrote it last
                self._is_resolved = False
                raise
            if newest == record:
                self._recorded = record
                self._row_count.add_commit(before, after)
                return
            if newest.version == record.version:
                # It landed on a commit of this run whose outcome was unknown: both have to be resolved.
                self._adopt(newest)
                raise OutcomeUnknownError(
                    f"version {record.version} of {self._layout.title} landed on a commit of unknown outcome"
                )
            if after.delta_version == before.delta_version:
                break  # the table has not moved on: the commit may still land
        self._is_resolved = False
        raise OutcomeUnknownError(
            f"version {record.version} of {self._layout.title}: not found, may still appear: {failure}"
        ) from failure

    def _adopt(self, newest: Recorded) -> None:
        """Take over a commit of unknown outcome that was written; it has to be resolved."""
        self._recorded = newest
        self._positions = None
        self._is_resolved = False
        self._checked = None
        self._row_count.reset()

    def _snapshot(self) -> TableSnapshot:
        snapshot = read_snapshot(self._writer, self._layout.title)
        if snapshot is None:
            raise OffsetMapConflictError(f"{self._layout.title} no longer exists")
        return snapshot

    def _own_snapshot(self) -> TableSnapshot:
        snapshot = self._snapshot()
        if self._read_newest(snapshot).version != self._recorded.version:
            self._is_resolved = False
            raise OutcomeUnknownError(
                f"{self._layout.title} does not record what this run knows to have written: check ownership again"
            )
        self._row_count.require(snapshot, self._recorded.row_count)
        return snapshot

    def _read_newest(self, snapshot: TableSnapshot) -> Recorded:
        """Return the records of the newest commit.

        Raises FencedError if a later run wrote it, OlderTablesError if an earlier one did, OffsetMapConflictError.
        """
        newest = read_recorded(snapshot, self._layout.title)
        if newest is None:
            raise OffsetMapConflictError(f"{self._layout.title} has lost its recorded version")
        if newest.run == UNKNOWN_RUN and newest.version == self._recorded.version:
            return self._recorded  # a version is of one run; who wrote it was cleaned from the log while the mirror was idle
        if (error := taken_over_error(newest, self._recorded)) is not None:
            raise error
        return newest

    def _next_version(self, *, is_odd: bool) -> int:
        version = self._highest_version + 1
        return version if is_settled(version) == is_odd else version + 1

    def _require_resolved(self) -> None:
        if not self._is_resolved:
            raise OutcomeUnknownError("the last decision is not resolved yet: no positions and no decision before it is settled")


def rows_of_removal(removal: Removal) -> Condition:
    """Match the rows of every kind that carry exactly this triple: they are settled or removed together."""
    txn, target = removal.txn, removal.target
    of_txn = (
        Comparison("transactional_id", "=", txn.transactional_id),
        Comparison("target_producer_id", "=", txn.producer_id),
        Comparison("target_producer_epoch", "=", txn.producer_epoch),
    )
    if target is None:
        return of_txn
    return (
        *of_txn,
        Comparison("target_topic", "=", target.topic),
        Comparison("target_topic_id", "=", target.topic_id),
        Comparison("target_partition", "=", target.partition),
    )

"""Driver: the offset map. Who owns it, what is decided and settled, up to where everything is accounted for.

Versions are `run_epoch << 32 | n`, always rising. n = 0 is a take-over; an odd version says that everything before it is
settled; other even ones are decisions and removals. Which decision an even version leaves unsettled stands in the
metadata of the commit, so that a take-over or a removal does not make an older, settled decision doubtful again.

After each commit, and after each commit error, version and run_id are read back: nothing else says what happened.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.deltalake_writer import CommitFailed, DeltalakeWriter, TableSnapshot, TableWriter
from shallow_mirror.checkpoints.schema import (
    OFFSET_MAP,
    OFFSET_MAP_TABLE,
    PROPERTY_MIRROR,
    PROPERTY_SCHEMA_VERSION,
    SCHEMA_VERSION,
    TIMESTAMP,
    DecidedSegment,
    in_source_order,
    problems_of_columns,
    rows_from_arrow,
    rows_to_arrow,
    table_properties,
)
from shallow_mirror.checkpoints.translation import Translation, Translator
from shallow_mirror.errors import ConfigError, Fenced, OffsetMapConflict, OutcomeUnknown
from shallow_mirror.types import SegmentKind, SlotTxn, SourcePartition, TargetPartition

_log = logging.getLogger(__name__)

COMPACT_EVERY_DECISIONS = 1000
_ATTEMPTS = 20
"""How often a commit that surely lost its table version to compaction is tried again."""


def version_of(run_epoch: int, n: int) -> int:
    if not (0 <= run_epoch < 1 << 31 and 0 <= n < 1 << 32):
        raise ValueError(f"run epoch {run_epoch}, n {n} do not fit a version")
    return run_epoch << 32 | n


def is_settled(version: int) -> bool:
    return version % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    run_id: str
    host: str
    pid: int
    started_at_ms: int

    def __str__(self) -> str:
        started = datetime.fromtimestamp(self.started_at_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"run {self.run_id} on {self.host} (pid {self.pid}), started {started}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the newest commit says. Counters never fall, not by a removal either.

    `unsettled_micro_batch`: the decision whose rows may still be removed; None when there is none.
    `compacted_micro_batch`: the last decision before the last compaction.
    """

    version: int
    run: RunIdentity
    highest_slot: int = -1
    micro_batch: int = 0
    unsettled_micro_batch: int | None = None
    decided_at_ms: int = 0
    compacted_micro_batch: int = 0

    @property
    def run_epoch(self) -> int:
        return self.version >> 32

    def metadata(self) -> dict[str, str]:
        return {
            "run_id": self.run.run_id,
            "host": self.run.host,
            "pid": str(self.run.pid),
            "started_at": str(self.run.started_at_ms),
            "highest_slot": str(self.highest_slot),
            "micro_batch": str(self.micro_batch),
            "unsettled_micro_batch": "" if self.unsettled_micro_batch is None else str(self.unsettled_micro_batch),
            "decided_at_ms": str(self.decided_at_ms),
            "compacted_micro_batch": str(self.compacted_micro_batch),
        }

    @classmethod
    def from_metadata(cls, version: int, metadata: Mapping[str, str]) -> Recorded:
        try:
            unsettled = metadata["unsettled_micro_batch"]
            return cls(
                version=version,
                run=RunIdentity(
                    run_id=metadata["run_id"],
                    host=metadata["host"],
                    pid=int(metadata["pid"]),
                    started_at_ms=int(metadata["started_at"]),
                ),
                highest_slot=int(metadata["highest_slot"]),
                micro_batch=int(metadata["micro_batch"]),
                unsettled_micro_batch=int(unsettled) if unsettled else None,
                decided_at_ms=int(metadata["decided_at_ms"]),
                compacted_micro_batch=int(metadata["compacted_micro_batch"]),
            )
        except (KeyError, ValueError) as error:
            raise OffsetMapConflict(f"the commit of version {version} carries damaged metadata: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Position:
    """Everything below `offset` is accounted for. `leader_epoch` is the source's at the last batch seen, if any."""

    offset: int
    leader_epoch: int | None
    target: TargetPartition


def read_recorded(snapshot: TableSnapshot) -> Recorded | None:
    """None in a table that nobody has taken over yet. Raises OffsetMapConflict when the log does not say who wrote it."""
    version = snapshot.txn_version()
    if version is None:
        if snapshot.read(columns=["run_epoch"]).num_rows:
            raise OffsetMapConflict(
                "the offset map holds rows but no recorded version: it is damaged or was copied without its log"
            )
        return None
    metadata = snapshot.metadata()
    if metadata is None:
        raise OffsetMapConflict(
            f"the offset map records version {version}, but no commit in its log carries that version's metadata: "
            "somebody else wrote or cleaned the table; restore its _delta_log"
        )
    return Recorded.from_metadata(version, metadata)


def check_table(snapshot: TableSnapshot, expected: Mapping[str, str]) -> None:
    """`expected` are properties that must be as given. Raises ConfigError (another mirror's), OffsetMapConflict (no map)."""
    found = snapshot.properties
    if PROPERTY_MIRROR not in found:
        raise OffsetMapConflict(f"the table is not an offset map: it lacks the property {PROPERTY_MIRROR}")
    written_by = found.get(PROPERTY_SCHEMA_VERSION, "")
    if not written_by.isdecimal():
        raise OffsetMapConflict(f"the offset map's property {PROPERTY_SCHEMA_VERSION} is damaged: {written_by!r}")
    if int(written_by) > SCHEMA_VERSION:
        raise ConfigError(
            f"the offset map has schema version {written_by}, this shallow-mirror knows {SCHEMA_VERSION}: use a newer one"
        )
    problems = [
        f"the offset map was created with {name} = {found.get(name)!r}, this mirror has {value!r}: use another `tables` folder"
        for name, value in expected.items()
        if name != PROPERTY_SCHEMA_VERSION and found.get(name) != value
    ]
    if problems:
        raise ConfigError(problems)
    damaged = problems_of_columns(snapshot.columns)
    if damaged:
        raise OffsetMapConflict("the table is not an offset map of this schema version: " + "; ".join(damaged))


def table_uri(tables: str, table: str = OFFSET_MAP_TABLE) -> str:
    return f"{str(tables).rstrip('/')}/{table}"


def positions_of(rows: pa.Table) -> dict[SourcePartition, Position]:
    """The end of the last segment of each source partition; the last leader epoch that any of them knows."""
    keys = ["source_topic", "source_topic_id", "source_partition"]
    last = ["source_end", "source_leader_epoch", "target_topic", "target_topic_id", "target_partition"]
    ordered = rows.select([*keys, "source_start", *last]).sort_by([("source_end", "ascending"), ("source_start", "ascending")])
    grouped = ordered.group_by(keys, use_threads=False).aggregate([(name, "last") for name in last])
    return {
        SourcePartition(*(one[key] for key in keys)): Position(
            one["source_end_last"],
            one["source_leader_epoch_last"],
            TargetPartition(one["target_topic_last"], one["target_topic_id_last"], one["target_partition_last"]),
        )
        for one in grouped.to_pylist()
    }


class OffsetMap:
    """The map as a reader sees it, at one moment; `refresh` moves on. Rows that may still be removed are left out."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self.refresh()

    @classmethod
    def open(cls, tables: str) -> OffsetMap:
        """Raises ConfigError when there is no map yet, OffsetMapConflict when it is damaged."""
        return cls(DeltalakeWriter(table_uri(tables)))

    def refresh(self) -> None:
        snapshot = self._writer.snapshot()
        if snapshot is None:
            raise ConfigError("there is no offset map in the `tables` folder: run the mirror once, or check `tables`")
        check_table(snapshot, {})
        self._snapshot, self._recorded = snapshot, read_recorded(snapshot)
        self._translators: dict[Any, Translator | None] = {}

    def recorded(self) -> Recorded | None:
        """None before the first take-over."""
        return self._recorded

    def positions(self) -> dict[SourcePartition, Position]:
        return positions_of(self.settled_rows())

    def settled_rows(self, condition: pc.Expression | None = None, *, as_of: datetime | None = None) -> pa.Table:
        """Rows that hold for ever. `condition` goes down to the files; `as_of` keeps what was decided until then."""
        conditions = [] if condition is None else [condition]
        if self._recorded is not None and self._recorded.unsettled_micro_batch is not None:
            conditions.append(pc.field("micro_batch") != self._recorded.unsettled_micro_batch)
        if as_of is not None:
            conditions.append(pc.field("decided_at") <= pa.scalar(as_of, TIMESTAMP))
        return self._snapshot.read(functools.reduce(operator.and_, conditions) if conditions else None)

    def translate(
        self, topic: str, partition: int, offset: int, as_of: datetime | None = None, topic_id: str | None = None
    ) -> Translation:
        """Source offset to target offset. Of a recreated topic the newest incarnation, unless `topic_id` names one."""
        return self._find("source", topic, partition, offset, as_of, topic_id)

    def reverse(
        self, target_topic: str, target_partition: int, offset: int, as_of: datetime | None = None, topic_id: str | None = None
    ) -> Translation:
        """Target offset to source offset; `topic_id` is the target's."""
        return self._find("target", target_topic, target_partition, offset, as_of, topic_id)

    def _find(
        self, side: str, topic: str, partition: int, offset: int, as_of: datetime | None, topic_id: str | None
    ) -> Translation:
        key = (side, topic, partition, as_of, topic_id)
        if key not in self._translators:
            self._translators[key] = self._translator(side, topic, partition, as_of, topic_id)
        return self._translators[key].find(offset)  # type: ignore[union-attr]

    def _translator(self, side: str, topic: str, partition: int, as_of: datetime | None, topic_id: str | None) -> Translator:
        of_partition = (pc.field(f"{side}_topic") == topic) & (pc.field(f"{side}_partition") == partition)
        rows = self.settled_rows(of_partition, as_of=as_of)
        if topic_id is None and rows.num_rows:
            newest = pc.index(rows.column("micro_batch"), pc.max(rows.column("micro_batch"))).as_py()
            topic_id = rows.column(f"{side}_topic_id")[newest].as_py()
        rows = rows.filter(pc.field(f"{side}_topic_id") == (topic_id or ""))
        return Translator.of_source(rows) if side == "source" else Translator.of_target(rows)


class OffsetMapOwner:
    """The one that writes, until another takes over. One thread at a time.

    Begins unresolved: `unsettled` says what the last run decided; after `settle` decisions and positions are allowed.
    An OutcomeUnknown makes it unresolved again: `check_ownership` finds out what was written, then the same way.
    """

    def __init__(self, writer: TableWriter, recorded: Recorded, now_ms: Callable[[], int]) -> None:
        self._writer, self._recorded, self._now_ms = writer, recorded, now_ms
        self._highest_version, self._highest_micro_batch = recorded.version, recorded.micro_batch
        self._next: int | None = None
        self._is_resolved = False
        self._positions: dict[SourcePartition, Position] | None = None

    @classmethod
    def take_over(
        cls,
        tables: str,
        *,
        mirror: str,
        source_cluster_id: str,
        target_cluster_id: str,
        run: RunIdentity,
        now_ms: Callable[[], int],
        writer: TableWriter | None = None,
    ) -> OffsetMapOwner:
        """Creates the map if there is none. Fences every older run.

        Raises Fenced (another run took over at the same time and won), OutcomeUnknown (call again with the same `run`:
        a take-over that was written is recognised), ConfigError and OffsetMapConflict (the table is not this mirror's).
        """
        writer = DeltalakeWriter(table_uri(tables)) if writer is None else writer
        expected = table_properties(mirror, source_cluster_id, target_cluster_id, writer.name)
        for _ in range(_ATTEMPTS):
            before = _snapshot(writer)
            if before is None:
                writer.create(expected)
                continue
            check_table(before, expected)
            found = read_recorded(before)
            if found is not None and found.run.run_id == run.run_id:
                return cls(writer, found, now_ms)
            epoch = 0 if found is None else found.run_epoch
            failure = _claim(
                writer, before, replace(found or Recorded(version=0, run=run), version=version_of(epoch + 1, 0), run=run)
            )
            after = _read_back(writer, failure)
            latest = read_recorded(after)
            if latest is not None and latest.run.run_id == run.run_id:
                return cls(writer, latest, now_ms)
            if latest is not None and latest.run_epoch > epoch:
                raise Fenced(f"{latest.run}, run epoch {latest.run_epoch}")
            if after.delta_version == before.delta_version:
                raise OutcomeUnknown(f"taking over the offset map: {failure}") from failure
        raise OffsetMapConflict(f"could not take over the offset map in {_ATTEMPTS} attempts: other commits keep coming")

    @property
    def run_epoch(self) -> int:
        return self._recorded.run_epoch

    @property
    def highest_slot(self) -> int:
        """Of all decisions over the life of the map; -1 when no slot was ever used."""
        return self._recorded.highest_slot

    @property
    def micro_batch(self) -> int:
        """Number of the newest decision; 0 before the first."""
        return self._recorded.micro_batch

    def recorded(self) -> Recorded:
        return self._recorded

    def check_ownership(self) -> None:
        """Raises Fenced, OutcomeUnknown (the map cannot be read; nothing was written), OffsetMapConflict.

        A commit of ours whose outcome was unknown and that is there is taken note of; it wants to be resolved.
        """
        found = self._found(self._snapshot())
        if found.version == self._recorded.version:
            return
        if not self._recorded.version < found.version <= self._highest_version:
            raise OffsetMapConflict(
                f"the offset map records version {found.version}, this run wrote {self._recorded.version} last: "
                "the table was restored or written by somebody else"
            )
        _log.warning("a commit of unknown outcome is in the offset map: version %d", found.version)
        self._recorded, self._positions, self._is_resolved = found, None, False

    def next_decision(self) -> int:
        """The version the next `decide` will carry. Says that everything decided so far is settled."""
        self._require_resolved()
        self._next = self._next_version(is_odd=False)
        return self._next

    def decide(self, rows: Sequence[DecidedSegment], highest_slot: int) -> None:
        """One commit under the version of `next_decision`. Rows begin where their partitions' positions are.

        Raises OffsetMapConflict (nothing was written, or a restored table), Fenced (if it was written, its new owner
        resolves it), OutcomeUnknown (it may have been written, or may still be).
        """
        if self._next is None or not rows:
            raise ValueError("a decision needs rows and a version from next_decision")
        moved = _moved(self.positions(), rows)
        version, self._next = self._next, None
        self._highest_micro_batch += 1
        decision = replace(
            self._recorded,
            version=version,
            highest_slot=max(self._recorded.highest_slot, highest_slot),
            micro_batch=self._highest_micro_batch,
            unsettled_micro_batch=self._highest_micro_batch,
            decided_at_ms=max(self._now_ms(), self._recorded.decided_at_ms),
        )
        table = rows_to_arrow(rows, self.run_epoch, decision.micro_batch, decision.decided_at_ms)
        self._commit(decision, lambda snapshot: self._append(snapshot, table, decision))
        self._positions = moved

    def unsettled(self) -> tuple[DecidedSegment, ...]:
        """Rows of the last decision, if it was not settled: what a start has to resolve. Raises as `check_ownership`."""
        snapshot = self._own_snapshot()
        micro_batch = self._recorded.unsettled_micro_batch
        return () if micro_batch is None else rows_from_arrow(snapshot.read(pc.field("micro_batch") == micro_batch))

    def remove(self, txn: SlotTxn) -> None:
        """Removes all rows, of every kind, that carry exactly this triple; positions fall back. Raises as `decide`."""
        removal = replace(self._recorded, version=self._next_version(is_odd=False))
        condition = (
            (pc.field("transactional_id") == txn.transactional_id)
            & (pc.field("target_producer_id") == txn.producer_id)
            & (pc.field("target_producer_epoch") == txn.producer_epoch)
        )

        def write(snapshot: TableSnapshot) -> None:
            if snapshot.read(condition, columns=["run_epoch"]).num_rows:
                self._writer.delete(snapshot, _predicate(txn), removal.version, removal.metadata())
            else:
                self._append(snapshot, OFFSET_MAP.empty_table(), removal)

        self._positions = None
        self._commit(removal, write)

    def settle(self) -> None:
        """Records that all rows hold, in an odd version. Nothing to do when it is recorded already. Raises as `decide`.

        After an unknown outcome it is written in any case: its place in the log keeps a late commit out.
        """
        if is_settled(self._recorded.version) and self._is_resolved:
            return
        settled = replace(self._recorded, version=self._next_version(is_odd=True), unsettled_micro_batch=None)
        self._commit(settled, lambda snapshot: self._append(snapshot, OFFSET_MAP.empty_table(), settled))
        self._is_resolved = True

    def positions(self) -> dict[SourcePartition, Position]:
        """Read from the map only while it records what this run wrote last; then kept. Raises as `check_ownership`."""
        self._require_resolved()
        if self._positions is None:
            self._positions = positions_of(self._own_snapshot().read())
        return dict(self._positions)

    def compact_if_due(self) -> bool:
        """Between micro-batches: rewrites small files, checkpoints and cleans the log. Changes no row and no version.

        Raises as `check_ownership`; what fails otherwise is logged and tried again after the next decision.
        """
        if self._recorded.micro_batch - self._recorded.compacted_micro_batch < COMPACT_EVERY_DECISIONS:
            return False
        compacted = replace(self._recorded, compacted_micro_batch=self._recorded.micro_batch)
        failure = None
        for _ in range(3):
            snapshot = self._own_snapshot()
            failure = _try(functools.partial(self._writer.compact, snapshot, compacted.metadata()))
            if failure is None:
                break
        failure = failure or _try(self._writer.clean_up)
        if failure is not None:
            _log.warning("compaction of the offset map failed, it will be tried again: %s", failure)
            return False
        self._recorded = compacted
        return True

    def _append(self, snapshot: TableSnapshot, rows: pa.Table, record: Recorded) -> None:
        self._writer.append(snapshot, rows, record.version, record.metadata())

    def _commit(self, record: Recorded, write: Callable[[TableSnapshot], None]) -> None:
        """Writes, then reads back. Tries again only where the commit's place in the log surely went to another commit."""
        self._highest_version = record.version
        for _ in range(_ATTEMPTS):
            before = self._own_snapshot()
            failure = _try(functools.partial(write, before))
            try:
                after = _read_back(self._writer, failure)
            except OutcomeUnknown:
                self._is_resolved = False
                raise
            found = self._found(after)
            if found.version == record.version:
                self._recorded = record
                return
            if after.delta_version == before.delta_version:
                break
        self._is_resolved = False
        raise OutcomeUnknown(f"version {record.version} of the offset map: not there, may still come: {failure}") from failure

    def _snapshot(self) -> TableSnapshot:
        snapshot = _snapshot(self._writer)
        if snapshot is None:
            raise OffsetMapConflict("the offset map is gone")
        return snapshot

    def _own_snapshot(self) -> TableSnapshot:
        snapshot = self._snapshot()
        if self._found(snapshot).version != self._recorded.version:
            self._is_resolved = False
            raise OutcomeUnknown("the offset map does not record what this run knows to have written: check ownership again")
        return snapshot

    def _found(self, snapshot: TableSnapshot) -> Recorded:
        found = read_recorded(snapshot)
        if found is None:
            raise OffsetMapConflict("the offset map has lost its recorded version")
        if found.run.run_id != self._recorded.run.run_id:
            raise Fenced(f"{found.run}, run epoch {found.run_epoch}")
        return found

    def _next_version(self, *, is_odd: bool) -> int:
        version = self._highest_version + 1
        return version if is_settled(version) == is_odd else version + 1

    def _require_resolved(self) -> None:
        if not self._is_resolved:
            raise OutcomeUnknown("the last decision is not resolved yet: no positions and no decision before it is settled")


def _moved(positions: Mapping[SourcePartition, Position], rows: Sequence[DecidedSegment]) -> dict[SourcePartition, Position]:
    """Positions after these rows. Raises OffsetMapConflict where they leave a hole or overlap, or shift inside a row."""
    moved = dict(positions)
    for row in sorted(rows, key=in_source_order):
        segment = row.segment
        last = moved.get(segment.source)
        if last is not None and segment.source_start != last.offset:
            raise OffsetMapConflict(
                f"{segment.source.topic_partition}: a segment starts at {segment.source_start}, the position is {last.offset}"
            )
        is_whole = segment.source_end >= segment.source_start and (
            segment.target_start is None and segment.target_end is None
            if segment.kind is not SegmentKind.DATA
            else segment.target_start is not None
            and segment.target_end is not None
            and segment.target_end - segment.target_start == segment.source_end - segment.source_start
        )
        if not is_whole:
            raise OffsetMapConflict(f"{segment.source.topic_partition}: source and target range of a segment differ: {segment}")
        leader_epoch = segment.source_leader_epoch
        if leader_epoch is None and last is not None:
            leader_epoch = last.leader_epoch
        moved[segment.source] = Position(segment.source_end, leader_epoch, segment.target)
    return moved


def _predicate(txn: SlotTxn) -> str:
    name = txn.transactional_id.replace("'", "''")
    return (
        f"transactional_id = '{name}' AND target_producer_id = {txn.producer_id} "
        f"AND target_producer_epoch = {txn.producer_epoch}"
    )  # fmt: skip


def _claim(writer: TableWriter, before: TableSnapshot, claim: Recorded) -> CommitFailed | None:
    return _try(lambda: writer.append(before, OFFSET_MAP.empty_table(), claim.version, claim.metadata()))


def _try(write: Callable[[], None]) -> CommitFailed | None:
    try:
        write()
    except CommitFailed as failure:
        return failure
    return None


def _snapshot(writer: TableWriter) -> TableSnapshot | None:
    try:
        return writer.snapshot()
    except OSError as error:
        raise OutcomeUnknown(f"the offset map cannot be read: {error}") from error


def _read_back(writer: TableWriter, failure: CommitFailed | None) -> TableSnapshot:
    snapshot = _snapshot(writer)
    if snapshot is None:
        raise OutcomeUnknown(f"the offset map is gone after a commit: {failure}") from failure
    return snapshot

"""Driver: what the newest commit of the offset map says: its version, who wrote it, and counters that never fall.

Versions are `run_epoch << 32 | n`, always rising. n = 0 is a take-over; an odd version says that everything before it is
settled; other even ones are decisions and removals. Which decision an even version leaves unsettled stands in the
metadata of the commit, so that a take-over or a removal does not make an older, settled decision doubtful again.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime

from shallow_mirror.checkpoints.rows.schema import (
    PROPERTY_MAP_ID,
    PROPERTY_MIRROR,
    PROPERTY_SCHEMA_VERSION,
    PROPERTY_SOURCE_CLUSTER_ID,
    PROPERTY_TARGET_CLUSTER_ID,
    PROPERTY_WRITER,
    SCHEMA_VERSION,
)
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT, TableLayout
from shallow_mirror.checkpoints.tables.table_protocol import COUNTED_VERSION, COUNTERS, CommitEntry, TableSnapshot
from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OffsetMapConflictError, OlderTablesError
from shallow_mirror.types import SlotTxn


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

    @classmethod
    def of_this_process(cls) -> RunIdentity:
        """Return a new identity at every call."""
        now_ms = int(time.time() * 1000)
        return cls(run_id=str(uuid.uuid4()), host=socket.gethostname(), pid=os.getpid(), started_at_ms=now_ms)

    def __str__(self) -> str:
        if self == UNKNOWN_RUN:
            return "a run whose commits were removed from the log"
        started = datetime.fromtimestamp(self.started_at_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"run {self.run_id} on {self.host} (pid {self.pid}), started {started}"


UNKNOWN_RUN = RunIdentity(run_id="", host="", pid=0, started_at_ms=0)
"""Of a version whose commit is not in the log any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The records of the newest commit. Counters never fall, not even by a removal."""

    version: int
    run: RunIdentity
    highest_slot: int = -1
    micro_batch: int = 0
    unsettled_micro_batch: int | None = None
    """The decision whose rows may still be removed. None if there is none."""
    decided_at_ms: int = 0
    compacted_micro_batch: int = 0
    """The last decision before the last compaction."""
    row_count: int = 0
    """Rows of the map."""
    pending_txns: tuple[SlotTxn, ...] = ()
    """Transactions whose commit is durable, and whose markers some target partition has not taken yet."""
    decided_version: int = 0
    """Of the newest decision. A take-over does not raise it: tables that were put back stay older than the receipts on the
    target, however often a run begins with them."""
    decided_run_id: str = ""
    """Of the run that made it; empty if an earlier release did not record it. Runs with copies of the tables of one time
    number their decisions alike."""

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
            "row_count": str(self.row_count),
            "pending_txns": json.dumps([list(astuple(txn)) for txn in self.pending_txns]),
            "decided_version": str(self.decided_version),
            "decided_run_id": self.decided_run_id,
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
                row_count=int(metadata["row_count"]),
                pending_txns=tuple(SlotTxn(*fields) for fields in json.loads(metadata.get("pending_txns", "[]"))),
                # An earlier release did not record it: everything up to its commit counts as known.
                decided_version=int(metadata.get("decided_version", version)),
                decided_run_id=metadata.get("decided_run_id", ""),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise OffsetMapConflictError(f"the commit of version {version} carries damaged metadata: {error!r}") from error

    @classmethod
    def from_counters(cls, version: int, counters: Mapping[str, int]) -> Recorded | None:
        """Return the records of `version` without its commit: all but its run. None for counters of another version."""
        if not counters.keys() >= set(COUNTERS) or counters.get(COUNTED_VERSION) != version:
            return None
        unsettled = counters["unsettled_micro_batch"]
        return cls(
            version=version,
            run=UNKNOWN_RUN,
            highest_slot=counters["highest_slot"],
            micro_batch=counters["micro_batch"],
            unsettled_micro_batch=None if unsettled < 0 else unsettled,
            decided_at_ms=counters["decided_at_ms"],
            compacted_micro_batch=counters["micro_batch"],
            row_count=counters["row_count"],
            decided_version=version,
        )

    def above(self, missed: Recorded) -> Recorded:
        """Add the records of a commit below that the writer of this one had not seen: what it left unsettled still is.

        Raises OffsetMapConflictError if this is a decision: its rows and those below it would both be unsettled.
        """
        if self.micro_batch > missed.micro_batch:
            raise OffsetMapConflictError(
                f"micro-batch {self.micro_batch} of the table was decided without knowledge of version {missed.version}"
            )
        newest = max(self, missed, key=lambda recorded: recorded.decided_version)
        return replace(
            self,
            highest_slot=max(self.highest_slot, missed.highest_slot),
            micro_batch=missed.micro_batch,
            unsettled_micro_batch=missed.unsettled_micro_batch,
            decided_at_ms=max(self.decided_at_ms, missed.decided_at_ms),
            compacted_micro_batch=max(self.compacted_micro_batch, missed.compacted_micro_batch),
            row_count=missed.row_count,
            pending_txns=missed.pending_txns,
            decided_version=newest.decided_version,
            decided_run_id=newest.decided_run_id,
        )


def recorded_of(version: int, commits: Iterable[CommitEntry]) -> Recorded | None:
    """Return the records of the commit of `version`, and of those below it unseen by its writer. `commits`: the newest first.

    None when no commit is of that version. Raises OffsetMapConflictError.
    """
    entries = iter(commits)
    newest = next((entry for entry in entries if entry.version == version), None)
    if newest is None:
        return None
    recorded = Recorded.from_metadata(version, newest.metadata)
    if newest.on_top_of is None:
        return recorded
    # Through Spark a commit lands on top of whatever is there: those between what its writer saw and itself count as well.
    for entry in entries:
        if entry.version == newest.on_top_of:
            break
        if newest.on_top_of < entry.version < version:
            missed = recorded_of(entry.version, itertools.chain([entry], entries))
            return recorded if missed is None else recorded.above(missed)
    return recorded


def run_id_of(epoch: int, commits: Iterable[CommitEntry]) -> str | None:
    """Return the id of the run that took the table over with this run epoch. `commits`: the newest first.

    None where the log does not reach so far back, or an operator has accepted since then what another run did.
    """
    for entry in commits:
        entry_epoch = entry.version >> 32
        if entry_epoch == epoch:
            return entry.metadata.get("run_id")
        recorded = Recorded.from_metadata(entry.version, entry.metadata)
        if entry_epoch < epoch or (recorded.decided_version and not recorded.decided_run_id):
            return None
    return None


_NO_RECORD_REMEDY = (
    "Whether its last decision holds cannot be known from the rows. Restore its _delta_log from a backup, or continue from its "
    "rows with another name and other tables: for a mirror write max(source_end) of each source partition into topics.start; of "
    "the newest micro_batch source_start instead, unless a read_committed consumer reads a record at target_start"
)


def taken_over_error(newest: Recorded, own: Recorded) -> MirrorError | None:
    """Return the error of a run that has written `own` and finds `newest` in its table, of another run; None if it is its own.

    An earlier run is the newest one of a table only if an older copy of it was put in its place.
    """
    if newest.run_epoch < own.run_epoch:
        return OlderTablesError(
            f"run epoch {newest.run_epoch} ({newest.run})",
            f"this run has taken them over as run epoch {own.run_epoch}",
            what="run",
            if_lost="if they are lost, a start with these says what they lack",
        )
    if newest.run.run_id != own.run.run_id:
        return FencedError(f"{newest.run}, run epoch {newest.run_epoch}")
    return None


def read_recorded(snapshot: TableSnapshot, title: str = OFFSET_MAP_LAYOUT.title) -> Recorded | None:
    """Return the records of the newest commit; None before the first take-over. `title`: of the table in messages.

    Raises OffsetMapConflictError when the log does not say who wrote the table.
    """
    version = snapshot.txn_version()
    if version is None:
        if snapshot.read(columns=["run_epoch"]).num_rows:
            raise OffsetMapConflictError(
                f"{title} holds rows but no recorded version: its log was cleaned by another application, or it was copied "
                f"without its log. {_NO_RECORD_REMEDY}"
            )
        return None
    recorded = recorded_of(version, snapshot.commits()) or Recorded.from_counters(version, snapshot.counters())
    if recorded is None:
        raise OffsetMapConflictError(
            f"{title} records version {version}, but no commit in its log carries that version's metadata: "
            f"another application wrote or cleaned the table. {_NO_RECORD_REMEDY}"
        )
    return recorded


def check_table(snapshot: TableSnapshot, expected: Mapping[str, str], layout: TableLayout = OFFSET_MAP_LAYOUT) -> None:
    """Check that the table has this layout and the properties `expected`.

    Raises ConfigError (another mirror's map), OffsetMapConflictError (no map, or damaged).
    """
    properties = snapshot.properties
    for name in (PROPERTY_MIRROR, PROPERTY_MAP_ID):
        if name not in properties:
            raise OffsetMapConflictError(f"the table is not {layout.title}: it lacks the property {name}")
    written_by = properties.get(PROPERTY_SCHEMA_VERSION, "")
    if not written_by.isdecimal():
        raise OffsetMapConflictError(f"the property {PROPERTY_SCHEMA_VERSION} of {layout.title} is damaged: {written_by!r}")
    if int(written_by) > SCHEMA_VERSION:
        raise ConfigError(
            f"{layout.title} has schema version {written_by}, this shallow-mirror knows {SCHEMA_VERSION}: use a newer one"
        )
    problems = [
        f"{layout.title} was created with {name} = {properties.get(name)!r}, this {layout.owner} has {value!r}: "
        f"{_remedy(name, properties)}"
        for name, value in expected.items()
        if name != PROPERTY_SCHEMA_VERSION and properties.get(name) != value
    ]
    if problems:
        raise ConfigError(problems)
    damaged = layout.column_problems(snapshot.columns)
    if damaged:
        remedy = layout.remedy_of_older_table(snapshot.columns)
        if remedy is not None:
            raise ConfigError(
                f"an older release made {layout.title}, without a column of this one: {'; '.join(damaged)}. {remedy}"
            )
        raise OffsetMapConflictError(f"the table is not {layout.title} of this schema version: " + "; ".join(damaged))


def _remedy(name: str, properties: Mapping[str, str]) -> str:
    if name == PROPERTY_WRITER:
        return f"two writers cannot take turns on one table, set tables_writer: {properties.get(name)}"
    clusters = {PROPERTY_SOURCE_CLUSTER_ID: "source", PROPERTY_TARGET_CLUSTER_ID: "target"}
    if name in clusters:
        return f"check bootstrap.servers of the {clusters[name]}, or use another location for `tables`"
    return "use another location for `tables`"

"""Driver: what the mirror needs of its tables, whichever library writes them: a `TableBackend` for each library.

The offset map is written by a `TableWriter`, whose commits are conditional, the other tables by appending rows.

Both writers of the offset map record an application version (Delta's SetTransaction, id = the mirror) in every commit, with
metadata that says who wrote it. They differ in what keeps others out:

deltalake     the commit takes the place in the log right after the given snapshot, or fails.
delta-spark   the commit is dropped without an error unless its version is higher than the recorded one, and otherwise lands
              on top of whatever is there. So it says which version it was made on (`ON_TOP_OF`): whoever reads it back sees
              what its writer had not seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from shallow_mirror.checkpoints.rows.archive_schema import ARCHIVE_SEGMENTS_TABLE
from shallow_mirror.checkpoints.rows.table_layout import TableShape
from shallow_mirror.errors import MirrorError, OffsetMapConflictError

TXN_VERSION = "delta_txn_version"
"""In the metadata of every commit: which application version it belongs to. Compaction repeats that of its predecessor."""

ON_TOP_OF = "on_top_of_version"
"""In the metadata of commits that others may slip below: the version recorded in the snapshot they were made on, or nothing."""

LOG_RETENTION = "interval 1 days"
COMMITS_KEPT = 2000
"""Of a log in a folder of this machine, whose length every decision pays for: the last hour, at a decision every two seconds."""
TOMBSTONE_RETENTION = "interval 2 hours"
"""How long checkpoints name files that compaction has replaced. Every commit reads them: those of a week, at a decision every two
seconds, are 300,000, and make each decision ten times as slow."""
REPLACED_FILES_KEPT_HOURS = 24
"""So long readers of an older version find its files, and it can be restored; as long as the log says what it was."""
COMPACTED_FILE_BYTES = 4 << 20
"""Compaction leaves such files alone: what it takes does not grow with the table. About 400,000 rows of a map."""
CHECKPOINT_EVERY_COMMITS = 20
STATS_COLUMNS = "source_topic,source_partition,source_start,source_end,micro_batch,decided_at"
"""What readers look for. Statistics of every column double the time that opening a map of many files takes."""

TABLE_SETTINGS: Mapping[str, str] = {
    "delta.logRetentionDuration": LOG_RETENTION,
    "delta.deletedFileRetentionDuration": TOMBSTONE_RETENTION,
    "delta.checkpointInterval": str(CHECKPOINT_EVERY_COMMITS),
    "delta.dataSkippingStatsColumns": STATS_COLUMNS,
}


COUNTERS = ("highest_slot", "micro_batch", "unsettled_micro_batch", "decided_at_ms", "row_count")
"""Of a commit's metadata: what a mirror must know to continue. deltalake records them as application versions as well."""
COUNTED_VERSION = "counted_version"
"""The application version with which the counters were recorded."""


WriterName = Literal["deltalake", "spark"]


class DeltaCommitError(Exception):
    """Internal: the library raised. The commit may have been written all the same: read back."""


_DATA_FILE = re.compile(r"[^\s/:'\"]+\.parquet")


def damaged_table(table: str, detail: str, error: BaseException | None = None) -> OffsetMapConflictError:
    """Return the error of a table that cannot be read because it is damaged. `error` names the file, if that is known."""
    name = None if error is None else _DATA_FILE.search(str(error))
    place = table if name is None else f"{table} (file {name[0]})"
    return OffsetMapConflictError(f"{place} is damaged: {detail}: {remedy_of_damage(table)}")


def remedy_of_damage(table: str) -> str:
    is_of_archive = table.rstrip("`/").endswith(ARCHIVE_SEGMENTS_TABLE)
    rebuilt = ", or write the table again from the objects (archive verify --rebuild)" if is_of_archive else ""
    return f"put the newest copy of the tables back (all of the folder or prefix of `tables`){rebuilt}"


class Comparison(NamedTuple):
    """Never true of null."""

    column: str
    operator: Literal["=", "!=", "<=", ">"]
    value: str | int | datetime


Condition = tuple[Comparison, ...]
"""All comparisons hold; an empty condition matches every row."""

Conditions = Sequence[Condition]
"""At least one condition holds; an empty sequence matches no row."""


@dataclass(frozen=True, slots=True)
class Update:
    """Set `column` to `value` in the rows that match the condition and have one of `keys` in `key_column`."""

    column: str
    value: str
    condition: Condition
    key_column: str
    keys: Sequence[str]

    def where(self, literal: Callable[[object], str]) -> str:
        """Build the SQL of its condition."""
        keys = ", ".join(literal(key) for key in self.keys)
        condition = condition_in_sql(self.condition, literal)
        return f"{condition}{' AND ' if condition else ''}{self.key_column} IN ({keys})"


def condition_in_sql(condition: Condition, literal: Callable[[object], str]) -> str:
    """Build the SQL of a condition. `literal`: how a value is written, which differs from engine to engine."""
    return " AND ".join(f"{comparison.column} {comparison.operator} {literal(comparison.value)}" for comparison in condition)


def any_in_sql(conditions: Conditions, literal: Callable[[object], str]) -> str:
    """Build the condition of a delete. Raises ValueError for conditions that would match every row."""
    if not all(conditions):
        raise ValueError("an empty condition would delete every row of the table")
    return " OR ".join(f"({condition_in_sql(condition, literal)})" for condition in conditions) or "false"


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """A commit of the log that carries metadata of ours.

    `on_top_of`: the version recorded when it was made, -1 for none; None when nothing could slip in below it.
    """

    version: int
    on_top_of: int | None
    metadata: Mapping[str, str]


def commit_entry(metadata: Mapping[str, Any]) -> CommitEntry | None:
    """Return the commit; None for the commits of others, and for metadata that does not say which version it belongs to."""
    texts = {name: str(value) for name, value in metadata.items()}
    try:
        on_top_of = int(texts[ON_TOP_OF]) if ON_TOP_OF in texts else None
        return CommitEntry(int(texts[TXN_VERSION]), on_top_of, texts)
    except (KeyError, ValueError):
        return None


def user_metadata_entry(text: str | None) -> CommitEntry | None:
    """Return the entry of a commit through Spark, which has one text for all metadata."""
    try:
        document = json.loads(text or "")
    except ValueError:
        return None
    return commit_entry(document) if isinstance(document, dict) else None


class TableSnapshot(Protocol):
    """The table at one version of its log; later commits are not seen.

    `counters`: `COUNTERS` and `COUNTED_VERSION` as far as they outlive the commits of the log, -1 for one that is empty; nothing
    if the writer cannot record them.
    """

    @property
    def delta_version(self) -> int: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def columns(self) -> list[tuple[str, str]]: ...
    def txn_version(self) -> int | None: ...
    def commits(self) -> Iterable[CommitEntry]: ...
    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table: ...
    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterable[pa.RecordBatch]: ...
    def row_count(self) -> int: ...
    def counters(self) -> Mapping[str, int]: ...


class TableWriter(Protocol):
    """Commits raise DeltaCommitError; nothing is retried inside. Only a read-back shows the outcome of one.

    `create` creates nothing if a table is. `snapshot` is None if there is none; an unreadable table is an
    OffsetMapConflictError, an unreachable one an OSError. `reread`: the newest snapshot after a commit that did not fail, from
    the one it was made on, which is of no use any more; it may miss that the table was deleted. `delete` and `update` may
    commit nothing at all when no row matches. `repair_log` sets aside half-written files of a power failure; it is called
    before the first snapshot of a take-over.
    """

    name: WriterName

    def create(self, properties: Mapping[str, str]) -> None: ...
    def snapshot(self) -> TableSnapshot | None: ...
    def reread(self, snapshot: Any) -> TableSnapshot: ...
    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None: ...
    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None: ...
    def update(self, snapshot: Any, update: Update, version: int, metadata: Mapping[str, str]) -> None: ...
    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None: ...
    def clean_up(self) -> None: ...
    def repair_log(self) -> None: ...


class TableBackend(Protocol):
    """A library that writes and reads the tables of one mirror, by their names. A table that does not exist has no rows.

    `append` creates the table if there is none; its rows may be lost in a power failure. These methods raise `errors`; the
    callers say whether that ends anything (`DurableTable`) or is logged (`BestEffortTables`).
    """

    name: WriterName

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    def decisions(self, layout: TableShape) -> TableWriter:
        """Return a writer of its own at each call."""
        ...

    def append(self, table: str, rows: pa.Table) -> None: ...
    def append_durably(self, table: str, rows: pa.Table) -> None:
        """Return when the rows are on the disk. Raises OutcomeUnknownError (they may be), OffsetMapConflictError (damaged)."""
        ...

    def read(self, table: str, condition: Condition, columns: list[str] | None = None) -> list[dict[str, Any]]: ...
    def delete(self, table: str, condition: Condition) -> None: ...
    def tidy(self, table: str, many_files: int) -> None:
        """Compact a table that has so many files, and clean up behind it. No row changes."""
        ...

    def raised(self, operation: str, table: str) -> AbstractContextManager[None]:
        """Raise OutcomeUnknownError or another MirrorError for errors of the library in the block."""
        ...

    def cause_of(self, error: Exception, operation: str, table: str) -> MirrorError | None:
        """Return the error to report if the store or its options are the cause."""
        ...

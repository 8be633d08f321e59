"""Driver: the tables of decisions: the offset map of a mirror, the segments of an archive, the records of a DataFrame sink.

One class owns and writes any of them (`offset_map_writer.py`). `TableShape` is all that the writers of a library need of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from shallow_mirror.checkpoints.rows.archive_schema import (
    ARCHIVE_POSITION_COLUMNS,
    ARCHIVE_SEGMENTS,
    ARCHIVE_SEGMENTS_TABLE,
    archive_positions_of,
    archive_rows_from_arrow,
    archive_rows_to_arrow,
)
from shallow_mirror.checkpoints.rows.positions import POSITION_COLUMNS, Position, moved_by, positions_of
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, OFFSET_MAP_TABLE, DecidedSegment, rows_from_arrow, rows_to_arrow
from shallow_mirror.checkpoints.rows.written_rows import (
    POSITION_COLUMNS as WRITTEN_POSITION_COLUMNS,
    WRITTEN_RECORDS,
    WRITTEN_RECORDS_TABLE,
    written_ends_after,
    written_ends_of,
    written_rows_from_arrow,
    written_rows_to_arrow,
)
from shallow_mirror.types import SourcePartition


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableShape:
    """`title`: of the table in messages. `settings`: of the Delta table, in the place of those that all tables have."""

    table: str
    title: str
    schema: pa.Schema
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableLayout(TableShape):
    """`rows_to_arrow` takes rows, run epoch, micro-batch and time in ms. `owner`: what writes the table, for messages.

    `added_columns` are null in tables that were made before there were these columns; the next append adds them. `remedies`:
    by column, how to get a table that has it, if its rows cannot do without.
    """

    position_columns: Sequence[str]
    rows_to_arrow: Callable[[Sequence[DecidedSegment], int, int, int], pa.Table]
    rows_from_arrow: Callable[[pa.Table], tuple[DecidedSegment, ...]]
    positions_of: Callable[[Iterable[pa.Table | pa.RecordBatch]], dict[SourcePartition, Position]]
    moved_by: Callable[[Mapping[SourcePartition, Position], Sequence[DecidedSegment]], dict[SourcePartition, Position]] = moved_by
    """Return positions after a decision. Raises OffsetMapConflictError if its rows do not continue them."""
    owner: str = "mirror"
    added_columns: frozenset[str] = frozenset()
    remedies: Mapping[str, str] = field(default_factory=dict)

    def column_problems(self, columns: Iterable[tuple[str, str]]) -> list[str]:
        """Return the differences of a table from this layout. `columns` are (name, Arrow type); further columns are allowed."""
        types = dict(columns)
        return [
            f"column {column.name}: {types.get(column.name, 'missing')}, expected {column.type}"
            for column in self.schema
            if not self._fits(column, types)
        ]

    def remedy_of_older_table(self, columns: Iterable[tuple[str, str]]) -> str | None:
        """Return the remedy for a table that lacks nothing but columns of later releases; None for any other table."""
        types = dict(columns)
        differing = [column.name for column in self.schema if not self._fits(column, types)]
        if not differing or any(name in types or name not in self.remedies for name in differing):
            return None
        return self.remedies[differing[0]]

    def _fits(self, column: pa.Field, types: Mapping[str, str]) -> bool:
        actual = types.get(column.name)
        if actual is None:
            return column.name in self.added_columns
        # Plain types are compared by name. Of a list only that it is one: libraries name it, and its elements, differently.
        return actual.startswith(("list", "array")) if pa.types.is_list(column.type) else actual == str(column.type)


OFFSET_MAP_LAYOUT = TableLayout(
    table=OFFSET_MAP_TABLE,
    title="the offset map",
    schema=OFFSET_MAP,
    position_columns=POSITION_COLUMNS,
    rows_to_arrow=rows_to_arrow,
    rows_from_arrow=rows_from_arrow,
    positions_of=positions_of,
)

ARCHIVE_LAYOUT = TableLayout(
    table=ARCHIVE_SEGMENTS_TABLE,
    title="the table of archived segments",
    schema=ARCHIVE_SEGMENTS,
    position_columns=ARCHIVE_POSITION_COLUMNS,
    rows_to_arrow=archive_rows_to_arrow,
    rows_from_arrow=archive_rows_from_arrow,
    positions_of=archive_positions_of,
    owner="archive",
    added_columns=frozenset({"run_crc32c"}),
    remedies={
        "lineage": "`shallow-mirror archive verify FILE --rebuild TABLES` writes a new table from the objects, whose rows are of "
        "lineage 0"
    },
)

WRITTEN_RECORDS_LAYOUT = TableLayout(
    table=WRITTEN_RECORDS_TABLE,
    title="the table of written records",
    schema=WRITTEN_RECORDS,
    settings={"delta.dataSkippingStatsColumns": "query_id,batch_id,job_id,micro_batch,decided_at"},
    position_columns=WRITTEN_POSITION_COLUMNS,
    rows_to_arrow=written_rows_to_arrow,
    rows_from_arrow=written_rows_from_arrow,
    positions_of=written_ends_of,
    moved_by=written_ends_after,
    owner="sink",
)

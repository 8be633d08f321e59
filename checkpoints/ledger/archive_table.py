"""Driver and reading commands: the table of an archive as a reader sees it. Needs no JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.ledger.commit_metadata import Recorded, check_table, read_recorded
from shallow_mirror.checkpoints.rows.archive_schema import ArchiveRow, SegmentState, whole_archive_rows_from_arrow
from shallow_mirror.checkpoints.rows.lineages import Lineages, PartitionLineages, TxnKey
from shallow_mirror.checkpoints.rows.positions import Position
from shallow_mirror.checkpoints.rows.schema import (
    PROPERTY_MAP_ID,
    PROPERTY_MIRROR,
    PROPERTY_REBUILT_FROM,
    PROPERTY_SOURCE_CLUSTER_ID,
    PROPERTY_TABLE_ID,
    PROPERTY_TARGET_CLUSTER_ID,
)
from shallow_mirror.checkpoints.rows.table_layout import ARCHIVE_LAYOUT
from shallow_mirror.checkpoints.tables.storage import TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison, Condition, TableWriter
from shallow_mirror.errors import ConfigError, StoreUnreachableError
from shallow_mirror.types import SourcePartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VISIBLE = frozenset({SegmentState.COPY_SEGMENT_FINISHED})
EVERY_STATE = frozenset(SegmentState)

_READ_ROWS = 50_000
"""Rows with their indexes in memory at once, about. A row of a large object has hundreds of entries."""
_FEW_TOPICS = 10
"""So many are looked for one by one."""
_KEYS = ["source_topic", "source_topic_id", "source_partition"]


class ArchiveTable:
    """The table at one version of its log; `refresh` takes the newest. Decisions of an archive are final at once."""

    def __init__(self, writer: TableWriter, *, archive: str | None = None) -> None:
        """`archive`: the one whose table it must be; None: anybody's. Raises as `open`."""
        self._writer, self._archive = writer, archive
        self.refresh()

    @classmethod
    def open(
        cls, tables: TableStorage | Tables, spark: SparkSession | None = None, *, archive: str | None = None
    ) -> ArchiveTable:
        """Open without taking over. `tables` is a folder, a URI, or `catalog:<catalog>.<schema>`, which needs a session.

        Raises ConfigError (no table yet, that of another archive or of a newer release, or the store refuses),
        OffsetMapConflictError (damaged), StoreUnreachableError.
        """
        try:
            return cls(TableStorage.of(tables, spark).to_read().decisions(ARCHIVE_LAYOUT), archive=archive)
        except StoreUnreachableError as error:
            if error.is_refused:  # nothing is gained by waiting for other credentials
                raise ConfigError(str(error)) from error
            raise

    def refresh(self) -> None:
        snapshot = self._writer.snapshot()
        if snapshot is None:
            raise ConfigError(
                "there is no table archive_segments where `tables` says: run `shallow-mirror archive run` once, or check `tables`"
            )
        check_table(snapshot, {} if self._archive is None else {PROPERTY_MIRROR: self._archive}, ARCHIVE_LAYOUT)
        self._snapshot, self._recorded = snapshot, read_recorded(snapshot, ARCHIVE_LAYOUT.title)

    @property
    def archive(self) -> str:
        """Return the name in the archive file."""
        return self._snapshot.properties[PROPERTY_MIRROR]

    @property
    def archive_id(self) -> str:
        """Return the prefix of the names of the archive's objects."""
        return self._snapshot.properties[PROPERTY_MAP_ID]

    @property
    def table_id(self) -> str:
        """Return the id of this table: another one than that of the archive if the table was rebuilt."""
        return self._snapshot.properties.get(PROPERTY_TABLE_ID, self.archive_id)

    @property
    def is_rebuilt(self) -> bool:
        return self.table_id != self.archive_id

    @property
    def rebuilt_from(self) -> str | None:
        """Return the fingerprint of the objects from which the table was rebuilt."""
        return self._snapshot.properties.get(PROPERTY_REBUILT_FROM)

    @property
    def source_cluster_id(self) -> str:
        return self._snapshot.properties.get(PROPERTY_SOURCE_CLUSTER_ID, "")

    @property
    def target_cluster_id(self) -> str:
        """Return the substitute for the id of a target cluster."""
        return self._snapshot.properties.get(PROPERTY_TARGET_CLUSTER_ID, "")

    def recorded(self) -> Recorded | None:
        """Return the records of the newest commit; None before the first take-over."""
        return self._recorded

    def positions(self) -> dict[SourcePartition, Position]:
        """Return how far each partition is archived, whatever has expired since."""
        return ARCHIVE_LAYOUT.positions_of(self._snapshot.batches(columns=list(ARCHIVE_LAYOUT.position_columns)))

    def unended_aborts(self) -> dict[SourcePartition, frozenset[TxnKey]]:
        """Return, by partition, the aborted transactions of its last row whose markers lie behind it, if there are any."""
        positions = self.positions()
        unended: dict[SourcePartition, frozenset[TxnKey]] = {}
        for piece in self.pieces((), [*_KEYS, "lineage", "source_end", "aborted"]):
            is_unended = pc.list_parent_indices(piece["aborted"]).filter(
                pc.is_null(pc.struct_field(pc.list_flatten(piece["aborted"]), "last_offset"))
            )
            for row in piece.take(pc.unique(is_unended)).to_pylist():
                source = SourcePartition(*(row[key] for key in _KEYS))
                position = positions[source]
                if (row["lineage"], row["source_end"]) == (position.lineage, position.offset):
                    txns = (txn for txn in row["aborted"] if txn["last_offset"] is None)
                    unended[source] = frozenset(TxnKey(txn["producer_id"], txn["first_offset"]) for txn in txns)
        return unended

    def pieces(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield rows as Arrow has them, in no order and of every state. `condition` is pushed down to the files.

        Without `columns` also those that the table does not have yet, as null.
        """
        for piece in self._snapshot.batches(condition, columns):
            table = pa.Table.from_batches([piece])
            missing = () if columns is not None else ARCHIVE_LAYOUT.added_columns.difference(table.column_names)
            for name in missing:
                column = ARCHIVE_LAYOUT.schema.field(name)
                table = table.append_column(column, pa.nulls(len(table), column.type))
            yield table

    def lineages(self, condition: Condition = ()) -> Lineages:
        """Return the lineages of the partitions that have more than one, by the rows that match, of every state.

        `condition` may choose partitions and decisions, and must not choose rows of a partition by anything else.
        """
        partitions: dict[SourcePartition, PartitionLineages] = {}
        keys = [*_KEYS, "lineage"]
        for piece in self.pieces((*condition, Comparison("lineage", ">", 0)), [*keys, "source_start"]):
            lowest = piece.group_by(keys, use_threads=False).aggregate([("source_start", "min")])
            for *key, lineage, start in zip(*(lowest[name].to_pylist() for name in (*keys, "source_start_min")), strict=True):
                partitions.setdefault(SourcePartition(*key), PartitionLineages()).add_start(lineage, start)
        for source, partition in partitions.items():
            self._add_rows_of(source, partition, condition)
        return Lineages(partitions)

    def _add_rows_of(self, source: SourcePartition, partition: PartitionLineages, condition: Condition) -> None:
        for piece in self.pieces((*condition, *of_partition(source)), ["lineage", "source_start", "aborted"]):
            first = piece.filter(pc.equal(piece["lineage"], 0))
            if len(first):
                partition.add_start(0, pc.min(first["source_start"]).as_py())
            aborting = piece.filter(pc.greater(pc.fill_null(pc.list_value_length(piece["aborted"]), 0), 0))
            for lineage, txns in zip(aborting["lineage"].to_pylist(), aborting["aborted"].to_pylist(), strict=True):
                for txn in txns:
                    partition.add_aborted(lineage, **txn)

    def rows(self, condition: Condition = (), states: Collection[SegmentState] = VISIBLE) -> list[ArchiveRow]:
        """Return the rows that match, ordered by partition and offset, all in memory."""
        by_state = (Comparison("state", "=", next(iter(states)).value),) if len(states) == 1 else ()
        table = self._snapshot.read((*condition, *by_state))
        if not by_state:
            table = table.filter(pc.is_in(table["state"], value_set=pa.array([state.value for state in states], pa.string())))
        return whole_archive_rows_from_arrow(table)

    def segments(self, topics: Collection[str] | None = None, states: Collection[SegmentState] = VISIBLE) -> Iterator[ArchiveRow]:
        """Yield rows ordered by partition and offset, for tables that are larger than memory."""
        extents = self._extents(topics)
        wanted = {extent.topic for extent in extents}
        for condition in _reads(extents, is_packed=topics is None or len(topics) > _FEW_TOPICS):
            yield from (row for row in self.rows(condition, states) if row.segment.source.topic in wanted)

    def decisions(self, condition: Condition = (), states: Collection[SegmentState] = EVERY_STATE) -> Iterator[list[ArchiveRow]]:
        """Yield rows by their decisions in order, several whole decisions at once, about _READ_ROWS rows.

        An object belongs to one decision, and rows of a partition rise with decisions.
        """
        for window in self.windows(condition):
            rows = self.rows((*condition, *window), states)
            yield sorted(rows, key=lambda row: row.micro_batch)

    def windows(self, condition: Condition = (), most_rows: int | None = None) -> Iterator[Condition]:
        """Yield conditions on `micro_batch`, rising, each of which matches whole decisions and about `most_rows` rows at most."""
        gathered = [
            piece.group_by("micro_batch", use_threads=False).aggregate([("micro_batch", "count")])
            for piece in self.pieces(condition, ["micro_batch"])
        ]
        if not gathered:
            return
        counts = pa.concat_tables(gathered).group_by("micro_batch").aggregate([("micro_batch_count", "sum")])
        counts = counts.sort_by("micro_batch")
        above, last, row_count = -1, -1, 0
        for micro_batch, count in zip(counts["micro_batch"], counts["micro_batch_count_sum"], strict=True):
            if row_count and row_count + count.as_py() > (most_rows or _READ_ROWS):
                yield Comparison("micro_batch", ">", above), Comparison("micro_batch", "<=", last)
                above, row_count = last, 0
            last, row_count = micro_batch.as_py(), row_count + count.as_py()
        yield Comparison("micro_batch", ">", above), Comparison("micro_batch", "<=", last)

    def _extents(self, topics: Collection[str] | None) -> list[_Extent]:
        """Return the extents of the partitions of these topics, in order."""
        conditions: list[Condition] = [()]
        if topics is not None and len(topics) <= _FEW_TOPICS:
            conditions = [(Comparison("source_topic", "=", topic),) for topic in topics]
        columns = [*_KEYS, "source_start"]
        counted = [("source_start", function) for function in ("min", "max", "count")]
        gathered = [
            piece.group_by(_KEYS, use_threads=False).aggregate(counted)
            for condition in conditions
            for piece in self.pieces(condition, columns)
        ]
        if not gathered:
            return []
        merged = [("source_start_min", "min"), ("source_start_max", "max"), ("source_start_count", "sum")]
        rows = pa.concat_tables(gathered).group_by(_KEYS, use_threads=False).aggregate(merged)
        rows = rows.select([*_KEYS, *(f"{name}_{function}" for name, function in merged)])
        extents = sorted(_Extent(*row.values()) for row in rows.to_pylist())
        return [extent for extent in extents if topics is None or extent.topic in topics]


class _Extent(NamedTuple):
    """One partition in the table: its lowest and highest `source_start`, and its number of rows."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int
    row_count: int


def _reads(extents: Sequence[_Extent], *, is_packed: bool) -> Iterator[Condition]:
    """Yield conditions in the order of rows, each of which matches about _READ_ROWS rows at most.

    With `is_packed` one condition holds for many small topics that follow each other.
    """
    packed, packed_rows, before = list[str](), 0, ""
    for topic, of_topic in groupby(extents, key=lambda extent: extent.topic):
        partitions = list(of_topic)
        row_count = sum(extent.row_count for extent in partitions)
        if packed and (not is_packed or packed_rows + row_count > _READ_ROWS):
            yield _range_of(packed, before)
            packed, packed_rows, before = [], 0, packed[-1]
        if row_count <= _READ_ROWS:
            packed.append(topic)
            packed_rows += row_count
        else:
            for extent in partitions:
                yield from _windows(extent)
            before = topic
    if packed:
        yield _range_of(packed, before)


def of_partition(source: SourcePartition) -> Condition:
    """Match the rows of one partition."""
    return (
        Comparison("source_topic", "=", source.topic),
        Comparison("source_topic_id", "=", source.topic_id),
        Comparison("source_partition", "=", source.partition),
    )


def _range_of(topics: Sequence[str], before: str) -> Condition:
    """Match these topics; `before` is the one in front of them. Texts are compared by their code points everywhere."""
    if len(topics) == 1:
        return (Comparison("source_topic", "=", topics[0]),)
    return Comparison("source_topic", ">", before), Comparison("source_topic", "<=", topics[-1])


def _windows(extent: _Extent) -> Iterator[Condition]:
    """Cut a partition by offsets, into windows of about the same number of rows if offsets are spread evenly."""
    condition = of_partition(SourcePartition(extent.topic, extent.topic_id, extent.partition))
    count = -(-extent.row_count // _READ_ROWS)
    ends = [extent.first + (extent.last - extent.first) * number // count for number in range(1, count + 1)]
    for above, end in pairwise([extent.first - 1, *ends]):
        yield (*condition, Comparison("source_start", ">", above), Comparison("source_start", "<=", end))

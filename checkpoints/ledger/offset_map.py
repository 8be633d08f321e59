"""Driver and reading commands: the offset map as a reader sees it. Needs no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.ledger.commit_metadata import Recorded, check_table, read_recorded, run_id_of
from shallow_mirror.checkpoints.ledger.offset_map_writer import rows_of_removal
from shallow_mirror.checkpoints.ledger.row_count_check import require_row_count
from shallow_mirror.checkpoints.rows.positions import POSITION_COLUMNS, Position, positions_of
from shallow_mirror.checkpoints.rows.schema import (
    PROPERTY_MAP_ID,
    PROPERTY_MIRROR,
    PROPERTY_SOURCE_CLUSTER_ID,
    PROPERTY_TARGET_CLUSTER_ID,
    DecidedSegment,
    Removal,
    rows_from_arrow,
)
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT
from shallow_mirror.checkpoints.rows.translation import TRANSLATION_COLUMNS, Translation, Translator
from shallow_mirror.checkpoints.tables.storage import TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison, Condition, TableWriter
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import SourcePartition, TargetPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PIECE_ROWS = 200_000


class OffsetMap:
    """The map as a reader sees it, at one version; `refresh` takes the newest. Rows that may still be removed are left out."""

    def __init__(self, writer: TableWriter, *, mirror: str | None = None) -> None:
        """`mirror`: the one whose map it must be; None: anybody's. Raises as `open` without a count."""
        self._writer, self._mirror = writer, mirror
        self.refresh()

    @classmethod
    def open(
        cls,
        tables: TableStorage | Tables,
        spark: SparkSession | None = None,
        *,
        mirror: str | None = None,
        counts_rows: bool = True,
    ) -> OffsetMap:
        """`tables` is a folder, a URI, or `catalog:<catalog>.<schema>`, which needs a session that has the catalog.

        `counts_rows`: a job of Spark in a catalog; not needed where no row is read, or where rows are compared with both logs.

        Raises ConfigError when there is no map yet or it is not that of `mirror`, OffsetMapConflictError when it is damaged, or
        other applications have removed or added rows: offsets in a hole would lead behind it.
        """
        offset_map = cls(TableStorage.of(tables, spark).offset_map, mirror=mirror)
        if counts_rows and offset_map._recorded is not None:
            require_row_count(offset_map._snapshot, offset_map._recorded.row_count, OFFSET_MAP_LAYOUT.title)
        return offset_map

    def refresh(self) -> None:
        snapshot = self._writer.snapshot()
        if snapshot is None:
            of_mirror = "" if self._mirror is None else f" of mirror {self._mirror}"
            raise ConfigError(
                f"there is no offset map where `tables` says{of_mirror}: if it has run before, put its tables back (a folder or "
                "volume may be missing), or correct `tables`; if not, run the mirror once"
            )
        check_table(snapshot, {} if self._mirror is None else {PROPERTY_MIRROR: self._mirror})
        self._snapshot, self._recorded = snapshot, read_recorded(snapshot)
        self._translators: dict[Any, Translator] = {}
        self._looked_up: set[Any] = set()

    def require_clusters(self, *, source: str | None = None, target: str | None = None) -> None:
        """Raise ConfigError unless the map is of these clusters, given by their ids; None is not checked."""
        expected = {PROPERTY_SOURCE_CLUSTER_ID: source, PROPERTY_TARGET_CLUSTER_ID: target}
        check_table(self._snapshot, {name: value for name, value in expected.items() if value is not None})

    @property
    def map_id(self) -> str:
        return self._snapshot.properties[PROPERTY_MAP_ID]

    @property
    def source_cluster_id(self) -> str:
        return self._snapshot.properties[PROPERTY_SOURCE_CLUSTER_ID]

    @property
    def target_cluster_id(self) -> str:
        return self._snapshot.properties[PROPERTY_TARGET_CLUSTER_ID]

    def recorded(self) -> Recorded | None:
        """Return the records of the newest commit; None before the first take-over."""
        return self._recorded

    def run_id_of(self, epoch: int) -> str | None:
        """Return the run of a run epoch; None where the log of the table does not say."""
        return run_id_of(epoch, self._snapshot.commits())

    def positions(self) -> dict[SourcePartition, Position]:
        return positions_of(self._snapshot.batches(self._settled(), POSITION_COLUMNS))

    def settled_rows(
        self, condition: Condition = (), *, as_of: datetime | None = None, columns: list[str] | None = None
    ) -> pa.Table:
        """Return rows that can no longer be removed.

        `condition` is pushed down to the files; `as_of` keeps rows that were decided until then.
        """
        until = () if as_of is None else (Comparison("decided_at", "<=", as_of),)
        return self._snapshot.read((*condition, *self._settled(), *until), columns)

    def settled_pieces(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the same rows, some hundred thousand at a time, for maps that are larger than memory."""
        gathered, count = list[pa.RecordBatch](), 0
        for piece in self._snapshot.batches((*condition, *self._settled()), columns):
            gathered.append(piece)
            count += piece.num_rows
            if count >= _PIECE_ROWS:
                yield pa.Table.from_batches(gathered)
                gathered, count = [], 0
        if count:
            yield pa.Table.from_batches(gathered)

    def first_copies(self, source_topic: str) -> dict[TargetPartition, int]:
        """Return the first target offset to which a record of a source topic was copied, by target partition."""
        first: dict[TargetPartition, int] = {}
        columns = ["target_topic", "target_topic_id", "target_partition", "target_start"]
        for piece in self.settled_pieces((Comparison("source_topic", "=", source_topic),), columns):
            lowest = piece.group_by(columns[:3]).aggregate([("target_start", "min")])
            for row in lowest.to_pylist():
                key, start = TargetPartition(*(row[name] for name in columns[:3])), row["target_start_min"]
                if start is not None:
                    first[key] = min(start, first.get(key, start))
        return first

    def unsettled_rows(self) -> tuple[DecidedSegment, ...]:
        """Return the rows of the last decision, if they may still be removed."""
        micro_batch = None if self._recorded is None else self._recorded.unsettled_micro_batch
        return () if micro_batch is None else rows_from_arrow(self._snapshot.read((Comparison("micro_batch", "=", micro_batch),)))

    def pending_rows(self) -> tuple[DecidedSegment, ...]:
        """Return the rows of pending transactions, which count as settled and may be removed all the same."""
        pending = () if self._recorded is None else self._recorded.pending_txns
        conditions = [rows_of_removal(Removal(txn)) for txn in pending]
        return tuple(row for condition in conditions for row in rows_from_arrow(self._snapshot.read(condition)))

    def _settled(self) -> Condition:
        unsettled = None if self._recorded is None else self._recorded.unsettled_micro_batch
        return () if unsettled is None else (Comparison("micro_batch", "!=", unsettled),)

    def translate(
        self, topic: str, partition: int, offset: int, as_of: datetime | None = None, topic_id: str | None = None
    ) -> Translation:
        """Translate a source offset. Of a recreated topic it is that of the newest incarnation, unless `topic_id` names one."""
        return self._find("source", topic, partition, offset, as_of, topic_id)

    def reverse(
        self, target_topic: str, target_partition: int, offset: int, as_of: datetime | None = None, topic_id: str | None = None
    ) -> Translation:
        """Translate a target offset to a source offset; `topic_id` is the target's."""
        return self._find("target", target_topic, target_partition, offset, as_of, topic_id)

    def knows(self, topic: str, partition: int, *, is_target: bool = False) -> bool:
        """Return whether a source partition, or one of the target, has ever been mirrored; it may hold no record yet."""
        of_partition = _of_partition("target" if is_target else "source", topic, partition)
        return bool(self.settled_rows(of_partition, columns=["micro_batch"]).num_rows)

    def _find(
        self, side: str, topic: str, partition: int, offset: int, as_of: datetime | None, topic_id: str | None
    ) -> Translation:
        key = (side, topic, partition, as_of, topic_id)
        if key not in self._looked_up:  # the second lookup loads all rows of the partition, which is more than one offset needs
            self._looked_up.add(key)
            translation = self._find_exactly(side, topic, partition, offset, as_of, topic_id)
            if translation is not None:
                return translation
        if key not in self._translators:
            self._translators[key] = self._translator(side, topic, partition, as_of, topic_id)
        return self._translators[key].find(offset)

    def _find_exactly(
        self, side: str, topic: str, partition: int, offset: int, as_of: datetime | None, topic_id: str | None
    ) -> Translation | None:
        """Translate from the rows that hold the offset alone; None if they are not enough."""
        of_partition = _of_partition(side, topic, partition)
        at = (Comparison(f"{side}_start", "<=", offset), Comparison(f"{side}_end", ">", offset))
        rows = self.settled_rows((*of_partition, *at), as_of=as_of, columns=TRANSLATION_COLUMNS)
        found_ids = set(rows.column(f"{side}_topic_id").to_pylist())
        if len(found_ids) != 1:
            return None
        found_id = found_ids.pop()
        if topic_id is None:
            newest = pc.max(rows.column("micro_batch")).as_py()
            later = (Comparison(f"{side}_topic_id", "!=", found_id), Comparison("micro_batch", ">", newest))
            if self.settled_rows((*of_partition, *later), as_of=as_of, columns=["micro_batch"]).num_rows:
                return None
        translation = _translator_of(side, rows).find(offset)
        return translation if translation.exact and topic_id in (None, found_id) else None

    def _translator(self, side: str, topic: str, partition: int, as_of: datetime | None, topic_id: str | None) -> Translator:
        rows = self.settled_rows(_of_partition(side, topic, partition), as_of=as_of, columns=TRANSLATION_COLUMNS)
        if topic_id is None and rows.num_rows:
            newest = pc.index(rows.column("micro_batch"), pc.max(rows.column("micro_batch"))).as_py()
            topic_id = rows.column(f"{side}_topic_id")[newest].as_py()
        return _translator_of(side, rows.filter(pc.equal(rows.column(f"{side}_topic_id"), topic_id or "")))


def _of_partition(side: str, topic: str, partition: int) -> Condition:
    return Comparison(f"{side}_topic", "=", topic), Comparison(f"{side}_partition", "=", partition)


def _translator_of(side: str, rows: pa.Table) -> Translator:
    return Translator.of_source(rows) if side == "source" else Translator.of_target(rows)

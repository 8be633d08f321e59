"""A Delta table in memory: what its log holds, by which rules a commit lands, and a `TableWriter` that asks for both."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
from tests.model import effects
from tests.model.effects import NO_RESPONSE
from tests.model.programs import Port
from tests.model.source import MAP_ID

from shallow_mirror.checkpoints import PROPERTY_MAP_ID
from shallow_mirror.checkpoints.ledger import Recorded
from shallow_mirror.checkpoints.ledger.commit_metadata import read_recorded
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP
from shallow_mirror.checkpoints.tables import Comparison, Condition
from shallow_mirror.checkpoints.tables.table_protocol import CommitEntry, Conditions, DeltaCommitError
from shallow_mirror.types import COPIED_KINDS, TopicPartition

Row = tuple[Any, ...]
_COLUMNS = {name: at for at, name in enumerate(OFFSET_MAP.names)}


def column(row: Row, name: str) -> Any:
    return row[_COLUMNS[name]]


class Entry(NamedTuple):
    """A `CommitEntry` that compares and hashes."""

    version: int
    on_top_of: int | None
    metadata: tuple[tuple[str, str], ...]


class Snapshot:
    """The table at one version of its log: a `TableSnapshot` that compares by what it holds. Of `entries` the newest is first."""

    def __init__(
        self,
        delta_version: int,
        properties: tuple[tuple[str, str], ...],
        recorded: int | None = None,
        entries: tuple[Entry, ...] = (),
        rows: tuple[Row, ...] = (),
    ) -> None:
        self.delta_version = delta_version
        self._properties, self.recorded, self.entries, self.rows = properties, recorded, entries, rows
        self._read: dict[object, pa.Table] = {}
        self._hash = hash((delta_version, recorded, entries, rows))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Snapshot)
            and self._hash == other._hash
            and (self.delta_version, self.recorded, self.entries, self.rows)
            == (other.delta_version, other.recorded, other.entries, other.rows)
        )

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self._properties)

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(field.name, str(field.type)) for field in OFFSET_MAP]

    def txn_version(self) -> int | None:
        return self.recorded

    def commits(self) -> Iterable[CommitEntry]:
        return (CommitEntry(entry.version, entry.on_top_of, dict(entry.metadata)) for entry in self.entries)

    def matching(self, condition: Condition) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if all(_is_true(comparison, row) for comparison in condition))

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        wanted = condition, tuple(columns or OFFSET_MAP.names)
        if wanted not in self._read:
            rows = [{name: column(row, name) for name in wanted[1]} for row in self.matching(condition)]
            self._read[wanted] = pa.Table.from_pylist(rows, schema=pa.schema([OFFSET_MAP.field(name) for name in wanted[1]]))
        return self._read[wanted]

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterable[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = self.read(condition, columns).to_batches()
        return batches

    def row_count(self) -> int:
        return len(self.rows)

    def counters(self) -> Mapping[str, int]:
        """None: in the model no log is cleaned."""
        return {}

    @cached_property
    def record(self) -> Recorded | None:
        """As the product reads it."""
        return read_recorded(self)

    @property
    def run_id(self) -> str | None:
        return None if self.record is None else self.record.run.run_id

    @cached_property
    def _doubtful(self) -> int | None:
        """Number of the decision whose rows may still be removed."""
        return None if self.record is None else self.record.unsettled_micro_batch

    @cached_property
    def settled(self) -> frozenset[Row]:
        """Rows that a reader may rely on for ever, and whose records were visible when they were settled."""
        pending = set() if self.record is None else {astuple(txn) for txn in self.record.pending_txns}
        return frozenset(row for row in self.rows if column(row, "micro_batch") != self._doubtful and _txn_of(row) not in pending)

    def doubtful_receipts(self) -> set[tuple[str, TopicPartition]]:
        """Group and partition of the receipt of each transaction of that decision."""
        topic_partitions: dict[str, TopicPartition] = {}
        for row in self.rows:
            if column(row, "micro_batch") == self._doubtful and column(row, "kind") in COPIED_KINDS:
                topic_partition = TopicPartition(column(row, "target_topic"), column(row, "target_partition"))
                name = column(row, "transactional_id")
                topic_partitions[name] = min(topic_partition, topic_partitions.get(name, topic_partition))
        return set(topic_partitions.items())

    @cached_property
    def data(self) -> dict[tuple[int, int], int]:
        return _records_of(self.rows)

    @cached_property
    def settled_data(self) -> dict[tuple[int, int], int]:
        return _records_of(self.settled)


def _txn_of(row: Row) -> tuple[Any, ...]:
    return tuple(column(row, name) for name in ("transactional_id", "target_producer_id", "target_producer_epoch"))


def _records_of(rows: Iterable[Row]) -> dict[tuple[int, int], int]:
    """(target partition, target offset) of every copied record -> its source offset."""
    records = {}
    for row in rows:
        if column(row, "kind") in COPIED_KINDS:
            shift = column(row, "target_start") - column(row, "source_start")
            for record in range(column(row, "source_start"), column(row, "source_end")):
                records[column(row, "target_partition"), record + shift] = record
    return records


_OPERATORS = {"=": operator.eq, "!=": operator.ne, "<=": operator.le, ">": operator.gt}


def _is_true(comparison: Comparison, row: Row) -> bool:
    value = column(row, comparison.column)
    return value is not None and bool(_OPERATORS[comparison.operator](value, comparison.value))


def land(current: Snapshot, commit: effects.Commit, *, is_spark: bool) -> Snapshot | None:
    """Return the table after a commit; None where it does not land, `current` where it changes nothing.

    deltalake's commits land right after the snapshot they were made from, and nowhere else. delta-spark puts them on top of
    whatever came meanwhile, but passes over an application version that is not above the recorded one.
    """
    base = commit.base
    on_top_of = None
    if is_spark:
        if commit.version is not None and current.recorded is not None and commit.version <= current.recorded:
            return current
        if commit.version is not None:
            on_top_of = -1 if base.recorded is None else base.recorded
    elif current.delta_version != base.delta_version:
        return None
    kept = current.rows
    if commit.removed is not None:
        gone = {row for condition in commit.removed for row in current.matching(condition)}
        if not gone:
            return current
        kept = tuple(row for row in current.rows if row not in gone)
    of_version = base.recorded if commit.version is None else commit.version
    assert of_version is not None, "a compaction of a map without an owner"
    recorded = current.recorded if commit.version is None else commit.version
    older = current.entries if is_spark else ()
    entries = (Entry(of_version, on_top_of, commit.metadata), *older)
    return Snapshot(current.delta_version + 1, current._properties, recorded, entries, kept + commit.rows)


class ModelWriter:
    """The `TableWriter` whose every look and commit is an effect."""

    name = "model"

    def __init__(self, port: Port) -> None:
        self._port = port

    def create(self, properties: Mapping[str, str]) -> None:
        made = {**properties, PROPERTY_MAP_ID: MAP_ID}  # the product's is another each time
        self._port.ask(effects.Create(tuple(sorted(made.items()))))

    def snapshot(self) -> Snapshot | None:
        response: Snapshot | effects.NoResponse | None = self._port.ask(effects.Look())
        if response is NO_RESPONSE:
            raise OSError("the table's folder does not answer")
        return response

    def reread(self, snapshot: Snapshot) -> Snapshot:
        current = self.snapshot()
        assert current is not None
        return current

    def append(self, snapshot: Snapshot, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        self._commit(effects.Commit(snapshot, version, _frozen(metadata), _rows_of(rows)))

    def delete(self, snapshot: Snapshot, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        self._commit(effects.Commit(snapshot, version, _frozen(metadata), removed=tuple(conditions)))

    def compact(self, snapshot: Snapshot, metadata: Mapping[str, str]) -> None:
        self._commit(effects.Commit(snapshot, None, _frozen(metadata)))

    def clean_up(self) -> None:
        """Nothing of a table in memory has to be vacuumed."""

    def repair_log(self) -> None:
        """Nothing of it is ever half-written."""

    def _commit(self, commit: effects.Commit) -> None:
        response = self._port.ask(commit)
        if response is NO_RESPONSE:
            raise DeltaCommitError("the reply was lost")
        if not response:
            raise DeltaCommitError("another commit has taken the version")


_known_rows: dict[int, tuple[pa.Table, tuple[Row, ...]]] = {}


def _rows_of(table: pa.Table) -> tuple[Row, ...]:
    if not table.num_rows:
        return ()
    if id(table) not in _known_rows:
        _known_rows[id(table)] = table, tuple(tuple(row.values()) for row in table.to_pylist())
    return _known_rows[id(table)][1]


def _frozen(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(metadata.items()))

"""Driver: copies of rows of an archive beside its objects: those that no footer has. A lost table is rebuilt with them.

A row has a copy if the driver decided it (first rows of partitions and lineages, offsets that had expired at the source, tasks
without batches), or if the deletion of its object has begun. Copies are made after the commit of the rows, and before the next
decision and the deletion: a copy proves that its row was committed.

Objects `<archive id>/rows/<milliseconds>-<CRC-32C>.parquet`, written once. Small ones are merged when there are many.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchiveTable, Recorded
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS, SegmentState, archive_rows_to_arrow
from shallow_mirror.checkpoints.tables import Comparison, Condition
from shallow_mirror.errors import ArchiveFormatError, ConfigError, MirrorError, ObjectExistsError, ObjectMissingError
from shallow_mirror.object_store import ObjectInfo, ObjectStore
from shallow_mirror.wire import crc32c

_log = logging.getLogger(__name__)

FORMAT = 1
MOST_SMALL_OBJECTS = 64
"""More are merged into one."""
SMALL_BYTES = 4 << 20
"""Larger objects are not merged: about 100,000 rows."""
COPIED_ROWS = pa.schema([field for field in ARCHIVE_SEGMENTS if field.name not in ("index", "state")])
"""State of a row's object: deleted, or about to be. Without an object a row is always visible."""

_FORMAT_KEY = b"shallow_mirror.format"
_NAME = re.compile(r".*/rows/[0-9]{13}-([0-9a-f]{8})\.parquet")
KEY_COLUMNS = ["source_topic", "source_topic_id", "source_partition", "lineage", "source_start", "source_end", "object_name"]
_TABLE_COLUMNS = [*COPIED_ROWS.names, "state"]
_GATHERED_ROWS = 200_000
_READ_ATTEMPTS = 5
_REMEDY = (
    "Restore it from a copy or a former version. Or move it out of the store, and run `shallow-mirror archive adopt FILE`, which "
    "copies the rows of the table again"
)


class RowCopies:
    """Copies of one archive. Methods raise errors of the store; a call that failed can be repeated."""

    def __init__(
        self, store: ObjectStore, archive_id: str, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    ) -> None:
        self._store, self._archive_id, self._now_ms = store, archive_id, now_ms

    def copy_decided(self, rows: Sequence[DecidedSegment], recorded: Recorded) -> None:
        """Copy the rows of a decision that name no object."""
        without = [row for row in rows if row.stored is None]
        if without:
            table = archive_rows_to_arrow(without, recorded.run_epoch, recorded.micro_batch, recorded.decided_at_ms)
            self._write(table.select(COPIED_ROWS.names))

    def copy_objects(self, table: ArchiveTable, names: Collection[str], micro_batches: tuple[int, int]) -> None:
        """Copy the rows of objects, before the first of them is deleted. `micro_batches`: the first and the last of the rows."""
        first, last = micro_batches
        of_rows = Comparison("micro_batch", ">", first - 1), Comparison("micro_batch", "<=", last)
        wanted = pa.array(sorted(names), pa.string())
        pieces = (
            piece.filter(pc.is_in(piece["object_name"], value_set=wanted)) for piece in table.pieces(of_rows, _TABLE_COLUMNS)
        )
        for rows in _gathered(pieces):
            self._write(rows)

    def complete(self, table: ArchiveTable, *, is_whole: bool) -> None:
        """Copy rows that should have a copy and have none: of the last decision, or with `is_whole` of all.

        Any other row was copied by the run that decided it, unless that run was one of an older release.
        """
        recorded = table.recorded()
        if recorded is None:
            return
        last: Condition = () if is_whole else (Comparison("micro_batch", "=", recorded.micro_batch),)
        known: pa.Table | None = None
        for rows in _gathered(_without_footer(piece) for piece in table.pieces(last, _TABLE_COLUMNS)):
            if known is None:
                known = _with_keys(self.read(KEY_COLUMNS)).select(KEY_COLUMNS)
            numbered = _with_keys(rows).select(KEY_COLUMNS).append_column("at", pa.array(range(len(rows)), pa.int64()))
            missing = numbered.join(known, KEY_COLUMNS, join_type="left anti", use_threads=False)
            self._write(rows.take(missing["at"].sort()))

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return all copies, each row once, in no order. `columns` have KEY_COLUMNS at least.

        Raise ArchiveFormatError, ConfigError (a newer release wrote one).
        """
        schema = COPIED_ROWS if columns is None else pa.schema([COPIED_ROWS.field(name) for name in columns])
        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                tables = [self._read(info, columns) for info in self._objects()]
                return _distinct(pa.concat_tables([schema.empty_table(), *tables]))
            except ObjectMissingError:  # merged into another one since it was listed
                if attempt == _READ_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def damaged(self) -> Iterator[ArchiveFormatError]:
        """Read all copies, and yield the damage of each object."""
        for info in self._objects():
            try:
                self._read(info, None)
            except ArchiveFormatError as error:
                yield error
            except ObjectMissingError:  # merged into another one since it was listed
                continue

    def _objects(self) -> Iterator[ObjectInfo]:
        return (info for info in self._store.list(f"{self._archive_id}/rows") if _NAME.fullmatch(info.name))

    def _read(self, info: ObjectInfo, columns: list[str] | None) -> pa.Table:
        content = self._store.read(info.name, 0, info.size_bytes)
        match = _NAME.fullmatch(info.name)
        if match is None or f"{crc32c(content):08x}" != match[1]:
            raise ArchiveFormatError(info.name, "its bytes do not match the checksum in its name", _REMEDY)
        rows = pq.read_table(pa.BufferReader(content))
        number = int((rows.schema.metadata or {}).get(_FORMAT_KEY, b"0"))
        if number > FORMAT:
            raise ConfigError(f"object {info.name} has format {number}, this release reads {FORMAT}. Use a newer shallow-mirror")
        return rows.select(columns or COPIED_ROWS.names).replace_schema_metadata(None)

    def _write(self, rows: pa.Table) -> None:
        if len(rows) == 0:
            return
        self._store_rows(rows)
        small = [info for info in self._objects() if info.size_bytes < SMALL_BYTES]
        if len(small) <= MOST_SMALL_OBJECTS:
            return
        try:
            # The merged object is durable before one of its parts is deleted. Two runs that merge at once leave rows twice.
            merged = self._store_rows(_distinct(pa.concat_tables([self._read(info, None) for info in small])))
            self._store.delete([info.name for info in small if info.name != merged])
        except MirrorError as error:
            _log.warning("copies of rows were not merged, this is tried again later: %s", error)

    def _store_rows(self, rows: pa.Table) -> str:
        """Return the name of the object."""
        schema = COPIED_ROWS.with_metadata({_FORMAT_KEY: str(FORMAT)})
        buffer = io.BytesIO()
        pq.write_table(rows.combine_chunks().cast(COPIED_ROWS).cast(schema), buffer, compression="zstd")
        content = buffer.getvalue()
        name = f"{self._archive_id}/rows/{self._now_ms():013d}-{crc32c(content):08x}.parquet"
        with self._store.writer(name) as writer:
            try:
                writer.write(content)
                writer.close()
            except ObjectExistsError:  # the same bytes
                pass
        return name


def _without_footer(piece: pa.Table) -> pa.Table:
    is_visible = pc.equal(piece["state"], SegmentState.COPY_SEGMENT_FINISHED.value)
    return piece.filter(pc.or_(pc.is_null(piece["object_name"]), pc.invert(is_visible)))


def _gathered(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows without their state, some pieces at once."""
    gathered, row_count = list[pa.Table](), 0
    for piece in pieces:
        if len(piece):
            gathered.append(piece.select(COPIED_ROWS.names).cast(COPIED_ROWS))
            row_count += len(piece)
        if row_count >= _GATHERED_ROWS:
            yield pa.concat_tables(gathered)
            gathered, row_count = [], 0
    if gathered:
        yield pa.concat_tables(gathered)


def _with_keys(rows: pa.Table) -> pa.Table:
    """Replace null names: a null equals nothing in a join."""
    at = rows.schema.get_field_index("object_name")
    return rows.set_column(at, "object_name", pc.fill_null(rows["object_name"], ""))


def _distinct(rows: pa.Table) -> pa.Table:
    numbered = rows.select(KEY_COLUMNS).append_column("at", pa.array(range(len(rows)), pa.int64()))
    first = numbered.group_by(KEY_COLUMNS, use_threads=False).aggregate([("at", "min")])
    return rows.take(first["at_min"].sort())

"""Driver: rows of a table of decisions that another application removed or added, detected by their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from shallow_mirror.checkpoints.tables.table_protocol import TableSnapshot
from shallow_mirror.errors import OffsetMapConflictError, OutcomeUnknownError


class RowCountCheck:
    """Remember at which version of the table it held the rows that this run has written, and count again if others committed.

    Whoever compacts the table changes no row; whoever deletes rows would make a later start copy their records again.
    """

    def __init__(self, title: str) -> None:
        """`title`: of the table in messages."""
        self._title = title
        self._counted_at: int | None = None
        """Version of the table at which it held the rows that this run knows of; None before `confirm` has compared them."""
        self._has_decided_unseen = False
        """A commit of this run may follow one of another application that came after `_counted_at`."""

    def reset(self) -> None:
        """Trust no count until the next one of all rows."""
        self._counted_at = None

    def confirm(self, snapshot: TableSnapshot, row_count: int, written: int) -> None:
        """Take `row_count` as that of `snapshot`. Raises OffsetMapConflictError if mirrors have `written` another number."""
        if row_count != written:
            raise _foreign_rows(self._title, row_count, written, None)
        self._counted_at = snapshot.delta_version
        self._has_decided_unseen = False

    def add_commit(self, before: TableSnapshot, after: TableSnapshot) -> None:
        """Note a commit of this run, made on `before`: if nothing else came, the rows need not be counted."""
        if after.delta_version == before.delta_version + 1 and self._counted_at == before.delta_version:
            self._counted_at = after.delta_version
        else:
            self._has_decided_unseen = True

    def require(self, snapshot: TableSnapshot, written: int) -> None:
        """Count the rows if a commit came that is not known to be this run's.

        Raises OffsetMapConflictError (other rows than `written`), OutcomeUnknownError (not read).
        """
        if self._counted_at is None or self._counted_at == snapshot.delta_version:
            return
        row_count = _row_count_of(snapshot, self._title)
        if row_count != written:
            raise _foreign_rows(self._title, row_count, written, None if self._has_decided_unseen else self._counted_at)
        self.confirm(snapshot, row_count, written)


def require_row_count(snapshot: TableSnapshot, written: int, title: str) -> None:
    """Count the rows. Raises as `RowCountCheck.require`."""
    row_count = _row_count_of(snapshot, title)
    if row_count != written:
        raise _foreign_rows(title, row_count, written, None)


def _row_count_of(snapshot: TableSnapshot, title: str) -> int:
    try:
        return snapshot.row_count()
    except OSError as error:
        raise OutcomeUnknownError(f"{title} cannot be read: {error}") from error


class CountedPieces:
    """Pass on pieces of a table and count their rows."""

    def __init__(self, pieces: Iterable[pa.RecordBatch]) -> None:
        self._pieces, self.row_count = pieces, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            self.row_count += piece.num_rows
            yield piece


def _foreign_rows(title: str, row_count: int, written: int, last_good: int | None) -> OffsetMapConflictError:
    """`last_good`: version of the table after which this run has written nothing, and before which nothing was missing."""
    if last_good is not None:
        remedy = (
            f"Nothing was decided since version {last_good} of the table: RESTORE TABLE ... TO VERSION AS OF "
            f"{last_good}, then start again"
        )
    else:
        remedy = (
            "Find that commit in DESCRIBE HISTORY. If no rows were added after it, RESTORE TABLE to the version before "
            "it, then start again. Otherwise a RESTORE would remove rows, and be refused: put the missing rows "
            "back: INSERT INTO the table SELECT * FROM the table VERSION AS OF that version EXCEPT ALL SELECT * FROM the table"
        )
    return OffsetMapConflictError(
        f"{title} holds {row_count} rows, shallow-mirror has written {written}: another application removed or "
        f"added rows. {remedy}"
    )

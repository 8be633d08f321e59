"""Driver: the table `controls` as one run of a mirror reads it: rows are only added, so one that was read once is there for good.

A folder of tables that is exchanged while the mirror runs is missing for a moment, or has fewer rows: both would say that a topic
is not paused, or not handed over, and the mirror would copy it again.
"""

from __future__ import annotations

from shallow_mirror.checkpoints.logs.topics import ControlRow, Controls, TopicControls, older_controls
from shallow_mirror.errors import FencedError, MirrorError, RetriableError
from shallow_mirror.plurals import counted


class RunControls:
    """For all attempts of a run, and for the thread beside its query. `table`: for rows of the run itself."""

    def __init__(self, table: Controls) -> None:
        self.table = table
        self._rows: frozenset[ControlRow] = frozenset()
        """All that were read."""
        self.moving: frozenset[str] = frozenset()
        """Topics that are handed over, as they were read last."""
        self._ending: MirrorError | None = None

    def read(self) -> TopicControls:
        """Return the table. Raises OlderTablesError if it lacks rows that were read before, and RetriableError if it has none.

        Raises as `Controls`.
        """
        # Before the table: another thread, such as that of an earlier attempt, may read a row meanwhile that this one lacks.
        known = self._rows
        controls = self.table.read()
        if lacking := known.difference(controls.rows):
            if not controls.rows:
                raise RetriableError("TABLE_MISSING", f"it has no rows, of {counted(len(known), 'row')} that were read")
            newest = max(lacking, key=lambda row: row.sequence)
            evidence = f"this run has read row {_described(newest)}, which is not there any more"
            self.end(older_controls(f"row {_described(controls.rows[-1])}", evidence))
        self._rows |= frozenset(controls.rows)
        self.moving = controls.moving
        if controls.failed_over:
            # Whoever has nothing to decide does not notice that another command has taken over the map.
            self._ending = FencedError("a fail-over has ended this mirror")
        return controls

    def end(self, error: MirrorError) -> None:
        """Raise the error, here and in `require_running`."""
        self._ending = error
        raise error

    def require_running(self) -> None:
        """Raise OlderTablesError if any thread has found that tables are older than they were, FencedError after a take-over."""
        if self._ending is not None:
            raise self._ending


def _described(row: ControlRow) -> str:
    return f"{row.sequence} ({row.action} of {row.topic})"

"""Driver: the offset map of a run that decides nothing: a decision would notice that the map was exchanged, or taken over."""

from __future__ import annotations

import time
from collections.abc import Callable

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import Recorded, taken_over_error
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import OlderTablesError

LOOK_EVERY_S = 30.0


class IdleMap:
    """`recorded`: returns the newest commit that the run has written; for any thread."""

    def __init__(self, storage: TableStorage, mirror: str, recorded: Callable[[], Recorded]) -> None:
        self._storage, self._mirror, self._recorded = storage, mirror, recorded
        self._seen: Recorded | None = None
        self._look_at = 0.0

    def look(self) -> None:
        """Read the map if the run has written nothing since the last call that was due.

        Raises OlderTablesError if the map has less than the run has written, FencedError if another run has taken it over; as
        `OffsetMap.open` if it cannot be read.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        before, self._seen = self._seen, self._recorded()
        if before != self._seen:
            return
        newest = OffsetMap.open(self._storage, mirror=self._mirror, counts_rows=False).recorded()
        if newest is None:
            return
        error = taken_over_error(newest, self._seen)
        if error is None and newest.version < self._seen.version:
            error = OlderTablesError(
                f"version {newest.version}",
                f"this run has written version {self._seen.version}",
                what="commit",
                if_lost="if they are lost, a start with these says what they lack",
            )
        if error is not None:
            raise error

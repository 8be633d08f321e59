"""Driver: what the source shows no record of, against what the map says was dropped there."""

from __future__ import annotations

import numpy as np

from shallow_mirror.types import SegmentKind
from shallow_mirror.verify.classify import Absence
from shallow_mirror.verify.map_index import ABORT, ABORTED, COMMIT, DATA, KINDS, MapRows
from shallow_mirror.verify.partition_reader import Chunk
from shallow_mirror.wire.batches import Verdict, kind_of

_INVISIBLE = (Verdict.DROP_CONTROL, Verdict.DROP_ABORTED, Verdict.DROP_EMPTY)
_MUST_BE = (COMMIT, ABORT, ABORTED)

_SHOWN = {
    SegmentKind.COMMIT: "a commit marker",
    SegmentKind.ABORT: "an abort marker",
    SegmentKind.ABORTED: "data of an aborted transaction",
    SegmentKind.GAP: "a batch without records",
}
NO_BATCH = "no batch"


class DroppedCheck:
    """Walk along the source offsets.

    Everything below `checked_end` was checked. `absences` are in data rows, `contradictions` (start, end, description) in rows
    of markers and of aborted data.
    """

    def __init__(self, rows: MapRows, start: int) -> None:
        self._rows = rows
        self.checked_end = start
        self.absences: list[Absence] = []
        self.contradictions: list[tuple[int, int, str]] = []

    def add(self, chunk: Chunk, *, log_start: int, is_compacted: bool) -> None:
        """Add the batches of a chunk, in order. There are no records between them."""
        self.checked_end = max(self.checked_end, log_start)
        base = chunk.index.headers["base_offset"][chunk.chosen]
        ends = np.maximum.accumulate(chunk.index.last_offset[chunk.chosen] + 1)
        reached = np.concatenate(([self.checked_end], np.maximum(ends, self.checked_end)))
        for i in np.flatnonzero(base > reached[:-1]).tolist():
            self._note(int(reached[i]), int(base[i]), None, is_compacted=is_compacted)
        self.checked_end = int(reached[-1])
        verdicts = chunk.admission.verdicts[chunk.chosen]
        is_hidden = np.isin(verdicts, _INVISIBLE) & ~chunk.is_damaged[chunk.chosen]
        for i in chunk.chosen[is_hidden].tolist():
            start, end = int(chunk.index.headers["base_offset"][i]), int(chunk.index.last_offset[i]) + 1
            self._note(start, end, kind_of(chunk.admission, i), is_compacted=is_compacted)

    def skip(self, end: int) -> None:
        """Skip to `end`: all offsets below are unknown."""
        self.checked_end = max(self.checked_end, end)

    def close(self, end: int, *, is_compacted: bool) -> None:
        """Record that there is nothing more below `end`."""
        if end > self.checked_end:
            self._note(self.checked_end, end, None, is_compacted=is_compacted)
            self.checked_end = end

    def _note(self, start: int, end: int, shown: SegmentKind | None, *, is_compacted: bool) -> None:
        """`shown` None: no batch at all."""
        is_emptied = shown is None or shown is SegmentKind.GAP
        if is_emptied and is_compacted:
            return
        for row in self._rows.rows_between(start, end):
            first, last = max(start, int(self._rows.start[row])), min(end, int(self._rows.end[row]))
            kind = int(self._rows.kind[row])
            what = NO_BATCH if shown is None else _SHOWN[shown]
            if kind == DATA:
                self.absences.append(Absence(first, last, what))
            elif kind in _MUST_BE and KINDS[kind] is not shown and shown is not SegmentKind.GAP:
                self.contradictions.append((first, last, f"the map says {KINDS[kind].value}, the source shows {what}"))

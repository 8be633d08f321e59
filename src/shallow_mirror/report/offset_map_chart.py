"""Pure: the chart of one partition's offset map: the kinds of its offsets, and the distance of source and target offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.report.charts import Lane
from shallow_mirror.report.time_series import Floats
from shallow_mirror.types import SegmentKind, SourcePartition

CELLS = 240
COLUMNS = ["source_start", "source_end", "kind", "target_start", "rebuilt_batch_count"]

_REBUILT = "rebuilt"
_CSS = {
    SegmentKind.DATA.value: "s1",
    _REBUILT: "s2",
    SegmentKind.COMMIT.value: "s3",
    SegmentKind.ABORT.value: "s5",
    SegmentKind.ABORTED.value: "s6",
    SegmentKind.GAP.value: "s7",
    SegmentKind.EXPIRED.value: "s8",
    SegmentKind.QUARANTINED.value: "s4",
    SegmentKind.RELEASED.value: "s3",
}
"""In the order of lanes. `rebuilt`: data with at least one batch that was rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPicture:
    """`shifts`: (source offset, source minus target offset) of copied records."""

    source: SourcePartition
    first: int
    end: int
    row_count: int
    lanes: tuple[Lane, ...]
    shifts: tuple[tuple[float, float], ...]


def map_picture(source: SourcePartition, rows: pa.Table, cells: int = CELLS) -> MapPicture | None:
    """`rows` have COLUMNS. None if there is no offset."""
    rows = rows.filter(pc.less(rows.column("source_start"), rows.column("source_end"))).sort_by("source_start")
    if rows.num_rows == 0:
        return None
    starts, ends = (_numbers(rows, name) for name in ("source_start", "source_end"))
    first, end = int(starts[0]), int(ends.max())
    edges = np.unique(np.linspace(first, end, min(cells, end - first) + 1).round())
    kinds = np.array(rows.column("kind").to_pylist(), object)
    kinds[(kinds == SegmentKind.DATA.value) & (_numbers(rows, "rebuilt_batch_count") > 0)] = _REBUILT
    lanes = []
    for kind, css in _CSS.items():
        of_kind = kinds == kind
        if of_kind.any():
            lanes.append(Lane(kind, css, _pieces(edges, starts[of_kind], ends[of_kind])))
    return MapPicture(
        source=source,
        first=first,
        end=end,
        row_count=rows.num_rows,
        lanes=tuple(lanes),
        shifts=_shifts(edges, starts, ends, _numbers(rows, "target_start")),
    )


def _numbers(rows: pa.Table, column: str) -> Floats:
    return np.asarray(rows.column(column).to_numpy(), float)


def _pieces(edges: Floats, starts: Floats, ends: Floats) -> list[tuple[float, float, float]]:
    """Shares of the cells, neighbours with the same one together. The ranges are in order and do not overlap."""
    after = np.cumsum(ends - starts)
    knots = np.column_stack([starts, ends]).ravel()
    covered = np.diff(np.interp(edges, knots, np.column_stack([after - (ends - starts), after]).ravel()))
    shares = np.round(covered / np.diff(edges), 4)
    shares[(shares == 0) & (covered > 0)] = 0.0001
    pieces: list[tuple[float, float, float]] = []
    for begin, end, share in zip(edges[:-1], edges[1:], shares, strict=True):
        if share > 0 and pieces and pieces[-1][1] == begin and pieces[-1][2] == share:
            pieces[-1] = (pieces[-1][0], float(end), float(share))
        elif share > 0:
            pieces.append((float(begin), float(end), float(share)))
    return pieces


def _shifts(edges: Floats, starts: Floats, ends: Floats, targets: Floats) -> tuple[tuple[float, float], ...]:
    """At the beginning and the end of every row, or of the first row in each cell if there are more rows than cells."""
    is_copied = ~np.isnan(targets)
    starts, ends, targets = starts[is_copied], ends[is_copied], targets[is_copied]
    if len(starts) > len(edges):
        chosen = np.unique(np.clip(np.searchsorted(starts, edges), 0, len(starts) - 1))
        starts, ends, targets = starts[chosen], ends[chosen], targets[chosen]
    return tuple(
        (float(offset), float(start - target))
        for start, end, target in zip(starts, ends, targets, strict=True)
        for offset in (start, end)
    )

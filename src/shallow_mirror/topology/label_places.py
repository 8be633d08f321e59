"""Pure: places for labels on arrows, so that no other arrow, label or box lies under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Point = tuple[float, float]

_CLEARANCE = 3.0
"""Around a label."""
_END_CLEARANCE = 16.0
"""Around both ends of an arrow: its head stays visible."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its centre and size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Rect) -> bool:
        return abs(self.x - other.x) * 2 < self.width + other.width and abs(self.y - other.y) * 2 < self.height + other.height

    def holds(self, point: Point, clearance: float = 0.0) -> bool:
        """Return whether a point is in the rectangle, or as near to it as `clearance`."""
        return abs(point[0] - self.x) < self.width / 2 + clearance and abs(point[1] - self.y) < self.height / 2 + clearance

    def is_crossed(self, line: Sequence[Point]) -> bool:
        """Return whether a line runs through the rectangle. `line`: points in order, nearer to each other than its size."""
        return any(self.holds(point, _CLEARANCE) for point in line)


def place_on(
    line: Sequence[Point], size: tuple[float, float], others: Sequence[Sequence[Point]], taken: Iterable[Rect]
) -> tuple[Rect, int]:
    """Return the best place for a label of a size on a line, the middle if it is free, and what it would cover there.

    `others`: the other lines; each one that runs through the label counts, and so does each rectangle of `taken`.
    """
    rects = list(taken)
    points = np.array([point for other in others for point in other], float).reshape(-1, 2)
    line_numbers = np.repeat(np.arange(len(others)), [len(other) for other in others])
    reach = np.array(size) / 2 + _CLEARANCE
    middle = len(line) // 2
    best: tuple[int, Rect] | None = None
    for at in sorted(range(len(line)), key=lambda at: abs(at - middle)):
        rect = Rect(*line[at], *size)
        if rect.holds(line[0], _END_CLEARANCE) or rect.holds(line[-1], _END_CLEARANCE):
            continue
        crossing = (np.abs(points - line[at]) < reach).all(axis=1)
        covered = len(np.unique(line_numbers[crossing])) + sum(rect.meets(other) for other in rects)
        if best is None or covered < best[0]:
            best = covered, rect
        if covered == 0:
            break
    covered, rect = best if best is not None else (len(others) + len(rects), Rect(*line[middle], *size))
    return rect, covered

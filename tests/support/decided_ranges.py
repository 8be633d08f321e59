"""Rows of an offset map in short."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.types import SegmentKind


def decided_ranges(rows: Sequence[DecidedSegment]) -> list[tuple[SegmentKind, int, int, int | None]]:
    """Return (kind, source start, source end, target start) of each row."""
    return [(row.segment.kind, row.segment.source_start, row.segment.source_end, row.segment.target_start) for row in rows]

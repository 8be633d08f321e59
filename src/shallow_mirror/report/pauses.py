"""Pure: paused intervals as bands of a chart over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shallow_mirror.checkpoints.rows import PausedInterval
from shallow_mirror.report.charts import Band

BANDS_SHOWN = 200
TOPICS_NAMED = 3


def paused_label(topics: Iterable[str]) -> str:
    """Return "paused: a, b", with TOPICS_NAMED names at most and the count of the others."""
    names = sorted(set(topics))
    more = len(names) - TOPICS_NAMED
    return f"paused: {', '.join(names[:TOPICS_NAMED])}" + (f" and {more:,} more" if more > 0 else "")


def in_window(intervals: Sequence[PausedInterval], begin_s: float, end_s: float, now_s: float) -> list[PausedInterval]:
    """Return those that overlap [begin_s, end_s). One without an end lasts until `now_s`. Seconds since 1970."""
    return [interval for interval in intervals if max(interval.since_ms / 1000, begin_s) < min(_end_s(interval, now_s), end_s)]


def paused_bands(intervals: Sequence[PausedInterval], begin_s: float, end_s: float, now_s: float) -> list[Band]:
    """Return a band for each stretch of [begin_s, end_s) in which the same topics are paused, in order of time, none overlapping.

    An interval without an end lasts until `now_s`. All times are seconds since 1970. Of more than BANDS_SHOWN bands the newest
    are returned.
    """
    edges = []
    for interval in in_window(intervals, begin_s, end_s, now_s):
        edges.append((max(interval.since_ms / 1000, begin_s), True, interval.topic))
        edges.append((min(_end_s(interval, now_s), end_s), False, interval.topic))
    paused: set[str] = set()
    bands: list[Band] = []
    band_begin_s = begin_s
    # At the same moment ends (False) come before begins: a topic may be paused again at the moment of its resume.
    for at_s, is_begin, topic in sorted(edges):
        if paused and at_s > band_begin_s:
            bands.append(Band(band_begin_s, at_s, paused_label(paused)))
        band_begin_s = at_s
        if is_begin:
            paused.add(topic)
        else:
            paused.remove(topic)
    return bands[-BANDS_SHOWN:]


def _end_s(interval: PausedInterval, now_s: float) -> float:
    return now_s if interval.until_ms is None else interval.until_ms / 1000

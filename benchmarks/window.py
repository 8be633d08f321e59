"""Pure: the steady window of a copy, and what was spent in it.

A copier whose target log grows steadily is measured from 5 % to 95 % of that log. The mirror works in micro-batches: its
target log grows while one runs, but what it cost (planning, the decision, Spark's log) falls at its end. So its window goes
from the end of one micro-batch to the end of another, and what was copied in it is what those between have copied: the
first end at or behind 5 % and the last at or before 95 %. Where fewer than 8 micro-batches lie between, the window is all
behind the first micro-batch (the warm-up), and says how many there were. CPU at such a time is interpolated between samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

BEGIN_SHARE, END_SHARE = 0.05, 0.95
ENOUGH_MICRO_BATCHES = 8
_ENOUGH_SAMPLES = 10


class NoWindowError(ValueError):
    """The copy was too short to be measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """At a time (seconds since the epoch): CPU seconds so far, and the size of the target's log."""

    at: float
    copier_cpu_s: float
    source_broker_cpu_s: float
    target_broker_cpu_s: float
    target_bytes: int
    pss_bytes: int = 0
    """0: not looked at."""


@dataclass(frozen=True, slots=True)
class MicroBatchEnd:
    """`copied_bytes` since the begin of the copy."""

    at: float
    copied_bytes: float


@dataclass(frozen=True, slots=True)
class Window:
    """`share` of the data was copied in it."""

    begin: float
    end: float
    share: float
    note: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def steady_window(samples: Sequence[Sample], micro_batches: Sequence[MicroBatchEnd] | None) -> Window:
    """`micro_batches`: of a copier that works in such. Raises NoWindowError."""
    return _by_log_size(samples) if micro_batches is None else _by_micro_batches(micro_batches)


def _by_log_size(samples: Sequence[Sample]) -> Window:
    sizes = np.array([sample.target_bytes for sample in samples], float)
    times = np.array([sample.at for sample in samples])
    if not len(sizes) or sizes[-1] <= 0:
        raise NoWindowError("nothing was copied while anybody looked")
    begin, end = (_time_of(share * sizes[-1], times, sizes) for share in (BEGIN_SHARE, END_SHARE))
    inside = int(np.count_nonzero((times >= begin) & (times <= end)))
    if end <= begin:
        raise NoWindowError("the copy was over before it could be measured: give a larger --gb")
    note = "" if inside >= _ENOUGH_SAMPLES else f"only {inside} samples in the window: give a larger --gb"
    return Window(begin, end, END_SHARE - BEGIN_SHARE, note)


def _time_of(size: float, times: np.ndarray, sizes: np.ndarray) -> float:
    """When the log first reached a size, between samples in proportion."""
    after = int(np.argmax(sizes >= size))
    if after == 0:
        return float(times[0])
    part = (size - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
    return float(times[after - 1] + part * (times[after] - times[after - 1]))


def _by_micro_batches(ends: Sequence[MicroBatchEnd]) -> Window:
    if len(ends) < 2:
        raise NoWindowError(f"{len(ends)} micro-batches are too few to measure one behind the warm-up: give a larger --gb")
    total = ends[-1].copied_bytes
    inner = [end for end in ends if BEGIN_SHARE * total <= end.copied_bytes <= END_SHARE * total]
    if len(inner) > ENOUGH_MICRO_BATCHES:
        return _between(inner[0], inner[-1], total, "")
    begin, end = ends[0], ends[-1]
    note = f"{len(ends) - 1} micro-batches in the window, all behind the first"
    return _between(begin, end, total, note)


def _between(begin: MicroBatchEnd, end: MicroBatchEnd, total: float, note: str) -> Window:
    if end.at <= begin.at or end.copied_bytes <= begin.copied_bytes:
        raise NoWindowError("no time passed between the micro-batches")
    return Window(begin.at, end.at, (end.copied_bytes - begin.copied_bytes) / total, note)


def spent_in(window: Window, samples: Sequence[Sample], counter: Callable[[Sample], float]) -> float:
    """How much a rising counter rose."""
    times, values = [sample.at for sample in samples], [counter(sample) for sample in samples]
    begin, end = np.interp([window.begin, window.end], times, values)
    return float(end - begin)

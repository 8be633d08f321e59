"""Pure: rows of `micro_batches` as arrays, and plots of a few hundred points of any number of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEAST_S = 0.001

POINTS = 240
BARS = 80

STEPS = ("take decision", "Spark's job", "copying", "decide", "end and make visible", "other")
"""Into which `duration_ms` is grouped: Spark's job is RunSlots without the slowest slot's own time, which is copying. Left out is
the time between micro-batches: mostly nothing came."""

_GROUPS = {
    "TakeDecision": "take decision",
    "Decide": "decide",
    "EndTxn": "end and make visible",
    "AwaitVisible": "end and make visible",
}
_NO_STEPS = ("Between", "Total", "SlowestSlot", "RunSlots")

BATCHES = ("raw", "rebuilt", "dropped", "quarantined")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchHistory:
    """In order of time; every array has an element for each micro-batch. `lag_offsets` is NaN if it is not known.

    `began_s` and `visible_s` are seconds since 1970. `step_ms` has a column for each of STEPS, `batches` one for each of BATCHES.
    """

    micro_batch: NDArray[np.int64]
    began_s: Floats
    visible_s: Floats
    records: Floats
    size_bytes: Floats
    lag_offsets: Floats
    step_ms: Floats
    batches: Floats

    def __len__(self) -> int:
        return len(self.micro_batch)

    @property
    def seconds(self) -> Floats:
        return self.visible_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second, in equal stretches of time between `edges_s`."""

    edges_s: Floats
    bytes_per_s: Floats
    records_per_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Of as many micro-batches each as needed to have BARS at most; the last may have fewer. `values` a row a group."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    values: Floats


def history_of(rows: Sequence[Mapping[str, Any]]) -> MicroBatchHistory:
    ordered = sorted(rows, key=lambda row: (row["settled_at"], row["micro_batch"]))
    durations = [json.loads(row["duration_ms"]) for row in ordered]
    dropped = [json.loads(row["dropped_batch_counts"]) for row in ordered]
    visible_s = np.array([row["settled_at"].timestamp() for row in ordered], float)
    total_s = np.array([max(_LEAST_S, steps_ms.get("Total", 0.0) / 1000) for steps_ms in durations], float)
    quarantined = [counts.pop("quarantined", 0) for counts in dropped]
    batches = [
        (row["raw_batch_count"], row["rebuilt_batch_count"], sum(counts.values()), quarantined_bytes)
        for row, counts, quarantined_bytes in zip(ordered, dropped, quarantined, strict=True)
    ]
    return MicroBatchHistory(
        micro_batch=np.array([row["micro_batch"] for row in ordered], np.int64),
        began_s=visible_s - total_s,
        visible_s=visible_s,
        records=np.array([row["record_count"] for row in ordered], float),
        size_bytes=np.array([row["size_bytes"] for row in ordered], float),
        lag_offsets=np.array([np.nan if row["lag_offsets"] is None else row["lag_offsets"] for row in ordered], float),
        step_ms=np.array([_grouped(steps_ms) for steps_ms in durations], float).reshape(len(ordered), len(STEPS)),
        batches=np.array(batches, float).reshape(len(ordered), len(BATCHES)),
    )


def _grouped(duration_ms: Mapping[str, float]) -> list[float]:
    grouped = dict.fromkeys(STEPS, 0.0)
    for name, ms in duration_ms.items():
        if name not in _NO_STEPS:
            grouped[_GROUPS.get(name, "other")] += ms
    slots = duration_ms.get("RunSlots", 0.0)
    copying = min(slots, duration_ms.get("SlowestSlot", 0.0))
    grouped["copying"], grouped["Spark's job"] = copying, slots - copying
    return list(grouped.values())


def rates(history: MicroBatchHistory, points: int = POINTS) -> Rates:
    """Spread the amount of a micro-batch over its own time: a plot of narrow stretches has no peaks that never were."""
    edges = np.linspace(history.began_s.min(), history.visible_s.max(), min(points, 2 * len(history)) + 1)
    knots = np.maximum.accumulate(np.column_stack([history.began_s, history.visible_s]).ravel())
    width_s = edges[1] - edges[0]

    def per_second(amounts: Floats) -> Floats:
        after = np.cumsum(amounts)
        total = np.column_stack([np.concatenate([[0.0], after[:-1]]), after]).ravel()
        per_s: Floats = np.diff(np.interp(edges, knots, total)) / width_s
        return per_s

    return Rates(edges_s=edges, bytes_per_s=per_second(history.size_bytes), records_per_s=per_second(history.records))


def lag_points(history: MicroBatchHistory, points: int = POINTS) -> tuple[Floats, Floats]:
    """(seconds, offsets): the highest known lag of every stretch of time."""
    is_known = ~np.isnan(history.lag_offsets)
    at_s, lag = history.visible_s[is_known], history.lag_offsets[is_known]
    if len(lag) <= points:
        return at_s, lag
    edges = np.linspace(at_s[0], at_s[-1], points + 1)
    step = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, points - 1)
    highest = np.full(points, -np.inf)
    np.maximum.at(highest, step, lag)
    is_there = np.isfinite(highest)
    return ((edges[:-1] + edges[1:]) / 2)[is_there], highest[is_there]


def grouped(history: MicroBatchHistory, values: Floats, *, is_mean: bool, bars: int = BARS) -> Groups:
    """Return sums of each group, or means."""
    size = max(1, -(-len(history) // bars))
    starts = np.arange(0, len(history), size)
    summed: Floats = np.add.reduceat(values, starts, axis=0)
    counts = np.diff(np.append(starts, len(history)))
    ends = np.append(starts[1:], len(history)) - 1
    group_values = summed / counts[:, None] if is_mean else summed
    return Groups(first=history.micro_batch[starts], last=history.micro_batch[ends], values=group_values)

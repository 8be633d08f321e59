"""Pure: from when to when topics were paused, out of the rows of the table `controls`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shallow_mirror.checkpoints.schema import ms_of


@dataclass(frozen=True, slots=True)
class PausedInterval:
    """[`since_ms`, `until_ms`) of a source topic, in ms since 1970. `until_ms` None: the topic is still paused."""

    topic: str
    since_ms: int
    until_ms: int | None


def paused_intervals(rows: Iterable[Mapping[str, Any]]) -> list[PausedInterval]:
    """Pair each pause with the next resume of the same topic, in the order of `sequence`. Returned by `since_ms`, then topic.

    A topic that is handed over is paused as well. A pause of a paused topic and a resume of a topic that is not paused change
    nothing. Intervals of a topic do not overlap.
    """
    since: dict[str, int] = {}
    latest_end: dict[str, int] = {}
    intervals = []
    for row in sorted(rows, key=lambda row: row["sequence"]):
        topic, at_ms = row["topic"], ms_of(row["at"])
        if row["action"] in ("handed-over", "receive"):
            continue
        if row["action"] != "resume":
            # Rows come from the clocks of several hosts, so a later row may have an earlier time.
            since.setdefault(topic, max(at_ms, latest_end.get(topic, at_ms)))
        elif topic in since:
            begin_ms = since.pop(topic)
            if at_ms > begin_ms:
                intervals.append(PausedInterval(topic, begin_ms, at_ms))
                latest_end[topic] = at_ms
    intervals += [PausedInterval(topic, begin_ms, None) for topic, begin_ms in since.items()]
    return sorted(intervals, key=lambda interval: (interval.since_ms, interval.topic))

"""Partitions that the mirror leaves out while they are broken: what is known of each, and the file in which that travels.

The driver writes the file after each micro-batch, on its own machine: the planner, which runs there as well, leads Spark back to
the positions and tries again after a pause. Another copy lies beside the Spark checkpoint, for `status`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shallow_mirror.sinks.slot_results import Side, UnfinishedRange
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import SourcePartition

RETRY_AFTER_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a partition is planned again, by the number of tries that copied nothing; the last one repeats."""

RETRY_DEFINITE_AFTER_S = (10.0, 30.0, 60.0, 300.0)
"""The same where a person has to act: each try reads the slot's other ranges a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """`position` is that of the offset map; None where the planner left it out, so that Spark is not ahead of the map.

    `since_ms`: when it began; `tried_at_ms`: when it was tried last; `tries`: so often since something of it was copied.
    """

    source: SourcePartition
    side: Side
    error_name: str
    reason: str
    since_ms: int
    position: int | None = None
    is_definite: bool = False
    tried_at_ms: int = 0
    tries: int = 1

    def is_due(self, now_ms: int) -> bool:
        """True when the pause before the next try is over."""
        pauses = RETRY_DEFINITE_AFTER_S if self.is_definite else RETRY_AFTER_S
        return now_ms - self.tried_at_ms >= pauses[min(max(1, self.tries), len(pauses)) - 1] * 1000

    def document(self) -> dict[str, Any]:
        """For JSON."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return {**self.source._asdict(), **fields, "side": self.side.value}


_FIELDS = ("error_name", "reason", "since_ms", "position", "is_definite", "tried_at_ms", "tries")


def write_left_out(path: Path | None, entries: Iterable[LeftOut]) -> None:
    """Raises OSError."""
    planner_state.write_document(path, {"partitions": [one.document() for one in entries]})


def read_left_out(path: Path | None) -> tuple[LeftOut, ...]:
    """Return nothing where there is no file, or one that cannot be understood."""
    return parse_left_out(planner_state.read_document(path))


def parse_left_out(document: Any) -> tuple[LeftOut, ...]:
    """Return nothing for what `LeftOut.document` has not built."""
    try:
        return tuple(
            LeftOut(
                source=SourcePartition(str(row["topic"]), str(row["topic_id"]), int(row["partition"])),
                side=Side(row["side"]),
                error_name=str(row["error_name"]),
                reason=str(row["reason"]),
                since_ms=int(row["since_ms"]),
                position=None if row["position"] is None else int(row["position"]),
                is_definite=bool(row["is_definite"]),
                tried_at_ms=int(row["tried_at_ms"]),
                tries=int(row["tries"]),
            )
            for row in document["partitions"]
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return ()


@dataclass(frozen=True, slots=True)
class Change:
    """Partitions that are left out from now on, and those that are copied again."""

    began: tuple[LeftOut, ...] = ()
    ended: tuple[LeftOut, ...] = ()


class LeftOutPartitions:
    """PURE, the driver's own list: `by_slots` were left out of micro-batches, `by_planner` of plans."""

    def __init__(self) -> None:
        self._by_slots: dict[SourcePartition, LeftOut] = {}
        self._by_planner: dict[SourcePartition, LeftOut] = {}

    @property
    def by_slots(self) -> tuple[LeftOut, ...]:
        return tuple(self._by_slots.values())

    def all(self) -> tuple[LeftOut, ...]:
        """Return each partition once, in order."""
        both = {**self._by_planner, **self._by_slots}
        return tuple(both[source] for source in sorted(both))

    def micro_batch_done(
        self, unfinished: Collection[UnfinishedRange], positions: Mapping[SourcePartition, int], now_ms: int
    ) -> Change:
        """What slots left out replaces what they left out before; a partition that moved, and is not among them, is well again.

        `positions` are those of the offset map, now.
        """
        before = set(self._known())
        for source, last in list(self._by_slots.items()):
            if positions.get(source, -1) > (last.position or 0):
                self._by_slots[source] = replace(last, position=positions[source], tries=0)
        left = {one.source: one for one in unfinished if one.source in positions}
        ended = [
            last for source, last in self._by_slots.items() if source not in left and (last.tries == 0 or source not in positions)
        ]
        for last in ended:
            del self._by_slots[last.source]
        for source, one in left.items():
            known = self._by_slots.get(source) or self._by_planner.get(source)
            self._by_slots[source] = LeftOut(
                source=source,
                side=one.side,
                error_name=one.error_name,
                reason=one.reason,
                since_ms=now_ms if known is None else known.since_ms,
                position=positions[source],
                is_definite=one.is_definite,
                tried_at_ms=now_ms,
                tries=1 if known is None or source not in self._by_slots else known.tries + 1,
            )
        return self._change(before, ended)

    def query_begins(self, positions: Mapping[SourcePartition, int]) -> None:
        """Rows of the map may have been removed, and topics excluded, since the last micro-batch."""
        self._by_slots = {
            source: replace(last, position=positions[source]) for source, last in self._by_slots.items() if source in positions
        }

    def planner_says(self, unanswered: Collection[LeftOut], caught_up: Collection[SourcePartition]) -> Change:
        """What the planner leaves out replaces what it left out before. `caught_up`: nothing is left to copy of these."""
        before, last = set(self._known()), self._by_planner
        self._by_planner = {one.source: one for one in unanswered}
        ended = [one for source, one in last.items() if source not in self._by_planner]
        ended += [self._by_slots.pop(source) for source in caught_up if source in self._by_slots]
        return self._change(before, ended)

    def _known(self) -> Iterable[SourcePartition]:
        return self._by_slots.keys() | self._by_planner.keys()

    def _change(self, before: Collection[SourcePartition], ended: Iterable[LeftOut]) -> Change:
        there = set(self._known())
        return Change(
            tuple(one for one in self.all() if one.source not in before),
            tuple(one for one in ended if one.source not in there),
        )

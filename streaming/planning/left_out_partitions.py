"""Driver and planner process: partitions that the mirror leaves out while they are broken, and the file that lists them.

The driver writes the file after each micro-batch, on its own machine. The planner, which runs there as well, rewinds Spark to
the positions and tries again after a pause. Another copy is beside the Spark checkpoint, for `status`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shallow_mirror.sinks import Side, UnfinishedRange
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import SourcePartition

RETRY_AFTER_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a partition is planned again, by the number of tries that copied nothing; the last one repeats."""

RETRY_DEFINITE_AFTER_S = (10.0, 30.0, 60.0, 300.0)
"""The same for errors that an operator has to fix: each retry reads the slot's other ranges a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutPartition:
    """A partition that is left out of micro-batches, with the reason."""

    source: SourcePartition
    side: Side
    error_name: str
    reason: str
    since_ms: int
    """When it began."""
    position: int | None = None
    """Of the offset map. None if the planner left it out, so that Spark is not ahead of the map."""
    is_definite: bool = False
    tried_at_ms: int = 0
    """The last try."""
    tries: int = 1
    """Since something of it was copied."""

    def is_due(self, now_ms: int) -> bool:
        """Return True when the pause before the next try is over."""
        pauses = RETRY_DEFINITE_AFTER_S if self.is_definite else RETRY_AFTER_S
        return now_ms - self.tried_at_ms >= pauses[min(max(1, self.tries), len(pauses)) - 1] * 1000

    def document(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return {**self.source._asdict(), **fields, "side": self.side.value}


_FIELDS = ("error_name", "reason", "since_ms", "position", "is_definite", "tried_at_ms", "tries")


def write_left_out(path: Path | None, entries: Iterable[LeftOutPartition]) -> None:
    """Replace the file. Raises OSError."""
    planner_state.write_document(path, {"partitions": [entry.document() for entry in entries]})


def read_left_out(path: Path | None) -> tuple[LeftOutPartition, ...]:
    """Return the entries of the file; nothing if there is no file, or one that cannot be parsed."""
    return parse_left_out(planner_state.read_document(path))


def parse_left_out(document: Any) -> tuple[LeftOutPartition, ...]:
    """Return the entries of a document; nothing for one that `LeftOutPartition.document` has not built."""
    try:
        return tuple(
            LeftOutPartition(
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
class LeftOutChange:
    """Partitions that are left out from now on, and those that are copied again."""

    began: tuple[LeftOutPartition, ...] = ()
    ended: tuple[LeftOutPartition, ...] = ()


class LeftOutTracker:
    """PURE, the driver's own list."""

    def __init__(self) -> None:
        self._by_slots: dict[SourcePartition, LeftOutPartition] = {}
        """Left out of micro-batches."""
        self._by_planner: dict[SourcePartition, LeftOutPartition] = {}
        """Left out of plans."""
        self._by_settings: dict[SourcePartition, LeftOutPartition] = {}
        """Those whose records slots would leave out, if there were any: settings of the target topic were changed."""
        self._by_log_filling: dict[SourcePartition, LeftOutPartition] = {}
        """Those with preserved offsets whose target logs end below their positions, and cannot be filled."""

    @property
    def by_slots(self) -> tuple[LeftOutPartition, ...]:
        return tuple(self._by_slots.values())

    def all(self) -> tuple[LeftOutPartition, ...]:
        """Return each partition once, in order."""
        every = {**self._by_planner, **self._by_log_filling, **self._by_settings, **self._by_slots}
        return tuple(every[source] for source in sorted(every))

    def on_micro_batch(
        self, unfinished: Collection[UnfinishedRange], positions: Mapping[SourcePartition, int], now_ms: int
    ) -> LeftOutChange:
        """Replace the list of slots. A partition that moved and is not in `unfinished` is copied again.

        `positions` are those of the offset map, now.
        """
        before = set(self._sources())
        # Progress restarts the pauses between tries: a partition that moves is not as broken as one that does not.
        for source, last in list(self._by_slots.items()):
            if positions.get(source, -1) > (last.position or 0):
                self._by_slots[source] = replace(last, position=positions[source], tries=0)
        by_source = {entry.source: entry for entry in unfinished if entry.source in positions}
        # One that neither moved nor was tried stays left out: the planner only kept it out of this micro-batch.
        ended = [
            last
            for source, last in self._by_slots.items()
            if source not in by_source and (last.tries == 0 or source not in positions)
        ]
        for last in ended:
            del self._by_slots[last.source]
        for source, entry in by_source.items():
            previous = self._by_slots.get(source) or self._by_settings.get(source) or self._by_planner.get(source)
            self._by_slots[source] = LeftOutPartition(
                source=source,
                side=entry.side,
                error_name=entry.error_name,
                reason=entry.reason,
                since_ms=now_ms if previous is None else previous.since_ms,
                position=positions[source],
                is_definite=entry.is_definite,
                tried_at_ms=now_ms,
                tries=1 if previous is None or source not in self._by_slots else previous.tries + 1,
            )
        return self._change(before, ended)

    def on_query_start(self, positions: Mapping[SourcePartition, int]) -> None:
        """Update positions: rows of the map may have been removed, and topics excluded, since the last micro-batch.

        The start has compared all settings: those of a topic with changed ones end it.
        """
        self._by_settings = {}
        self._by_slots = {
            source: replace(last, position=positions[source]) for source, last in self._by_slots.items() if source in positions
        }

    def on_plan(self, unanswered: Collection[LeftOutPartition], caught_up: Collection[SourcePartition]) -> LeftOutChange:
        """Replace the list of the planner. `caught_up`: nothing is left to copy of these."""
        before, last = set(self._sources()), self._by_planner
        self._by_planner = {entry.source: entry for entry in unanswered}
        ended = [entry for source, entry in last.items() if source not in self._by_planner]
        ended += [self._by_slots.pop(source) for source in caught_up if source in self._by_slots]
        return self._change(before, ended)

    def on_changed_settings(self, changed: Collection[UnfinishedRange], now_ms: int) -> LeftOutChange:
        """Replace the list of partitions whose target topics were changed, idle or not."""
        before, last = set(self._sources()), self._by_settings
        self._by_settings = _since(last, changed, now_ms)
        return self._change(before, [entry for source, entry in last.items() if source not in self._by_settings])

    def on_unfilled_logs(self, unfilled: Collection[UnfinishedRange], now_ms: int) -> LeftOutChange:
        """Replace the list of partitions whose target logs are not filled up to their positions."""
        before, last = set(self._sources()), self._by_log_filling
        self._by_log_filling = _since(last, unfilled, now_ms)
        return self._change(before, [entry for source, entry in last.items() if source not in self._by_log_filling])

    def _sources(self) -> Iterable[SourcePartition]:
        return self._by_slots.keys() | self._by_planner.keys() | self._by_settings.keys() | self._by_log_filling.keys()

    def _change(self, before: Collection[SourcePartition], ended: Iterable[LeftOutPartition]) -> LeftOutChange:
        now = set(self._sources())
        return LeftOutChange(
            tuple(entry for entry in self.all() if entry.source not in before),
            tuple(entry for entry in ended if entry.source not in now),
        )


def _since(
    last: Mapping[SourcePartition, LeftOutPartition], entries: Iterable[UnfinishedRange], now_ms: int
) -> dict[SourcePartition, LeftOutPartition]:
    """Return a list that replaces `last`: partitions that are in both keep their time."""
    return {
        entry.source: LeftOutPartition(
            source=entry.source,
            side=entry.side,
            error_name=entry.error_name,
            reason=entry.reason,
            since_ms=last[entry.source].since_ms if entry.source in last else now_ms,
            position=entry.reached,
            is_definite=entry.is_definite,
            tried_at_ms=now_ms,
        )
        for entry in entries
    }

"""Pure: which topic id, partitions and lineages an archive had at a time, by docs/design/archive.md alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from shallow_mirror.types import SourcePartition


class Batch(Protocol):
    """A record batch of a log."""

    @property
    def base_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    def first_time_after(self, after_ms: int) -> int | None:
        """Return the time that the header gives for the first record newer than a time; None if none is."""


class ArchiveTraces(Protocol):
    """What an archive has seen, and when."""

    def topic_ids(self, topic: str) -> Sequence[str]:
        """Return the ids of a topic that have rows, in the order in which the archive saw them."""

    def sources(self, topic_id: str) -> Sequence[SourcePartition]: ...

    def first_ms(self, topic_id: str, partition: int | None = None) -> int:
        """Return the time of the first row or description of a topic, or of one of its partitions."""

    def lineages(self, source: SourcePartition) -> Sequence[tuple[int, int]]:
        """Return of each lineage the time of its first row, and its offset."""

    def looks(self, topic: str | None) -> Iterable[int]:
        """Return the times of decisions, and those of the descriptions of a topic."""

    def seen_batches(self, source: SourcePartition, lineage: int) -> Sequence[Batch]:
        """Return the batches in rows of a lineage whose records a consumer sees, by offset."""

    def log_batches(self, source: SourcePartition, lineage: int) -> Sequence[Batch]:
        """Return all batches in the log of a lineage."""


class StateAtTime:
    """The state of one archive at a time."""

    def __init__(self, traces: ArchiveTraces, time_ms: int) -> None:
        self._traces, self._time_ms = traces, time_ms

    def topic_id(self, topic: str) -> str:
        """Return the id that a topic had."""
        ids = self._traces.topic_ids(topic)

        def has_record(number: int, without_ms: int) -> bool:
            return any(self._has_record(source, without_ms) for source in self._traces.sources(ids[number]))

        return ids[self._newest([self._traces.first_ms(topic_id) for topic_id in ids], topic, has_record)]

    def has_partition(self, source: SourcePartition) -> bool:
        """Return whether a topic had a partition. What it had when the archive saw it first counts from before then on."""
        began_ms, first_ms = self._traces.first_ms(source.topic_id), self._traces.first_ms(source.topic_id, source.partition)
        if first_ms <= max(began_ms, self._time_ms) or min(start for _, start in self._traces.lineages(source)) > 0:
            return True
        without_ms = self._last_look_before(first_ms, source.topic)
        return began_ms <= self._time_ms and without_ms < self._time_ms and self._has_record(source, without_ms)

    def lineage(self, source: SourcePartition) -> int:
        """Return the number of the lineage whose log the partition had."""

        def has_record(number: int, without_ms: int) -> bool:
            former = self._traces.log_batches(source, number - 1)
            known = {(batch.base_offset, batch.data) for batch in former}
            last_epoch = max((batch.leader_epoch for batch in former), default=0)
            own = self._traces.seen_batches(source, number)
            new = [batch for batch in own if (batch.base_offset, batch.data) not in known and batch.leader_epoch >= last_epoch]
            return self._shows(new, without_ms)

        return self._newest([first_ms for first_ms, _ in self._traces.lineages(source)], None, has_record)

    def _newest(self, first_ms: Sequence[int], topic: str | None, has_record: Callable[[int, int], bool]) -> int:
        """Return which of several, seen first at these times, counts. `has_record`: of one, that it was there since a time."""
        chosen = max((number for number, at_ms in enumerate(first_ms) if at_ms <= self._time_ms), default=0)
        for number in range(chosen + 1, len(first_ms)):
            without_ms = self._last_look_before(first_ms[number], topic)
            if without_ms < self._time_ms and has_record(number, without_ms):
                chosen = number
        return chosen

    def _last_look_before(self, at_ms: int, topic: str | None) -> int:
        return max((look_ms for look_ms in self._traces.looks(topic) if look_ms < at_ms), default=-1)

    def _has_record(self, source: SourcePartition, without_ms: int) -> bool:
        batches = [
            batch for lineage in range(len(self._traces.lineages(source))) for batch in self._traces.seen_batches(source, lineage)
        ]
        return self._shows(sorted(batches, key=lambda batch: batch.base_offset), without_ms)

    def _shows(self, batches: Sequence[Batch], without_ms: int) -> bool:
        """Return whether the first record that claims to be newer than a time is not newer than the cut."""
        times = [at_ms for batch in batches if (at_ms := batch.first_time_after(without_ms)) is not None]
        return bool(times) and 0 <= times[0] <= self._time_ms

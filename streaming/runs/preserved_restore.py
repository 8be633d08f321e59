"""Driver: what a restore does for topics with preserved offsets: checks before the first write, and the ends of their logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import delete_records
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, PreservedLogDamagedError
from shallow_mirror.sinks.kafka.preserved import (
    GuardTimes,
    first_offset_problems,
    read_guard_times,
    require_preserved_offsets,
    used_log_problems,
    with_shared_producers,
)
from shallow_mirror.sinks.kafka.targets import existing_partitions
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_BYTES_PER_OFFSET,
    IsolationLevel,
    OffsetRange,
    PlannedRange,
    SourcePartition,
)


class PreservedRestore:
    """Of one run. `guard_times`: None until `prepare`, and if no topic is preserved."""

    def __init__(self, config: RestoreConfig, target: Cluster) -> None:
        self._config = config
        self._target = target
        self.guard_times: GuardTimes | None = None

    def prepare(self, deadline: Deadline) -> None:
        """Test the target's brokers for preserved offsets, once in a run. Raises ConfigError, RetriableError."""
        if self.guard_times is None and self._config.topics.preserves_offsets:
            require_preserved_offsets(self._target, self._config.mirror, deadline)
            self.guard_times = read_guard_times(self._target, self._config.write.transaction_timeout_ms, deadline)

    def require_possible(self, ranges: Mapping[SourcePartition, OffsetRange], begun: Collection[str], deadline: Deadline) -> None:
        """Raise ConfigError if a topic that is yet to be begun cannot be preserved. Before any topic is created."""
        new = {
            source: offsets
            for source, offsets in ranges.items()
            if self._config.topics.is_preserved(source.topic) and source.topic not in begun
        }
        if not new:
            return
        targets = {self._config.target_topic(source.topic) for source in new}
        problems = first_offset_problems((source.topic_partition, offsets.start) for source, offsets in sorted(new.items()))
        problems += used_log_problems(self._target, existing_partitions(self._target, targets, deadline), deadline)
        if problems:
            raise ConfigError(problems)

    def with_producers(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return first rows with the producer ids that preserved topics get. Raises as `with_shared_producers`."""
        return with_shared_producers(self._target, rows, self._config.topics.is_preserved, deadline)

    def short_logs(self, positions: Mapping[SourcePartition, Position], deadline: Deadline) -> dict[SourcePartition, int]:
        """Return the positions of partitions whose logs on the target end in front of them: no record lies between.

        Raises RetriableError.
        """
        ends = self._offsets(_preserved(positions), LATEST_TIMESTAMP, deadline)
        return {source: positions[source].offset for source, end in ends.items() if end < positions[source].offset}

    def require_own_ends(self, positions: Mapping[SourcePartition, Position], deadline: Deadline) -> None:
        """Raise PreservedLogDamagedError if a log ends behind its cut: another producer has written to it."""
        for source, end in sorted(self._offsets(_preserved(positions), LATEST_TIMESTAMP, deadline).items()):
            if end > positions[source].offset:
                detail = f"the log ends at {end}, and the restore at {positions[source].offset}: another producer writes to it"
                raise PreservedLogDamagedError(positions[source].target.topic_partition, positions[source].offset, detail)

    def delete_leading_fillers(
        self,
        ranges: Mapping[SourcePartition, OffsetRange],
        positions: Mapping[SourcePartition, Position],
        is_compacted: Callable[[str], bool],
        deadline: Deadline,
    ) -> None:
        """Let logs begin at the first offset that was archived, also those without records. Raises RetriableError.

        `is_compacted`: by archived topic. Brokers refuse to delete records of such topics: compaction removes the fillers.
        """
        starts = self._offsets(_preserved(positions), EARLIEST_TIMESTAMP, deadline)
        late = {
            positions[source].target.topic_partition: ranges[source].start
            for source, start in starts.items()
            if source in ranges and start < ranges[source].start and not is_compacted(source.topic)
        }
        if late:
            delete_records(self._target, late, deadline)

    def _offsets(
        self, positions: Mapping[SourcePartition, Position], timestamp: int, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        if not positions:
            return {}
        keys = {source: position.target.topic_partition for source, position in positions.items()}
        listed = self._target.list_offsets(dict.fromkeys(keys.values(), timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        return {source: listed[key].offset for source, key in keys.items()}


def _preserved(positions: Mapping[SourcePartition, Position]) -> dict[SourcePartition, Position]:
    return {source: position for source, position in positions.items() if position.shared_producer_id is not None}


def changed_offsets_problems(positions: Mapping[SourcePartition, Position], is_preserved: Callable[[str], bool]) -> list[str]:
    """Pure: return a sentence for each topic whose restore was begun with the other kind of offsets."""
    begun = {source.topic: position.shared_producer_id is not None for source, position in sorted(positions.items())}
    return [
        f"topics.offsets: the restore of {topic} was begun with {'preserved' if was_preserved else 'translated'} offsets: set it "
        "back (--offsets replaces it for all topics), or give another `restore` name, other `tables` and another "
        "topics.target_name"
        for topic, was_preserved in begun.items()
        if was_preserved != is_preserved(topic)
    ]


def plan_log_ends(ends: Mapping[SourcePartition, int], slots: int) -> tuple[tuple[PlannedRange, ...], ...]:
    """Pure: give each partition a range without length at its end, spread over the slots."""
    ranges: list[list[PlannedRange]] = [[] for _ in range(min(slots, len(ends)))]
    for number, (source, end) in enumerate(sorted(ends.items())):
        slot = number % len(ranges)
        planned = PlannedRange(slot=slot, source=source, start=end, end=end, bytes_per_offset=UNKNOWN_BYTES_PER_OFFSET)
        ranges[slot].append(planned)
    return tuple(tuple(of_slot) for of_slot in ranges)

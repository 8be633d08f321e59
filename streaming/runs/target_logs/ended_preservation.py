"""Driver: topics that were preserved until now and are translated from now on: what their logs hold beyond the map gets rows.

A task with preserved offsets makes records visible before any decision names them. Where a run ends in between, the log says
more than the map. As long as the topic is preserved, the next task finds these records in the log. A transaction would copy them
again, so the map has to know of them before the first one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka.preserved import FENCE_EPOCH, ExistingLog, continued_rows, own_in_place, responses_of_target
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_BYTES_PER_OFFSET,
    IsolationLevel,
    Segment,
    SegmentKind,
    SourcePartition,
    TopicPartition,
)
from shallow_mirror.verify import ClusterReader, compare_logs
from shallow_mirror.wire.batches import index_batches, restamp
from shallow_mirror.wire.records import FILLER_KEY, Fillers

_log = logging.getLogger(__name__)

_FETCH_BYTES = 4 << 20

_INSTEAD = "Mirror the topic to a new target topic with another mirror id, tables and checkpoint"
_BACK_OR_INSTEAD = (
    "Nothing was written to it. Set topics.offsets back to preserved, with which these records count as copied, or mirror the "
    "topic to a new target topic with another mirror id, tables and checkpoint"
)


@dataclass(frozen=True, slots=True)
class _EndedLog:
    """A log that is no longer preserved. The mirror's batches reach from the position to `end`."""

    source: SourcePartition
    position: Position
    start: int
    end: int
    displaced: int | None
    """The offset of the first batch of the mirror behind another producer's. Readers see its records, at other offsets."""
    further_ends: tuple[int, ...] = ()
    """Ends of the batches that follow `end` without a gap, of which the first is another producer's. Rising."""
    others_from: int | None = None
    """Where batches of other producers begin below `end`: only the source says whether they are copies. None: there are none."""
    read_until: int = 0
    """How far the log was read: the offset of the fence if it has one, else where it ended."""
    is_fenced: bool = False

    @property
    def can_stay_preserved(self) -> bool:
        """Whether a start with preserved offsets would continue it: all behind the position is the mirror's, in its place."""
        is_own = self.others_from is None and self.displaced is None
        return is_own and not self.is_fenced and self.end == self.read_until


class EndedPreservation:
    """Of one mirror. To be called when no task runs, before anything is written in transactions."""

    def __init__(self, config: MirrorConfig, target: Cluster) -> None:
        self._config = config
        self._target = target

    def rows(
        self,
        positions: Mapping[SourcePartition, Position],
        routes: Mapping[str, RoutedTopic],
        deadline: Callable[[], Deadline],
        *,
        handed_over: Collection[str] = (),
    ) -> tuple[DecidedSegment, ...]:
        """Return rows of records that logs hold beyond their positions. `positions`: of topics that exist and have `routes`.

        No task of an earlier run can write to these logs any more then, except to those of `handed_over` source topics: they
        are others' to write to, and get no fence.

        Raises ConfigError if a log differs from the source there, RetriableError.
        """
        ended = self._ended(positions)
        if not ended:
            return ()
        # The fence takes the offset of a record, so that the topic cannot be preserved any more: a log that is refused gets none.
        read_until, rows = self._rows_up_to(ended, self._log_ends(ended, deadline()), deadline())
        written = {source: position for source, position in ended.items() if source.topic not in handed_over}
        fences = self._fence(written, routes, deadline()) if written else {}
        # A request of an earlier task may have arrived before the fence.
        changed = {source: position for source, position in written.items() if read_until[source] != fences[source]}
        if changed:
            rows = [row for row in rows if row.segment.source not in changed]
            rows += self._rows_up_to(changed, {source: fences[source] + 1 for source in changed}, deadline())[1]
        for source, sentence in sentences_of(rows).items():
            _log.warning("target partition %s %s", ended[source].target.topic_partition, sentence)
        return tuple(rows)

    def undecided(self, positions: Mapping[SourcePartition, Position], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return the rows that a start would have now, and raise what it would raise; write nothing.

        Tasks of a run that is active may write on.
        """
        ended = self._ended(positions)
        return tuple(self._rows_up_to(ended, self._log_ends(ended, deadline), deadline)[1]) if ended else ()

    def _ended(self, positions: Mapping[SourcePartition, Position]) -> dict[SourcePartition, Position]:
        return {
            source: position
            for source, position in positions.items()
            if position.shared_producer_id is not None and not self._config.topics.is_preserved(source.topic)
        }

    def _log_ends(self, ended: Mapping[SourcePartition, Position], deadline: Deadline) -> dict[SourcePartition, int]:
        keys = {source: position.target.topic_partition for source, position in ended.items()}
        wanted = dict.fromkeys(keys.values(), LATEST_TIMESTAMP)
        listed = self._target.list_offsets(wanted, IsolationLevel.READ_UNCOMMITTED, deadline)
        return {source: listed[key].offset for source, key in keys.items()}

    def _rows_up_to(
        self, ended: Mapping[SourcePartition, Position], ends: Mapping[SourcePartition, int], deadline: Deadline
    ) -> tuple[dict[SourcePartition, int], list[DecidedSegment]]:
        """Return how far each log was read, and the rows of what it holds. Raises ConfigError if one differs from the source."""
        logs = [self._own_part(source, position, ends[source], deadline) for source, position in sorted(ended.items())]
        logs = [self._with_copies_of_others(log) for log in logs]
        if displaced := [log for log in logs if log.displaced is not None]:
            raise ConfigError([_displaced_problem(log) for log in displaced])
        longer = [log for log in logs if log.end > log.position.offset]
        return {log.source: log.read_until for log in logs}, self._compared(longer) if longer else []

    def _fence(
        self, ended: Mapping[SourcePartition, Position], routes: Mapping[str, RoutedTopic], deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Append a filler with the next producer epoch to each log; return its offset.

        Requests of tasks of an earlier run may still be on their way. Brokers would append them wherever the log ends by then.
        A repeated filler is answered with the offset of the first one.
        """
        queues: dict[TopicPartition, list[memoryview]] = {}
        for source, position in ended.items():
            limits, key = routes[source.topic].limits, FILLER_KEY if routes[source.topic].is_compacted else None
            batch = memoryview(Fillers(key, limits.max_message_bytes).batch(1, int(time.time() * 1000)))
            index = index_batches(batch)
            assert position.shared_producer_id is not None
            restamp(
                batch,
                index,
                np.zeros(1, np.int64),
                producer_id=position.shared_producer_id,
                producer_epoch=FENCE_EPOCH,
                first_sequence=0,
                transactional=False,
            )
            queues[position.target.topic_partition] = [batch]
        write = self._config.write
        pipeline = ProducePipeline(
            self._target,
            None,
            in_flight_requests=write.in_flight_requests,
            in_flight_bytes=write.in_flight_bytes,
            deadline=deadline,
        )
        base_offsets = pipeline.produce_all(queues)
        return {source: base_offsets[position.target.topic_partition][0] for source, position in ended.items()}

    def _own_part(self, source: SourcePartition, position: Position, until: int, deadline: Deadline) -> _EndedLog:
        """Return the offset up to which batches of this mirror follow the position without a gap, each at its own offset.

        `until`: the end of the log. The fence, if there is one, may be below that.
        A batch that was on its way when another producer wrote is behind that, and would be copied a second time: unless that
        producer's batches are copies as well.
        """
        key = position.target.topic_partition
        assert position.shared_producer_id is not None
        start = self._target.list_offsets({key: EARLIEST_TIMESTAMP}, IsolationLevel.READ_UNCOMMITTED, deadline)[key].offset
        end = max(position.offset, min(start, until))
        reader = RangeReader(
            self._target,
            [ReadRange(key, end, until, UNKNOWN_BYTES_PER_OFFSET)] if end < until else [],
            isolation=IsolationLevel.READ_UNCOMMITTED,
            fetch_bytes=_FETCH_BYTES,
            deadline=deadline,
        )
        displaced, further_ends, next_offset = None, list[int](), end
        for response in responses_of_target(reader):
            for fetched in response:
                headers = fetched.index.headers
                is_in_place = own_in_place(headers, position.shared_producer_id)
                for i in range(len(fetched.index)):
                    is_own = headers["producer_id"][i] == position.shared_producer_id
                    if is_own and headers["producer_epoch"][i] == FENCE_EPOCH:
                        until = int(headers["base_offset"][i])
                        further = tuple(further_ends)
                        return _EndedLog(source, position, start, end, displaced, further, read_until=until, is_fenced=True)
                    is_next = headers["base_offset"][i] <= next_offset <= fetched.index.last_offset[i]
                    is_copy = is_next and (is_in_place[i] or not is_own)
                    if is_copy:
                        next_offset = int(fetched.index.last_offset[i]) + 1
                    if is_copy and is_own and not further_ends:
                        end = next_offset
                        continue
                    if is_copy:
                        further_ends.append(next_offset)
                    if is_own and displaced is None:
                        displaced = int(headers["base_offset"][i])
        return _EndedLog(source, position, start, end, displaced, tuple(further_ends), read_until=until)

    def _with_copies_of_others(self, log: _EndedLog) -> _EndedLog:
        """Move the end behind the batches of other producers that hold what the source has at the same offsets.

        A run that continued a copy of the tables may have registered the partition with another producer. What it wrote is as
        visible as the mirror's own batches.
        """
        low, high = 0, len(log.further_ends)  # so many batches are equal at least, and at most
        while low < high:
            count = high if low == 0 and high == len(log.further_ends) else (low + high + 1) // 2
            if self._is_equal(replace(log, end=log.further_ends[count - 1], others_from=log.end)):
                low = count
            else:
                high = count - 1
        if not low:
            return log
        end = log.further_ends[low - 1]
        displaced = None if log.displaced is None or log.displaced < end else log.displaced
        return replace(log, end=end, displaced=displaced, others_from=log.end)

    def _is_equal(self, log: _EndedLog) -> bool:
        try:
            self._compared([log])
        except ConfigError:
            return False
        return True

    def _compared(self, logs: Sequence[_EndedLog]) -> list[DecidedSegment]:
        """Return the rows of logs that are longer than their positions say. Raises ConfigError with all that differ.

        The records there may have been read with another isolation level than that of the mirror file: then they are those
        that a reader of that level sees at the source.
        """
        configured = self._config.read.isolation_level
        rows, differing = self._compared_with(configured, logs)
        if differing:
            (other,) = set(IsolationLevel) - {configured}
            other_rows, still = self._compared_with(other, list(differing))
            rows += other_rows
            if still:
                raise ConfigError([problem for log in still for problem in differing[log].problems])
        return rows

    def _compared_with(
        self, isolation: IsolationLevel, logs: Sequence[_EndedLog]
    ) -> tuple[list[DecidedSegment], dict[_EndedLog, ConfigError]]:
        """Return the rows of logs equal to those that readers of this level see at the source, and an error for each other
        log."""
        rows = list[DecidedSegment]()
        differing = dict[_EndedLog, ConfigError]()
        with ExitStack() as stack:
            source = stack.enter_context(self._reader(self._config.source.client, self._config.source_cluster_name, isolation))
            target = stack.enter_context(self._reader(self._config.target.client, self._config.target_cluster_name, isolation))
            source.load_metadata(log.source.topic_partition for log in logs)
            target.load_metadata(log.position.target.topic_partition for log in logs)
            for log in logs:
                try:
                    rows += self._compared_rows(log, source, target)
                except ConfigError as error:
                    differing[log] = error
        return rows, differing

    def _compared_rows(self, log: _EndedLog, source: ClusterReader, target: ClusterReader) -> list[DecidedSegment]:
        """Return the rows of one log, from its position on. Raises ConfigError if it differs from the source."""
        source_key, target_key, start = log.source.topic_partition, log.position.target.topic_partition, log.position.offset
        view = source.log_view(source_key)
        if view.log_end < log.end:
            raise ConfigError(
                f"target partition {target_key} has offsets up to {log.end} of this mirror, source partition {source_key} ends "
                f"at {view.log_end}: the source has lost records. {_INSTEAD}"
            )
        if log.others_from is not None and view.log_start > log.others_from:
            raise ConfigError(
                f"target partition {target_key} has records of another producer from offset {log.others_from} on, and source "
                f"partition {source_key} begins at {view.log_start}: whether they are copies is not known. {_INSTEAD}"
            )
        # The sequence of a batch of the mirror shows that it has written all offsets below. Without one behind the deleted
        # records they may be another producer's, and what the source has there was never copied.
        if start < log.start >= log.end and view.log_start < log.start:
            raise ConfigError(
                f"topics.offsets: {log.source.topic} was preserved until now, and target partition {target_key} begins at "
                f"{log.start}, behind what was decided ({start}): whether the deleted records were copies is not known. "
                f"{_INSTEAD}"
            )
        compared = compare_logs(source, target, source_key, target_key, log.end, lambda _position: None, start=start)
        if compared.differences:
            raise ConfigError(
                f"topics.offsets: {log.source.topic} was preserved until now, and target partition {target_key} does not hold "
                f"what source partition {source_key} has from offset {start} on: {compared.differences[0].sentence}. "
                f"{_BACK_OR_INSTEAD if log.can_stay_preserved else _INSTEAD}"
            )
        existing = ExistingLog(
            source=source_key,
            target=target_key,
            source_start=view.log_start,
            source_end=view.log_end,
            start=start,
            end=log.end,
            stable_end=log.end,
        )
        at_position = Segment(
            source=log.source, source_start=start, source_end=start, kind=SegmentKind.GAP, target=log.position.target
        )
        rows = continued_rows(
            DecidedSegment(at_position, None),
            existing,
            record_count=compared.record_count,
            size_bytes=compared.size_bytes,
            holes=compared.holes,
        )
        return [replace(row, is_continued=False, shared_producer_id=log.position.shared_producer_id) for row in rows]

    def _reader(self, client: ClientConfig, where: str, isolation: IsolationLevel) -> ClusterReader:
        return ClusterReader(client, where, isolation, fetch_bytes=self._config.read.fetch_bytes)


def sentences_of(rows: Sequence[DecidedSegment]) -> dict[SourcePartition, str]:
    """Return what these rows mean, by source partition, as the predicate of its target partition."""
    counts, starts = Counter[SourcePartition](), dict[SourcePartition, int]()
    for row in rows:
        segment = row.segment
        counts[segment.source] += segment.record_count
        starts[segment.source] = min(segment.source_start, starts.get(segment.source, segment.source_start))
    return {
        source: f"was preserved until now and holds {counted(counts[source], 'record')} from offset {start} on without a "
        "decision: counted as copied"
        for source, start in sorted(starts.items())
    }


def _displaced_problem(log: _EndedLog) -> str:
    target = log.position.target.topic_partition
    return (
        f"topics.offsets: {log.source.topic} was preserved until now, and target partition {target} holds records of this mirror "
        f"behind those of another producer, from offset {log.displaced} on: they would be copied a second time. {_INSTEAD}"
    )

"""Executor: state of target logs with preserved offsets, before a slot writes to them."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from shallow_mirror.broker import Cluster, ClusterMetadata, LogDescription
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved.log_guard import FENCE_EPOCH, FENCED, GuardTimes, TargetLog, check_log, own_in_place
from shallow_mirror.types import UNKNOWN_BYTES_PER_OFFSET, IsolationLevel, TargetPartition, TopicPartition
from shallow_mirror.wire.records import find_fillers

_log = logging.getLogger(__name__)

_CHECKED_BYTES = 4 << 20
"""Of one response when headers of the target are checked."""


class TargetLogs:
    """The logs that one try of a slot writes to; each is asked for once.

    `producer_ids`: the shared producer of each. `positions`: of the map.
    `recorded_ends`: of the records that it has there. `quiet_for_ms`, `origins`: as in `check_log`, those that are not 0.
    """

    def __init__(
        self,
        target: Cluster,
        producer_ids: Mapping[TargetPartition, int],
        positions: Mapping[TargetPartition, int],
        recorded_ends: Mapping[TopicPartition, int],
        times: GuardTimes,
        quiet_for_ms: Callable[[], float],
        deadline: Deadline,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        origins: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        self._target = target
        self._producer_ids = producer_ids
        self._positions = positions
        self._recorded_ends = recorded_ends
        self._times = times
        self._quiet_for_ms = quiet_for_ms
        self._deadline = deadline
        self._now_ms = now_ms
        self._origins = origins
        self._logs: dict[TargetPartition, int | RetriableError] = {}
        """End of a log, or the reason why it may not be written to now."""
        self._undecided: dict[TargetPartition, list[tuple[int, int, bool]]] = {}
        """Batches behind the position: first offset, end, and whether they hold nothing but fillers."""
        self._first_alone: set[TopicPartition] = set()
        self.has_begun = False
        """Whether the first batch was taken that is sent to a log without a producer."""

    def learn(self, partitions: Iterable[TargetPartition]) -> dict[TargetPartition, RetriableError]:
        """Ask about partitions that were not asked about before; return why some of them cannot be written to now.

        Raises TargetDataLossError, PreservedLogDamagedError, and RetriableError if the target does not answer.
        """
        partitions = list(partitions)
        new = [partition for partition in partitions if partition not in self._logs]
        if new:
            for partition, log in self._describe(new).items():
                try:
                    log, is_alone = self._checked(partition, log)
                except RetriableError as error:
                    self._require_own(partition, log)  # a person has to act on it: that need not wait
                    self._logs[partition] = error
                else:
                    self._require_own(partition, log)
                    self._logs[partition] = log.end
                    if is_alone:
                        self._first_alone.add(partition.topic_partition)
        learned = {partition: self._logs[partition] for partition in partitions}
        return {partition: log for partition, log in learned.items() if isinstance(log, RetriableError)}

    def _checked(self, partition: TargetPartition, log: TargetLog) -> tuple[TargetLog, bool]:
        """Return the log that was checked, and the result of `check_log`. Errors that a person has to act on are checked twice.

        A leader that is deposed, and has not noticed, still answers: with an end, or a producer, of before.
        """
        try:
            return log, self._check(partition, log)
        except (PreservedLogDamagedError, TargetDataLossError) as error:
            _log.warning("the leader is asked again: %s", error)
            self._target.forget_metadata()
            self._target.pause(0, self._deadline)
            log = self._describe([partition])[partition]
            return log, self._check(partition, log)

    def _check(self, partition: TargetPartition, log: TargetLog) -> bool:
        return check_log(
            partition.topic_partition,
            log,
            recorded_end=self._recorded_ends.get(partition.topic_partition, 0),
            quiet_for_ms=self._quiet_for_ms(),
            times=self._times,
            now_ms=self._now_ms(),
            origin=self._origins.get(partition.topic_partition, 0),
        )

    def end_of(self, partition: TargetPartition) -> int:
        """Return the end of a log. Raises as `learn`, and RetriableError if it may not be written to now."""
        self.learn([partition])
        end = self._logs[partition]
        if isinstance(end, RetriableError):
            raise end
        return end

    def is_filler_at(self, partition: TargetPartition, offset: int) -> bool | None:
        """Return whether an undecided micro-batch wrote a filler at an offset behind the position; None if nothing is there.

        Call it after `end_of`.
        """
        batches = self._undecided.get(partition, [])
        i = bisect_right(batches, offset, key=lambda each: each[0]) - 1
        return batches[i][2] if i >= 0 and offset < batches[i][1] else None

    def take_first_alone(self, topic_partition: TopicPartition) -> bool:
        """Return whether the next batch has to be acknowledged before another one is sent; from then on it need not be."""
        if topic_partition not in self._first_alone:
            return False
        self._first_alone.remove(topic_partition)
        self.has_begun = True
        return True

    def _require_own(self, partition: TargetPartition, log: TargetLog) -> None:
        """Raise PreservedLogDamagedError if a batch behind the position, of which the map does not know, is another writer's.

        Also if it may have been, and is deleted. Such batches are those of a task whose micro-batch was not decided. They count
        as copied, so their headers are read, and whether they are fillers is kept: the task may have read with another isolation
        level than this one.
        """
        key, producer_id = partition.topic_partition, self._producer_ids[partition]
        position = self._positions[partition]
        if log.producer is None and position < log.start == log.end:
            detail = (
                f"records were deleted up to {log.end}, and neither the map nor the broker knows whether this mirror or restore "
                "has written them"
            )
            raise PreservedLogDamagedError(key, position, detail, is_translatable=False)
        start = max(position, log.start)
        if start >= log.end:
            return
        undecided = self._undecided[partition] = []
        reader = RangeReader(
            self._target,
            [ReadRange(key, start, log.end, UNKNOWN_BYTES_PER_OFFSET)],
            isolation=IsolationLevel.READ_UNCOMMITTED,
            fetch_bytes=_CHECKED_BYTES,
            deadline=self._deadline,
        )
        for response in responses_of_target(reader):
            for fetched in response:
                headers = fetched.index.headers
                offsets = headers["base_offset"]
                # Of a producer that its broker has forgotten, only its batch says that preservation was ended here.
                for i in np.flatnonzero((headers["producer_id"] == producer_id) & (headers["producer_epoch"] == FENCE_EPOCH))[:1]:
                    raise PreservedLogDamagedError(key, int(offsets[i]), FENCED, is_ended=True)
                is_own = own_in_place(headers, producer_id)
                for i in np.flatnonzero(~is_own & (offsets < log.end))[:1].tolist():
                    detail = f"a batch of producer id {int(headers['producer_id'][i])}, the mirror's is {producer_id}"
                    raise PreservedLogDamagedError(key, int(offsets[i]), detail)
                is_filler = find_fillers(fetched.index, fetched.records)
                ends = fetched.index.last_offset + 1
                undecided += zip(offsets.tolist(), ends.tolist(), is_filler.tolist(), strict=True)

    def _describe(self, partitions: Sequence[TargetPartition]) -> dict[TargetPartition, TargetLog]:
        """Ask the leaders. Raises PreservedLogDamagedError if a topic was created again, RetriableError."""
        described = self._target.retrying(
            "asking about target logs", lambda attempt: self._described_once(partitions, attempt), self._deadline
        )
        logs = {}
        for partition in partitions:
            log, producer_id = described[partition.topic_partition], self._producer_ids[partition]
            shared = (state for state in log.producers if state.producer_id == producer_id)
            logs[partition] = TargetLog(log.start, log.end, next(shared, None))
        return logs

    def _described_once(self, partitions: Sequence[TargetPartition], deadline: Deadline) -> dict[TopicPartition, LogDescription]:
        """Ask about topics and logs at once, which takes one round trip."""
        listing = self._target.begin_metadata(sorted({partition.topic for partition in partitions}), deadline)
        try:
            return self._target.describe_logs([partition.topic_partition for partition in partitions], deadline)
        finally:
            _require_same_topics(partitions, listing.receive(deadline))


def responses_of_target(reader: RangeReader) -> Iterator[Sequence[IndexedPartition]]:
    """Yield what a reader of target logs does. Raises as the reader, and RetriableError instead of DataLossError.

    Records that retention deletes at the target meanwhile are no loss of the source: another look begins where the log does.
    """
    try:
        yield from reader
    except DataLossError as loss:
        text = f"target {loss.topic_partition} has deleted records while they were read, from offset {loss.expected_offset} on"
        raise RetriableError("OFFSET_OUT_OF_RANGE", text) from loss


def _require_same_topics(partitions: Iterable[TargetPartition], metadata: ClusterMetadata) -> None:
    """Raise PreservedLogDamagedError if a target topic was created again: its log begins again."""
    for partition in partitions:
        topic = metadata.topics.get(partition.topic)
        if topic is not None and topic.error_code == 0 and topic.topic_id != partition.topic_id:
            detail = f"the topic was deleted and created again (topic id {partition.topic_id} became {topic.topic_id})"
            raise PreservedLogDamagedError(partition.topic_partition, 0, detail)

"""Driver: the logs of partitions with preserved offsets, filled up to the positions where no record brings them there.

A slot fills what lies in front of a record, and a hole at the end of what it reads. It writes nothing for a partition that begins
above 0 and holds no record, or whose records expired before they were copied: the target's log would end below offsets that
groups have committed, and what is written to it after a move would get offsets that the source has used. Such logs are filled
here: at a start, and when partitions are registered or offsets are recorded as expired.

A log that holds fillers only keeps the last one until its first record is there: brokers may forget the producer of an empty one
(`sinks/kafka/preserved/log_guard.py`), and a start would have to wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import delete_records
from shallow_mirror.broker.cluster import listed_partitions
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.topics import NOTHING_FORGOTTEN, ForgottenTopics
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import ReadPart, RoutedTopic
from shallow_mirror.sinks.kafka.preserved import TargetLogs
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob, PreservedWriter, target_ends_of
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, SegmentKind, SourcePartition
from shallow_mirror.wire.batches import index_batches

_log = logging.getLogger(__name__)

_AGAIN_S = 30.0
"""How long after a failure the target is asked again."""

_Positions = dict[SourcePartition, Position]


class LogFilling:
    """Of the owner of a map, while no slot runs. Failures are logged and tried again: the slots copy other records meanwhile."""

    def __init__(
        self,
        owner: LedgerOwner,
        target: Cluster,
        job: KafkaSlotJob,
        routes: Callable[[], Mapping[str, RoutedTopic]],
        deadline: Callable[[], Deadline],
        *,
        forgotten: ForgottenTopics = NOTHING_FORGOTTEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job`: the template of every slot's, with `guard_times`. `deadline`: returns that of one attempt."""
        self.forgotten = forgotten
        self._owner = owner
        self._target = target
        self._job = job
        self._routes = routes
        self._deadline = deadline
        self._clock = clock
        self._checked: set[SourcePartition] = set()
        self._checked_micro_batch = -1
        self._again_at: float | None = None
        self._unclean_at = clock()
        """When a request of another writer, or one of ours without an answer, may have been on its way the last time."""

    def note(self, rows: Iterable[DecidedSegment]) -> None:
        """Take the rows of a decision: logs whose source lost offsets are looked at again."""
        self._checked -= {row.segment.source for row in rows if row.segment.kind is SegmentKind.EXPIRED}

    def fill(self) -> None:
        """Fill up logs that were not looked at yet. Cheap if there is none.

        Raises OutcomeUnknownError, FencedError and OffsetMapConflictError, as `LedgerOwner.positions`.
        """
        if self._again_at is None:
            if self._owner.micro_batch == self._checked_micro_batch:
                return
        elif self._clock() < self._again_at:
            return
        micro_batch, self._again_at = self._owner.micro_batch, None
        positions = self._owner.positions()
        new = {source: positions[source] for source in positions.keys() - self._checked}
        preserved = {source: at for source, at in new.items() if self._is_written(source, at)}
        try:
            left = self._fill(preserved, self._deadline()) if preserved else set[SourcePartition]()
        except RetriableError as error:
            _log.warning("preserved offsets: logs of the target are filled later: %s", error)
            left = set(preserved)
        if left:
            self._again_at = self._clock() + _AGAIN_S
        self._checked |= new.keys() - left
        self._checked_micro_batch = micro_batch

    def _is_written(self, source: SourcePartition, at: Position) -> bool:
        route = self._routes().get(source.topic)
        if at.shared_producer_id is None or route is None or not route.is_preserved or self.forgotten.has(source):
            return False
        return route.target_topic_id == at.target.topic_id  # the log of a former target topic was deleted

    def _fill(self, preserved: _Positions, deadline: Deadline) -> set[SourcePartition]:
        """Return the partitions whose logs could not be filled. Raises RetriableError."""
        # Up to the last copied record a log reaches anyway: if it does not, it has lost records, which a slot finds out.
        unsure = {source: at for source, at in preserved.items() if at.offset > at.target_end}
        listed = set(listed_partitions(self._target, (at.target.topic_partition for at in unsure.values()), deadline))
        missing = {source for source, at in unsure.items() if at.target.topic_partition not in listed}
        unsure = {source: at for source, at in unsure.items() if source not in missing}
        ends = self._offsets(unsure, LATEST_TIMESTAMP, deadline)
        short = {source: at for source, at in unsure.items() if ends[source] < at.offset}
        if short:
            offsets = counted(sum(at.offset - ends[source] for source, at in short.items()), "offset")
            _log.info("preserved offsets: filling %s of the target, %s", counted(len(short), "log"), offsets)
        refused: dict[SourcePartition, MirrorError] = {}
        while short := {source: at for source, at in short.items() if source not in refused and ends[source] < at.offset}:
            deadline.require("logs of the target to be filled")
            refused |= self._send(short, deadline)
            ends |= self._offsets(short, LATEST_TIMESTAMP, deadline)
        for source, error in sorted(refused.items()):
            _log.warning(
                "preserved offsets: the log of target %s is not filled: %s", unsure[source].target.topic_partition, error
            )
        self._delete_below_starts({source: at for source, at in unsure.items() if source not in refused}, ends, deadline)
        return missing | refused.keys()

    def _send(self, short: _Positions, deadline: Deadline) -> dict[SourcePartition, MirrorError]:
        """Send fillers until the commit interval is over. Return the logs that may not be written to. Raises RetriableError."""
        asked, refused = dict(short), dict[SourcePartition, MirrorError]()
        while asked:
            job = self._job_of(asked)
            targets = {job.routes[source.topic].target_of(source): source for source in asked}
            assert job.guard_times is not None
            logs = TargetLogs(
                self._target,
                {target: job.shared_producers[source] for target, source in targets.items()},
                {target: job.positions[source] for target, source in targets.items()},
                job.target_ends,
                job.guard_times,
                lambda: (self._clock() - self._unclean_at) * 1000,
                deadline,
                origins=job.origins,
            )
            try:
                unwritable = {targets[target]: error for target, error in logs.learn(targets).items()}
            except (PreservedLogDamagedError, TargetDataLossError) as error:  # the slot that is to write there raises it again
                damaged = {source for target, source in targets.items() if target.topic_partition == error.topic_partition}
                refused |= dict.fromkeys(damaged, error)
                asked = {source: at for source, at in asked.items() if source not in damaged}
                continue
            refused |= unwritable
            self._write(job, logs, [source for source in asked if source not in unwritable], deadline)
            break
        return refused

    def _job_of(self, positions: _Positions) -> KafkaSlotJob:
        producers = {source: at.shared_producer_id for source, at in positions.items() if at.shared_producer_id is not None}
        return replace(
            self._job,
            routes=dict(self._routes()),
            positions={source: at.offset for source, at in positions.items()},
            shared_producers=producers,
            target_ends=target_ends_of(positions.values()),
            origins={at.target.topic_partition: at.origin for at in positions.values() if at.origin},
        )

    def _write(self, job: KafkaSlotJob, logs: TargetLogs, sources: Iterable[SourcePartition], deadline: Deadline) -> None:
        nothing = memoryview(bytearray())
        index = index_batches(nothing)
        parts = [ReadPart(source, job.positions[source], index, nothing, (), fills_log=True) for source in sources]
        builders = {
            part.source: SegmentBuilder(part.source, job.routes[part.source.topic].target_of(part.source), part.range_end)
            for part in parts
        }
        writer = PreservedWriter(job, self._target, logs, deadline)
        try:
            writer.write(parts, builders.__getitem__)
            writer.finish(builders.__getitem__)
        except BaseException:
            self._unclean_at = self._clock()
            raise

    def _delete_below_starts(self, filled: _Positions, ends: Mapping[SourcePartition, int], deadline: Deadline) -> None:
        """Let logs without a record begin with those of the source, or one filler in front of them. Raises RetriableError.

        Brokers refuse it for compacted topics: compaction removes the fillers.
        """
        routes = self._routes()
        leading = {
            source: at
            for source, at in filled.items()
            if at.start > 0 and at.target_end == 0 and not routes[source.topic].is_compacted
        }
        starts = self._offsets(leading, EARLIEST_TIMESTAMP, deadline)
        wanted = {source: at.start if ends[source] > at.start else at.start - 1 for source, at in leading.items()}
        late = {leading[source].target.topic_partition: start for source, start in wanted.items() if starts[source] < start}
        if late:
            delete_records(self._target, late, deadline)

    def _offsets(self, positions: _Positions, timestamp: int, deadline: Deadline) -> dict[SourcePartition, int]:
        if not positions:
            return {}
        keys = {source: at.target.topic_partition for source, at in positions.items()}
        listed = self._target.list_offsets(dict.fromkeys(keys.values(), timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        return {source: listed[key].offset for source, key in keys.items()}

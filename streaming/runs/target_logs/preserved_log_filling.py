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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import delete_records
from shallow_mirror.broker.cluster import listed_partitions
from shallow_mirror.broker.net import PRODUCER_FORGOTTEN, UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.topics import NOTHING_FORGOTTEN, ForgottenTopics
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    MirrorError,
    PreservedLogDamagedError,
    RetriableError,
    TargetDataLossError,
    TopicAccessError,
    TopicGoneError,
    TopicSettingsError,
)
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import ReadPart, RoutedTopic, Side, UnfinishedRange
from shallow_mirror.sinks.kafka.preserved import TargetLogs
from shallow_mirror.sinks.kafka.targets.settings import PreservedSettings
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob, PreservedWriter, target_ends_of
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    SegmentKind,
    SourcePartition,
    TargetPartition,
)
from shallow_mirror.wire.batches import index_batches

_log = logging.getLogger(__name__)

_AGAIN_S = 30.0
"""How long after a failure the target is asked again."""

_PATIENCE_MS = 2_000
"""How long leaders are waited for: micro-batches wait as well."""

_LAST_PATIENCE_S, _LAST_LOOKS_S = 60.0, 5.0
"""How long the end of a run waits for leaders, as its planner does (`planning/planner.py`), and how often it looks."""

_Positions = dict[SourcePartition, Position]


class LogFilling:
    """Of the owner of a map, while no slot runs. Failures are logged and tried again: the slots copy other records meanwhile.

    Errors of single topics that an operator has to fix end the run, as those of a slot do, unless they are isolated.
    """

    def __init__(
        self,
        owner: LedgerOwner,
        target: Cluster,
        job: KafkaSlotJob,
        routes: Callable[[], Mapping[str, RoutedTopic]],
        deadline: Callable[[], Deadline],
        *,
        forgotten: ForgottenTopics = NOTHING_FORGOTTEN,
        moved: Callable[[], Collection[str]] = tuple,
        isolates: bool = False,
        settings: PreservedSettings | None = None,
        on_unfilled: Callable[[Sequence[UnfinishedRange]], None] = lambda _ranges: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job`: the template of every slot's, with `guard_times`. `deadline`: returns that of one attempt.

        `moved`: returns the source topics to whose targets others write now; their logs wait until they are taken back.
        `settings`: compares those of target topics; None: the start has done so, and nothing is filled later.
        `on_unfilled`: is given an empty range at the position of each partition whose log is not filled, after the first look
        and whenever these are others than before.
        """
        self.forgotten, self._moved = forgotten, moved
        self._isolates = isolates
        self._settings = settings
        self._on_unfilled = on_unfilled
        self._reported: Sequence[UnfinishedRange] | None = None
        self._owner = owner
        self._target = target
        self._job = job
        self._routes = routes
        self._deadline = deadline
        self._clock = clock
        self._checked: set[SourcePartition] = set()
        self._checked_micro_batch = -1
        self._again_at: float | None = None
        self._unfilled: dict[SourcePartition, MirrorError] = {}
        self._unclean_at = clock()
        """When a request of another writer, or one of ours without an answer, may have been on its way the last time."""

    def note(self, rows: Iterable[DecidedSegment]) -> None:
        """Take the rows of a decision: logs whose source lost offsets are looked at again."""
        self._checked -= {row.segment.source for row in rows if row.segment.kind is SegmentKind.EXPIRED}

    def fill(self) -> None:
        """Fill up logs that were not looked at yet. Cheap if there is none.

        Raises OutcomeUnknownError, FencedError and OffsetMapConflictError, as `LedgerOwner.positions`; without `isolates`
        also TopicSettingsError, TopicAccessError, TopicGoneError and BatchRefusedError.
        """
        if self._again_at is None:
            if self._owner.micro_batch == self._checked_micro_batch:
                return
        elif self._clock() < self._again_at:
            return
        try:
            self._fill_unchecked()
        except RetriableError as error:
            _log.warning("preserved offsets: logs of the target are filled later: %s", error)
            self._again_at = self._clock() + _AGAIN_S

    def finish(self, wait: Callable[[float], bool]) -> None:
        """Fill all logs, for the end of a run that has copied everything.

        Logs whose brokers have forgotten the producer are waited for, because their time is known and every run would begin it
        anew; those without a leader for a minute. `wait`: waits for so many seconds; returns whether the run has to end. Raises
        as `fill` and `on_unfilled`, and RetriableError if the target does not answer.
        """
        ends_at = self._clock() + _LAST_PATIENCE_S
        self._fill_unchecked()
        if waiting := [error for error in self._unfilled.values() if isinstance(error, RetriableError)]:
            what = counted(len(waiting), "log of the target", "logs of the target")
            _log.info("preserved offsets: before the run ends, %s may still be filled: %s", what, waiting[0])
        while self._waits_until(ends_at) and not wait(_LAST_LOOKS_S):
            self._fill_unchecked()

    def _waits_until(self, ends_at: float) -> bool:
        errors = [error for error in self._unfilled.values() if isinstance(error, RetriableError)]
        return any(error.error_name == PRODUCER_FORGOTTEN for error in errors) or (bool(errors) and self._clock() < ends_at)

    def _fill_unchecked(self) -> None:
        """Fill the logs that were not looked at yet, and report those that cannot be filled. Raises RetriableError."""
        micro_batch, self._again_at = self._owner.micro_batch, None
        positions, moved = self._owner.positions(), self._moved()
        new = {source: positions[source] for source in positions.keys() - self._checked if source.topic not in moved}
        preserved = {source: at for source, at in new.items() if self._is_written(source, at)}
        self._unfilled = self._fill(preserved, self._deadline()) if preserved else {}
        if self._unfilled:
            self._again_at = self._clock() + _AGAIN_S
        self._checked |= new.keys() - self._unfilled.keys()
        self._checked_micro_batch = micro_batch
        unfilled = [_unfilled_range(source, positions[source], error) for source, error in sorted(self._unfilled.items())]
        if unfilled != self._reported:
            self._on_unfilled(unfilled)
            self._reported = unfilled

    def _is_written(self, source: SourcePartition, at: Position) -> bool:
        route = self._routes().get(source.topic)
        if at.shared_producer_id is None or route is None or not route.is_preserved or self.forgotten.has(source):
            return False
        return route.target_topic_id == at.target.topic_id  # the log of a former target topic was deleted

    def _fill(self, preserved: _Positions, deadline: Deadline) -> dict[SourcePartition, MirrorError]:
        """Return why logs could not be filled. Raises as `_send`."""
        # Up to the last copied record a log reaches anyway: if it does not, it has lost records, which a slot finds out.
        unsure = {source: at for source, at in preserved.items() if at.offset > at.target_end}
        listed = set(listed_partitions(self._target, (at.target.topic_partition for at in unsure.values()), deadline))
        unlisted = RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), "the target does not list the partition")
        missing: dict[SourcePartition, MirrorError] = {
            source: unlisted for source, at in unsure.items() if at.target.topic_partition not in listed
        }
        ends, unreadable = self._readable_ends({source: at for source, at in unsure.items() if source not in missing}, deadline)
        missing |= unreadable
        unsure = {source: unsure[source] for source in ends}
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
        return {**missing, **refused}

    def _send(self, short: _Positions, deadline: Deadline) -> dict[SourcePartition, MirrorError]:
        """Send fillers until the commit interval is over. Return the logs that may not be written to.

        Raises RetriableError, and errors of single topics that are not isolated.
        """
        asked, refused = dict(short), dict[SourcePartition, MirrorError]()
        while asked:
            job = self._job_of(asked, deadline)
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
                self._write(job, logs, [source for source in asked if source not in unwritable], deadline)
            except MirrorError as error:
                failed = self._sources_of(error, targets)
                if not failed:
                    raise
                refused |= dict.fromkeys(failed, error)
                asked = {source: at for source, at in asked.items() if source not in failed}
            else:
                return refused | unwritable
        return refused

    def _sources_of(self, error: MirrorError, targets: Mapping[TargetPartition, SourcePartition]) -> list[SourcePartition]:
        """Return the partitions without which the others can be filled after an error; nothing if it ends the run."""
        if isinstance(error, PreservedLogDamagedError | TargetDataLossError):  # the slot that is to write there raises it again
            return [source for target, source in targets.items() if target.topic_partition == error.topic_partition]
        if not self._isolates:
            return []
        if isinstance(error, TopicSettingsError | TopicAccessError | TopicGoneError):
            return [source for target, source in targets.items() if target.topic in error.topics]
        if isinstance(error, BatchRefusedError):
            return [source for source in targets.values() if source.topic_partition == error.topic_partition]
        return []

    def _job_of(self, positions: _Positions, deadline: Deadline) -> KafkaSlotJob:
        routes = dict(self._routes())
        producers = {source: at.shared_producer_id for source, at in positions.items() if at.shared_producer_id is not None}
        return replace(
            self._job,
            routes=routes,
            unfit={} if self._settings is None else self._settings.problems(routes, deadline),
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

    def _readable_ends(
        self, positions: _Positions, deadline: Deadline
    ) -> tuple[dict[SourcePartition, int], dict[SourcePartition, MirrorError]]:
        """Return the ends of the logs whose leaders answer, and why others do not: they must not keep these waiting."""
        if not positions:
            return {}, {}
        keys = {source: at.target.topic_partition for source, at in positions.items()}
        patience = deadline.sooner(_PATIENCE_MS)
        ends, errors = self._target.latest_offsets(
            list(keys.values()), IsolationLevel.READ_UNCOMMITTED, patience, is_patient=False
        )
        for error in list(errors.values())[:1]:
            _log.warning("preserved offsets: logs of the target are filled later (%d): %s", len(errors), error)
        return (
            {source: ends[key] for source, key in keys.items() if key in ends},
            {source: errors[key] for source, key in keys.items() if key in errors},
        )

    def _offsets(self, positions: _Positions, timestamp: int, deadline: Deadline) -> dict[SourcePartition, int]:
        if not positions:
            return {}
        keys = {source: at.target.topic_partition for source, at in positions.items()}
        listed = self._target.list_offsets(dict.fromkeys(keys.values(), timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        return {source: listed[key].offset for source, key in keys.items()}


def _unfilled_range(source: SourcePartition, at: Position, error: MirrorError) -> UnfinishedRange:
    left = UnfinishedRange.of(source, at.offset, Side.TARGET, error)
    return replace(
        left, reason=f"the log of target {at.target.topic_partition} is not filled up to offset {at.offset}: {left.reason}"
    )

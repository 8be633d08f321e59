"""Driver: `verify`: the proof of copy of a mirror, partition by partition. Starts no JVM, writes nothing but `audit`."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from shallow_mirror.checkpoints.backends.best_effort_table import ObservationStore, open_store_to_read
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.quarantine import Quarantine
from shallow_mirror.checkpoints.quarantine_tables import open_quarantine_to_read
from shallow_mirror.checkpoints.table_protocol import Comparison
from shallow_mirror.checkpoints.verify_log import FLUSH_S, AuditIdentity, AuditLog, VerifiedRange, interrupted_audit
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.types import IsolationLevel, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.clusters import AuditedCluster
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.map_index import plan_stretches
from shallow_mirror.verify.partition_map import LANE_COLUMNS, Lane, lanes_of
from shallow_mirror.verify.quarantined import QuarantineCheck
from shallow_mirror.verify.range_verifier import OnPosition, Sides, StretchResult, verify_stretch
from shallow_mirror.verify.report import SHOWN_DIFFERENCES, Tally, VerifyReport
from shallow_mirror.version import __version__

STRETCH_FETCHES = 16
"""What is verified, and noted, in one go is about this many `read.fetch_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProgress:
    """`done_offsets` of `total_offsets` of the source; `read_bytes` from both sides, of this run."""

    place: TopicPartition
    done_offsets: int
    total_offsets: int
    read_bytes: int
    difference_count: int

    def __str__(self) -> str:
        found = "no difference" if self.difference_count == 0 else counted(self.difference_count, "difference")
        return f"{self.place}, {self.read_bytes / 1e6:,.0f} MB read, {found}"


OnProgress = Callable[[AuditProgress], None]


def ignore_progress(progress: AuditProgress) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """`stretch_bytes` is verified, and noted, in one go; rows of the map are never cut. `flush_s`: how long notes may wait."""

    is_deep: bool
    stretch_bytes: int
    flush_s: float


def verify_mirror(
    config: MirrorConfig,
    *,
    topics: Sequence[str] | None = None,
    is_deep: bool = False,
    from_start: bool = False,
    on_progress: OnProgress = ignore_progress,
    stretch_bytes: int | None = None,
    flush_s: float = FLUSH_S,
    clock: Callable[[], float] = time.monotonic,
    spark: Any = None,
) -> VerifyReport:
    """Compare what both clusters hold through the offset map, as far as it is settled.

    `topics`: source topics, all by default. `is_deep`: open every batch. An audit of the same topics and depth that was
    interrupted is continued, unless `from_start`. `stretch_bytes` by default STRETCH_FETCHES times `read.fetch_bytes`.
    `spark`: for tables in a catalog, the session that has it. Differences are in the report. Raises ConfigError (no map,
    another mirror's clusters, a right that is missing), RetriableError (a cluster does not answer), BatchRefusedError (a batch is
    too large to be opened); what was verified until then is kept.
    """
    options = AuditOptions(
        is_deep=is_deep, stretch_bytes=stretch_bytes or STRETCH_FETCHES * config.read.fetch_bytes, flush_s=flush_s
    )
    offset_map = OffsetMap.open(config.table_storage, spark, mirror=config.mirror)
    level, fetch_bytes = config.read.isolation_level, config.read.fetch_bytes
    with (
        AuditedCluster(config.source.client, config.source_cluster_name, level, fetch_bytes=fetch_bytes, clock=clock) as source,
        AuditedCluster(
            config.target.client,
            config.target_cluster_name,
            IsolationLevel.READ_COMMITTED,
            fetch_bytes=fetch_bytes,
            clock=clock,
        ) as target,
    ):
        quarantine = Quarantine(offset_map, open_quarantine_to_read(config.table_storage, spark))
        audit = _Audit(config, offset_map, quarantine, source, target, options, on_progress, clock)
        return audit.run(topics, open_store_to_read(config.table_storage, spark), from_start=from_start)


class _Audit:
    def __init__(
        self,
        config: MirrorConfig,
        offset_map: OffsetMap,
        quarantine: Quarantine,
        source: AuditedCluster,
        target: AuditedCluster,
        options: AuditOptions,
        on_progress: OnProgress,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._map, self._options = config, offset_map, options
        self._quarantine, self._source, self._target = quarantine, source, target
        self._clock, self._began = clock, clock()
        self._tally = Tally()
        self._verified: dict[tuple[SourcePartition, TargetPartition], tuple[int, int]] = {}
        self._progress = _Meter(on_progress, self._tally)
        self._partition_count = 0

    def run(self, topics: Sequence[str] | None, store: ObservationStore, *, from_start: bool) -> VerifyReport:
        names = self._look_at(topics)
        identity, continues = self._begin(store, topics, from_start)
        log = AuditLog(store, identity, clock=self._clock, flush_s=self._options.flush_s)
        if not continues:
            log.begin()
        try:
            for name in names:
                for lane in self._lanes(name):
                    self._verify_lane(lane, log)
            log.finish()
        finally:
            log.flush()
        return self._report(identity, names, continues=continues)

    def _look_at(self, topics: Sequence[str] | None) -> list[str]:
        """The names to be verified. Order matters: what the target showed before the map was read, the map knows."""
        self._check_clusters()
        targets = _places(self._map.positions(), topics, "target")
        self._target.look_at(targets)
        self._target_ends = {place: self._target.log_view(place).log_end for place in targets if self._target.has(place)}
        self._map.refresh()
        positions = self._map.positions()
        self._source.look_at(_places(positions, topics, "source"))
        self._target.look_at(_places(positions, topics, "target"))
        refused = [*self._source.refused, *self._target.refused]
        if refused:
            raise ConfigError(refused)
        for source, position in positions.items():
            place = source.topic_partition
            if self._source.has(place) and (topics is None or source.topic in topics):
                self._progress.expect(place, position.offset - self._source.log_view(place).log_start)
        return sorted({source.topic for source in positions if topics is None or source.topic in topics})

    def _check_clusters(self) -> None:
        self._map.require_clusters(source=self._source.cluster_id(), target=self._target.cluster_id())

    def _begin(self, store: ObservationStore, topics: Sequence[str] | None, from_start: bool) -> tuple[AuditIdentity, bool]:
        """Who this audit is, and whether it was begun before."""
        scope = json.dumps({"topics": None if topics is None else sorted(topics), "deep": self._options.is_deep})
        found = None if from_start else interrupted_audit(store, scope)
        for one in [] if found is None else found[1]:
            self._restore(one)
        identity = AuditIdentity(
            audit_id=str(uuid.uuid4()) if found is None else found[0],
            scope=scope,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
        )
        return identity, found is not None

    def _restore(self, one: VerifiedRange) -> None:
        lane = (one.source, one.target)
        source_end, target_end = self._verified.get(lane, (0, 0))
        self._verified[lane] = (max(source_end, one.source_range.end), max(target_end, one.target_range.end))
        self._tally.restore(one)

    def _lanes(self, topic: str) -> list[Lane]:
        view = self._source.topic(topic)
        rows = self._map.settled_rows((Comparison("source_topic", "=", topic),), columns=LANE_COLUMNS)
        undecided = [one.segment for one in self._map.unsettled_rows()]
        return lanes_of(rows, topic, None if view is None else view.topic_id, undecided)

    def _verify_lane(self, lane: Lane, log: AuditLog) -> None:
        self._partition_count += 1
        self._tell_problems(lane)
        if lane.gone_offsets:
            self._tally.unchecked[Unchecked.SOURCE_TOPIC_GONE] += lane.gone_offsets
        self._check_quarantine(lane)
        if self._is_target_gone(lane):
            self._tell_gone(lane)
            return
        sides = self._sides(lane)
        verified = self._verified.get((lane.source, lane.target))
        first = int(lane.rows.start[0]) if len(lane.rows) else 0
        source_from, target_from = verified or (first, 0)
        last_copy = int(lane.rows.target_ends.max()) if len(lane.rows.target_ends) else 0
        stretches = plan_stretches(
            lane.rows,
            source_from=source_from,
            target_from=target_from,
            target_until=max(self._target_ends.get(lane.target.topic_partition, 0), last_copy),
            size_bytes=self._options.stretch_bytes,
        )
        with self._progress.lane(lane.source.topic_partition, source_from) as on_position:
            for number, stretch in enumerate(stretches):
                is_first = number == 0 and verified is None
                result = verify_stretch(sides, stretch, is_first=is_first, on_position=on_position)
                self._tally.add(result)
                log.note(_verified_range(lane, result))

    def _sides(self, lane: Lane) -> Sides:
        source = self._source.side(lane.source.topic_partition, lane.rows.start)
        target = self._target.side(lane.target.topic_partition, lane.rows.target_starts)
        view = self._source.topic(lane.source.topic)
        return Sides(
            source=source,
            target=target,
            source_again=source.again(self._source.again),
            target_again=target.again(self._target.again),
            rows=lane.rows,
            elsewhere=lane.elsewhere,
            is_deep=self._options.is_deep or (view is not None and view.is_stamped_by_broker),
        )

    def _check_quarantine(self, lane: Lane) -> None:
        """Each time: an audit that is continued does it again."""
        if not lane.quarantines:
            return
        of_lane = (
            Comparison("source_topic", "=", lane.source.topic),
            Comparison("source_partition", "=", lane.source.partition),
        )
        source = self._source.side(lane.source.topic_partition, lane.rows.start) if len(lane.rows) else None
        target = None if self._is_target_gone(lane) else self._target.side(lane.target.topic_partition, lane.rows.target_starts)
        check = QuarantineCheck(self._quarantine, source, target)
        for entry in self._quarantine.entries(of_lane):
            check.check(entry, is_live=entry.segment.source == lane.source)
        self._tally.tell(merged(check.differences))
        self._tally.unchecked.update(check.unchecked)

    def _is_target_gone(self, lane: Lane) -> bool:
        view = self._target.topic(lane.target.topic)
        return view is None or view.topic_id != lane.target.topic_id or not self._target.has(lane.target.topic_partition)

    def _tell_gone(self, lane: Lane) -> None:
        copied = lane.rows.is_data
        if copied.any():
            where = {"source_start": int(lane.rows.start[copied][0]), "source_end": int(lane.rows.end[copied][-1])}
            reason = "the target topic that the map names was deleted, or created again without what was copied to it"
            self._tally.tell([_difference(lane, DifferenceKind.MISSING, reason, **where)])

    def _tell_problems(self, lane: Lane) -> None:
        self._tally.tell(
            _difference(lane, one.kind, one.reason, source_start=one.start, source_end=one.end) for one in lane.problems
        )

    def _report(self, identity: AuditIdentity, names: Sequence[str], *, continues: bool) -> VerifyReport:
        tally = self._tally
        return VerifyReport(
            mirror=self._config.mirror,
            audit_id=identity.audit_id,
            topics=tuple(names),
            is_deep=self._options.is_deep,
            continues=continues,
            seconds=self._clock() - self._began,
            partition_count=self._partition_count,
            **tally.counts(),
            unchecked=dict(tally.unchecked),
            difference_counts=dict(tally.difference_counts),
            differences=tuple(tally.differences),
        )


def _places(
    positions: Mapping[SourcePartition, Position], topics: Sequence[str] | None, side: Literal["source", "target"]
) -> set[TopicPartition]:
    unknown = sorted(set(topics or ()) - {source.topic for source in positions})
    if unknown:
        raise ConfigError([f"topic {name} is not in the offset map: it was never mirrored" for name in unknown])
    return {
        source.topic_partition if side == "source" else position.target.topic_partition
        for source, position in positions.items()
        if topics is None or source.topic in topics
    }


def _difference(lane: Lane, kind: DifferenceKind, reason: str, **where: int) -> Difference:
    return Difference(kind=kind, source=lane.source.topic_partition, target=lane.target.topic_partition, reason=reason, **where)


def _verified_range(lane: Lane, result: StretchResult) -> VerifiedRange:
    return VerifiedRange(
        source=lane.source,
        target=lane.target,
        source_range=result.stretch.source,
        target_range=result.stretch.target,
        batch_count=result.batch_count,
        opened_batch_count=result.opened_batch_count,
        record_count=result.record_count,
        source_bytes=result.source_bytes,
        target_bytes=result.target_bytes,
        unchecked={why.value: count for why, count in result.unchecked.items()},
        difference_counts=Counter(one.kind.value for one in result.differences),
        differences=[one.document() for one in result.differences[:SHOWN_DIFFERENCES]],
    )


class _Meter:
    """Counts source offsets: those of lanes that are done, and how far the one under way is."""

    def __init__(self, on_progress: OnProgress, tally: Tally) -> None:
        self._on_progress, self._tally = on_progress, tally
        self._expected: dict[TopicPartition, int] = {}
        self._done = 0

    def expect(self, place: TopicPartition, offsets: int) -> None:
        self._expected[place] = max(offsets, self._expected.get(place, 0), 0)

    @contextmanager
    def lane(self, place: TopicPartition, start: int) -> Iterator[OnPosition]:
        total = sum(self._expected.values())
        of_lane = self._expected.get(place, 0)

        def on_position(position: int) -> None:
            self._tell(place, min(self._done + max(position - start, 0), total), total)

        yield on_position
        self._done += of_lane
        self._tell(place, self._done, total)

    def _tell(self, place: TopicPartition, done: int, total: int) -> None:
        tally = self._tally
        self._on_progress(
            AuditProgress(
                place=place,
                done_offsets=done,
                total_offsets=total,
                read_bytes=tally.source_bytes + tally.target_bytes,
                difference_count=sum(tally.difference_counts.values()),
            )
        )

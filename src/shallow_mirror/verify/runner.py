"""Driver: `verify`: compare source and target of a mirror, partition by partition. Starts no JVM, writes nothing but `audit`."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from shallow_mirror.checkpoints.archive_table import ArchiveTable
from shallow_mirror.checkpoints.archived_topics import ArchivedTopics
from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.quarantine.entries import Quarantine, QuarantineTable
from shallow_mirror.checkpoints.restore_ranges import RestoreRangesTable
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.checkpoints.table_protocol import Comparison
from shallow_mirror.checkpoints.verify_log import FLUSH_S, VerifiedRange, VerifyIdentity, VerifyLog, interrupted_verification
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.types import IsolationLevel, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.verify.archive_side import ArchiveSide
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.clusters import ClusterReader, TopicView
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.map_index import Longs, plan_range_pairs
from shallow_mirror.verify.partition_map import PAIR_COLUMNS, PartitionPair, partition_pairs
from shallow_mirror.verify.partition_reader import LogReader, LogView
from shallow_mirror.verify.quarantined import QuarantineCheck
from shallow_mirror.verify.range_verifier import OnPosition, PartitionReaders, RangeResult, verify_range
from shallow_mirror.verify.report import SHOWN_DIFFERENCES, Tally, VerifyReport
from shallow_mirror.version import __version__

RANGE_FETCHES = 16
"""Ranges of about this many `read.fetch_bytes` are verified, and recorded, at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """`done_offsets` of `total_offsets` of the source; `read_bytes` from both sides, of this run."""

    topic_partition: TopicPartition
    done_offsets: int
    total_offsets: int
    read_bytes: int
    difference_count: int

    def __str__(self) -> str:
        differences = "no difference" if self.difference_count == 0 else counted(self.difference_count, "difference")
        return f"{self.topic_partition}, {self.read_bytes / 1e6:,.0f} MB read, {differences}"


OnProgress = Callable[[VerifyProgress], None]


def ignore_progress(progress: VerifyProgress) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Ranges of `range_bytes` are verified, and recorded, at once; rows of the map are never cut.

    `flush_s`: how long rows of the table may wait for each other.
    """

    is_deep: bool
    range_bytes: int
    flush_s: float


def verify_mirror(
    config: MirrorConfig,
    *,
    topics: Sequence[str] | None = None,
    after: Mapping[TopicPartition, tuple[int, int]] | None = None,
    is_deep: bool = False,
    from_start: bool = False,
    on_progress: OnProgress = ignore_progress,
    range_bytes: int | None = None,
    flush_s: float = FLUSH_S,
    clock: Callable[[], float] = time.monotonic,
    spark: Any = None,
) -> VerifyReport:
    """Compare what both clusters hold through the offset map, as far as it is settled.

    `topics`: source topics, all by default. `after`: by source partition, the source offset where a row of the map ends, and the
    target offset, from which on is compared; everything of partitions that it lacks. `is_deep`: open every
    batch. A verification of the same topics and depth that was interrupted is continued, unless `from_start`. `range_bytes` by
    default RANGE_FETCHES times `read.fetch_bytes`.
    `spark`: for tables in a catalog, the session that has it. Differences are in the report. Raises ConfigError (no map,
    another mirror's clusters, a missing permission), RetriableError (a cluster does not answer), BatchRefusedError (a batch is
    too large to be opened); what was verified until then is kept.
    """
    options = VerifyOptions(is_deep=is_deep, range_bytes=range_bytes or RANGE_FETCHES * config.read.fetch_bytes, flush_s=flush_s)
    storage = MirrorStorage(config.table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    level, fetch_bytes = config.read.isolation_level, config.read.fetch_bytes
    with (
        ClusterReader(config.source.client, config.source_cluster_name, level, fetch_bytes=fetch_bytes, clock=clock) as source,
        ClusterReader(
            config.target.client,
            config.target_cluster_name,
            IsolationLevel.READ_COMMITTED,
            fetch_bytes=fetch_bytes,
            clock=clock,
        ) as target,
    ):
        quarantine = Quarantine(offset_map, QuarantineTable.open(storage))
        audit = _MirrorVerifier(config, offset_map, quarantine, source, target, options, on_progress, clock, after or {})
        return audit.run(topics, storage.best_effort_tables(), from_start=from_start)


def verify_restore(
    config: RestoreConfig,
    *,
    topics: Sequence[str] | None = None,
    is_deep: bool = False,
    from_start: bool = False,
    on_progress: OnProgress = ignore_progress,
    flush_s: float = FLUSH_S,
    clock: Callable[[], float] = time.monotonic,
    spark: Any = None,
) -> VerifyReport:
    """Compare the target with the archive, up to the cut of the restore, as `verify_mirror` compares two clusters.

    Raises ConfigError also where the restore has not begun, and ArchiveFormatError, ObjectMissingError, StoreUnreachableError.
    """
    fetch_bytes = config.read.fetch_bytes
    options = VerifyOptions(is_deep=is_deep, range_bytes=RANGE_FETCHES * fetch_bytes, flush_s=flush_s)
    storage = MirrorStorage(config.table_location, spark)
    archive_storage = MirrorStorage(config.archive_table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    decided = RestoreRangesTable.of(storage).read()
    if decided is None:
        raise ConfigError("the restore has not begun: run `shallow-mirror restore` first")
    table = ArchiveTable.open(archive_storage)
    if table.archive_id != decided.archive_id:
        raise ConfigError(f"archive: the restore was made from archive {decided.archive_id}, here is {table.archive_id}")
    source = ArchiveSide(
        table,
        ObjectStore.open(config.archive.objects, config.storage_options),
        decided,
        ArchivedTopics.of(archive_storage).described(
            {source.topic: source.topic_id for source in decided.ranges}, decided.last_decision
        ),
        config.read.isolation_level,
        fetch_bytes=fetch_bytes,
    )
    committed = IsolationLevel.READ_COMMITTED
    where = config.target_cluster_name
    with ClusterReader(config.target.client, where, committed, fetch_bytes=fetch_bytes, clock=clock) as target:
        quarantine = Quarantine(offset_map, QuarantineTable.open(storage))
        verifier = _MirrorVerifier(config, offset_map, quarantine, source, target, options, on_progress, clock)
        return verifier.run(topics, storage.best_effort_tables(), from_start=from_start)


class Side(Protocol):
    """The source of a verification: a cluster, or an archive of one. As `ClusterReader`."""

    @property
    def refused(self) -> tuple[str, ...]: ...
    def cluster_id(self) -> str: ...
    def load_metadata(self, topic_partitions: Iterable[TopicPartition], /) -> None: ...
    def topic(self, name: str, /) -> TopicView | None: ...
    def has(self, topic_partition: TopicPartition, /) -> bool: ...
    def log_view(self, topic_partition: TopicPartition, /) -> LogView: ...
    def readers(self, topic_partition: TopicPartition, starts: Longs, /) -> tuple[LogReader, LogReader]: ...


class _MirrorVerifier:
    def __init__(
        self,
        config: MirrorConfig | RestoreConfig,
        offset_map: OffsetMap,
        quarantine: Quarantine,
        source: Side,
        target: ClusterReader,
        options: VerifyOptions,
        on_progress: OnProgress,
        clock: Callable[[], float],
        after: Mapping[TopicPartition, tuple[int, int]] | None = None,
    ) -> None:
        self._config = config
        self._after = after or {}
        self._map = offset_map
        self._options = options
        self._quarantine = quarantine
        self._source = source
        self._target = target
        self._clock, self._began = clock, clock()
        self._tally = Tally()
        self._verified: dict[tuple[SourcePartition, TargetPartition], tuple[int, int]] = {}
        self._progress = _Meter(on_progress, self._tally)
        self._partition_count = self._preserved_partition_count = self._filler_count = 0

    def run(self, topics: Sequence[str] | None, tables: BestEffortTables, *, from_start: bool) -> VerifyReport:
        names = self._load_metadata(topics)
        identity, continues = self._begin(tables, topics, from_start)
        log = VerifyLog(tables, identity, clock=self._clock, flush_s=self._options.flush_s)
        if not continues:
            log.begin()
        try:
            for name in names:
                for pair in self._partition_pairs(name):
                    self._verify_partition(pair, log)
            log.finish()
        finally:
            log.flush()
        return self._report(identity, names, continues=continues)

    def _load_metadata(self, topics: Sequence[str] | None) -> list[str]:
        """Return the names of the topics to verify.

        The target's log ends are read before the map: so the map has rows for all that they cover.
        """
        self._check_clusters()
        targets = _topic_partitions(self._map.positions(), topics, "target")
        self._target.load_metadata(targets)
        self._target_ends = {
            topic_partition: self._target.log_view(topic_partition).log_end
            for topic_partition in targets
            if self._target.has(topic_partition)
        }
        self._map.refresh()
        positions = self._map.positions()
        self._source.load_metadata(_topic_partitions(positions, topics, "source"))
        self._target.load_metadata(_topic_partitions(positions, topics, "target"))
        refused = [*self._source.refused, *self._target.refused]
        if refused:
            raise ConfigError(refused)
        for source, position in positions.items():
            topic_partition = source.topic_partition
            if self._source.has(topic_partition) and (topics is None or source.topic in topics):
                self._progress.expect(topic_partition, position.offset - self._source.log_view(topic_partition).log_start)
        return sorted({source.topic for source in positions if topics is None or source.topic in topics})

    def _check_clusters(self) -> None:
        self._map.require_clusters(source=self._source.cluster_id(), target=self._target.cluster_id())

    def _begin(self, tables: BestEffortTables, topics: Sequence[str] | None, from_start: bool) -> tuple[VerifyIdentity, bool]:
        """Return who verifies, and whether an interrupted verification is continued."""
        fields: dict[str, Any] = {"topics": None if topics is None else sorted(topics), "deep": self._options.is_deep}
        if self._after:
            fields["after"] = {str(name): offsets for name, offsets in sorted(self._after.items())}
        scope = json.dumps(fields)
        interrupted = None if from_start else interrupted_verification(tables, scope)
        for verified in [] if interrupted is None else interrupted[1]:
            self._restore(verified)
        identity = VerifyIdentity(
            audit_id=str(uuid.uuid4()) if interrupted is None else interrupted[0],
            scope=scope,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
        )
        return identity, interrupted is not None

    def _restore(self, verified: VerifiedRange) -> None:
        pair = (verified.source, verified.target)
        source_end, target_end = self._verified.get(pair, (0, 0))
        self._verified[pair] = (max(source_end, verified.source_range.end), max(target_end, verified.target_range.end))
        self._tally.restore(verified)

    def _partition_pairs(self, topic: str) -> list[PartitionPair]:
        view = self._source.topic(topic)
        rows = self._map.settled_rows((Comparison("source_topic", "=", topic),), columns=PAIR_COLUMNS)
        undecided = [row.segment for row in self._map.unsettled_rows()]
        return partition_pairs(rows, topic, None if view is None else view.topic_id, undecided)

    def _verify_partition(self, pair: PartitionPair, log: VerifyLog) -> None:
        self._partition_count += 1
        self._preserved_partition_count += pair.is_preserved
        self._filler_count += pair.filler_count
        self._report_map_problems(pair)
        if pair.gone_offsets:
            self._tally.unchecked[Unchecked.SOURCE_TOPIC_GONE] += pair.gone_offsets
        self._check_quarantine(pair)
        if self._is_target_gone(pair):
            self._report_missing_target(pair)
            return
        readers = self._readers(pair)
        verified = self._verified.get((pair.source, pair.target), self._after.get(pair.source.topic_partition))
        first = int(pair.rows.start[0]) if len(pair.rows) else 0
        source_from, target_from = verified or (first, 0)
        last_copy = int(pair.rows.target_ends.max()) if len(pair.rows.target_ends) else 0
        range_pairs = plan_range_pairs(
            pair.rows,
            source_from=source_from,
            target_from=target_from,
            target_until=max(self._target_ends.get(pair.target.topic_partition, 0), last_copy),
            size_bytes=self._options.range_bytes,
        )
        with self._progress.pair(pair.source.topic_partition, source_from) as on_position:
            for number, range_pair in enumerate(range_pairs):
                is_first = number == 0 and verified is None
                result = verify_range(readers, range_pair, is_first=is_first, on_position=on_position)
                self._tally.add(result)
                log.note(_verified_range(pair, result))

    def _readers(self, pair: PartitionPair) -> PartitionReaders:
        source, source_reopened = self._source.readers(pair.source.topic_partition, pair.rows.start)
        target, target_reopened = self._target.readers(pair.target.topic_partition, pair.rows.target_starts)
        for reader in (source, source_reopened, target, target_reopened):
            reader.log.is_preserved = pair.is_preserved
        view = self._source.topic(pair.source.topic)
        return PartitionReaders(
            source=source,
            target=target,
            source_reopened=source_reopened,
            target_reopened=target_reopened,
            rows=pair.rows,
            elsewhere=pair.elsewhere,
            is_deep=self._options.is_deep or (view is not None and view.is_stamped_by_broker),
        )

    def _check_quarantine(self, pair: PartitionPair) -> None:
        """Check the batches in quarantine, also when a verification is continued: these checks are not recorded."""
        if not pair.quarantines:
            return
        of_pair = (
            Comparison("source_topic", "=", pair.source.topic),
            Comparison("source_partition", "=", pair.source.partition),
        )
        source = self._source.readers(pair.source.topic_partition, pair.rows.start)[0] if len(pair.rows) else None
        target = None if self._is_target_gone(pair) else self._target.reader(pair.target.topic_partition, pair.rows.target_starts)
        check = QuarantineCheck(self._quarantine, source, target)
        for entry in self._quarantine.entries(of_pair):
            check.check(entry, is_live=entry.segment.source == pair.source)
        self._tally.add_differences(merged(check.differences))
        self._tally.unchecked.update(check.unchecked)

    def _is_target_gone(self, pair: PartitionPair) -> bool:
        view = self._target.topic(pair.target.topic)
        return view is None or view.topic_id != pair.target.topic_id or not self._target.has(pair.target.topic_partition)

    def _report_missing_target(self, pair: PartitionPair) -> None:
        copied = pair.rows.is_data
        if copied.any():
            where = {"source_start": int(pair.rows.start[copied][0]), "source_end": int(pair.rows.end[copied][-1])}
            reason = "the target topic that the map names was deleted, or created again without what was copied to it"
            self._tally.add_differences([_difference(pair, DifferenceKind.MISSING, reason, **where)])

    def _report_map_problems(self, pair: PartitionPair) -> None:
        self._tally.add_differences(
            _difference(pair, problem.kind, problem.reason, source_start=problem.start, source_end=problem.end)
            for problem in pair.problems
        )

    def _report(self, identity: VerifyIdentity, names: Sequence[str], *, continues: bool) -> VerifyReport:
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
            preserved_partition_count=self._preserved_partition_count,
            filler_count=self._filler_count,
        )


def _topic_partitions(
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


def _difference(pair: PartitionPair, kind: DifferenceKind, reason: str, **where: int) -> Difference:
    return Difference(kind=kind, source=pair.source.topic_partition, target=pair.target.topic_partition, reason=reason, **where)


def _verified_range(pair: PartitionPair, result: RangeResult) -> VerifiedRange:
    return VerifiedRange(
        source=pair.source,
        target=pair.target,
        source_range=result.range_pair.source,
        target_range=result.range_pair.target,
        batch_count=result.batch_count,
        opened_batch_count=result.opened_batch_count,
        record_count=result.record_count,
        source_bytes=result.source_bytes,
        target_bytes=result.target_bytes,
        unchecked={why.value: count for why, count in result.unchecked.items()},
        difference_counts=Counter(difference.kind.value for difference in result.differences),
        differences=[difference.document() for difference in result.differences[:SHOWN_DIFFERENCES]],
    )


class _Meter:
    """Count source offsets: those of partitions that are done, and how far the current one is."""

    def __init__(self, on_progress: OnProgress, tally: Tally) -> None:
        self._on_progress, self._tally = on_progress, tally
        self._expected: dict[TopicPartition, int] = {}
        self._done = 0

    def expect(self, topic_partition: TopicPartition, offsets: int) -> None:
        self._expected[topic_partition] = max(offsets, self._expected.get(topic_partition, 0), 0)

    @contextmanager
    def pair(self, topic_partition: TopicPartition, start: int) -> Iterator[OnPosition]:
        total = sum(self._expected.values())
        of_pair = self._expected.get(topic_partition, 0)

        def on_position(position: int) -> None:
            self._report_difference(topic_partition, min(self._done + max(position - start, 0), total), total)

        yield on_position
        self._done += of_pair
        self._report_difference(topic_partition, self._done, total)

    def _report_difference(self, topic_partition: TopicPartition, done: int, total: int) -> None:
        tally = self._tally
        self._on_progress(
            VerifyProgress(
                topic_partition=topic_partition,
                done_offsets=done,
                total_offsets=total,
                read_bytes=tally.source_bytes + tally.target_bytes,
                difference_count=sum(tally.difference_counts.values()),
            )
        )

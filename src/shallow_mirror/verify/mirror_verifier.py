"""Driver: one verification: the topics of the offset map, partition by partition, each range recorded when it is verified."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs import Quarantine
from shallow_mirror.checkpoints.logs.runs import VerifiedRange, VerifyIdentity, VerifyLog, interrupted_verification
from shallow_mirror.checkpoints.logs.topics import NOTHING_FORGOTTEN, ForgottenTopics
from shallow_mirror.checkpoints.tables import BestEffortTables, Comparison
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.clusters import ClusterReader, TopicView
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.map_index import Longs, plan_range_pairs
from shallow_mirror.verify.partition_map import PAIR_COLUMNS, PartitionPair, partition_pairs
from shallow_mirror.verify.partition_reader import LogReader, LogView
from shallow_mirror.verify.partition_results import PartitionResults, digest_text
from shallow_mirror.verify.progress import OnProgress, ProgressMeter
from shallow_mirror.verify.quarantined import QuarantineCheck
from shallow_mirror.verify.range_verifier import PartitionReaders, RangeResult, verify_range
from shallow_mirror.verify.report import SHOWN_DIFFERENCES, Tally, VerifyReport
from shallow_mirror.version import __version__

DECIDED_WITHIN_S = 15.0
"""A round of a mirror reads on for 10 seconds at the most where offsets are preserved, and is decided then."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Ranges of `range_bytes` are verified, and recorded, at once; rows of the map are never cut.

    `flush_s`: how long rows of the table may wait for each other; None: as `VerifyLog` has it.
    """

    is_deep: bool
    range_bytes: int
    flush_s: float | None


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


class MirrorVerifier:
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
        known: Mapping[TopicPartition, Sequence[OffsetRange]] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        forgotten: ForgottenTopics = NOTHING_FORGOTTEN,
    ) -> None:
        self._forgotten = forgotten
        self._config = config
        self._sleep = sleep
        self._after = after or {}
        self._known = known or {}
        self._map = offset_map
        self._options = options
        self._quarantine = quarantine
        self._source = source
        self._target = target
        self._clock = clock
        self._began = clock()
        self._tally = Tally()
        self._results = PartitionResults()
        self._names: Sequence[str] = ()
        self._identity: VerifyIdentity | None = None
        self._continues = False
        self._cluster_ids: tuple[str | None, str | None] = (None, None)
        self._verified: dict[tuple[SourcePartition, TargetPartition], tuple[int, int]] = {}
        self._progress = ProgressMeter(on_progress, self._tally)
        self._partition_count = 0
        self._preserved_partition_count = 0
        self._filler_count = 0
        self.deleted_at_target: dict[TopicPartition, tuple[int, int]] = {}
        """Offsets of the source whose copies the target has deleted, and where its log begins, by target partition."""

    def run(self, topics: Sequence[str] | None, tables: BestEffortTables, *, from_start: bool) -> VerifyReport:
        """Compare all partitions. The verification is recorded as finished by `finish` alone."""
        self._names = self._load_metadata(topics)
        identity, self._continues = self._begin(tables, topics, from_start)
        self._identity = identity
        self._log = VerifyLog(tables, identity, clock=self._clock, flush_s=self._options.flush_s)
        if not self._continues:
            self._log.begin()
        try:
            for name in self._names:
                for pair in self._partition_pairs(name):
                    if not self._forgotten.has(pair.source):
                        self._verify_partition(pair, self._log)
        finally:
            self._log.flush()
        return self.report()

    def finish(self, report: VerifyReport) -> None:
        """Record the result. `report`: that of `run`, with its coverage."""
        self._log.finish(report.summary())

    def _load_metadata(self, topics: Sequence[str] | None) -> list[str]:
        """Return the names of the topics to verify.

        The target's log ends are read before the map: so the map has rows for all that they cover, or has them soon.
        """
        self._cluster_ids = source_id, target_id = self._source.cluster_id(), self._target.cluster_id()
        self._map.require_clusters(source=source_id, target=target_id)
        targets = _topic_partitions(self._map.positions(), topics, "target")
        self._target.load_metadata(targets)
        self._target_ends = {
            topic_partition: self._target.log_view(topic_partition).log_end
            for topic_partition in targets
            if self._target.has(topic_partition)
        }
        self._map.refresh()
        self._await_decisions()
        positions = self._map.positions()
        self._source.load_metadata(_topic_partitions(positions, topics, "source"))
        self._target.load_metadata(_topic_partitions(positions, topics, "target"))
        refused = [*self._source.refused, *self._target.refused]
        if refused:
            raise ConfigError(refused)
        for source, position in self._forgotten.without(positions).items():
            topic_partition = source.topic_partition
            if self._source.has(topic_partition) and (topics is None or source.topic in topics):
                self._progress.expect(topic_partition, position.offset - self._source.log_view(topic_partition).log_start)
        names = {source.topic for source in self._forgotten.without(positions)}
        return sorted(names if topics is None else names.intersection(topics))

    def _await_decisions(self) -> None:
        """Wait until the map has passed the target's log ends of preserved offsets: readers see records before a decision.

        The round of a running mirror ends in time. Records without a row then are of other producers, or of a killed mirror.
        """
        give_up_at = self._clock() + DECIDED_WITHIN_S
        while self._has_undecided() and self._clock() < give_up_at:
            self._sleep(_POLL_S)
            self._map.refresh()

    def _has_undecided(self) -> bool:
        offsets: dict[TopicPartition, int] = {}
        for position in self._forgotten.without(self._map.positions()).values():
            # A former target topic of the name may have been longer than the log is now.
            if position.shared_producer_id is not None and not self._is_target_gone(position.target):
                name = position.target.topic_partition
                offsets[name] = max(offsets.get(name, 0), position.offset)
        return any(self._target_ends.get(name, 0) > offset for name, offset in offsets.items())

    def _begin(self, tables: BestEffortTables, topics: Sequence[str] | None, from_start: bool) -> tuple[VerifyIdentity, bool]:
        """Return who verifies, and whether an interrupted verification is continued."""
        fields: dict[str, Any] = {
            "topics": None if topics is None else sorted(topics),
            "deep": self._options.is_deep,
            "isolation": self._config.read.isolation_level.value,
        }
        if self._after:
            fields["after"] = {str(name): offsets for name, offsets in sorted(self._after.items())}
        if self._known:
            ranges = sorted(self._known.items())
            fields["known"] = {str(name): [(offsets.start, offsets.end) for offsets in known] for name, known in ranges}
        scope = json.dumps(fields)
        interrupted = None if from_start else interrupted_verification(tables, scope)
        for verified in [] if interrupted is None else interrupted[1]:
            if self._forgotten.has(verified.source):
                continue  # closed since: nothing is reported of it
            pair = (verified.source, verified.target)
            source_end, target_end = self._verified.get(pair, (0, 0))
            self._verified[pair] = (max(source_end, verified.source_range.end), max(target_end, verified.target_range.end))
            self._tally.restore(verified)
            self._results.add_range(verified)
        identity = VerifyIdentity(
            audit_id=str(uuid.uuid4()) if interrupted is None else interrupted[0],
            scope=scope,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
        )
        return identity, interrupted is not None

    def _partition_pairs(self, topic: str) -> list[PartitionPair]:
        view = self._source.topic(topic)
        rows = self._map.settled_rows((Comparison("source_topic", "=", topic),), columns=PAIR_COLUMNS)
        undecided = [row.segment for row in self._map.unsettled_rows()]
        return partition_pairs(
            rows, topic, None if view is None else view.topic_id, undecided, forgotten_ids=self._forgotten.topic_ids
        )

    def _verify_partition(self, pair: PartitionPair, log: VerifyLog) -> None:
        self._partition_count += 1
        self._preserved_partition_count += pair.is_preserved
        self._filler_count += pair.filler_count
        self._note(
            pair,
            [
                _difference(pair, problem.kind, problem.reason, source_start=problem.start, source_end=problem.end)
                for problem in pair.problems
            ],
            Counter({Unchecked.SOURCE_TOPIC_GONE: pair.gone_offsets}),
        )
        self._check_quarantine(pair)
        if self._is_target_gone(pair.target):
            self._report_missing_target(pair)
            return
        readers = self._readers(pair)
        verified = self._verified.get((pair.source, pair.target), self._after.get(pair.source.topic_partition))
        every_row = range(len(pair.rows))
        deleted = pair.rows.deleted_offsets(every_row, readers.source.log.log_start, readers.target.log.log_start)
        if deleted.at_target:
            self.deleted_at_target[pair.target.topic_partition] = (deleted.at_target, readers.target.log.log_start)
        first = int(pair.rows.start[0]) if len(pair.rows) else 0
        source_from, target_from = verified or (first, 0)
        if (pair.source, pair.target) in self._verified:
            # Copies that were visible before their rows were settled lie below the end of what was read.
            target_from = min(target_from, max(0, pair.rows.image(source_from)))
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
                verified_range = _verified_range(pair, result)
                self._results.add_range(verified_range)
                log.note(verified_range)

    def _note(self, pair: PartitionPair, differences: Sequence[Difference], unchecked: Counter[Unchecked]) -> None:
        """Count what belongs to a partition, and to none of its ranges."""
        self._tally.add_differences(differences)
        self._tally.unchecked += unchecked
        self._results.add(pair.source, pair.target, differences, unchecked)

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
            elsewhere=_with_known(pair.elsewhere, self._known.get(pair.target.topic_partition, ())),
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
        target = (
            None
            if self._is_target_gone(pair.target)
            else self._target.reader(pair.target.topic_partition, pair.rows.target_starts)
        )
        check = QuarantineCheck(self._quarantine, source, target)
        for entry in self._quarantine.entries(of_pair):
            if self._forgotten.has(entry.segment.source):
                continue
            check.check(entry, is_live=entry.segment.source == pair.source)
        self._note(pair, merged(check.differences), check.unchecked)

    def _is_target_gone(self, target: TargetPartition) -> bool:
        view = self._target.topic(target.topic)
        return view is None or view.topic_id != target.topic_id or not self._target.has(target.topic_partition)

    def _report_missing_target(self, pair: PartitionPair) -> None:
        copied = pair.rows.is_data
        if copied.any():
            where = {"source_start": int(pair.rows.start[copied][0]), "source_end": int(pair.rows.end[copied][-1])}
            reason = "the target topic that the map names was deleted, or created again without what was copied to it"
            self._note(pair, [_difference(pair, DifferenceKind.MISSING, reason, **where)], Counter())

    def report(self) -> VerifyReport:
        """Return what was found so far, without what is not covered."""
        tally = self._tally
        return VerifyReport(
            mirror=self._config.mirror,
            audit_id="" if self._identity is None else self._identity.audit_id,
            topics=tuple(self._names),
            is_deep=self._options.is_deep,
            continues=self._continues,
            seconds=self._clock() - self._began,
            partition_count=self._partition_count,
            **tally.counts(),
            unchecked=dict(tally.unchecked),
            difference_counts=dict(tally.difference_counts),
            differences=tuple(tally.differences),
            preserved_partition_count=self._preserved_partition_count,
            filler_count=self._filler_count,
            source_cluster_id=self._cluster_ids[0],
            target_cluster_id=self._cluster_ids[1],
            partitions=self._results.results(),
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


def _with_known(elsewhere: tuple[Longs, Longs], known: Sequence[OffsetRange]) -> tuple[Longs, Longs]:
    """Return the target offsets that other rows name, with those of others that are known."""
    if not known:
        return elsewhere
    starts = np.concatenate((elsewhere[0], [offsets.start for offsets in known])).astype(np.int64)
    ends = np.concatenate((elsewhere[1], [offsets.end for offsets in known])).astype(np.int64)
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]


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
        digest=digest_text(result.digest),
    )

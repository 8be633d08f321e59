"""Driver: ranges of a restore in each partition, and the rows of the archive of each micro-batch.

Micro-batches follow the decisions of the archive: an object is read as a whole, once, and the rows of a partition come in the
order of its offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror import routing
from shallow_mirror.archive_reading import state_at_cut
from shallow_mirror.archive_reading.archive_history import Incarnation
from shallow_mirror.archive_reading.cuts import first_newer_offset, first_visible_record, offsets_without_hole
from shallow_mirror.archive_reading.state_at_cut import StateAtCut, TopicAtCut
from shallow_mirror.checkpoints import Lineages
from shallow_mirror.checkpoints.ledger import (
    EVERY_STATE,
    ArchivedTopics,
    ArchiveTable,
    RestoreRanges,
    TopicDescription,
    of_partition,
)
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config.restore_changes import restored_topics, settings_of
from shallow_mirror.config.restore_config import Cut, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted, listed
from shallow_mirror.streaming.planning import cut_problems
from shallow_mirror.streaming.planning.kept_segments import FirstRecord, KeptSegments, nothing_in_front_of
from shallow_mirror.streaming.planning.restore_steps import RestoreStep
from shallow_mirror.streaming.planning.whole_transactions import WholeTransactions
from shallow_mirror.types import OffsetRange, SegmentKind, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

_SHOWN_TOPICS = 10


@dataclass(frozen=True, slots=True)
class OtherLineages:
    """Lineages of a partition that are not restored.

    `record_counts`: records by lineage, an upper bound if a row is restored in part (`is_exact` False).
    """

    source: SourcePartition
    numbers: tuple[int, ...]
    restored: int
    record_counts: Mapping[int, int]
    is_exact: bool

    def sentence(self) -> str:
        bound = "" if self.is_exact else "at most "
        parts = [
            f"{bound}{counted(count, 'record')} of lineage {number}"
            for number, count in sorted(self.record_counts.items())
            if count
        ]
        left = f"; not restored: {', '.join(parts)} (until.lineage)" if parts else ""
        return (
            f"{self.source.topic_partition}: the source's log was truncated while it was archived; of its lineages "
            f"{', '.join(map(str, self.numbers))} the log of {self.restored} is restored{left}"
        )


def unmatched_sentence(pattern: str) -> str:
    return f"topics.include: the archive has no topic that matches {pattern}: correct or remove the pattern"


def described_topics(storage: TableStorage, decided: RestoreRanges) -> dict[str, TopicDescription]:
    """Return the description of each topic that is restored, as it was at the cut. Raise ConfigError if there is none.

    `storage`: of the archive.
    """
    until = Cut.model_validate_json(decided.until)
    return state_at_cut.described_topics(storage, decided, time_ms=until.time_ms, decision=until.decision)


def group_times(
    table: ArchiveTable, storage: TableStorage, decided: RestoreRanges, until: Cut, now: datetime
) -> dict[str, datetime]:
    """Return for each restored topic up to which time positions of groups belong to the cut. `storage`: of the archive."""
    topic_ids = {source.topic: source.topic_id for source in decided.ranges}
    history = StateAtCut(table, seen=ArchivedTopics.of(storage).seen()).history()
    return state_at_cut.group_times(history, topic_ids, time_of_cut(table, decided, until, now))


def time_of_cut(table: ArchiveTable, decided: RestoreRanges, until: Cut, now: datetime) -> datetime:
    """Return up to which time positions of groups belong to a cut: its own, or that of its decision.

    If the restore ends with the archive, it is the time of the next decision, or `now`: groups continue to read archived records.
    """
    if until.time_ms is not None:
        return datetime.fromtimestamp(until.time_ms / 1000, UTC)
    if until.decision is not None or until.offsets:
        times = _decision_times(table, Comparison("micro_batch", "<=", decided.last_decision))
        return max(times, default=now)
    return min(_decision_times(table, Comparison("micro_batch", ">", decided.last_decision)), default=now)


def _decision_times(table: ArchiveTable, condition: Comparison) -> list[datetime]:
    """Return times of decisions, each at least once in a file of the table."""
    return [
        at.as_py().astimezone(UTC)
        for piece in table.pieces((condition,), ["decided_at"])
        for at in pc.unique(piece["decided_at"])
    ]


class RestorePlanner:
    """Of one restore. `table`: at the version that it reads; later decisions of the archive are not part of it.

    `storage`: of the archive, for the descriptions of topics; without it, rows alone say when the archive saw a topic.
    """

    def __init__(
        self, config: RestoreConfig, table: ArchiveTable, store: ObjectStore, storage: TableStorage | None = None
    ) -> None:
        self._config = config
        self._table = table
        self._store = store
        self._storage = storage
        self.choices: list[str] = []
        """A sentence for each choice that `decide_ranges` made between topic ids, lineages or numbers of partitions."""
        self._lineages: dict[int, Lineages] = {}
        """Up to a decision: their rows are read once."""
        self.unmatched_patterns: tuple[str, ...] = ()
        """Patterns of `topics.include` that match no topic of the archive, once ranges were decided."""

    def added_ranges(self, begun: RestoreRanges) -> RestoreRanges | None:
        """Return the ranges of topics that the file includes in addition, at the cut of the first start; None without any.

        Raises as `decide_ranges`, and if they cannot be added.
        """
        added = self.decide_ranges(begun)
        if not added.ranges:
            return None
        names = listed(sorted(added.topic_names))
        instead = "restore them with another `restore` name and other `tables`, or leave them out"
        if begun.settings is None:
            raise ConfigError(f"topics.include: {names} cannot be added to a restore of an earlier release: {instead}")
        if self._config.until.whole_transactions:
            # Parts of a transaction in the topics of the first start may be restored already.
            raise ConfigError(
                f"topics.include: {names} cannot be added to a restore with whole_transactions, whose ends were lowered for the "
                f"other topics: {instead}"
            )
        return added

    def decide_ranges(self, begun: RestoreRanges | None = None) -> RestoreRanges:
        """Return the range to copy of each partition. Raises ConfigError with every problem, StoreUnreachableError.

        `begun`: only of topics that it lacks, up to its last decision.
        """
        until, recorded = self._config.until, self._table.recorded()
        newest = 0 if recorded is None else recorded.micro_batch
        if until.decision is not None and until.decision > newest:
            raise ConfigError(f"until.decision: {until.decision} is not in the archive, its newest decision is {newest}")
        last_decision = newest if until.decision is None else until.decision
        if begun is not None:
            last_decision = begun.last_decision
        # What was archived behind the first start is no part of the restore, also for topics that are added.
        state = self._state_at_cut(until.decision if begun is None else last_decision)
        known = frozenset[str]() if begun is None else begun.topic_names
        history, problems = self._history(state, last_decision, known), list[str]()
        topics = self._topics_at_cut(state, history, known)
        self.choices = [note for topic in topics.values() for note in topic.notes]
        lineages = self._lineages_up_to(last_decision)
        ranges: dict[SourcePartition, OffsetRange] = {}
        chosen: dict[SourcePartition, int] = {}
        archived: dict[TopicPartition, KeptSegments | None] = {}
        rows = self._table.segments(topics.keys(), EVERY_STATE) if topics else ()
        for source, archived_rows in groupby(rows, key=lambda row: row.segment.source):
            # With later decisions: their rows show the deletions of retention, and how far the partition was archived.
            every_row = list(archived_rows)
            is_in_cut = any(row.micro_batch <= last_decision for row in every_row)
            if not is_in_cut or not topics[source.topic].has(source):
                continue
            problems += cut_problems.lineage_problems(source, lineages, until)
            view = lineages.view(source, topics[source.topic].lineages[source.partition])
            in_view = [clipped for row in every_row if (clipped := view.clipped_row(row)) is not None]
            kept = archived[source.topic_partition] = KeptSegments.of(in_view, last_decision)
            if kept is None:
                problems.append(f"until.lineage: {source.topic_partition}: nothing is left of lineage {view.lineage}")
                continue
            offsets = self._range_of(kept, history[source.topic], problems)
            if offsets is not None:
                ranges[source], chosen[source] = offsets, view.lineage
        problems += cut_problems.expired_topics(topics.values(), history, archived)
        if begun is None:  # the first start has looked for the partitions that `until` names
            problems += cut_problems.unknown_partitions(until, archived, history)
            problems += cut_problems.unknown_lineages(
                until, archived, [number for source in ranges for number in lineages.numbers(source)]
            )
        # This reads objects: only for a cut without other problems.
        if not problems and archived and until.time_ms is not None:
            nothing = self._nothing_in_front_of(until.time_ms, archived, ranges)
            problems += [] if nothing is None else [nothing]
        if problems:
            raise ConfigError(problems)
        if until.whole_transactions and begun is None:
            ranges = WholeTransactions(self._table, self._store, chosen).lower(ranges)
        return RestoreRanges(
            archive_id=self._table.archive_id,
            until=until.model_dump_json(),
            last_decision=last_decision,
            ranges=ranges,
            lineages=chosen,
            settings=settings_of(self._config),
            topics=restored_topics(self._config, sorted({source.topic for source in ranges})),
        )

    def other_lineages(self, decided: RestoreRanges) -> list[OtherLineages]:
        """Return lineages that are not restored, in order."""
        condition = (Comparison("micro_batch", "<=", decided.last_decision),)
        lineages = self._lineages_up_to(decided.last_decision)
        others = []
        for source in lineages:
            if source not in decided.ranges:
                continue
            view, is_exact = lineages.view(source, decided.lineages[source]), True
            counts: dict[int, int] = {}
            for row in self._table.rows((*condition, *of_partition(source))):
                segment = row.segment
                # Not restored: rows of other lineages, and the end of a row that continues behind the view.
                part = view.part_of(segment.lineage, segment.source_start, segment.source_end)
                if part is None or part[1] < segment.source_end:
                    counts[segment.lineage] = counts.get(segment.lineage, 0) + segment.record_count
                    # The records of a part of a row are not counted without opening its batches.
                    is_exact = is_exact and (part is None or segment.record_count == 0)
            others.append(OtherLineages(source, lineages.numbers(source), view.lineage, counts, is_exact))
        return others

    def _lineages_up_to(self, last_decision: int) -> Lineages:
        if last_decision not in self._lineages:
            self._lineages[last_decision] = self._table.lineages((Comparison("micro_batch", "<=", last_decision),))
        return self._lineages[last_decision]

    def _state_at_cut(self, decision: int | None) -> StateAtCut:
        until = self._config.until
        seen = [] if self._storage is None else ArchivedTopics.of(self._storage).seen()
        isolation = self._config.read.isolation_level
        return StateAtCut(self._table, self._store, time_ms=until.time_ms, decision=decision, seen=seen, isolation=isolation)

    def _history(self, state: StateAtCut, last_decision: int, known: Set[str]) -> dict[str, list[Incarnation]]:
        """Return the incarnations of each included topic. Raise ConfigError if there is none.

        `known`: topics that the archive had at the first start, and may have deleted since.
        """
        history = state.history((Comparison("micro_batch", "<=", last_decision),))
        included = {topic: of_topic for topic, of_topic in history.items() if self._config.topics.is_included(topic)}
        self._require_topics(included.keys() | known, history.keys() - included.keys(), last_decision)
        return included

    def _topics_at_cut(
        self, state: StateAtCut, history: Mapping[str, Sequence[Incarnation]], known: Collection[str]
    ) -> dict[str, TopicAtCut]:
        """Return the state of each topic at the cut, without those that are `known`.

        Raise ConfigError for topic ids that the archive does not have.
        """
        until = self._config.until
        problems = cut_problems.unknown_topic_ids(until, history, known)
        if problems:
            raise ConfigError(problems)
        return {
            topic: state.topic(history[topic], until.topic_ids.get(topic), partial(until.lineage_of, topic))
            for topic in sorted(history.keys() - known)
        }

    def _require_topics(self, included: Collection[str], others: Collection[str], last_decision: int) -> None:
        """Raise ConfigError if the archive has no topic to restore, or none of a name that is given."""
        patterns, known = self._config.topics.include, (*included, *others)
        unmatched = routing.unmatched_entries(patterns, self._config.topics.exclude, known)
        missing = [pattern for pattern in unmatched if routing.is_plain_name(pattern)]
        if included and not missing:
            self.unmatched_patterns = tuple(unmatched)
            return
        named = sorted(known if included else others)
        shown = ", ".join(named[:_SHOWN_TOPICS]) or "none"
        more = f" and {len(named) - _SHOWN_TOPICS:,} more" if len(named) > _SHOWN_TOPICS else ""
        problem = (
            f"no topic {', '.join(missing)} (correct the name, or remove it)"
            if included
            else f"no topic that matches {', '.join(patterns)} and is not excluded"
        )
        raise ConfigError(
            f"topics.include: the archive has {problem}; its topics up to decision {last_decision} are: {shown}{more}"
        )

    def _range_of(self, kept: KeptSegments, incarnations: Sequence[Incarnation], problems: list[str]) -> OffsetRange | None:
        """Return [start, end) of a partition; None, with a problem, if the archive has a hole in it."""
        source, rows, until = kept.source, kept.rows, self._config.until
        # First rows have no length: where retention deleted what follows them, they are no begin of it.
        with_length = [row for row in rows if row.segment.source_end > row.segment.source_start]
        runs = list(offsets_without_hole(with_length or rows)) or [(kept.start, kept.start)]
        (start, _), (_, end) = runs[0], runs[-1]
        wanted: int | None = None
        if until.time_ms is not None:
            wanted = first_newer_offset(self._store, rows, until.time_ms, self._config.read.isolation_level)
        elif until.offsets:
            wanted = until.offsets.get(source.topic, {}).get(source.partition)
            # A partition that `until.offsets` does not name is not restored.
            if wanted is None:
                return None
            if not start <= wanted <= end:
                problems.append(cut_problems.unknown_offset(source, wanted, OffsetRange(start, end), incarnations))
                return None
        end = end if wanted is None else wanted
        # A log with preserved offsets begins like the source's, without fillers for offsets that had expired there.
        if self._config.topics.is_preserved(source.topic):
            start = max(start, min(_behind_expired(rows, start), end))
        if until.time_ms is not None or until.decision is not None:
            at_cut = min(end, kept.end) if rows else kept.end
            if kept.may_lack_records(at_cut, until.time_ms):
                problem = kept.problem_of_end(at_cut, until.time_ms, self._first_record(kept))
                if problem is not None:
                    problems.append(problem)
                    return None
        for hole_start, hole_end in zip((run[1] for run in runs), (run[0] for run in runs[1:]), strict=False):
            # Holes behind the cut do not matter.
            if hole_start < end:
                problems.append(
                    f"{source.topic_partition}: the archive has no offsets from {hole_start} to {hole_end - 1}; restore up to "
                    f"{hole_start} with until.offsets, or exclude the topic"
                )
                return None
        lost = [
            row.segment
            for row in rows
            if row.segment.kind is SegmentKind.EXPIRED and row.segment.source_end > start and row.segment.source_start < end
        ]
        for segment in lost:
            _log.warning(
                "%s: offsets %d to %d had expired at the source before they were archived",
                source.topic_partition,
                segment.source_start,
                segment.source_end - 1,
            )
        return OffsetRange(start, max(start, end))

    def _nothing_in_front_of(
        self, time_ms: int, archived: Mapping[TopicPartition, KeptSegments | None], ranges: Mapping[SourcePartition, OffsetRange]
    ) -> str | None:
        """Return the problem of a cut in front of which no partition has a record that a consumer sees."""
        firsts: list[tuple[KeptSegments, FirstRecord]] = []
        for kept in archived.values():
            if kept is None:
                continue
            first = self._first_record(kept)
            if first is not None and first[0] < ranges[kept.source].end:
                return None  # mostly the first partition
            firsts.append((kept, first))
        return nothing_in_front_of(time_ms, firsts)

    def _first_record(self, kept: KeptSegments) -> FirstRecord:
        return first_visible_record(self._store, kept.rows, self._config.read.isolation_level)

    def steps(self, decided: RestoreRanges, positions: Mapping[SourcePartition, int]) -> Iterator[RestoreStep]:
        """Yield micro-batches with the rows behind `positions` and in front of the ends. Raises StoreUnreachableError."""
        topics = {source.topic for source in decided.ranges}
        lineages = self._lineages_up_to(decided.last_decision)
        views = {source: lineages.view(source, lineage) for source, lineage in decided.lineages.items()}
        before = 0
        for last in self._last_decisions(topics, decided.last_decision):
            condition = (Comparison("micro_batch", ">", before), Comparison("micro_batch", "<=", last))
            rows: dict[SourcePartition, list[ArchiveRow]] = {}
            for archived in self._table.rows(condition):
                offsets = decided.ranges.get(archived.segment.source)
                row = None if offsets is None else views[archived.segment.source].clipped_row(archived)
                if row is None or offsets is None or row.segment.source_start >= offsets.end:
                    continue
                # The front of a row may have been copied by an earlier try.
                if row.segment.source_end > positions.get(row.segment.source, offsets.start):
                    rows.setdefault(row.segment.source, []).append(row)
            before = last
            if rows:
                yield RestoreStep(rows, last)

    def _last_decisions(self, topics: set[str], last_decision: int) -> list[int]:
        """Return the last decision of each micro-batch: whole decisions, of `read.micro_batch_bytes` together."""
        sizes: list[pa.Table] = []
        condition = (Comparison("micro_batch", "<=", last_decision),)
        for piece in self._table.pieces(condition, ["source_topic", "micro_batch", "size_bytes"]):
            sizes.append(piece.group_by(["source_topic", "micro_batch"], use_threads=False).aggregate([("size_bytes", "sum")]))
        by_decision: dict[int, int] = {}
        for table in sizes:
            for row in table.to_pylist():
                if row["source_topic"] in topics:
                    by_decision[row["micro_batch"]] = by_decision.get(row["micro_batch"], 0) + row["size_bytes_sum"]
        lasts: list[int] = []
        total = 0
        for decision, size in sorted(by_decision.items()):
            # A decision is not divided: a larger one is a micro-batch of its own.
            if lasts and total + size <= self._config.read.micro_batch_bytes:
                lasts[-1], total = decision, total + size
            else:
                lasts.append(decision)
                total = size
        _log.info("the restore has %s of the archive's decisions", counted(len(lasts), "micro-batch"))
        return lasts


def _behind_expired(rows: Sequence[ArchiveRow], start: int) -> int:
    """Return the log start of the source: behind the offsets from `start` on that had expired before they were archived."""
    for row in rows:
        if row.segment.source_start > start or (row.segment.kind is not SegmentKind.EXPIRED and row.segment.source_end > start):
            break
        start = max(start, row.segment.source_end)
    return start

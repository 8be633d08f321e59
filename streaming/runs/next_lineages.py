"""Driver: the next lineage of partitions of an archive whose log was truncated below the archive's position.

One decision commits their first rows, without length, at the divergent offsets: positions go back to there, and what was archived
from there on stays in the former lineage. A kill before that commit loses nothing, since the truncation is found again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import topic_storage
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import ArchiveTable, LedgerOwner, of_partition
from shallow_mirror.checkpoints.logs.runs import Problem
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import LogTruncatedError, RetriableError, TxnOutcomeChangedError
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.archive import ArchivedRange, Divergence, EpochHistory
from shallow_mirror.streaming.runs.partition_registration import decide_first_rows
from shallow_mirror.streaming.watch.error_hints import problem_of_next_lineage, problem_of_unknown_divergence
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, Segment, SegmentKind, SourcePartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the divergent offset of one partition."""

    position: Position
    history: EpochHistory
    divergence: Divergence
    changed: TxnOutcomeChangedError | None = None
    """The loss of this partition, if a transaction ended otherwise: no epoch shows it."""

    @property
    def offset(self) -> int | None:
        """Return the divergent offset; None if it cannot be found out."""
        offset = self.divergence.offset
        if self.changed is None or self.changed.divergent_offset is None:
            return offset
        first = max(self.history.start, self.changed.divergent_offset)  # the archive may begin inside of the transaction
        return first if offset is None else min(first, offset)


class NextLineages:
    """Begins lineages for the owner of an archive's table. Never called while tasks run.

    `held`: positions of partitions whose log ends below them although nothing below diverges, or the divergent offset is not
    known. They wait until the log reaches the position.
    """

    def __init__(
        self,
        owner: LedgerOwner,
        open_table: Callable[[], ArchiveTable],
        source: Cluster,
        *,
        is_included: Callable[[str], bool],
        deadline: Callable[[], Deadline],
        report: Callable[[Problem], None],
        observer: Observer = observe_nothing,
    ) -> None:
        """`is_included`: whether a topic is archived now. `deadline`: returns that of one attempt."""
        self._owner = owner
        self._open_table = open_table
        self._source = source
        self._is_included = is_included
        self._deadline = deadline
        self._report = report
        self._observer = observer
        self.held: dict[SourcePartition, int] = {}
        self._unknown: dict[SourcePartition, int] = {}
        """Positions below which it was reported that the divergent offset cannot be found out."""

    def begin(self, loss: LogTruncatedError) -> bool:
        """Begin the next lineage of the partition of `loss`, and of all others whose log was truncated. Return whether one began.

        Raises RetriableError, StoreUnreachableError, and as `LedgerOwner.decide`.
        """
        deadline = self._deadline()
        searches = self._search(self._suspects(loss, deadline), deadline)
        if isinstance(loss, TxnOutcomeChangedError):
            searches = {
                source: replace(search, changed=loss) if source.topic_partition == loss.topic_partition else search
                for source, search in searches.items()
            }
        begun = {
            source: search
            for source, search in searches.items()
            if search.offset is not None and search.offset < search.position.offset
        }
        for source, search in searches.items():
            if search.offset is None and self._unknown.get(source) != search.position.offset:
                self._unknown[source] = search.position.offset
                self._report(problem_of_unknown_divergence(source, search.position.offset, search.divergence.reason))
        if not begun:
            return False
        self._observer("lineage.found")
        rows = [_first_row(source, search) for source, search in sorted(begun.items())]
        decide_first_rows(self._owner, rows, self._observer)
        starts = self._log_starts(begun, deadline)
        for row in rows:
            segment = row.segment
            search = begun[segment.source]
            problem = problem_of_next_lineage(segment, search.position.offset, starts.get(segment.source), search.changed)
            self._report(problem)
        return True

    def begin_or_hold(self, loss: LogTruncatedError) -> None:
        """Begin lineages, or let the partition of `loss` wait: the next query plans from the positions of the table.

        Raises as `begin`.
        """
        self.begin(loss)
        for source, position in self._owner.positions().items():
            if source.topic_partition != loss.topic_partition or loss.topic_id not in ("", source.topic_id):
                continue
            if loss.log_end is not None and loss.log_end < position.offset:
                self.held[source] = position.offset
                _log.warning(
                    "%s: the log ends at %d, below the position %d, and no lineage could begin: waiting until it reaches it",
                    source.topic_partition,
                    loss.log_end,
                    position.offset,
                )

    def _suspects(self, loss: LogTruncatedError, deadline: Deadline) -> dict[SourcePartition, Position]:
        """Return the partition of the loss, and others whose last epoch ends below the offset read of it, by their leader."""
        positions = self._existing(self._owner.positions(), deadline)
        suspects = {source: position for source, position in positions.items() if source.topic_partition == loss.topic_partition}
        read = {
            source.topic_partition: (source, position, position.epoch_end)
            for source, position in positions.items()
            if source not in suspects and position.epoch_end is not None
        }
        if not read:
            return suspects
        try:
            answers = self._source.epoch_ends({name: end.leader_epoch for name, (_, _, end) in read.items()}, deadline)
        except RetriableError as error:  # of any other partition: its own slot finds out about it
            _log.info("the leader epochs of the other partitions were not compared: %s", error)
            return suspects
        for name, (source, position, epoch_end) in read.items():
            if 0 <= answers[name].end < epoch_end.end:
                suspects[source] = position
        return suspects

    def _existing(self, positions: Mapping[SourcePartition, Position], deadline: Deadline) -> dict[SourcePartition, Position]:
        """Return the positions of included partitions that the source has now, under the same topic id and with a leader."""
        included = {source: at for source, at in positions.items() if self._is_included(source.topic)}
        topics = self._source.metadata(sorted({source.topic for source in included}), deadline).topics
        existing = {}
        for source, position in included.items():
            topic = topics.get(source.topic)
            if topic is None or topic.error_code != 0 or topic.topic_id != source.topic_id:
                continue
            partition = topic.partitions.get(source.partition)
            if partition is not None and partition.leader >= 0:
                existing[source] = position
        return existing

    def _search(self, suspects: Mapping[SourcePartition, Position], deadline: Deadline) -> dict[SourcePartition, _Search]:
        """Ask the leaders until every search has ended."""
        table = self._open_table()
        compacted = {topic: self._is_compacted(topic, deadline) for topic in {source.topic for source in suspects}}
        searches = {}
        for source, position in suspects.items():
            history = epoch_history(table, source)
            searches[source] = _Search(position, history, Divergence(history, is_compacted=compacted[source.topic]))
        while asked := {source: ask for source, search in searches.items() if (ask := search.divergence.ask) is not None}:
            answers = self._source.epoch_ends({source.topic_partition: ask for source, ask in asked.items()}, deadline)
            for source in asked:
                searches[source].divergence.take(answers[source.topic_partition])
        return searches

    def _is_compacted(self, topic: str, deadline: Deadline) -> bool:
        """Return whether batches may be missing in the archive. If that may not be asked, they may."""
        storage = topic_storage(self._source, topic, deadline)
        return storage.is_compacted or bool(storage.refusal)

    def _log_starts(self, sources: Iterable[SourcePartition], deadline: Deadline) -> dict[SourcePartition, int]:
        by_name = {source.topic_partition: source for source in sources}
        try:
            listed = self._source.list_offsets(
                dict.fromkeys(by_name, EARLIEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED, deadline
            )
        except RetriableError as error:  # the lineages are decided; this is for the report only
            _log.info("the log starts of truncated partitions are not known: %s", error)
            return {}
        return {by_name[name]: entry.offset for name, entry in listed.items()}


def epoch_history(table: ArchiveTable, source: SourcePartition) -> EpochHistory:
    """Return the leader epochs of a partition in its newest lineage. Raises ValueError if the table has no row of it."""
    condition = of_partition(source)
    view = table.lineages(condition).view(source)
    ranges = []
    for piece in table.pieces(condition, ["lineage", "source_start", "source_end", "leader_epochs"]):
        for row in piece.to_pylist():
            part = view.part_of(row["lineage"], row["source_start"], row["source_end"])
            if part is not None:
                epochs = tuple((epoch["leader_epoch"], epoch["start_offset"]) for epoch in row["leader_epochs"] or ())
                ranges.append(ArchivedRange(*part, epochs))
    return EpochHistory.of_rows(ranges)


def _first_row(source: SourcePartition, search: _Search) -> DecidedSegment:
    """Return the row without length with which a lineage begins. Its leader epoch is that of the archived log in front of it."""
    offset = search.offset
    assert offset is not None
    segment = Segment(
        source=source,
        source_start=offset,
        source_end=offset,
        kind=SegmentKind.GAP,
        target=search.position.target,
        source_leader_epoch=search.history.last_below(offset),
        lineage=search.position.lineage + 1,
    )
    return DecidedSegment(segment, None)

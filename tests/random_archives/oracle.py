"""Pure: what a restore up to a cut has to write, by the truth of a history: the oracle of restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.random_archives.cuts import Cut
from tests.random_archives.documented_reader import Row
from tests.random_archives.histories import ArchiveHistory, Decision
from tests.random_archives.source_logs import LogBatch, LogRecord
from tests.random_archives.state_at_time import StateAtTime
from tests.random_archives.true_logs import TrueLog, TrueLogs
from tests.random_archives.whole_ends import NO_END, Part, whole_ends

from shallow_mirror.types import SourcePartition


@dataclass(frozen=True, slots=True)
class ExpectedLog:
    """What is restored of a partition: `records` of [start, end) of the log of `lineage`."""

    lineage: int
    start: int
    end: int
    records: Sequence[LogRecord]
    log_start: int = 0
    """Where a preserved log begins: behind what had expired in front of all."""


@dataclass(frozen=True, slots=True)
class Expected:
    """`refusal`: why the restore has to be refused."""

    logs: Mapping[SourcePartition, ExpectedLog] = field(default_factory=dict)
    refusal: str | None = None


class Oracle:
    """Of one history. `rows`: of the archive's table, for what retention has deleted."""

    def __init__(self, history: ArchiveHistory, rows: Iterable[Row]) -> None:
        self._history = history
        self.logs = TrueLogs(history, rows)

    def decision_at(self, number: int | None) -> Decision:
        """Return the newest decision up to a number."""
        decisions = self._history.decisions
        return decisions[-1] if number is None else max((d for d in decisions if d.number <= number), key=lambda d: d.number)

    def newest_topics(self, decision: int | None = None) -> dict[str, str]:
        """Return the topic id that each topic had last, at a decision."""
        order = {topic.topic_id: number for number, topic in enumerate([*self._history.deleted, *self._history.topics.values()])}
        newest: dict[str, str] = {}
        for source in sorted(self.decision_at(decision).positions, key=lambda source: order[source.topic_id]):
            newest[source.topic] = source.topic_id
        return newest

    def expected(self, cut: Cut) -> Expected:
        """Return what a restore has to write."""
        missing = set(cut.topics) - {source.topic for source in self.decision_at(cut.decision).positions}
        if missing:
            return Expected(refusal=f"the archive had no topic {min(missing)} yet")
        logs = self._logs(cut)
        if (expired := self._expired_topic(logs, cut)) is not None:
            return Expected(refusal=f"all of {expired} has expired, and the archive has another topic of that name")
        if cut.offsets:
            logs = {source: log for source, log in logs.items() if source.partition in cut.offsets.get(source.topic, {})}
        ends: dict[SourcePartition, int] = {}
        for source, log in logs.items():
            end = self._end_of(log, cut)
            if isinstance(end, str):
                return Expected(refusal=f"{source.topic_partition}: {end}")
            ends[source] = end
        if cut.time_ms is not None and self._is_before_every_record(logs, ends, cut):
            return Expected(refusal="the time is before every record")
        if cut.whole_transactions:
            ends = {source: max(logs[source].start, end) for source, end in whole_ends(ends, _parts(logs)).items()}
        return Expected(
            {
                source: ExpectedLog(
                    log.lineage,
                    min(log.start, ends[source]),
                    ends[source],
                    log.records(ends[source], is_committed_only=cut.is_committed_only),
                    log.log_start(ends[source]),
                )
                for source, log in logs.items()
            }
        )

    def _logs(self, cut: Cut) -> dict[SourcePartition, TrueLog]:
        """Return the log of each partition that the topics had at the cut."""
        sources = [source for source in self.decision_at(cut.decision).positions if source.topic in cut.topics]
        if cut.time_ms is None:
            newest = self.newest_topics(cut.decision)
            return {
                source: self.logs.log(source, cut.lineage, cut.decision)
                for source in sources
                if newest[source.topic] == source.topic_id
            }
        traces = _HistoryTraces(self._history, self.logs, is_committed_only=cut.is_committed_only)
        state = StateAtTime(traces, cut.time_ms)
        ids = {topic: state.topic_id(topic) for topic in cut.topics}
        return {
            source: self.logs.log(source, state.lineage(source) if cut.lineage is None else cut.lineage)
            for source in sources
            if ids[source.topic] == source.topic_id and state.has_partition(source)
        }

    def _expired_topic(self, logs: Mapping[SourcePartition, TrueLog], cut: Cut) -> str | None:
        """Return a topic that was created again, of which retention has deleted all data of the id that counts."""
        ids = {(source.topic, source.topic_id) for source in self.decision_at(cut.decision).positions}
        for topic in sorted({source.topic for source in logs}):
            own = [log for source, log in logs.items() if source.topic == topic]
            is_expired = any(log.deleted_end is not None for log in own) and not any(any(log.batches(log.end)) for log in own)
            if is_expired and sum(name == topic for name, _ in ids) > 1:
                return topic
        return None

    def _end_of(self, log: TrueLog, cut: Cut) -> int | str:
        """Return where a partition ends; a text: why the cut is refused."""
        if cut.offsets:
            wanted = cut.offsets[log.source.topic][log.source.partition]
            return wanted if log.start <= wanted <= log.end else "the offset is not in the archive"
        records = log.records(log.end, is_committed_only=cut.is_committed_only)
        end, at_cut = log.end, log.archived.end
        if cut.time_ms is not None:
            end = log.end_at(cut.time_ms, is_committed_only=cut.is_committed_only)
            at_cut = min(end, at_cut)
        if (cut.time_ms is None and cut.decision is None) or at_cut >= log.final.end or any(r.offset < at_cut for r in records):
            return end
        # Nothing is left in front of the cut, and the archive has, or had, something behind it.
        if log.deleted_end is not None:
            return "it has expired"
        registered_ms = self._history.first_seen[log.source, 0]
        if cut.time_ms is not None and log.start > 0 and cut.time_ms < registered_ms:
            return "the archive began after the cut"
        return end

    def _is_before_every_record(
        self, logs: Mapping[SourcePartition, TrueLog], ends: Mapping[SourcePartition, int], cut: Cut
    ) -> bool:
        """Return whether no partition has a record in front of its end, although some have one with a time behind it."""
        first: list[LogRecord] = []
        for source, log in logs.items():
            records = log.records(log.end, is_committed_only=cut.is_committed_only)
            if records and records[0].offset < ends[source]:
                return False
            first += records[:1]
        return any(record.timestamp_ms >= 0 for record in first)


class _HistoryTraces:
    """What the archive of a history has seen. `is_committed_only`: whether a consumer sees committed records only."""

    def __init__(self, history: ArchiveHistory, logs: TrueLogs, *, is_committed_only: bool) -> None:
        self._history, self._logs, self._is_committed_only = history, logs, is_committed_only

    def topic_ids(self, topic: str) -> list[str]:
        created = [each.topic_id for each in (*self._history.deleted, *self._history.topics.values()) if each.name == topic]
        return [topic_id for topic_id in created if self.sources(topic_id)]

    def sources(self, topic_id: str) -> list[SourcePartition]:
        return [source for source in self._history.decisions[-1].positions if source.topic_id == topic_id]

    def first_ms(self, topic_id: str, partition: int | None = None) -> int:
        rows = [
            at_ms
            for (source, _), at_ms in self._history.first_seen.items()
            if source.topic_id == topic_id and partition in (None, source.partition)
        ]
        seen = [each for each in self._history.seen_topics if each.description.topic_id == topic_id]
        return min([*rows, *(each.at_ms for each in seen if each.description.partitions > (partition or 0))])

    def lineages(self, source: SourcePartition) -> list[tuple[int, int]]:
        return [
            (self._history.first_seen[source, lineage], start)
            for (of_source, lineage), start in self._history.lineage_starts.items()
            if of_source == source
        ]

    def looks(self, topic: str | None) -> list[int]:
        described = [each.at_ms for each in self._history.seen_topics if each.description.topic == topic]
        return [*described, *(each.at_ms for each in self._history.decisions)]

    def seen_batches(self, source: SourcePartition, lineage: int) -> list[LogBatch]:
        own = self._logs.own_log(source, lineage)
        return list(own.seen_batches(own.end, own.archived.undecided, is_committed_only=self._is_committed_only))

    def log_batches(self, source: SourcePartition, lineage: int) -> list[LogBatch]:
        log = self._logs.log(source, lineage)
        return list(log.batches(log.end))


def _parts(logs: Mapping[SourcePartition, TrueLog]) -> Iterator[Part]:
    """Yield the parts of committed transactions, also behind the cut."""
    for source, log in logs.items():
        final_end = max(log.start, log.final.end)
        batches = list(log.batches(final_end))
        for part in log.log.parts.values():
            own = [batch for batch in batches if batch.txn == part.key]
            if not own or (log.log.is_aborted(own[0]) and part.key not in log.final.undecided):
                continue
            # Nothing of it can follow behind its marker, another transaction of its producer, or what had expired.
            last = own[-1].base_offset
            is_ended = any(batch.producer_id == part.producer_id and batch.base_offset > last for batch in batches) or any(
                first > last for first, _ in log.lost
            )
            yield Part(source, own[0].base_offset, own[-1].end_offset if is_ended else NO_END, part.name)

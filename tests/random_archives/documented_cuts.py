"""Pure: the records in front of a cut by what docs/how-to/restore.md says of cuts, from the rows and batches of an archive alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tests.random_archives.cuts import Cut
from tests.random_archives.documented_reader import ArchivedLog, DocumentedReader, LogPart, PartitionId, RawBatch, Row
from tests.random_archives.source_logs import LogRecord
from tests.random_archives.state_at_time import StateAtTime
from tests.random_archives.whole_ends import NO_END, Part, whole_ends

from shallow_mirror.types import SourcePartition


def documented_cut(reader: DocumentedReader, cut: Cut) -> dict[PartitionId, list[LogRecord]]:
    """Return the records of each partition that a restore writes. Cuts that have to be refused are not recognised."""
    logs = _logs_at(reader, cut)
    ends = {source: _end_of(source, log, cut) for source, log in logs.items()}
    if cut.whole_transactions:
        ends = _whole(reader, logs, ends)
    return {source: list(log.records(ends[source], is_committed_only=cut.is_committed_only)) for source, log in logs.items()}


def _logs_at(reader: DocumentedReader, cut: Cut) -> dict[PartitionId, ArchivedLog]:
    traces = _TableTraces(reader, cut)
    state = None if cut.time_ms is None else StateAtTime(traces, cut.time_ms)
    logs: dict[PartitionId, ArchivedLog] = {}
    for topic in cut.topics:
        topic_id = traces.topic_ids(topic)[-1] if state is None else state.topic_id(topic)
        for source in traces.sources(topic_id):
            is_named = not cut.offsets or source.partition in cut.offsets.get(topic, {})
            if not is_named or not (state is None or state.has_partition(source)):
                continue
            lineage = cut.lineage if state is None else state.lineage(source)
            log = reader.log(PartitionId(*source), lineage=lineage, decision=cut.decision)
            assert log is not None
            logs[PartitionId(*source)] = log
    return logs


class _TableTraces:
    """What the tables of an archive show, up to the decision of a cut."""

    def __init__(self, reader: DocumentedReader, cut: Cut) -> None:
        self._reader, self._is_committed_only = reader, cut.is_committed_only
        self._rows = [row for row in reader.rows if cut.decision is None or row.decision <= cut.decision]

    def topic_ids(self, topic: str) -> list[str]:
        decisions: dict[str, int] = {}
        for row in self._rows:
            if row.source.topic == topic:
                decisions[row.source.topic_id] = min(row.decision, decisions.get(row.source.topic_id, row.decision))
        return sorted(decisions, key=lambda topic_id: decisions[topic_id])

    def sources(self, topic_id: str) -> list[SourcePartition]:
        return [
            SourcePartition(*source) for source in sorted({row.source for row in self._rows if row.source.topic_id == topic_id})
        ]

    def first_ms(self, topic_id: str, partition: int | None = None) -> int:
        of_topic = [row for row in self._rows if row.source.topic_id == topic_id]
        times = [row.decided_at for row in of_topic if partition in (None, row.source.partition)]
        described = [each for each in self._reader.descriptions if each.topic_id == topic_id]
        return _ms(min([*times, *(each.seen_at for each in described if each.partitions > (partition or 0))]))

    def lineages(self, source: SourcePartition) -> list[tuple[int, int]]:
        lineages: dict[int, list[Row]] = {}
        for row in self._rows:
            if row.source == PartitionId(*source):
                lineages.setdefault(row.lineage, []).append(row)
        return [(_ms(min(row.decided_at for row in own)), min(row.start for row in own)) for _, own in sorted(lineages.items())]

    def looks(self, topic: str | None) -> list[int]:
        described = [each.seen_at for each in self._reader.descriptions if each.topic == topic]
        return [_ms(at) for at in {*described, *(row.decided_at for row in self._rows)}]

    def seen_batches(self, source: SourcePartition, lineage: int) -> list[RawBatch]:
        return [
            part.batch
            for part in self._reader.own_parts(PartitionId(*source), lineage)
            if part.batch.records_count and not part.batch.is_control and not (part.is_aborted and self._is_committed_only)
        ]

    def log_batches(self, source: SourcePartition, lineage: int) -> list[RawBatch]:
        log = self._reader.log(PartitionId(*source), lineage=lineage)
        return [] if log is None else [part.batch for part in log.parts]


def _end_of(source: PartitionId, log: ArchivedLog, cut: Cut) -> int:
    if cut.offsets:
        return cut.offsets[source.topic][source.partition]
    if cut.time_ms is None:
        return log.end
    for record in log.records(log.end, is_committed_only=cut.is_committed_only):
        if record.timestamp_ms > cut.time_ms:
            return record.offset
    return log.end


def _whole(
    reader: DocumentedReader, logs: Mapping[PartitionId, ArchivedLog], ends: Mapping[PartitionId, int]
) -> dict[PartitionId, int]:
    """Lower ends by the transactions of the logs, also behind the cut, all of which have an epoch of their own."""
    parts: list[Part] = []
    for source, log in logs.items():
        whole = reader.log(source, lineage=log.lineage)
        assert whole is not None
        begun: dict[tuple[int, int], list[LogPart]] = {}
        for part in whole.parts:
            batch = part.batch
            if batch.is_transactional and not batch.is_control and not part.is_aborted:
                begun.setdefault((batch.producer_id, batch.producer_epoch), []).append(part)
        for name, own in begun.items():
            last = own[-1].batch.base_offset
            is_ended = any(part.batch.producer_id == name[0] and part.batch.base_offset > last for part in whole.parts)
            end = own[-1].end if is_ended or any(start > last for start in whole.expired) else NO_END
            parts.append(Part(SourcePartition(*source), own[0].batch.base_offset, end, name))
    lowered = whole_ends({SourcePartition(*source): end for source, end in ends.items()}, parts)
    return {PartitionId(*source): end for source, end in lowered.items()}


def _ms(at: datetime) -> int:
    return round(at.astimezone(UTC).timestamp() * 1000)

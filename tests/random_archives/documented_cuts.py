"""Pure: the records in front of a cut by what docs/how-to/restore.md says of cuts, from the rows and batches of an archive alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from tests.random_archives.cuts import Cut
from tests.random_archives.documented_reader import ArchivedLog, DocumentedReader, PartitionId
from tests.random_archives.source_logs import LogRecord
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
    newest = reader.sources(cut.decision)
    chosen: dict[str, str] = {}
    for topic in cut.topics:
        of_topic = _by_topic_id(newest, topic)
        ids = sorted(of_topic, key=lambda topic_id: min(_times(reader, source)[0] for source in of_topic[topic_id]))
        if not ids:
            continue
        chosen[topic] = ids[0]
        for topic_id in ids[1:]:
            if cut.time_ms is None or _counts(reader, of_topic[topic_id], None, cut.time_ms):
                chosen[topic] = topic_id
    logs: dict[PartitionId, ArchivedLog] = {}
    for source in newest:
        if chosen.get(source.topic) != source.topic_id:
            continue
        if cut.offsets and source.partition not in cut.offsets.get(source.topic, {}):
            continue
        log = reader.log(source, lineage=_lineage(reader, source, cut), decision=cut.decision)
        assert log is not None
        logs[source] = log
    return logs


def _by_topic_id(newest: Mapping[PartitionId, int], topic: str) -> dict[str, list[PartitionId]]:
    by_id: dict[str, list[PartitionId]] = {}
    for source in newest:
        if source.topic == topic:
            by_id.setdefault(source.topic_id, []).append(source)
    return by_id


def _times(reader: DocumentedReader, source: PartitionId, lineage: int = 0) -> tuple[int, int]:
    """Return when the first row of a lineage was decided, and when the decision before that was."""
    rows = [row for row in reader.rows if row.source == source and row.lineage >= lineage]
    first = min(rows, key=lambda row: row.decision)
    before = [row.decided_at for row in reader.rows if row.decision < first.decision]
    return _ms(first.decided_at), _ms(max(before)) if before else -1


def _counts(reader: DocumentedReader, sources: list[PartitionId], lineage: int | None, time_ms: int) -> bool:
    """Return whether a topic, or a lineage of its only partition here, was there at a time."""
    at_ms, before_ms = min(_times(reader, source, lineage or 0) for source in sources)
    if at_ms <= time_ms or before_ms > time_ms:
        return at_ms <= time_ms
    for source in sources:
        log = reader.log(source, lineage=lineage)
        first = 0
        if lineage is not None:
            first = min(row.start for row in reader.rows if row.source == source and row.lineage == lineage)
        if log is not None and any(r.timestamp_ms <= time_ms and r.offset >= first for r in log.records(1 << 62)):
            return True
    return False


def _lineage(reader: DocumentedReader, source: PartitionId, cut: Cut) -> int | None:
    if cut.lineage is not None or cut.time_ms is None:
        return cut.lineage
    numbers = sorted({row.lineage for row in reader.rows if row.source == source})
    there = [number for number in numbers[1:] if _counts(reader, [source], number, cut.time_ms)]
    return there[-1] if there else numbers[0]


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
        begun: dict[tuple[int, int], Part] = {}
        ended: set[tuple[int, int]] = set()
        for part in whole.parts:
            batch, name = part.batch, (part.batch.producer_id, part.batch.producer_epoch)
            if batch.is_transactional:
                # A marker has the next epoch.
                ended |= {known for known in begun if known[0] == batch.producer_id and known != name}
            if batch.is_transactional and not batch.is_control and not part.is_aborted:
                start = begun[name].start if name in begun else batch.base_offset
                begun[name] = Part(SourcePartition(*source), start, part.end, name)
        parts += [part if name in ended else replace(part, end=NO_END) for name, part in begun.items()]
    lowered = whole_ends({SourcePartition(*source): end for source, end in ends.items()}, parts)
    return {PartitionId(*source): end for source, end in lowered.items()}


def _ms(at: datetime) -> int:
    return round(at.astimezone(UTC).timestamp() * 1000)

"""Checks of one random archive: the package, the documented reader and the truth have to agree. Differences are sentences."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tests.random_archives.cuts import Cut
from tests.random_archives.documented_cuts import documented_cut
from tests.random_archives.documented_reader import DocumentedReader, PartitionId
from tests.random_archives.histories import ArchiveHistory
from tests.random_archives.oracle import Expected, ExpectedLog, Oracle
from tests.random_archives.random_cuts import random_cut
from tests.random_archives.restore_target import CrashAfter, RestoreTarget
from tests.random_archives.second_starts import random_other_file, start_with_other_file
from tests.random_archives.source_logs import LogRecord
from tests.random_archives.table_checks import (
    clean_differences,
    rebuild_differences,
    retention_differences,
)

from shallow_mirror.archive_reading.lookup import ArchivedRecord, ArchiveReader
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import open_records
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.checkpoints.ledger import ArchiveTable, RestoreRanges
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.restored_groups import noted_positions
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.streaming.planning import RestorePlanner, described_topics
from shallow_mirror.streaming.planning.restore_planner import time_of_cut
from shallow_mirror.types import SegmentKind, SourcePartition
from shallow_mirror.wire.records import Record


@dataclass(slots=True)
class Found:
    """What one archive was compared by."""

    cuts: int = 0
    restores: int = 0
    crashes: int = 0
    other_files: int = 0
    refusals: int = 0
    records: int = 0
    differences: list[str] = field(default_factory=list)


class ArchiveChecks:
    """Of one history, after its last step."""

    def __init__(self, history: ArchiveHistory, folder: Path, target: RestoreTarget, restores: int = 1) -> None:
        """`restores`: so many of the cuts are restored to the target, all are planned and read."""
        self.restores = restores
        self.history, self.folder, self.target = history, folder, target
        self.config = history.writer.config
        self.reader = DocumentedReader(Path(self.config.tables), Path(self.config.objects))
        self.oracle = Oracle(history, self.reader.rows)
        self.chance = random.Random(history.seed + 1_000_000)
        self.found = Found()

    def check_logs(self) -> None:
        """Compare every lineage of every partition as the documented reader and the package's reader see it."""
        reader = ArchiveReader.open(self.config.tables, self.config.objects)
        for source in self.oracle.decision_at(None).positions:
            for lineage in range(self.oracle.logs.log(source).lineage + 1):
                archived = self.oracle.logs.log(source, lineage)
                truth = archived.records(archived.end)
                log = self.reader.log(PartitionId(*source), lineage=lineage)
                name = f"{source.topic}-{source.partition} of {source.topic_id}, lineage {lineage}"
                assert log is not None
                self.found.differences.extend(different(f"{name}, documented reader", log.records(1 << 62), truth))
                read = reader.read_records(source.topic, source.partition, topic_id=source.topic_id, lineage=lineage)
                self.found.differences.extend(different(f"{name}, reader", map(_log_record, read), truth))
                self.found.records += len(truth)

    def check_lookups(self) -> None:
        """Look up records of the newest topics by name, by offset and by time."""
        reader = ArchiveReader.open(self.config.tables, self.config.objects)
        newest = self.oracle.newest_topics()
        sources = self.oracle.decision_at(None).positions
        for topic, partition in sorted({(source.topic, source.partition) for source in sources}):
            source = SourcePartition(topic, newest[topic], partition)
            truth: list[LogRecord] = []
            if source in sources:
                log = self.oracle.logs.log(source)
                truth = log.records(log.end)
            self.found.differences.extend(self._lookup_differences(reader, topic, partition, truth))

    def _lookup_differences(self, reader: ArchiveReader, topic: str, partition: int, truth: Sequence[LogRecord]) -> Iterator[str]:
        name, end = f"{topic}-{partition}", (truth[-1].offset if truth else 0) + 4
        for _ in range(1):
            start = self.chance.randint(0, end)
            behind = self.chance.randint(start, end)
            expected = [record for record in truth if start <= record.offset < behind]
            read = map(_log_record, reader.read_records(topic, partition, start, behind))
            yield from different(f"{name}, reader of [{start}, {behind})", read, expected)
            found = reader.find_record(topic, partition, offset=start)
            expected = [record for record in truth if record.offset == start]
            yield from different(f"{name}, record at {start}", [] if found is None else [_log_record(found)], expected)
            time_ms = self.chance.choice(truth).timestamp_ms if truth else 0
            found = reader.find_record(topic, partition, timestamp_ms=time_ms)
            expected = [record for record in truth if record.timestamp_ms >= time_ms][:1]
            yield from different(f"{name}, record from time {time_ms}", [] if found is None else [_log_record(found)], expected)

    def check_verify(self) -> None:
        """Verify the archive, every byte of it."""
        report = verify_archive(self.config, is_deep=True)
        if not report.is_equal:
            self.found.differences.extend(f"archive verify: {sentence}" for sentence in report.sentences())

    def check_commands(self) -> None:
        """Retention, clean and rebuild. What was never committed is gone behind this."""
        self.found.differences.extend(retention_differences(self.history, self.reader))
        if self.history.writer.decided:
            self.found.differences.extend(rebuild_differences(self.history, self.reader, self.folder))
        self.found.differences.extend(clean_differences(self.history, self.reader))

    def check_cuts(self, count: int) -> None:
        """Restore up to random cuts."""
        for number in range(count):
            cut = random_cut(self.chance, self.history, self.oracle)
            self.found.cuts += 1
            self.found.differences.extend(self._cut_differences(number, cut, self.oracle.expected(cut)))

    def _cut_differences(self, number: int, cut: Cut, expected: Expected) -> Iterator[str]:
        for problem in self._documented_differences(cut, expected):
            yield f"{cut}: documented reader: {problem}"
        for problem in self._planned_differences(cut, expected):
            yield f"{cut}: plan: {problem}"
        if number < self.restores:
            for problem in self._restore_differences(cut, expected):
                yield f"{cut}: restore: {problem}"

    def _documented_differences(self, cut: Cut, expected: Expected) -> Iterator[str]:
        if expected.refusal is not None:
            return
        logs = documented_cut(self.reader, cut)
        for source, log in expected.logs.items():
            found = logs.pop(PartitionId(*source), None)
            if found is None:
                yield f"{source} is missing"
                continue
            yield from different(f"{source.topic_partition}", found, log.records)
        yield from (f"{source} is restored as well" for source in logs)

    def _planned_differences(self, cut: Cut, expected: Expected) -> Iterator[str]:
        """Read what the steps of a restore read, without a target."""
        config = self.target.config(self.folder, self.config, "planned.", cut, is_preserved=False, micro_batch_bytes=1_000)
        storage = TableStorage(self.config.table_location)
        planner = RestorePlanner(config, ArchiveTable.open(self.config.tables), self.history.writer.store, storage)
        try:
            decided = planner.decide_ranges()
        except ConfigError as error:
            if expected.refusal is None:
                yield f"refused: {error}"
            return
        if expected.refusal is not None:
            yield f"it was not refused, although {expected.refusal}"
            return
        self.found.differences.extend(self._description_differences(cut, decided))
        self.found.differences.extend(self._group_differences(cut, decided))
        records: dict[SourcePartition, list[LogRecord]] = {source: [] for source in decided.ranges}
        for step in planner.steps(decided, {}):
            for source, rows in step.rows.items():
                offsets = decided.ranges[source]
                for part in SegmentReader(self.history.writer.store, rows, offsets.start, offsets.end):
                    opened = open_records(part, ReadBounds(), includes_aborted=not cut.is_committed_only)
                    is_wanted = (SegmentKind.DATA, SegmentKind.ABORTED)
                    records[source] += [_opened_record(each.record) for each in opened if each.kind in is_wanted]
        for source, log in expected.logs.items():
            if source not in records:
                yield f"{source} is missing"
                continue
            if decided.ranges[source].end != log.end:
                yield f"{source.topic_partition} ends at {decided.ranges[source].end}, the cut is at {log.end}"
            yield from different(f"{source.topic_partition}", records.pop(source), log.records)
        yield from (f"{source} is restored as well" for source in records)

    def _restore_differences(self, cut: Cut, expected: Expected) -> Iterator[str]:
        is_preserved = self.chance.random() < 0.4
        described = [seen.description for seen in self.history.seen_topics]
        sizes = {each.topic: 0 for each in described}
        sizes |= {name: max(each.partitions for each in described if each.topic == name) for name in sizes}
        micro_batch_bytes = self.chance.choice((1, 300, 2_000, 1 << 20))
        with self.target.topics(sizes) as prefix:
            config = self.target.config(
                self.folder, self.config, prefix, cut, is_preserved=is_preserved, micro_batch_bytes=micro_batch_bytes
            )
            try:
                while self.chance.random() < 0.5:
                    crash = CrashAfter(self.chance.randint(0, 25))
                    if self.target.restore(config, crash):
                        break
                    self.found.crashes += 1
                    if self._is_spoilt(cut, prefix, is_preserved=is_preserved, micro_batch_bytes=micro_batch_bytes):
                        return
                self.target.restore(config)
            except ConfigError as error:
                self.found.refusals += 1
                if expected.refusal is None:
                    yield f"refused: {error}"
                return
            self.found.restores += 1
            if expected.refusal is not None:
                yield f"it was not refused, although {expected.refusal}"
                return
            for source, log in expected.logs.items():
                yield from self._target_differences(prefix, source, log, is_preserved=is_preserved)
            if self.chance.random() < 0.3:
                self._is_spoilt(cut, prefix, is_preserved=is_preserved, micro_batch_bytes=micro_batch_bytes, is_complete=True)

    def _is_spoilt(self, cut: Cut, prefix: str, *, is_preserved: bool, micro_batch_bytes: int, is_complete: bool = False) -> bool:
        """Let the next start have another file. Return whether its response was wrong."""
        other = random_other_file(self.chance, cut, self.oracle, prefix, is_complete=is_complete)
        is_begun = (self.folder / f"{prefix}tables" / "restore_ranges").exists()  # else the next start is the first one
        if not is_begun or self.chance.random() < 0.5:
            return False
        config = self.target.config(
            self.folder,
            self.config,
            prefix,
            other.cut,
            is_preserved=is_preserved,
            micro_batch_bytes=micro_batch_bytes,
            **other.groups,
        )
        self.found.other_files += 1
        start = start_with_other_file(self.target, config, other, lambda: self.target.everything(prefix))
        differences = list(start.problems)
        if start.is_taken_up:  # then all of it is there, also of topics that only one of both files includes
            for topics in (cut.topics, tuple(sorted(set(other.cut.topics) - set(cut.topics)))):
                expected = self.oracle.expected(replace(cut, topics=topics))
                for source, log in expected.logs.items():
                    differences += self._target_differences(prefix, source, log, is_preserved=is_preserved)
        self.found.differences.extend(f"{cut}, {other.name}: {difference}" for difference in differences)
        return bool(differences)

    def _target_differences(self, prefix: str, source: SourcePartition, log: ExpectedLog, *, is_preserved: bool) -> Iterator[str]:
        topic = prefix + source.topic
        records = self.target.records(topic, source.partition)
        self.found.records += len(records)
        if is_preserved:
            yield from different(f"{source.topic_partition}, preserved", records, log.records)
            start, end = self.target.log_bounds(topic, source.partition)
            if end != log.end:
                yield f"{source.topic_partition}, preserved: the log ends at {end}, the cut is at {log.end}"
            if start != log.log_start:
                yield f"{source.topic_partition}, preserved: the log begins at {start}, not {log.log_start}"
            return
        moved = [record._replace(offset=offset) for offset, record in enumerate(log.records)]
        found = [record._replace(offset=offset) for offset, record in enumerate(records)]
        yield from different(f"{source.topic_partition}", found, moved)

    def _description_differences(self, cut: Cut, decided: RestoreRanges) -> Iterator[str]:
        """Compare partitions and settings of topics at the cut."""
        described = described_topics(TableStorage(self.config.table_location), decided)
        decision = self.oracle.decision_at(cut.decision).number
        for topic_id in {source.topic_id for source in decided.ranges}:
            seen = [each for each in self.history.seen_topics if each.description.topic_id == topic_id]
            # What was seen behind a decision carries its number.
            last = decision if cut.decision is None else decision - 1
            until = [each for each in seen if (each.decision <= last if cut.time_ms is None else each.at_ms <= cut.time_ms)]
            expected = (until or seen[:1])[-1].description
            # Records may show that a partition was there before it was described.
            restored = [source.partition for source in decided.ranges if source.topic_id == topic_id]
            expected = replace(expected, partitions=max(expected.partitions, max(restored) + 1))
            if described.get(expected.topic) != expected:
                yield f"{cut}: described as {described.get(expected.topic)}, not as {expected}"

    def _group_differences(self, cut: Cut, decided: RestoreRanges) -> Iterator[str]:
        """Compare the committed offsets that groups had at the cut."""
        if not self.history.group_passes:
            return
        now_ms = self.history.now_ms + 1
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        table = ArchiveTable.open(self.config.tables)
        at = time_of_cut(
            table,
            decided,
            self.target.config(self.folder, self.config, "planned.", cut, is_preserved=False, micro_batch_bytes=1_000).until,
            now,
        )
        expected_ms = now_ms if cut.time_ms is None else cut.time_ms
        if cut.decision is not None or cut.offsets:
            expected_ms = self.oracle.decision_at(cut.decision).at_ms
        passes = [committed for at_ms, committed in self.history.group_passes if at_ms <= expected_ms]
        topics = {source.topic for source in decided.ranges}
        expected = {key: offset for key, offset in (passes[-1] if passes else {}).items() if key[1].topic in topics}
        positions = noted_positions(
            TableStorage(self.config.table_location).best_effort_tables(), {source.topic: at for source in decided.ranges}
        )
        found = {(position.group, position.source): position.offset for position in positions}
        if found != expected:
            yield f"{cut}: offsets of groups are {found}, not {expected}"


def _opened_record(record: Record) -> LogRecord:
    headers = tuple((bytes(name), None if content is None else bytes(content)) for name, content in record.headers)
    key, value = (None if text is None else bytes(text) for text in (record.key, record.value))
    return LogRecord(record.offset, record.timestamp_ms, key, value, headers)


def _log_record(record: ArchivedRecord) -> LogRecord:
    headers = tuple((name.encode(), content) for name, content in record.headers)
    return LogRecord(record.offset, record.timestamp_ms, record.key, record.value, headers)


def different(name: str, found: Iterable[LogRecord], expected: Sequence[LogRecord]) -> Iterator[str]:
    """Yield the first difference of two logs, by its kind."""
    first, second = list(found), list(expected)
    if first == second:
        return
    lost = sorted(set(second) - set(first))
    extra = sorted(set(first) - set(second))
    counts = f"{len(first)} of {len(second)} records"
    if lost:
        yield f"{name}: {counts}, lost {len(lost)}: {lost[0]}"
    if extra:
        yield f"{name}: {counts}, not to be there {len(extra)}: {extra[0]}"
    if not lost and not extra:
        yield f"{name}: {counts}, twice or in another order: {[record.offset for record in first][:20]}"

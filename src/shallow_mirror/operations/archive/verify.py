"""Driver, for the cli: the rows of an archive against each other and against its objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TextIO

from shallow_mirror import routing
from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints.ledger import VISIBLE, ArchivedTopics, ArchiveTable
from shallow_mirror.checkpoints.rows import ArchiveRow, SegmentState
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError, StoreRefusedError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.findings import Finding, FindingKind, Findings
from shallow_mirror.operations.archive.object_check import check_object
from shallow_mirror.operations.archive.objects import find_orphans
from shallow_mirror.operations.archive.topic_check import check_topics
from shallow_mirror.plurals import counted
from shallow_mirror.progress import LINES_EVERY_S
from shallow_mirror.sinks import RowCopies
from shallow_mirror.sinks.archive import ObjectOwners, TopicObjects
from shallow_mirror.streaming.planning import unmatched_sentence
from shallow_mirror.types import SourcePartition

OBJECTS_AT_ONCE = 4


@dataclass(slots=True)
class ArchiveVerification:
    archive: str
    is_deep: bool
    row_count: int = 0
    object_count: int = 0
    size_bytes: int = 0
    findings: Findings = field(default_factory=Findings)
    uncovered: tuple[str, ...] = ()
    """A sentence for each entry of `topics.include` of which the archive has no topic."""
    note: str | None = None
    """Of what was not verified, and why."""

    @property
    def is_equal(self) -> bool:
        return not self.findings.has_difference and not self.uncovered

    def document(self) -> dict[str, Any]:
        return {
            "archive": self.archive,
            "deep": self.is_deep,
            "rows": self.row_count,
            "objects": self.object_count,
            "size_bytes": self.size_bytes,
            "equal": self.is_equal,
            "uncovered": list(self.uncovered),
            "note": self.note,
            **self.findings.document(),
        }

    def sentences(self) -> list[str]:
        checked = f"{counted(self.row_count, 'row')}, {counted(self.object_count, 'object')}, {counted(self.size_bytes, 'byte')}"
        verdict = "DIFFERENT" if self.findings.has_difference else "every object is what its rows say"
        if self.uncovered:
            verdict += ", and not all that was asked for is archived"
        note = [] if self.note is None else [self.note]
        uncovered = [f"not covered: {sentence}" for sentence in self.uncovered]
        return [*self.findings.sentences(), *uncovered, *note, f"archive {self.archive}: {checked} verified: {verdict}"]


def verify_archive(
    config: ArchiveConfig,
    spark: Any = None,
    *,
    is_deep: bool = False,
    on_progress: Callable[[ArchiveVerification], None] = lambda _: None,
) -> ArchiveVerification:
    """Verify the archive as it is now, also while it runs. One bad object changes nothing about the others.

    Raise ConfigError (no table, another archive's, refused by the store), OffsetMapConflictError, StoreUnreachableError.
    """
    storage = TableStorage(config.table_location, spark)
    table = ArchiveTable.open(storage, archive=config.archive)
    newest = ArchiveTable.open(storage, archive=config.archive)
    store = ObjectStore.open(config.objects, config.storage_options)
    report = ArchiveVerification(config.archive, is_deep)
    continuity = Continuity()
    topics = {seen.description.topic for seen in ArchivedTopics.of(storage).seen()}
    """Also those of which retention has deleted all rows."""
    with ThreadPoolExecutor(OBJECTS_AT_ONCE, "verify") as executor:

        def check(item: tuple[str, Sequence[ArchiveRow]]) -> list[Finding]:
            return check_object(store, *item, is_deep=is_deep)

        for rows in table.decisions():
            for finding in continuity.of(rows):
                report.findings.add(finding)
            objects = _by_object(rows)
            strange = {name: _of_another_archive(table, name) for name in objects}
            for finding in filter(None, strange.values()):
                report.findings.add(finding)
            own = [(name, of_object) for name, of_object in objects.items() if strange[name] is None]
            object_findings = [finding for findings in executor.map(check, own) for finding in findings]
            for finding in _still_true(newest, rows, object_findings):
                if finding.kind is FindingKind.MISSING and FindingKind.MISSING not in report.findings.counts:
                    _require_objects_of(config, table, store)
                report.findings.add(finding)
            topics.update(row.segment.source.topic for row in rows)
            report.row_count += len(rows)
            report.object_count += len(objects)
            report.size_bytes += sum(row.segment.size_bytes for of_object in objects.values() for row in of_object)
            on_progress(report)
            table.refresh()  # a running archive compacts its table, and deletes the replaced files after a day
    if is_deep:
        for finding in check_topics(TopicObjects(store, table.archive_id), ArchivedTopics.of(storage)):
            report.findings.add(finding)
        for error in RowCopies(store, table.archive_id).damaged():
            report.findings.add(Finding(FindingKind.DAMAGED, error.object_name, error.detail))
    report.uncovered = tuple(
        unmatched_sentence(entry) for entry in routing.unmatched_entries(config.topics.include, config.topics.exclude, topics)
    )
    newest.refresh()  # what was decided meanwhile is no orphan
    try:
        ObjectOwners(store, table.archive_id).require_table(newest)
    except StoreRefusedError:
        raise
    except ConfigError as error:  # versions of the table that the objects belong to say which are orphans
        report.note = f"objects that no row names were not looked for: {error}"
        return report
    for orphan in find_orphans(newest, store):
        detail = "an unfinished file" if orphan.is_unfinished else "an object of a decision that was never committed"
        report.findings.add(Finding(FindingKind.ORPHAN, orphan.info.name, detail, orphan.info.size_bytes))
    return report


class ProgressLines:
    """Print how far a verification is, once in LINES_EVERY_S."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._last = clock()

    def __call__(self, report: ArchiveVerification) -> None:
        if self._clock() - self._last < LINES_EVERY_S:
            return
        self._last = self._clock()
        objects, size = counted(report.object_count, "object"), counted(report.size_bytes, "byte")
        findings = counted(sum(report.findings.counts.values()), "finding")
        print(f"verify: {objects}, {size} so far; {findings}", file=self._file, flush=True)


class Continuity:
    """Whether the rows of every partition and lineage follow each other. Rows come by decisions, in order, of every state.

    A lineage begins at or below the end of the one before it, which has no more rows then.
    """

    def __init__(self) -> None:
        self._ends: dict[SourcePartition, tuple[int, int]] = {}
        """The newest lineage of each partition so far, and its end."""

    def of(self, rows: Sequence[ArchiveRow]) -> Iterator[Finding]:
        for row in rows:
            source, start, end = row.segment.source, row.segment.source_start, row.segment.source_end
            number, lineage = row.segment.lineage, ""
            newest, before = self._ends.get(source, (number, start))
            name = "" if row.stored is None else row.stored.object_name
            if number or newest:
                lineage = f" in lineage {number}"
            if number < newest:
                detail = (
                    f"a row of {source.topic_partition}{lineage} at offset {start} was decided after lineage {newest} had begun"
                )
                yield Finding(FindingKind.OVERLAP, name, detail)
                continue
            if start > before:
                detail = f"offsets {before} to {start - 1} of {source.topic_partition}{lineage} are in no row"
                yield Finding(FindingKind.HOLE, name, detail)
            elif start < before and number == newest:
                detail = f"offsets {start} to {min(before, end) - 1} of {source.topic_partition}{lineage} are in two rows"
                yield Finding(FindingKind.OVERLAP, name, detail)
            self._ends[source] = number, end if number > newest else max(before, end)


def _by_object(rows: Sequence[ArchiveRow]) -> Mapping[str, list[ArchiveRow]]:
    objects: dict[str, list[ArchiveRow]] = {}
    for row in rows:
        if row.stored is not None and row.state in VISIBLE:
            objects.setdefault(row.stored.object_name, []).append(row)
    return objects


def _of_another_archive(table: ArchiveTable, name: str) -> Finding | None:
    parsed = ObjectName.parse(name)
    if parsed is not None and parsed.archive_id == table.archive_id:
        return None
    return Finding(FindingKind.DAMAGED, name, f"a row names it, and it is no object of the archive {table.archive_id}")


def _still_true(newest: ArchiveTable, rows: Sequence[ArchiveRow], findings: Sequence[Finding]) -> Iterator[Finding]:
    """Leave out objects that the archive has begun to delete meanwhile."""
    visible: set[str] | None = None
    for finding in findings:
        if visible is None:
            newest.refresh()
            last = rows[-1].micro_batch
            of_rows = Comparison("micro_batch", ">", rows[0].micro_batch - 1), Comparison("micro_batch", "<=", last)
            state = Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value)
            visible = {
                name
                for piece in newest.pieces((*of_rows, state), ["object_name"])
                for name in piece["object_name"].to_pylist()
                if name is not None
            }
        if finding.object_name in visible:
            yield finding


def _require_objects_of(config: ArchiveConfig, table: ArchiveTable, store: ObjectStore) -> None:
    """Raise ConfigError if the store holds objects of other archives and none of this one."""
    if next(store.list(table.archive_id), None) is not None:
        return
    others = sorted({name.archive_id for info in store.list() if (name := ObjectName.parse(info.name)) is not None})
    if others:
        raise ConfigError(
            f"objects: {config.objects} has objects of the archives {', '.join(others[:3])} and none of {table.archive_id}, "
            "which is that of `tables`: check `objects` and `tables`"
        )

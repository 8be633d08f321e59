"""Driver, for the cli: a new table of archived segments from the footers of the objects, where the table is lost.

Footers are read twice: first what the choice needs of each (`archive_rebuild_choice.py`), then those that were chosen, by
decisions, while one commit writes their rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

from shallow_mirror.archive_format.object_footer import ObjectFooter
from shallow_mirror.archive_format.object_names import ObjectName
from shallow_mirror.checkpoints.archive_schema import ARCHIVE_SEGMENTS, archive_rows_to_arrow
from shallow_mirror.checkpoints.archived_topics import ArchivedTopics
from shallow_mirror.checkpoints.commit_metadata import Recorded, RunIdentity, version_of
from shallow_mirror.checkpoints.schema import PROPERTY_MAP_ID, DecidedSegment, in_source_order, table_properties
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.checkpoints.table_layout import ARCHIVE_LAYOUT
from shallow_mirror.checkpoints.table_location import TableLocation
from shallow_mirror.checkpoints.table_protocol import TableWriter
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ArchiveFormatError, ConfigError, ObjectMissingError, OffsetMapConflictError
from shallow_mirror.object_store.base import ObjectInfo
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.operations.archive_findings import MOST_SHOWN
from shallow_mirror.operations.archive_object_check import read_footer
from shallow_mirror.operations.archive_rebuild_choice import Choice, FooterSummary, Hole, Partitions, choose
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.archive.topic_objects import SeenTopics, TopicObjects
from shallow_mirror.types import Segment, SegmentKind, TargetPartition

FOOTERS_AT_ONCE = 8
_NO_TARGET_CLUSTER = "archive"
_GATHERED_ROWS = 20_000

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Rebuilt:
    tables: str
    archive_id: str
    decision_count: int = 0
    object_count: int = 0
    row_count: int = 0
    topic_count: int = 0
    damaged: list[str] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)
    accepted_holes: list[Hole] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "tables": self.tables,
            "archive_id": self.archive_id,
            "decisions": self.decision_count,
            "objects": self.object_count,
            "rows": self.row_count,
            "topics": self.topic_count,
            "damaged": self.damaged,
            "uncommitted": self.uncommitted,
            "gaps": [hole.sentence() for hole in self.accepted_holes],
        }

    def sentences(self) -> list[str]:
        lines = [f"not used, its footer cannot be read: {text}" for text in _shown(self.damaged)]
        lines += [f"not used, it was never committed: {name}" for name in _shown(self.uncommitted)]
        lines += [f"recorded as a gap: {text}" for text in _shown([hole.sentence() for hole in self.accepted_holes])]
        if not self.topic_count:
            lines.append("no description of topics is beside the objects: run `shallow-mirror archive run` before a restore")
        counts = f"{counted(self.row_count, 'row')} of {counted(self.object_count, 'object')}"
        return [*lines, f"{self.tables}: rebuilt archive {self.archive_id} with {counts}. Set `tables` to it, and verify"]


def rebuild(
    config: ArchiveConfig, tables: str, spark: Any = None, *, archive_id: str | None = None, accepts_holes: bool = False
) -> Rebuilt:
    """Write a new table in `tables` (a folder, a URI, or `catalog:<catalog>.<schema>`, which needs a session), where none may be.

    The table that the archive file names is not read. Through Spark all rows are in memory at once. Raise ConfigError (there is
    a table, objects of several archives, or a choice that is not certain, with the names), ArchiveFormatError (a description of
    topics), and what the store raises.
    """
    location = TableLocation(tables, config.storage_options)
    storage = MirrorStorage(location, spark)
    storage.require_conditional_writes()
    writer = storage.decisions(ARCHIVE_LAYOUT)
    if writer.snapshot() is not None:
        raise ConfigError(f"--rebuild {tables}: there is a table archive_segments already: give another location")
    store = ObjectStore.open(config.objects, config.storage_options)
    archive_id = archive_id or _only_archive_id(config, store)
    rebuilt = Rebuilt(tables, archive_id)
    partitions = Partitions()
    clusters: set[str] = set()
    choice = choose(_summaries(store, archive_id, partitions, clusters, rebuilt), partitions)
    _require_certain(choice, clusters, accepts_holes=accepts_holes)
    rebuilt.uncommitted = choice.uncommitted
    rebuilt.accepted_holes = choice.holes
    rebuilt.decision_count = len(choice.decisions)
    rebuilt.object_count = sum(len(decision) for decision in choice.decisions)
    rebuilt.row_count = choice.row_count + len(choice.holes)
    seen_topics = TopicObjects(store, archive_id).read()  # nothing is created where they cannot be read
    writer.create(
        table_properties(config.archive, clusters.pop(), _NO_TARGET_CLUSTER, writer.name) | {PROPERTY_MAP_ID: archive_id}
    )
    _write_topics(storage, seen_topics, choice, rebuilt)
    _write(writer, store, choice, rebuilt)
    return rebuilt


def _only_archive_id(config: ArchiveConfig, store: ObjectStore) -> str:
    ids = sorted({name.archive_id for info in store.list() if (name := ObjectName.parse(info.name)) is not None})
    if not ids:
        raise ConfigError(f"objects: {config.objects} holds no objects of an archive: check `objects`")
    if len(ids) > 1:
        raise ConfigError(
            f"objects: {config.objects} holds objects of {len(ids)} archives: choose one with --archive-id: {', '.join(ids[:10])}"
        )
    return ids[0]


def _summaries(
    store: ObjectStore, archive_id: str, partitions: Partitions, clusters: set[str], rebuilt: Rebuilt
) -> Iterator[FooterSummary]:
    """Yield what the choice needs of every object; note those whose footer cannot be read."""

    def read(info: ObjectInfo) -> tuple[ObjectInfo, ObjectFooter | str]:
        try:
            return info, read_footer(store, info.name)
        except ArchiveFormatError as error:
            return info, f"{info.name}: {error.detail}"
        except ObjectMissingError as error:
            return info, f"{info.name}: {error.reason}"

    objects = (info for info in store.list(archive_id) if ObjectName.parse(info.name) is not None)
    for info, footer in _in_parallel(read, objects):
        name = ObjectName.parse(info.name)
        if isinstance(footer, str) or name is None:
            rebuilt.damaged.append(str(footer))
            continue
        clusters.add(footer.header.source_cluster_id)
        yield FooterSummary.of(name, info.last_modified_ms, footer.rows, partitions)


def _require_certain(choice: Choice, clusters: set[str], *, accepts_holes: bool) -> None:
    """Raise ConfigError with everything that keeps the rows from being certain."""
    problems = [
        f"one of these objects was committed, and nothing says which: {', '.join(names)}. Move the others out of the store"
        for names in _shown(choice.ambiguous)
    ]
    problems += [f"{text} are in an older object as well: move one of them out of the store" for text in _shown(choice.overlaps)]
    if choice.holes and not accepts_holes:
        problems += [hole.sentence() for hole in _shown(choice.holes)]
        problems.append(
            f"{counted(len(choice.holes), 'hole')}: restore the missing objects, or record the holes as gaps with --accept-holes"
        )
    if len(clusters) > 1:
        problems.append(f"the objects are of several source clusters: {', '.join(sorted(clusters))}")
    if not choice.decisions:
        problems.append("no object can be used: restore the objects from a copy of the store")
    if problems:
        raise ConfigError(problems)


def _write_topics(storage: MirrorStorage, seen_topics: Sequence[SeenTopics], choice: Choice, rebuilt: Rebuilt) -> None:
    """Write what the capture stored about topics. Decisions are counted again, so times say in front of which one it was seen."""
    decided_at_ms = _decided_at_ms(choice.decisions)
    topics = ArchivedTopics.of(storage)
    described: set[str] = set()
    for seen in seen_topics:
        micro_batch = bisect_right(decided_at_ms, seen.at_ms)
        topics.record(seen.topics, run_epoch=_highest_epoch(choice), micro_batch=micro_batch, at_ms=seen.at_ms)
        described.update(topic.topic_id for topic in seen.topics)
    rebuilt.topic_count = len(described)


def _highest_epoch(choice: Choice) -> int:
    return max(summary.name.run_epoch for decision in choice.decisions for summary in decision)


def _write(writer: TableWriter, store: ObjectStore, choice: Choice, rebuilt: Rebuilt) -> None:
    """Write all rows in one commit: it is there as a whole or not at all. Its version is above those of all objects."""
    snapshot = writer.snapshot()
    if snapshot is None:
        raise OffsetMapConflictError(f"{rebuilt.tables}: the table that was created no longer exists")
    decided_at_ms = _decided_at_ms(choice.decisions)
    record = Recorded(
        version=version_of(_highest_epoch(choice) + 1, 1),
        run=RunIdentity.of_this_process(),
        micro_batch=len(choice.decisions),
        decided_at_ms=decided_at_ms[-1],
        compacted_micro_batch=len(choice.decisions),
        row_count=rebuilt.row_count,
    )
    pieces = (batch.cast(ARCHIVE_SEGMENTS) for table in _tables(store, choice, decided_at_ms) for batch in table.to_batches())
    reader = pa.RecordBatchReader.from_batches(ARCHIVE_SEGMENTS, pieces)
    rows: Any = reader.read_all() if writer.name == "spark" else reader
    writer.append(snapshot, rows, record.version, record.metadata())
    written = writer.snapshot()
    row_count = None if written is None else written.row_count()
    if row_count != rebuilt.row_count:
        raise OffsetMapConflictError(
            f"{rebuilt.tables} has {row_count} rows, {rebuilt.row_count} were to be written: delete the table, and rebuild again"
        )


def _tables(store: ObjectStore, choice: Choice, decided_at_ms: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the rows of the chosen objects, by decisions."""
    holes: dict[str, list[Hole]] = {}
    for hole in choice.holes:
        holes.setdefault(hole.before, []).append(hole)

    def read(decision: tuple[FooterSummary, ...]) -> list[DecidedSegment]:
        rows = []
        for summary in decision:
            name = str(summary.name)
            rows += [DecidedSegment(row.segment, None, row.stored) for row in read_footer(store, name).rows]
            rows += [_gap(hole) for hole in holes.get(name, [])]
        return sorted(rows, key=in_source_order)

    gathered, row_count = list[pa.Table](), 0
    for number, rows in enumerate(_in_parallel(read, choice.decisions), 1):
        run_epoch = choice.decisions[number - 1][0].name.run_epoch
        gathered.append(archive_rows_to_arrow(rows, run_epoch, number, decided_at_ms[number - 1]))
        row_count += len(rows)
        if row_count >= _GATHERED_ROWS:
            yield pa.concat_tables(gathered).combine_chunks()
            gathered, row_count = [], 0
    if gathered:
        yield pa.concat_tables(gathered).combine_chunks()


def _decided_at_ms(decisions: Sequence[Sequence[FooterSummary]]) -> list[int]:
    """Return about when each decision was made: after its objects, and not before the ones before it."""
    times: list[int] = []
    for decision in decisions:
        times.append(max(summary.last_modified_ms for summary in decision))
        if len(times) > 1:
            times[-1] = max(times[-2:])
    return times


def _gap(hole: Hole) -> DecidedSegment:
    source, lineage = hole.partition
    segment = Segment(
        source=source,
        source_start=hole.start,
        source_end=hole.end,
        kind=SegmentKind.GAP,
        target=TargetPartition(*source),
        lineage=lineage,
    )
    return DecidedSegment(segment, None)


def _in_parallel(act: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield results in order; no more than some items are in memory at once."""
    items = iter(items)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "footers") as executor:
        while page := list(islice(items, 8 * FOOTERS_AT_ONCE)):
            yield from executor.map(act, page)


def _shown(entries: Sequence[_Item]) -> Sequence[_Item]:
    return entries[:MOST_SHOWN]

"""Driver, for the cli: a new table of archived segments from the footers of the objects and copies of rows.

Footers are read twice: first what the choice needs of each (`rebuild_choice.py`), then those that were chosen, by
decisions, while one commit writes their rows.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

from shallow_mirror.archive_format import ObjectFooter, ObjectName
from shallow_mirror.checkpoints import (
    PROPERTY_MAP_ID,
    PROPERTY_REBUILT_FROM,
    PROPERTY_TABLE_ID,
    DecidedSegment,
    in_source_order,
    table_properties,
)
from shallow_mirror.checkpoints.ledger import ArchivedTopics, Recorded, RunIdentity, version_of
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS, SegmentState, archive_rows_to_arrow
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, TableLocation, TableStorage, TableWriter
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ArchiveFormatError, ConfigError, ObjectMissingError, OffsetMapConflictError
from shallow_mirror.object_store import ObjectInfo, ObjectStore
from shallow_mirror.operations.archive.findings import MOST_SHOWN
from shallow_mirror.operations.archive.object_check import read_footer
from shallow_mirror.operations.archive.objects import fingerprint_of
from shallow_mirror.operations.archive.rebuild_choice import (
    Choice,
    CopiedDecision,
    FooterSummary,
    Hole,
    Partitions,
    choose,
)
from shallow_mirror.operations.archive.rebuild_rows import VISIBLE_STATE, CopiesByObject, RebuiltRows
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import NO_TARGET_CLUSTER, RowCopies
from shallow_mirror.sinks.archive import ObjectOwners, SeenTopics, TopicObjects, archive_id_of_entry
from shallow_mirror.types import Segment, SegmentKind, TargetPartition

FOOTERS_AT_ONCE = 8
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
    unproven: list[str] = field(default_factory=list)
    has_copies: bool = True
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
            "unproven": self.unproven,
            "row_copies": self.has_copies,
            "gaps": [hole.sentence() for hole in self.accepted_holes],
        }

    def sentences(self) -> list[str]:
        lines = [f"not used, its footer cannot be read: {text}" for text in _shown(self.damaged)]
        lines += [f"not used, it was never committed: {name}" for name in _shown(self.uncommitted)]
        lines += [f"used, and nothing says whether it was committed: {name}" for name in _shown(self.unproven)]
        lines += [f"recorded as a gap: {text}" for text in _shown([hole.sentence() for hole in self.accepted_holes])]
        if not self.topic_count:
            lines.append("no description of topics is beside the objects: run `shallow-mirror archive run` before a restore")
        if not self.has_copies:
            lines.append(
                "no copies of rows are beside the objects, because an older release wrote them: what has expired is not known, "
                "and objects that were never committed may be used"
            )
        counts = f"{counted(self.row_count, 'row')} of {counted(self.object_count, 'object')}"
        return [
            *lines,
            f"{self.tables}: rebuilt archive {self.archive_id} with {counts}. Set `tables` to it, and verify. The objects still "
            "belong to the former table: `shallow-mirror archive adopt FILE` before the archive runs with this one",
        ]


def rebuild(
    config: ArchiveConfig, tables: str, spark: Any = None, *, archive_id: str | None = None, accepts_holes: bool = False
) -> Rebuilt:
    """Write a new table in `tables` (a folder, a URI, or `catalog:<catalog>.<schema>`, which needs a session). There must be
    none yet.

    The table that the archive file names is not read. Through Spark all rows are in memory at once. Raise ConfigError (there
    is a table, objects of several archives, or a choice that is not certain, with the names), ArchiveFormatError (a
    description of topics), and the errors of the store.
    """
    location = TableLocation(tables, config.storage_options)
    storage = TableStorage(location, spark)
    storage.require_conditional_writes()
    writer = storage.decisions(ARCHIVE_LAYOUT)
    if writer.snapshot() is not None:
        raise ConfigError(f"--rebuild {tables}: there is a table archive_segments already: give another location")
    store = ObjectStore.open(config.objects, config.storage_options)
    archive_id = archive_id or _only_archive_id(config, store)
    rebuilt = Rebuilt(tables, archive_id)
    partitions = Partitions()
    clusters: set[str] = set()
    copies = CopiesByObject(RowCopies(store, archive_id).read())
    rebuilt.has_copies = bool(copies)
    listed: set[str] = set()
    summaries = list(_summaries(store, archive_id, partitions, clusters, rebuilt, copies, listed))
    names = {str(summary.name) for summary in summaries}
    summaries += copies.deleted_objects(names, partitions)
    if not clusters and (owner := ObjectOwners(store, archive_id).newest()) is not None:
        clusters.add(owner.source_cluster_id)  # every object has expired
    choice = choose(summaries, partitions, copies.without_object, has_copies=rebuilt.has_copies)
    _require_certain(choice, clusters, accepts_holes=accepts_holes)
    rebuilt.uncommitted = [name for name in choice.uncommitted if name in names]
    rebuilt.unproven = choice.unproven
    rebuilt.accepted_holes = choice.holes
    rebuilt.decision_count = len(choice.decisions)
    rebuilt.object_count = sum(str(summary.name) in names for decision in choice.decisions for summary in decision)
    rebuilt.row_count = choice.row_count + len(choice.holes)
    seen_topics = TopicObjects(store, archive_id).read()  # nothing is created where they cannot be read
    writer.create(
        table_properties(config.archive, clusters.pop(), NO_TARGET_CLUSTER, writer.name)
        | {
            PROPERTY_MAP_ID: archive_id,
            PROPERTY_TABLE_ID: str(uuid.uuid4()),
            PROPERTY_REBUILT_FROM: fingerprint_of(listed),
        }
    )
    _write_topics(storage, seen_topics, choice, rebuilt)
    _write(writer, RebuiltRows(store, copies, names), choice, rebuilt)
    return rebuilt


def _only_archive_id(config: ArchiveConfig, store: ObjectStore) -> str:
    found: set[str] = set()
    for info in store.list():
        name = ObjectName.parse(info.name)
        archive_id = archive_id_of_entry(info.name) if name is None else name.archive_id
        found.update([] if archive_id is None else [archive_id])
    ids = sorted(found)
    if not ids:
        raise ConfigError(f"objects: {config.objects} holds no objects of an archive: check `objects`")
    if len(ids) > 1:
        raise ConfigError(
            f"objects: {config.objects} holds objects of {len(ids)} archives: choose one with --archive-id: {', '.join(ids[:10])}"
        )
    return ids[0]


def _summaries(
    store: ObjectStore,
    archive_id: str,
    partitions: Partitions,
    clusters: set[str],
    rebuilt: Rebuilt,
    copies: CopiesByObject,
    listed: set[str],
) -> Iterator[FooterSummary]:
    """Yield the summary of every object for the choice; note those whose footer cannot be read. Add all names to `listed`."""

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
        listed.add(info.name)
        if isinstance(footer, str) or name is None:
            rebuilt.damaged.append(str(footer))
            continue
        clusters.add(footer.header.source_cluster_id)
        yield FooterSummary.of(
            name,
            copies.decided_at_ms(info.name) or info.last_modified_ms,
            footer.rows,
            partitions,
            is_proven=info.name in copies.numbers_of_object,
        )


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
    if not choice.row_count or not clusters:
        problems.append("no object can be used: restore the objects from a copy of the store")
    if problems:
        raise ConfigError(problems)


def _write_topics(storage: TableStorage, seen_topics: Sequence[SeenTopics], choice: Choice, rebuilt: Rebuilt) -> None:
    """Write the captured descriptions of topics. Decisions are counted anew, so times say before which one each was seen."""
    decided_at_ms = _decided_at_ms(choice)
    topics = ArchivedTopics.of(storage)
    described: set[str] = set()
    for seen in seen_topics:
        micro_batch = bisect_right(decided_at_ms, seen.at_ms)
        topics.record(seen.topics, run_epoch=_highest_epoch(choice), micro_batch=micro_batch, at_ms=seen.at_ms)
        described.update(topic.topic_id for topic in seen.topics)
    rebuilt.topic_count = len(described)


def _highest_epoch(choice: Choice) -> int:
    return max(_epoch_of(decision) for decision in choice.in_order())


def _epoch_of(decision: tuple[FooterSummary, ...] | CopiedDecision) -> int:
    return decision.run_epoch if isinstance(decision, CopiedDecision) else decision[0].name.run_epoch


def _write(writer: TableWriter, rows_of: RebuiltRows, choice: Choice, rebuilt: Rebuilt) -> None:
    """Write all rows in one commit: it is there as a whole or not at all. Its version is above those of all objects."""
    snapshot = writer.snapshot()
    if snapshot is None:
        raise OffsetMapConflictError(f"{rebuilt.tables}: the table that was created no longer exists")
    decided_at_ms = _decided_at_ms(choice)
    record = Recorded(
        version=version_of(_highest_epoch(choice) + 1, 1),
        run=RunIdentity.of_this_process(),
        micro_batch=len(decided_at_ms),
        decided_at_ms=decided_at_ms[-1],
        compacted_micro_batch=len(decided_at_ms),
        row_count=rebuilt.row_count,
    )
    pieces = (batch.cast(ARCHIVE_SEGMENTS) for table in _tables(rows_of, choice, decided_at_ms) for batch in table.to_batches())
    reader = pa.RecordBatchReader.from_batches(ARCHIVE_SEGMENTS, pieces)
    rows: Any = reader.read_all() if writer.name == "spark" else reader
    writer.append(snapshot, rows, record.version, record.metadata())
    written = writer.snapshot()
    row_count = None if written is None else written.row_count()
    if row_count != rebuilt.row_count:
        raise OffsetMapConflictError(
            f"{rebuilt.tables} has {row_count} rows, {rebuilt.row_count} were to be written: delete the table, and rebuild again"
        )


def _tables(rows_of: RebuiltRows, choice: Choice, decided_at_ms: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the rows of all decisions, in order."""
    holes: dict[str, list[Hole]] = {}
    for hole in choice.holes:
        holes.setdefault(hole.before, []).append(hole)

    def read(decision: tuple[FooterSummary, ...] | CopiedDecision) -> list[tuple[DecidedSegment, SegmentState]]:
        if isinstance(decision, CopiedDecision):
            rows = [(row, VISIBLE_STATE) for row in decision.segments]
            before = [hole for hole in holes.get("", []) if any(_is_in_front(hole, row) for row in decision.segments)]
        else:
            rows = [row for summary in decision for row in rows_of.object(summary)]
            before = [hole for summary in decision for hole in holes.get(str(summary.name), [])]
        rows += [(_gap(hole), VISIBLE_STATE) for hole in before]
        return sorted(rows, key=lambda row: in_source_order(row[0]))

    gathered, row_count = list[pa.Table](), 0
    decisions = list(choice.in_order())
    for number, rows in enumerate(_in_parallel(read, decisions), 1):
        run_epoch = _epoch_of(decisions[number - 1])
        table = archive_rows_to_arrow([row for row, _ in rows], run_epoch, number, decided_at_ms[number - 1])
        at = table.schema.get_field_index("state")
        gathered.append(table.set_column(at, "state", pa.array([state.value for _, state in rows], pa.string())))
        row_count += len(rows)
        if row_count >= _GATHERED_ROWS:
            yield pa.concat_tables(gathered).combine_chunks()
            gathered, row_count = [], 0
    if gathered:
        yield pa.concat_tables(gathered).combine_chunks()


def _is_in_front(hole: Hole, row: DecidedSegment) -> bool:
    segment = row.segment
    return (segment.source, segment.lineage, segment.source_start) == (*hole.partition, hole.end)


def _decided_at_ms(choice: Choice) -> list[int]:
    """Return about when each decision was made: as copies say, or after its objects; and not before the ones before it."""
    times: list[int] = []
    for decision in choice.in_order():
        if isinstance(decision, CopiedDecision):
            at_ms = decision.decided_at_ms
        else:
            at_ms = max(summary.last_modified_ms for summary in decision)
        times.append(max([at_ms, *times[-1:]]))
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

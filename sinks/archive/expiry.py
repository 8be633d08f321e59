"""Driver: deletion of expired objects, by the owner of the table: two commits around it, so that every step can be repeated.

DELETE_SEGMENT_STARTED (readers no longer see the rows) -> the rows are copied -> objects are deleted -> DELETE_SEGMENT_FINISHED

The copies (`row_copies.py`) are the source of these rows for a rebuild. They come behind the first commit, so that a copy
proves that the deletion was decided, and before the deletion, so that no row is lost with its footer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs.topics import TopicIncarnation
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison, Condition, ms_of
from shallow_mirror.config.archive_config import RetentionSettings
from shallow_mirror.errors import FencedError, MirrorError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.archive.archive_owner import ArchiveOwner
from shallow_mirror.sinks.archive.deleted_topics import DeletedTopics
from shallow_mirror.sinks.archive.group_note_expiry import GroupNoteExpiry
from shallow_mirror.sinks.archive.retention import ExpiredObject, RetainedRow, Retention, RetentionRule
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

EXPIRE_EVERY_S = 3600.0
OBJECTS_AT_ONCE = 10_000
"""Of one deletion, with its two commits."""
_WINDOW_ROWS = 200_000
_COLUMNS = [
    "object_name",
    "source_topic",
    "source_topic_id",
    "source_partition",
    "size_bytes",
    "micro_batch",
    "decided_at",
]  # fmt: skip
_VISIBLE = Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value)
_STARTED = Comparison("state", "=", SegmentState.DELETE_SEGMENT_STARTED.value)
_HAS_OBJECT = Comparison("kind", "=", "data")


@dataclass(slots=True)
class Expired:
    object_count: int = 0
    row_count: int = 0
    size_bytes: int = 0
    is_dry_run: bool = False

    def sentence(self) -> str:
        done = "would expire" if self.is_dry_run else "expired"
        return (
            f"{done}: {counted(self.object_count, 'object')}, {counted(self.row_count, 'row')}, "
            f"{counted(self.size_bytes, 'byte')}"
        )

    def add(self, objects: Sequence[ExpiredObject]) -> None:
        self.object_count += len(objects)
        self.row_count += sum(expired.row_count for expired in objects)
        self.size_bytes += sum(expired.size_bytes for expired in objects)


def retention_of(settings: Mapping[str, RetentionSettings]) -> Retention:
    """Return the rules of `retention` of the archive file."""
    return Retention(
        [
            RetentionRule(pattern, None if rule.keep_s is None else int(rule.keep_s * 1000), rule.keep_bytes)
            for pattern, rule in settings.items()
        ]
    )


def expired_objects(
    table: ArchiveTable, retention: Retention, now_ms: int, deleted: Set[TopicIncarnation] = frozenset()
) -> Iterator[ExpiredObject]:
    """Yield the expired objects, the oldest first. `deleted`: topics of which nothing is kept any more."""
    deleted = {topic for topic in deleted if _is_visible(table, topic)}
    if not retention.expires_anything and not deleted:
        return
    condition: Condition = (_VISIBLE, _HAS_OBJECT)
    topic_bytes: dict[str, int] = {}
    latest_ms = retention.latest_expired_ms(now_ms)
    if retention.limits_bytes:
        for piece in table.pieces(condition, ["source_topic", "size_bytes"]):
            sums = piece.group_by("source_topic").aggregate([("size_bytes", "sum")])
            for row in sums.to_pylist():
                topic_bytes[row["source_topic"]] = topic_bytes.get(row["source_topic"], 0) + row["size_bytes_sum"]
    elif latest_ms is not None and not deleted:
        condition = (*condition, Comparison("decided_at", "<=", datetime.fromtimestamp(latest_ms / 1000, UTC)))
    yield from retention.expired(_retained_rows(table, condition), topic_bytes, now_ms, deleted)


def _is_visible(table: ArchiveTable, topic: TopicIncarnation) -> bool:
    of_topic = Comparison("source_topic", "=", topic.topic), Comparison("source_topic_id", "=", topic.topic_id)
    return any(len(piece) for piece in table.pieces((_VISIBLE, _HAS_OBJECT, *of_topic), ["source_topic"]))


def interrupted_objects(table: ArchiveTable) -> Iterator[ExpiredObject]:
    """Yield the objects whose deletion began and is not recorded as finished."""
    for window in table.windows((_STARTED,), _WINDOW_ROWS):
        objects: dict[str, ExpiredObject] = {}
        for piece in table.pieces((_STARTED, *window), ["object_name", "micro_batch", "size_bytes"]):
            for row in piece.to_pylist():
                name, size_bytes, row_count = row["object_name"], row["size_bytes"], 1
                if name in objects:
                    size_bytes, row_count = size_bytes + objects[name].size_bytes, 1 + objects[name].row_count
                objects[name] = ExpiredObject(name, row["micro_batch"], size_bytes, row_count)
        yield from objects.values()


class Expiry:
    """Deletes for the owner of the table. Not while another thread uses the owner."""

    def __init__(
        self,
        owner: ArchiveOwner,
        table: ArchiveTable,
        store: ObjectStore,
        retention: Retention,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        clock: Callable[[], float] = time.monotonic,
        observer: Observer = observe_nothing,
        group_notes: GroupNoteExpiry | None = None,
        deleted_topics: DeletedTopics | None = None,
    ) -> None:
        """`deleted_topics`: None: no source that could be asked for them."""
        self._owner = owner
        self._table = table
        self._store = store
        self._retention = retention
        self._now_ms = now_ms
        self._clock = clock
        self._observer = observer
        self._group_notes = group_notes
        self._deleted_topics = deleted_topics
        self._due_at = clock()

    def run_if_due(self) -> None:
        """Expire at the start and once in EXPIRE_EVERY_S; with nothing to expire only finish interrupted deletions, at the start.

        A store that deletes nothing is logged and tried again. Raises errors of the commit.
        """
        if self._clock() < self._due_at:
            return
        others = self._group_notes, self._deleted_topics
        expires_anything = self._retention.expires_anything or any(other is not None for other in others)
        self._due_at = self._clock() + (EXPIRE_EVERY_S if expires_anything else math.inf)
        try:
            expired = self.run()
        except DeletionFailedError as failed:
            _log.warning("expired objects were not deleted, this is tried again later: %s", failed)
            return
        if expired.object_count:
            _log.info("%s", expired.sentence())

    def run(self) -> Expired:
        """Finish interrupted deletions, then delete expired objects. Safe to repeat after any error.

        Raises DeletionFailedError, FencedError, and errors of `LedgerOwner.mark`.
        """
        expired = Expired()
        self._table.refresh()
        self._owner.check()
        while objects := tuple(islice(interrupted_objects(self._table), OBJECTS_AT_ONCE)):
            self._delete(objects, expired)
        deleted: Set[TopicIncarnation] = frozenset()
        if self._deleted_topics is not None:
            positions = self._owner.table.positions()
            deleted = self._deleted_topics.expired(TopicIncarnation(source.topic, source.topic_id) for source in positions)
        while objects := tuple(islice(expired_objects(self._table, self._retention, self._now_ms(), deleted), OBJECTS_AT_ONCE)):
            self._mark(objects, SegmentState.DELETE_SEGMENT_STARTED)
            self._observer("expire.started")
            self._delete(objects, expired)
        if self._group_notes is not None:
            self._group_notes.run()
        return expired

    def _delete(self, objects: Sequence[ExpiredObject], expired: Expired) -> None:
        names = [entry.name for entry in objects]
        self._table.refresh()
        try:
            self._owner.copies.copy_objects(self._table, names, _micro_batches(objects))
            self._observer("expire.copied")
            # The table of another owner may name these objects: its take-over may have come after the commit.
            self._owner.check()
            self._store.delete(names)
        except FencedError:
            raise
        except MirrorError as error:
            raise DeletionFailedError(str(error)) from error
        self._observer("expire.deleted")
        self._mark(objects, SegmentState.DELETE_SEGMENT_FINISHED)
        self._observer("expire.finished")
        expired.add(objects)
        self._table.refresh()

    def _mark(self, objects: Sequence[ExpiredObject], state: SegmentState) -> None:
        self._owner.table.mark([entry.name for entry in objects], state, _micro_batches(objects))


def _micro_batches(objects: Sequence[ExpiredObject]) -> tuple[int, int]:
    numbers = [entry.micro_batch for entry in objects]
    return min(numbers), max(numbers)


class DeletionFailedError(MirrorError):
    """The store did not delete objects. Their rows say that it began: the next expiry repeats it."""


def _retained_rows(table: ArchiveTable, condition: Condition) -> Iterator[RetainedRow]:
    for window in table.windows(condition, _WINDOW_ROWS):
        rows = [
            RetainedRow(
                row["object_name"],
                SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]),
                row["size_bytes"],
                row["micro_batch"],
                ms_of(row["decided_at"]),
            )
            for piece in table.pieces((*condition, *window), _COLUMNS)
            for row in piece.to_pylist()
        ]
        yield from sorted(rows, key=lambda row: (row.micro_batch, row.object_name, row.source))

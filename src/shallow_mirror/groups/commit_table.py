"""Pure: the newest committed offsets of groups, from the records of `__consumer_offsets`, in the order of their log.

Each partition of that log has whole groups, so records of one group are applied in their order. A transaction's offsets count
when its marker says COMMIT; one that was committed outside of it meanwhile is newer and stays, as in the coordinator
(OffsetMetadataManager.replayEndTransactionMarker).

A mirror is behind the source, so the newest offset of a busy group is hardly ever in the map yet. Offsets that were committed
before it and are not at the target yet are kept as well, thinned out where there are many: the newest of them that the map covers
can be committed. They rise: an offset that was committed below older ones replaces them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.group_log import CommitKey, CommitRow, parse_commit_key, parse_commit_value

MOST_UNSYNCED = 64
"""Of one group in one partition. When there are more, every second one is left out, but never the first or the last."""

ReadPartition = tuple[str, TopicPartition]
"""A group, and a partition of the source that it reads."""

_MOST_SKIPPED = 100_000
"""Keys that are remembered as those of no concern, so that they are not parsed again."""


class LoggedOffset(NamedTuple):
    """One committed offset that is not known to be at the target."""

    offset: int
    committed_at_ms: int
    metadata: str | bytes | None
    """Bytes: the value as it was logged; None: there is none."""

    def note(self) -> str:
        """Return the metadata. Raises WireError."""
        return parse_commit_value(self.metadata).metadata if isinstance(self.metadata, bytes) else self.metadata or ""


@dataclass(slots=True)
class GroupPartitionCommits:
    """The offsets of one group in one partition. `unsynced` rise; empty: its newest offset is where it should be."""

    group: str
    topic_partition: TopicPartition
    newest: LoggedOffset
    logged_at: int
    """Where its record is in the log; -1: it was requested from the coordinator."""
    unsynced: list[LoggedOffset] = field(default_factory=list)

    @property
    def read_partition(self) -> ReadPartition:
        return self.group, self.topic_partition

    def add(self, logged: LoggedOffset, logged_at: int) -> None:
        self.newest, self.logged_at, unsynced = logged, logged_at, self.unsynced
        while unsynced and unsynced[-1].offset >= logged.offset:
            # An equal one waits for as long as the first of them.
            before = unsynced.pop()
            if before.offset == logged.offset and before.committed_at_ms < logged.committed_at_ms:
                logged = logged._replace(committed_at_ms=before.committed_at_ms)
        unsynced.append(logged)
        if len(unsynced) > MOST_UNSYNCED:
            del unsynced[1:-1:2]

    def covered(self, end: int) -> LoggedOffset | None:
        """Return the newest offset up to `end` that is not at the target."""
        return next((logged for logged in reversed(self.unsynced) if logged.offset <= end), None)

    def settle(self, offset: int) -> None:
        """Forget what is at the target: this offset, and those before it."""
        if self.unsynced and self.unsynced[-1].offset <= offset:
            self.unsynced = []
            return
        self.unsynced = [logged for logged in self.unsynced if logged.offset > offset]


@dataclass(slots=True)
class LogCounts:
    """Records that were read. `other`: of other types than committed offsets."""

    commits: int = 0
    tombstones: int = 0
    other: int = 0
    aborted: int = 0
    """Offsets of transactions that were aborted."""


class CommitTable:
    """Holds one entry for each group and partition of concern. Not thread-safe."""

    def __init__(self, is_wanted: Callable[[CommitKey], bool]) -> None:
        self._is_wanted = is_wanted
        self._entries: dict[bytes, GroupPartitionCommits] = {}
        self._by_partition: dict[ReadPartition, bytes] = {}
        self._skipped: set[bytes] = set()
        self._pending: defaultdict[tuple[int, int], dict[bytes, tuple[LoggedOffset, int]]] = defaultdict(dict)
        """The newest offsets in open transactions and their places in the log, by log partition and producer id, then by key."""
        self.counts = LogCounts()

    def seed(self, commits: Iterable[tuple[CommitKey, int, str]], at_ms: int) -> None:
        """Add offsets that were requested from the coordinators before the log is read: any record is newer."""
        for key, offset, metadata in commits:
            if self._is_wanted(key):
                self._put(_raw_key(key), key, LoggedOffset(offset, at_ms, metadata), -1)

    def apply(self, log_partition: int, rows: Iterable[CommitRow], producer_id: int | None) -> None:
        """Apply rows of `CommitColumns`, in the order of the log. `producer_id`: of the transaction that they are of.

        Raises WireError for a damaged key.
        """
        entries, skipped, pending, new = self._entries, self._skipped, self._pending, tuple.__new__
        commit_count = other_count = 0
        for key, logged_at, at_ms, offset, value in rows:
            entry = entries.get(key)
            if entry is None and (key in skipped or not self._begin(key)):
                other_count += 1
            elif producer_id is not None:
                pending[log_partition, producer_id][key] = LoggedOffset(offset, at_ms, value), logged_at
            elif entry is not None and offset >= 0:
                # Nearly all records come here: an offset above those before takes no call of Python.
                logged, unsynced = new(LoggedOffset, (offset, at_ms, value)), entry.unsynced
                if len(unsynced) < MOST_UNSYNCED and (not unsynced or unsynced[-1][0] < offset):
                    entry.newest, entry.logged_at = logged, logged_at
                    unsynced.append(logged)
                else:
                    entry.add(logged, logged_at)
                commit_count += 1
            else:
                self._commit(key, LoggedOffset(offset, at_ms, value), logged_at)
        self.counts.commits += commit_count
        self.counts.other += other_count

    def end_transaction(self, log_partition: int, producer_id: int, *, is_committed: bool) -> None:
        """Apply a marker."""
        for key, (logged, logged_at) in self._pending.pop((log_partition, producer_id), {}).items():
            entry = self._entries.get(key)
            if not is_committed:
                self.counts.aborted += 1
            elif entry is None or entry.logged_at < logged_at:
                self._commit(key, logged, logged_at)

    def _begin(self, key: bytes) -> bool:
        """Return whether a key that has no entry is of concern."""
        parsed = parse_commit_key(key)
        if parsed is not None and self._is_wanted(parsed):
            return True
        if len(self._skipped) >= _MOST_SKIPPED:
            self._skipped.clear()
        self._skipped.add(key)
        return False

    def _commit(self, key: bytes, logged: LoggedOffset, logged_at: int) -> None:
        if logged.offset < 0:
            self.counts.tombstones += 1
            self._remove(key)
            return
        self.counts.commits += 1
        entry = self._entries.get(key)
        if entry is not None:
            entry.add(logged, logged_at)
            return
        parsed = parse_commit_key(key)
        assert parsed is not None
        self._put(key, parsed, logged, logged_at)

    def _put(self, raw: bytes, key: CommitKey, logged: LoggedOffset, logged_at: int) -> None:
        topic_partition = TopicPartition(key.topic, key.partition)
        older = self._by_partition.get((key.group, topic_partition))
        if older is not None:  # the same key of another type: 0 and 1 mean the same
            self._remove(older)
        self._entries[raw] = GroupPartitionCommits(key.group, topic_partition, logged, logged_at, [logged])
        self._by_partition[key.group, topic_partition] = raw

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._by_partition[entry.group, entry.topic_partition]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[GroupPartitionCommits]:
        return iter(self._entries.values())

    def waiting(self) -> list[GroupPartitionCommits]:
        """Return those whose newest offset is not at the target, as far as that is known."""
        return [entry for entry in self._entries.values() if entry.unsynced]

    def of(self, group: str, topic_partition: TopicPartition) -> GroupPartitionCommits | None:
        key = self._by_partition.get((group, topic_partition))
        return None if key is None else self._entries[key]

    def open_transaction_count(self) -> int:
        return len(self._pending)


def _raw_key(key: CommitKey) -> bytes:
    """Return the key as coordinators since 0.9 log it."""
    group, topic = key.group.encode(), key.topic.encode()
    sizes = (len(text).to_bytes(2, "big") + text for text in (group, topic))
    return b"\x00\x01" + b"".join(sizes) + key.partition.to_bytes(4, "big")

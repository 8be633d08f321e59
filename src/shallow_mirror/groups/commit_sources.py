"""Driver: where a running mirror learns of the offsets that the source's groups commit.

Either from the log in which the coordinators write them, `__consumer_offsets`, which is read as any topic: within a moment. Or by
requesting the offsets of every group, once per `groups.sync`.

The log is followed from its last stable offsets on, so that every transaction that is open then is read from its beginning.
The offsets of before are requested from the coordinators once, after these ends were listed: what was committed in between is
read as well, and the log is newer wherever both say something. Offsets are handed out only when the log is read to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from shallow_mirror.broker import TopicMetadata
from shallow_mirror.broker.clients import BatchConsumer, FetchedBatch, IsolationLevel
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.groups.commit_table import CommitTable, GroupPartitionCommits, ReadPartition
from shallow_mirror.groups.group_client import GROUP_LOG
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets, is_of_mirror
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import MarkerType, parse_marker
from shallow_mirror.wire.group_log import CommitKey, read_commits
from shallow_mirror.wire.protocol import WireError
from shallow_mirror.wire.records import UnpackedBatch, unpack_batch

FETCH_BYTES = 4 << 20
_MOST_OPENED_BYTES = 64 << 20
_READ_TOGETHER_BYTES = 4 << 20
"""Batches are opened and read together up to about this size, and a larger one alone."""
_CATCH_UP_S = 30.0
_POLL_MS = 20.0
"""The response to the Fetch that a poll sends comes within that, if there is anything to read."""
_MOST_POLLS = 6
"""In one turn; what comes faster is read in the next one."""


class NotFollowedError(MirrorError):
    """The log of the source's groups cannot be followed. The message says why, and what to do."""


class CommitSource(Protocol):
    """Raises RetriableError (try again), ConfigError; NotFollowedError where it cannot go on."""

    def newest(self) -> list[Committed]:
        """Return the newest offsets of all groups that the mirror file includes, without those of mirrors."""
        ...

    def waiting(self) -> list[GroupPartitionCommits] | None:
        """Return what was committed and is not at the target yet; None where only `newest` is known."""
        ...

    def unread(self) -> RetriableError | None:
        """Return why a part of the log could not be read when it was read last: its leader is missing, or does not answer."""
        ...

    def commit_count(self) -> int:
        """Return how many commits were read from the log since it is followed."""
        ...

    def close(self) -> None: ...


class PolledCommits:
    """Requests the offsets of all groups, every time."""

    def __init__(self, groups: GroupOffsets, known: Callable[[], Collection[str]] = frozenset) -> None:
        """`known` returns groups that had offsets before."""
        self._groups, self._known = groups, known

    def newest(self) -> list[Committed]:
        return self._groups.committed(lambda _: True, known=self._known())

    def waiting(self) -> None:
        return None

    def unread(self) -> None:
        return None

    def commit_count(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the clients are those of `groups`."""


class FollowedCommits:
    """Follows the log of the groups. Not thread-safe."""

    def __init__(self, config: MirrorConfig, groups: GroupOffsets, clock: Callable[[], float] = time.monotonic) -> None:
        """Read to the end of the log. Raises NotFollowedError, and RetriableError where the source does not answer in time."""
        self._config, self._groups, self._clock = config, groups, clock
        self._is_included: dict[str, bool] = {}
        self._of_mirrors: set[str] = set()
        self._unread: RetriableError | None = None
        self._table = CommitTable(self._is_wanted)
        self._consumer = BatchConsumer(config.source.client, isolation=IsolationLevel.READ_UNCOMMITTED)
        try:
            self._begin()
        except BaseException:
            self._consumer.close()
            raise

    def _is_wanted(self, key: CommitKey) -> bool:
        for name, settings in ((f"group {key.group}", self._config.groups), (f"topic {key.topic}", self._config.topics)):
            if name not in self._is_included:
                self._is_included[name] = settings.is_included(name.partition(" ")[2])
            if not self._is_included[name]:
                return False
        return True

    def _begin(self) -> None:
        groups = self._groups
        try:
            self._log = _identity(groups.source.group_log())
            stable, ends = groups.source.group_log_ends()
        except ConfigError as error:
            raise NotFollowedError(_refused(str(error))) from error
        at_ms = int(time.time() * 1000)
        seeds = groups.committed(lambda _: True, waits_for_txns=False)
        self._table.seed(
            (
                (CommitKey(seed.group, seed.topic_partition.topic, seed.topic_partition.partition), seed.offset, seed.metadata)
                for seed in seeds
                if seed.offset is not None
            ),
            at_ms,
        )
        try:
            self._consumer.assign(dict(stable))
        except ConfigError as error:
            raise NotFollowedError(_refused(str(error))) from error
        deadline = Deadline.after_ms(_CATCH_UP_S * 1000, self._clock)
        while any(self._consumer.position(log) < end for log, end in ends.items()):
            self._poll(_POLL_MS)
            if deadline.is_over():
                raise RetriableError("REQUEST_TIMED_OUT", f"{GROUP_LOG} was not read to its end within {_CATCH_UP_S:.0f} s")

    def newest(self) -> list[Committed]:
        """As `CommitSource.newest`. Where the topic has other partitions or is another one by now, it is not followed."""
        try:
            log = _identity(self._groups.source.group_log())
        except ConfigError as error:
            raise NotFollowedError(_refused(str(error))) from error
        if log != self._log:
            raise NotFollowedError(f"{GROUP_LOG} of the source has other partitions than before, or was created again")
        self.read()
        committed = [
            Committed(entry.group, entry.topic_partition, entry.newest.offset, _note(entry, self._of_mirrors))
            for entry in self._table
        ]
        return [commit for commit in committed if commit.group not in self._of_mirrors]

    def waiting(self) -> list[GroupPartitionCommits]:
        self.read()
        waiting = self._table.waiting()
        for entry in waiting:
            _note(entry, self._of_mirrors)
        return [entry for entry in waiting if entry.group not in self._of_mirrors] if self._of_mirrors else waiting

    def of(self, group: str, topic_partition: TopicPartition) -> GroupPartitionCommits | None:
        return self._table.of(group, topic_partition)

    def oldest_ms(self, but: Collection[ReadPartition]) -> int | None:
        """Return the time of the oldest commit that is not at the target; None if all are. `but`: places that do not count."""
        return min(
            (
                entry.unsynced[0].committed_at_ms
                for entry in self._table.waiting()
                if entry.read_partition not in but and entry.group not in self._of_mirrors
            ),
            default=None,
        )

    def commit_count(self) -> int:
        return self._table.counts.commits

    def read(self) -> None:
        """Read what is in the log by now, as far as its leaders answer. Raises NotFollowedError."""
        self._unread = None
        for _ in range(_MOST_POLLS):
            try:
                if not self._poll(_POLL_MS):
                    break
            except RetriableError as error:
                self._unread = error
                break

    def unread(self) -> RetriableError | None:
        return self._unread

    def _poll(self, timeout_ms: float) -> int:
        """Return how many batches were read."""
        try:
            batches = self._consumer.poll_batches(FETCH_BYTES, timeout_ms)
            for topic_partition, of_partition in groupby(batches, attrgetter("topic_partition")):
                for opened in _opened(of_partition):
                    self._apply(topic_partition.partition, opened)
        except RetriableError as error:
            detail = f"{self._config.source_cluster_name}: {GROUP_LOG}: {error.detail}"
            raise RetriableError(error.error_name, detail) from error
        except ConfigError as error:
            raise NotFollowedError(_refused(str(error))) from error
        except (WireError, ValueError) as error:
            raise NotFollowedError(f"{GROUP_LOG} of the source has a record that cannot be read: {error}") from error
        except MirrorError as error:
            raise NotFollowedError(f"{GROUP_LOG} of the source cannot be read on: {error}") from error
        return len(batches)

    def _apply(self, log_partition: int, batches: Sequence[tuple[FetchedBatch, UnpackedBatch | None]]) -> None:
        """Apply batches in the order of the log: those that follow each other, and are of no transaction, together."""
        commits = read_commits([opened for _, opened in batches if opened is not None])
        self._table.counts.other += commits.other_count
        row, ends = 0, iter(commits.batch_ends)
        for (is_control, producer_id), written in groupby((batch for batch, _ in batches), _writer):
            if is_control:
                for batch in written:
                    marker = parse_marker(batch.view)
                    if marker.type is not MarkerType.OTHER:
                        is_committed = marker.type is MarkerType.COMMIT
                        self._table.end_transaction(log_partition, batch.producer_id, is_committed=is_committed)
                continue
            end = row
            for _ in written:
                end = next(ends)
            self._table.apply(log_partition, commits.rows(row, end), producer_id)
            row = end

    def close(self) -> None:
        self._consumer.close()


def _opened(batches: Iterable[FetchedBatch]) -> Iterator[list[tuple[FetchedBatch, UnpackedBatch | None]]]:
    """Yield batches of one partition with what is in them, many at a time; None: a control batch."""
    opened: list[tuple[FetchedBatch, UnpackedBatch | None]] = []
    opened_bytes = 0
    for batch in batches:
        records = None if batch.is_control else unpack_batch(batch.view, batch.topic_partition, max_bytes=_MOST_OPENED_BYTES)
        opened.append((batch, records))
        opened_bytes += 0 if records is None else len(records.block)
        if opened_bytes >= _READ_TOGETHER_BYTES:
            yield opened
            opened, opened_bytes = [], 0
    if opened:
        yield opened


def _writer(batch: FetchedBatch) -> tuple[bool, int | None]:
    """Return whether these are markers, and the producer id of a transaction."""
    return batch.is_control, batch.producer_id if batch.is_transactional else None


def _note(entry: GroupPartitionCommits, of_mirrors: set[str]) -> str:
    """Return the metadata of the newest offset, and add its group to those of mirrors if it is one."""
    note = entry.newest.note()
    if is_of_mirror(note):
        of_mirrors.add(entry.group)
    return note


def _identity(log: TopicMetadata) -> tuple[str, frozenset[int]]:
    return log.topic_id, frozenset(log.partitions)


def _refused(why: str) -> str:
    """Add what to grant, where the broker's answer does not say it: it may hide that there is such a topic."""
    grant = f"grant Read on topic {GROUP_LOG}"
    return why if grant in why else f"{why}: {grant} to the user of the mirror file, if the cluster has groups"

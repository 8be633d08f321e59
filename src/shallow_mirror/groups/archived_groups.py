"""Driver: note the offsets of the source's groups while an archive runs, in a thread: no decision waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from shallow_mirror.checkpoints.logs import GroupPosition, GroupSyncPass, changed_positions, lost_rows, record_pass
from shallow_mirror.checkpoints.tables import BestEffortTables
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.groups.archived_position import position_group
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_plan import Committed, committed_offsets
from shallow_mirror.pass_thread import REQUEST_S, PassThread
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

WHOLE_EVERY_S = 6 * 3600.0
"""How often all positions are written, so that reading needs no older rows."""


class GroupNotes:
    """Notes positions, pass by pass, in the tables of groups beside those of the archive. Not thread-safe."""

    def __init__(self, config: ArchiveConfig, history: BestEffortTables) -> None:
        self._config = config
        self._history = history
        self._source = GroupClient(config.source.client, config.source_cluster_name, REQUEST_S)
        self._noted: dict[tuple[str, SourcePartition], GroupPosition] = {}
        self._whole_at: datetime | None = None

    def close(self) -> None:
        self._source.close()

    def run_pass(self, now: datetime) -> int:
        """Record what changed; return the number of positions. Raises RetriableError, ConfigError.

        A store that is unreachable is logged.
        """
        began = time.monotonic()
        own = position_group(self._config.archive)
        names = [name for name in sorted(self._source.listed()) if name != own and self._config.groups.is_included(name)]
        committed = committed_offsets(self._source, names)
        topics = {commit.topic_partition.topic for commit in committed}
        ids = self._source.topic_ids(topic for topic in topics if self._config.topics.is_included(topic))
        positions: dict[tuple[str, SourcePartition], GroupPosition] = {}
        for commit in committed:
            topic, partition = commit.topic_partition
            if topic not in ids:
                # A broker that has just started may not list it yet. Offsets of deleted topics are deleted with them.
                positions |= {key: position for key, position in self._noted.items() if _is_of(position, commit)}
                continue
            source = SourcePartition(topic, ids[topic], partition)
            if commit.offset is not None:
                position = GroupPosition(group=commit.group, source=source, offset=commit.offset, metadata=commit.metadata)
                positions[position.key] = position
            elif (before := self._noted.get((commit.group, source))) is not None:
                positions[before.key] = before  # a transaction that commits another one is open
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        changed = changed_positions(self._noted, positions, is_whole=is_whole)
        lost_before = lost_rows(self._history)
        if is_whole or changed:
            done = GroupSyncPass(
                observed_at=now,
                is_whole=is_whole,
                group_count=len({group for group, _ in positions}),
                partition_count=len(positions),
                seconds=time.monotonic() - began,
            )
            if not record_pass(self._history, done, changed):
                return len(positions)  # the next pass records these changes with its own
        self._noted = positions
        if lost_rows(self._history) != lost_before:
            self._whole_at = None  # those that do not change again would be missing
        elif is_whole:
            self._whole_at = now
        return len(positions)


def _is_of(position: GroupPosition, commit: Committed) -> bool:
    return position.group == commit.group and position.source.topic_partition == commit.topic_partition


class GroupNoting(PassThread[int]):
    """The thread of an archive."""

    def __init__(
        self,
        config: ArchiveConfig,
        interval_s: float,
        history: BestEffortTables,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(
            "group-noting",
            interval_s,
            now,
            abandoned="groups: their last offsets were not recorded within %.0f s",
            recovered="groups: their offsets are recorded again",
        )
        self._config = config
        self._history = history

    def open_passes(self) -> GroupNotes:
        return GroupNotes(self._config, self._history)

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        _log.log(level, "groups: their offsets could not be recorded, this is retried: %s", problem)

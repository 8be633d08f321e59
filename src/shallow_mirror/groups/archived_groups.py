"""Driver: note the offsets of the source's groups while an archive runs, in a thread: no decision waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.group_offset_history import GroupPosition, GroupSyncPass, record_pass
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_plan import committed_offsets
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""Timeout of each request to the source."""
SHARE = 0.1
"""Share of the time that passes may take; the pause behind a long one is longer."""
WHOLE_EVERY_S = 6 * 3600.0
"""How often all positions are written, so that reading needs no older rows."""
LAST_PASS_S, END_S = 15.0, 2.0
"""How long the end of a run waits for its last pass, and for the current one where no further one is wanted."""


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
        """Record what changed; return the number of positions. Raises RetriableError, ConfigError."""
        began = time.monotonic()
        names = [name for name in sorted(self._source.listed()) if self._config.groups.is_included(name)]
        committed = committed_offsets(self._source, names)
        topics = {commit.topic_partition.topic for commit in committed}
        ids = self._source.topic_ids(topic for topic in topics if self._config.topics.is_included(topic))
        positions: dict[tuple[str, SourcePartition], GroupPosition] = {}
        for commit in committed:
            topic, partition = commit.topic_partition
            if topic not in ids:
                continue
            source = SourcePartition(topic, ids[topic], partition)
            if commit.offset is not None:
                position = GroupPosition(group=commit.group, source=source, offset=commit.offset, metadata=commit.metadata)
                positions[position.key] = position
            elif (before := self._noted.get((commit.group, source))) is not None:
                positions[before.key] = before  # a transaction that commits another one is open
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        changed = [position for key, position in positions.items() if is_whole or self._noted.get(key) != position]
        departed = [
            GroupPosition(group=group, source=source, offset=None) for group, source in self._noted.keys() - positions.keys()
        ]
        if is_whole or changed or departed:
            done = GroupSyncPass(
                observed_at=now,
                is_whole=is_whole,
                group_count=len({group for group, _ in positions}),
                partition_count=len(positions),
                seconds=time.monotonic() - began,
            )
            record_pass(self._history, done, [*changed, *departed])
        self._noted = positions
        self._whole_at = now if is_whole else self._whole_at
        return len(positions)


class GroupNoting:
    """Context manager: the thread. With `is_last_wanted` set, the end of the block waits for one more pass."""

    def __init__(
        self,
        config: ArchiveConfig,
        interval_s: float,
        history: BestEffortTables,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._interval_s = interval_s
        self._history = history
        self._now = now
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-noting", daemon=True)
        self._problem: str | None = None
        self.is_last_wanted = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        patience_s = LAST_PASS_S if self.is_last_wanted else END_S
        self._thread.join(patience_s)
        if self._thread.is_alive():
            _log.warning("groups: their last offsets were not noted within %.0f s", patience_s)

    def _run(self) -> None:
        with closing(GroupNotes(self._config, self._history)) as notes:
            while True:
                began = time.monotonic()
                self._run_pass(notes)
                took = time.monotonic() - began
                if self._stop.wait(max(self._interval_s - took, took * (1 - SHARE) / SHARE)):
                    break
            if self.is_last_wanted:
                self._run_pass(notes)

    def _run_pass(self, notes: GroupNotes) -> None:
        try:
            notes.run_pass(self._now())
        except Exception as error:  # noqa: BLE001 - no failure of the groups may end or delay the archive
            if self._stop.is_set() and not self.is_last_wanted:
                return  # what it needs may be gone already
            problem = f"{type(error).__name__}: {error}"
            level = logging.DEBUG if problem == self._problem else logging.WARNING
            _log.log(level, "groups: their offsets could not be noted, this is retried: %s", problem)
            self._problem = problem
            return
        if self._problem is not None:
            _log.info("groups: their offsets are noted again")
        self._problem = None

"""Driver: commit how far an archive is as offsets of a consumer group of its source, in a thread: no decision waits for it.

Lag monitors and Kafka's own tools then show how far the archive is behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.pass_thread import REQUEST_S, PassThread
from shallow_mirror.plurals import counted
from shallow_mirror.types import LATEST_TIMESTAMP, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

WHOLE_EVERY_S = 6 * 3600.0
"""How often all positions are committed: brokers delete offsets that were not committed for offsets.retention.minutes."""
OFFSETS_AT_ONCE = 1_000
"""Of one request: brokers write it as one batch of their topic of offsets."""


def position_group(archive: str) -> str:
    """Return the group whose offsets are the positions of an archive."""
    return f"{archive}.archived"


class PositionPasses:
    """Commits positions, pass by pass. Not thread-safe."""

    def __init__(self, config: ArchiveConfig, decided: Callable[[], Mapping[SourcePartition, int]]) -> None:
        """`decided`: positions of a decision that is committed; those of a later one may be missing."""
        self._group = position_group(config.archive)
        self._where = config.source_cluster_name
        self._decided = decided
        self._is_included = config.topics.is_included
        self._source = GroupClient(config.source.client, self._where, REQUEST_S)
        self._committed: dict[SourcePartition, int] = {}
        self._whole_at: datetime | None = None

    def close(self) -> None:
        self._source.close()

    def run_pass(self, now: datetime) -> int:
        """Commit the positions that changed; return how many. Raises RetriableError, OutcomeUnknownError, ConfigError."""
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        moved = {
            source: at
            for source, at in self._decided().items()
            # A topic that is no longer archived would look as if the archive were behind.
            if self._is_included(source.topic) and (is_whole or self._committed.get(source) != at)
        }
        if not moved:
            return 0
        ids = self._source.topic_ids(source.topic for source in moved)
        # A group knows topics by name: positions of a topic that was deleted would be those of the new one.
        existing = {source.topic_partition: source for source in moved if ids.get(source.topic) == source.topic_id}
        ends = self._source.offsets(list(existing), LATEST_TIMESTAMP)
        # A position beyond the log's end is one of a log that was truncated. What the archive has of the log of today shows
        # with its next lineage.
        sources = {name: source for name, source in existing.items() if moved[source] <= ends.get(name, -1)}
        names, refused = iter(sorted(sources)), dict[TopicPartition, str]()
        while page := list(islice(names, OFFSETS_AT_ONCE)):
            refusals = self._source.commit(self._group, {name: (moved[sources[name]], "") for name in page})
            self._committed |= {sources[name]: moved[sources[name]] for name in page if name not in refusals}
            refused |= refusals
        if refused:
            raise ConfigError(
                f"{self._where}: the offsets of {counted(len(refused), 'partition')} were not committed for group {self._group}: "
                f"{'; '.join(sorted(set(refused.values())))}"
            )
        self._whole_at = now if is_whole else self._whole_at
        return len(sources)


class PositionCommitting(PassThread[int]):
    """The thread of an archive. `publish` is called by the thread that decides, behind each decision."""

    def __init__(
        self, config: ArchiveConfig, interval_s: float, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        super().__init__(
            "position-committing",
            interval_s,
            now,
            abandoned="the archived position was not committed as offsets of a group within %.0f s",
            recovered="the archived position is committed as offsets of a group again",
        )
        self._config = config
        self._decided: Mapping[SourcePartition, int] = {}

    def publish(self, decided: Mapping[SourcePartition, int]) -> None:
        """Take the positions behind a decision that is committed, as a mapping that does not change."""
        self._decided = decided

    def open_passes(self) -> PositionPasses:
        return PositionPasses(self._config, lambda: self._decided)

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        _log.log(level, "the archived position was not committed as offsets of a group, this is retried: %s", problem)

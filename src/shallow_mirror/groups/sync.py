"""Driver: sync the target's groups while the mirror runs (`groups.sync`), and record the offsets of the source's groups.

A thread beside the query, with clients and a view of the map of its own. It writes to nothing that the mirror reads, works a
tenth of the time at most, and every failure is reported and retried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs import GroupPosition, GroupSyncPass, changed_positions, delete_outdated, record_pass
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import BestEffortTables, TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.eligibility import commits_of
from shallow_mirror.groups.offset_translation import CommitTranslator
from shallow_mirror.groups.report import Group, GroupPartition, Outcome, Step
from shallow_mirror.groups.sync_plan import GroupOffsets, add_rows
from shallow_mirror.pass_thread import REQUEST_S, PassThread
from shallow_mirror.plurals import counted
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

WHOLE_EVERY_S = 3600.0
TIDY_EVERY_PASSES = 200


class GroupSyncer:
    """Sync all groups, pass by pass; what was translated once is not read from the map again. Not thread-safe."""

    def __init__(self, config: MirrorConfig, storage: TableStorage, history: BestEffortTables) -> None:
        """`storage`: of the map. `history`: where the positions of groups are recorded."""
        self._config, self._storage, self._history = config, storage, history
        self._groups = GroupOffsets(config, timeout_s=REQUEST_S)
        self._map: OffsetMap | None = None
        self._translator: CommitTranslator | None = None
        self._noted: dict[tuple[str, SourcePartition], GroupPosition] = {}
        self._whole_at: datetime | None = None
        self._count = 0

    def close(self) -> None:
        self._groups.close()

    def run_pass(self, now: datetime) -> GroupSyncPass:
        """Commit what can be committed, and record what changed. Raises MirrorError, OSError."""
        began = time.monotonic()
        committed = self._groups.committed(lambda _: True)
        offset_map = self._refreshed_map()
        # Of a topic that a migration has handed over the target's groups are the application's own: an operator may have reset
        # them, and what the source has is older.
        controls = Controls.open(self._storage).read()
        moving, forgotten = controls.moving, controls.forgotten
        commits_with_source = [
            commit
            for commit in self._groups.resolve_sources(committed, offset_map, forgotten)
            if commit.source is None or commit.source.topic not in moving
        ]
        clusters = self._groups.clusters(commits_with_source, offset_map, forgotten)
        commits = commits_of(commits_with_source, clusters)
        translator = CommitTranslator(commits) if self._translator is None else self._translator.continue_with(commits)
        self._translator = None  # until it has all rows: one that was interrupted cannot be continued
        add_rows(translator, offset_map, {commit.source.topic for commit in commits}, translator.reads_from())
        self._translator = translator
        evaluated = self._groups.evaluate(commits_with_source, translator, clusters)
        groups = list(self._groups.plan_commits(evaluated, is_applied=True))
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        done = _pass_of(groups, now, is_whole, time.monotonic() - began)
        record_pass(self._history, done, self._changed(groups, moving, is_whole))
        self._whole_at = now if is_whole else self._whole_at
        self._count += 1
        if self._count % TIDY_EVERY_PASSES == 1:
            delete_outdated(self._history, now - timedelta(seconds=self._config.groups.keep_s))
        return done

    def _refreshed_map(self) -> OffsetMap:
        if self._map is None:
            self._map = OffsetMap.open(self._storage, mirror=self._config.mirror)
        else:
            self._map.refresh()
        return self._map

    def _changed(self, groups: Sequence[Group], moving: Collection[str], is_whole: bool) -> list[GroupPosition]:
        """Return positions that changed since they were recorded, and those that are gone.

        Of a pending one, and of topics that are handed over, the last is kept.
        """
        partitions = [partition for group in groups for partition in group.partitions]
        now = {position.key: position for partition in partitions for position in _position(partition)}
        pending = {(partition.group, partition.source) for partition in partitions if partition.outcome is Outcome.PENDING}
        now |= {key: position for key, position in self._noted.items() if key in pending or key[1].topic in moving}
        changed = changed_positions(self._noted, now, is_whole=is_whole)
        self._noted = now
        return changed


class GroupSync(PassThread[GroupSyncPass]):
    """The thread of a mirror."""

    def __init__(
        self,
        config: MirrorConfig,
        interval_s: float,
        storage: TableStorage,
        history: BestEffortTables,
        *,
        report: Callable[[Problem, int], None] = log_problem,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`report` is called with every pass that failed, and the level at which to log it."""
        super().__init__(
            "group-sync",
            interval_s,
            now,
            abandoned="groups: the last synchronization did not end within %.0f s and was abandoned",
            recovered="groups: synchronized again",
        )
        self._config, self._storage, self._history, self._report = config, storage, history, report

    def open_passes(self) -> GroupSyncer:
        return GroupSyncer(self._config, self._storage, self._history)

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        occurrence = Problem(
            kind=ProblemKind.GROUP,
            text=f"groups: sync failed: {problem}",
            remedy="do what the message says, if it asks for something; the sync is retried automatically",
            error_name=type(error).__name__,
        )
        self._report(occurrence, level)
        record_pass(self._history, GroupSyncPass(observed_at=now, problem=problem), ())

    def on_done(self, done: GroupSyncPass) -> None:
        if done.committed_count:
            _log.info(
                "groups: %s of %s committed at the target, waiting: %d, not moved: %d",
                counted(done.committed_count, "offset"),
                counted(done.group_count, "group"),
                done.waiting_count,
                done.left_count,
            )


def _pass_of(groups: Sequence[Group], now: datetime, is_whole: bool, seconds: float) -> GroupSyncPass:
    mirrored = [partition for group in groups for partition in group.partitions if partition.outcome is not Outcome.NOT_MIRRORED]
    is_waiting = (Outcome.WAITS, Outcome.PENDING)
    return GroupSyncPass(
        observed_at=now,
        is_whole=is_whole,
        group_count=len(groups),
        partition_count=len(mirrored),
        in_place_count=sum(partition.step in (Step.IN_PLACE, Step.FURTHER) for partition in mirrored),
        committed_count=sum(partition.step is Step.COMMITTED for partition in mirrored),
        waiting_count=sum(partition.outcome in is_waiting for partition in mirrored),
        left_count=sum(partition.is_left and partition.outcome not in is_waiting for partition in mirrored),
        seconds=seconds,
    )


def _position(partition: GroupPartition) -> Sequence[GroupPosition]:
    """Return the position to record; none without a source partition, or while the offset is not known."""
    if partition.source is None or partition.offset is None:
        return ()
    return (
        GroupPosition(
            group=partition.group,
            source=partition.source,
            offset=partition.offset,
            metadata=partition.metadata,
            target_topic=None if partition.to_topic_partition is None else partition.to_topic_partition.topic,
            target_partition=None if partition.to_topic_partition is None else partition.to_topic_partition.partition,
            target_offset=partition.to_offset,
            outcome=partition.outcome.value,
        ),
    )

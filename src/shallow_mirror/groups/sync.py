"""Driver: sync the target's groups while the mirror runs (`groups.sync`), and record the offsets of the source's groups.

A thread beside the query, with clients and a view of the map of its own. It writes to nothing that the mirror reads, and every
failure is reported and retried.

A *pass*, once per interval, is about the newest offset of every group: it commits what can be committed, and records all that
changed. Where the log of the groups is followed (`groups.follow`), *steps* between the passes commit what was committed at the
source since, by the same rules. A step leaves alone what the last pass could not move, and what waits for the map as long as
the map is the same.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shallow_mirror.broker import ListedGroup
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import Recorded
from shallow_mirror.checkpoints.logs import (
    GroupPosition,
    GroupSyncPass,
    changed_positions,
    delete_outdated,
    lost_rows,
    positions_as_of,
    record_pass,
)
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import BestEffortTables, TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.groups.commit_sources import CommitSource, FollowedCommits, NotFollowedError, PolledCommits
from shallow_mirror.groups.commit_table import GroupPartitionCommits, LoggedOffset, ReadPartition
from shallow_mirror.groups.eligibility import lookups_of
from shallow_mirror.groups.group_client import GROUP_LOG
from shallow_mirror.groups.offset_translation import Commit, CommitTranslator
from shallow_mirror.groups.recent_rows import RecentRows
from shallow_mirror.groups.report import Group, GroupLag, GroupPartition, Outcome, Step
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets
from shallow_mirror.pass_thread import REQUEST_S, Passes, PassThread
from shallow_mirror.plurals import counted
from shallow_mirror.types import SlotTxn, SourcePartition

_log = logging.getLogger(__name__)

_Chosen = tuple[GroupPartitionCommits, LoggedOffset]

WHOLE_EVERY_S = 3600.0
TIDY_EVERY_PASSES = 200

STEP_S = 0.4
"""From the beginning of a step to that of the next one."""
STEP_SHARE, STEP_CPU_SHARE = 0.5, 0.1
"""Shares of the time that steps may take, and of one core for what they commit; the pause behind a long one is longer.

Reading the log does not count for the second share: it takes the same for each record however long the pause is, and a longer
pause would make the next step, and the pause behind it, longer again.
"""
_FAILED_STEP_S = 2.0
"""From the beginning of a step that failed to that of the next one, at least."""
_LISTED_S = 5.0
"""How old a listing of the target's groups may be in a step."""
_CONTROLS_S = 1.0
"""How long ago it may have been read, at a commit, which topics a migration has handed over."""
_REFUSED_S = 2.0
"""After a commit that was refused, or whose outcome is unknown, steps leave the offset alone for that long."""


class GroupSyncer:
    """Sync all groups, pass by pass; what was translated once is not read from the map again. Not thread-safe."""

    def __init__(
        self, config: MirrorConfig, storage: TableStorage, history: BestEffortTables, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`storage`: of the map. `history`: where the positions of groups are recorded."""
        self._config, self._storage, self._history, self._clock = config, storage, history, clock
        self._groups = GroupOffsets(config, timeout_s=REQUEST_S)
        self._polled = PolledCommits(self._groups, self._recorded_groups)
        self._source: CommitSource = self._polled
        self._not_followed: str | None = None
        self._map: OffsetMap | None = None
        self._controls: Controls | None = None
        self._recent = RecentRows()
        self._translator: CommitTranslator | None = None
        self._lookups: dict[ReadPartition, tuple[Commit, ...]] = {}
        self._revision: Recorded | None = None
        self._limits: dict[ReadPartition, int] = {}
        """Where the map ended for offsets that wait, at this revision."""
        self._held: dict[ReadPartition, float] = {}
        """Until when steps leave these offsets alone."""
        self._listed: Mapping[str, ListedGroup] = {}
        self._listed_at = -math.inf
        self._noted: dict[tuple[str, SourcePartition], GroupPosition] = {}
        self._lost_count = 0
        """Rows that `history` had lost when a pass recorded last."""
        self._passed_at: datetime | None = None
        self._last: GroupSyncPass | None = None
        self._whole_at: datetime | None = None
        self._count = self._counted_commits = self._reported_commits = 0
        self.read_cpu_s = 0.0
        """CPU time that the last step took to read the log."""

    def close(self) -> None:
        self._source.close()
        self._groups.close()

    def run_pass(self, now: datetime) -> GroupSyncPass:
        """Commit what can be committed, and record what changed. Raises MirrorError, OSError.

        Raises RetriableError behind that if the coordinator of groups that were polled is missing.
        """
        began = time.monotonic()
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        committed = self._newest(is_whole)
        unanswered = {} if self.is_following else self._groups.unanswered
        self._limits.clear()
        self._held.clear()
        self._lookups.clear()
        groups, moving = self._sync(committed, self._refresh_map())
        if unanswered and self._passed_at is None:  # only the history has their positions: a whole pass would hide them
            raise next(iter(unanswered.values()))
        self._settle(groups, {})
        if self.is_following and (waiting := self._source.waiting()):
            self._commit_waiting(waiting)
        # Of positions that an earlier pass recorded and that were lost, those that do not change would be missing.
        lost_count = lost_rows(self._history)
        records_all = is_whole or lost_count != self._lost_count
        done = _pass_of(groups, now, records_all, time.monotonic() - began)
        changed, read_count = self._changed(groups, moving, unanswered, records_all)
        done = replace(
            done,
            is_followed=self.is_following,
            oldest_s=self._oldest_s(),
            not_followed=self._not_followed,
            followed_count=max(0, self._source.commit_count() - self._counted_commits),
            repeated_count=None if self.is_following else self._repeated(read_count, now),
        )
        self._counted_commits, self._passed_at, self._last = self._source.commit_count(), now, done
        record_pass(self._history, done, changed)
        self._lost_count = lost_count
        self._whole_at = now if is_whole else self._whole_at
        self._count += 1
        if self._count % TIDY_EVERY_PASSES == 1:
            delete_outdated(self._history, now - timedelta(seconds=self._config.groups.keep_s))
        if unanswered:
            raise next(iter(unanswered.values()))
        return done

    @property
    def is_following(self) -> bool:
        return self._source is not self._polled

    def lag(self) -> GroupLag:
        """Return what the target lacks of the groups' commits, with those that were read since this was called last."""
        count = self._source.commit_count()
        new_count, self._reported_commits = max(0, count - self._reported_commits), count
        has_groups = self._last is None or self._last.partition_count > 0
        is_polled = self._not_followed is not None and has_groups
        return GroupLag(
            age_s=self._oldest_s(),
            new_count=new_count,
            is_followed=True if self.is_following else False if is_polled else None,
            repeated_count=None if self._last is None else self._last.repeated_count,
        )

    def _oldest_s(self) -> float | None:
        if not isinstance(self._source, FollowedCommits):
            return None
        oldest_ms = self._source.oldest_ms(self._held.keys())
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)

    def _newest(self, is_whole: bool) -> list[Committed]:
        """Return the newest offset of every group; begin to follow the log where that is wanted and possible.

        A whole pass begins anew: nothing that the log did not say is missed for longer.
        """
        if self.is_following and not is_whole:
            try:
                return self._source.newest()
            except NotFollowedError as error:
                self._poll_because(error)
        if self._config.groups.follow != "off":
            try:
                begun = FollowedCommits(self._config, self._groups)
                self._stop_following()
                self._source, self._not_followed = begun, None
                return self._source.newest()
            except NotFollowedError as error:
                self._poll_because(error)
            except RetriableError:
                if not self.is_following:
                    raise
                return self._source.newest()  # as while a coordinator is missing: the others are followed
        return self._polled.newest()

    def _recorded_groups(self) -> Collection[str]:
        """Return the groups of the last pass; before the first one, those of the last run."""
        if self._passed_at is not None:
            return {group for group, _ in self._noted}
        with suppress(MirrorError, OSError):  # none was recorded yet, or the history cannot be read
            recorded = positions_as_of(self._history, datetime.now(UTC))
            return {position.group for position in recorded.positions if self._config.groups.is_included(position.group)}
        return ()

    def _poll_because(self, error: NotFollowedError) -> None:
        """Poll until the next pass. Raises ConfigError where that is not wanted."""
        self._stop_following()
        self._not_followed = str(error)
        if self._config.groups.follow == "required":
            raise ConfigError(f"groups.follow is required, and {error}") from error

    def _stop_following(self) -> None:
        if self.is_following:
            self._source.close()
        self._source, self._counted_commits, self._reported_commits = self._polled, 0, 0

    def step(self) -> GroupLag:
        """Commit what was committed at the source since, if the log of the groups is followed. Raises MirrorError, OSError."""
        cpu_began, self.read_cpu_s = time.thread_time(), 0.0
        try:
            waiting = self._source.waiting()
        except NotFollowedError as error:
            self._poll_because(error)
            waiting = None
        self.read_cpu_s = time.thread_time() - cpu_began
        unread = self._source.unread()
        if waiting:
            self._commit_waiting(waiting)
        if unread is not None:
            raise unread
        return self.lag()

    def _commit_waiting(self, waiting: Sequence[GroupPartitionCommits]) -> None:
        offset_map = self._refresh_map()
        for _ in range(2):
            # The newest offsets first. Of those that the map does not cover, it covers earlier ones.
            chosen = self._chosen(waiting)
            if not chosen:
                break
            committed = [
                Committed(entry.group, entry.topic_partition, logged.offset, logged.note()) for entry, logged in chosen.values()
            ]
            groups, _ = self._sync(committed, offset_map, known=self._known())
            self._settle(groups, chosen)
            seen = {(partition.group, partition.topic_partition) for group in groups for partition in group.partitions}
            # Of topics that a migration has handed over.
            self._held |= dict.fromkeys(chosen.keys() - seen, math.inf)

    def _chosen(self, waiting: Sequence[GroupPartitionCommits]) -> Mapping[ReadPartition, _Chosen]:
        now, chosen = self._clock(), {}
        for entry in waiting:
            if not entry.unsynced:
                continue
            read_partition = entry.read_partition
            if self._held.get(read_partition, -math.inf) > now:
                continue
            limit = self._limits.get(read_partition)
            logged = entry.unsynced[-1] if limit is None else entry.covered(limit)
            if logged is not None:
                chosen[read_partition] = entry, logged
        return chosen

    def _known(self) -> Mapping[str, ListedGroup]:
        if self._clock() - self._listed_at >= _LISTED_S:
            self._listed, self._listed_at = self._groups.other.reported(), self._clock()
        return self._listed

    def _settle(self, groups: Sequence[Group], chosen: Mapping[ReadPartition, _Chosen]) -> None:
        """Take note of what became of offsets. `chosen`: those of a step; of a pass they are the newest ones."""
        if not isinstance(self._source, FollowedCommits):
            return
        for partition in (partition for group in groups for partition in group.partitions):
            read_partition = partition.group, partition.topic_partition
            entry = chosen[read_partition][0] if read_partition in chosen else self._source.of(*read_partition)
            if entry is None or partition.offset is None:
                continue
            if partition.outcome is Outcome.WAITS:
                self._limits[read_partition] = partition.offset - partition.waits_for if partition.waits_for else -1
            elif partition.outcome is Outcome.NOT_MIRRORED or not partition.is_left:
                entry.settle(partition.offset)
            else:
                is_brief = partition.step is Step.REFUSED
                self._held[read_partition] = self._clock() + _REFUSED_S if is_brief else math.inf

    def _sync(
        self, committed: Sequence[Committed], offset_map: OffsetMap, *, known: Mapping[str, ListedGroup] | None = None
    ) -> tuple[list[Group], Collection[str]]:
        """Translate offsets and commit them. Return what became of them, and the topics that a migration has handed over."""
        # Of a topic that a migration has handed over the target's groups are the application's own: an operator may have reset
        # them, and what the source has is older.
        if self._controls is None:
            self._controls = Controls.open(self._storage)
        read_at, controls = self._clock(), self._controls.read()
        moving, forgotten = controls.moving, controls.forgotten
        commits_with_source = [
            commit
            for commit in self._groups.resolve_sources(committed, offset_map, forgotten)
            if commit.source is None or commit.source.topic not in moving
        ]
        clusters = self._groups.clusters(commits_with_source, offset_map, forgotten, waits_for_leaders=False)
        for commit in commits_with_source:
            self._lookups[commit.group, commit.topic_partition] = lookups_of(commit, clusters)
        commits = {lookup for lookups in self._lookups.values() for lookup in lookups}
        translator = CommitTranslator(commits) if self._translator is None else self._translator.continue_with(commits)
        self._translator = None  # until it has all rows: one that was interrupted cannot be continued
        topics = {commit.source.topic for commit in commits}
        self._recent.add_to(translator, offset_map, topics, translator.reads_from())
        self._translator = translator
        evaluated = self._groups.evaluate(commits_with_source, translator, clusters, waits_for_leaders=False)

        by_now = moving

        def moving_by_now() -> Collection[str]:
            nonlocal read_at, by_now
            if self._clock() - read_at > _CONTROLS_S:
                assert self._controls is not None
                read_at, by_now = self._clock(), self._controls.read().moving
            return by_now

        planned = self._groups.plan_commits(
            evaluated, is_applied=True, known=known, handed_over=moving_by_now, waits_for_coordinators=False
        )
        return list(planned), moving

    def _refresh_map(self) -> OffsetMap:
        if self._map is None:
            self._map = OffsetMap.open(self._storage, mirror=self._config.mirror)
        else:
            self._map.refresh()
        revision = self._map.recorded()
        if revision != self._revision:
            self._limits.clear()
        if not _pending(self._revision) <= _pending(revision):
            # The rows of a transaction that is not pending any more may be gone: some partition has aborted it.
            self._recent, self._translator = RecentRows(), None
        self._revision = revision
        self._recent.refresh(self._map)
        return self._map

    def _changed(
        self, groups: Sequence[Group], moving: Collection[str], unanswered: Collection[str], is_whole: bool
    ) -> tuple[list[GroupPosition], int]:
        """Return positions that changed since they were recorded, and those that are gone; and how many offsets groups moved on.

        The last is kept of a pending one, of `unanswered` groups, of topics that are handed over, and of those that a broker
        does not list: it may have started a moment ago, and offsets of deleted topics are deleted with them.
        """
        partitions = [partition for group in groups for partition in group.partitions]
        now = {position.key: position for partition in partitions for position in _position(partition)}
        pending = {(partition.group, partition.source) for partition in partitions if partition.outcome is Outcome.PENDING}
        unlisted = {(partition.group, partition.topic_partition) for partition in partitions if partition.source is None}
        for (group, source), position in self._noted.items():
            is_unlisted = (group, source.topic_partition) in unlisted
            if (group, source) in pending or group in unanswered or source.topic in moving or is_unlisted:
                now[group, source] = position
        changed = changed_positions(self._noted, now, is_whole=is_whole)
        read_count = 0
        for key, position in now.items():
            before = self._noted[key].offset if key in self._noted else None
            if before is not None and position.offset is not None:
                read_count += max(0, position.offset - before)
        self._noted = now
        return changed, read_count

    def _repeated(self, read_count: int, now: datetime) -> int | None:
        """Estimate the records that a fail-over repeats: those that groups read from one pass to the next. None: not known."""
        if self._passed_at is None:
            return None
        elapsed_s = (now - self._passed_at).total_seconds()
        interval_s = self._config.groups.sync_s
        return None if elapsed_s <= 0 or interval_s is None else round(read_count * max(1.0, interval_s / elapsed_s))


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
        on_lag: Callable[[GroupLag], None] = lambda _: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`report` is called with every pass that failed, and the level at which to log it; `on_lag` after passes and steps."""
        super().__init__(
            "group-sync",
            interval_s,
            now,
            abandoned="groups: the last synchronization did not end within %.0f s and was abandoned",
            recovered="groups: synchronized again",
        )
        self._config, self._storage, self._history, self._report = config, storage, history, report
        self._on_lag = on_lag
        self._told: tuple[str | None, bool] = None, False
        self._next_step_at = 0.0
        self._is_step = False

    def open_passes(self) -> GroupSyncer:
        self._syncer = GroupSyncer(self._config, self._storage, self._history)
        return self._syncer

    def is_stopped_within(self, passes: Passes[GroupSyncPass], pause_s: float) -> bool:
        """Do steps until the next pass."""
        syncer, ends_at = self._syncer, time.monotonic() + pause_s
        while syncer.is_following:
            began = time.monotonic()
            if self._stop.wait(max(0.0, min(self._next_step_at, ends_at) - began)):
                return True
            began = time.monotonic()
            if began >= ends_at:
                return False
            self._is_step, cpu_began = True, time.thread_time()
            lag = self.attempt(syncer.step, self._now())
            self._is_step = False
            if lag is not None:
                self._on_lag(lag)
            commit_cpu_s = time.thread_time() - cpu_began - syncer.read_cpu_s
            self._next_step_at = began + step_interval_s(
                time.monotonic() - began, commit_cpu_s=commit_cpu_s, is_failed=lag is None
            )
        return self._stop.wait(max(0.0, ends_at - time.monotonic()))

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        occurrence = Problem(
            kind=ProblemKind.GROUP,
            text=f"groups: sync failed: {problem}",
            remedy="do what the message says, if it asks for something; the sync is retried automatically",
            error_name=type(error).__name__,
        )
        self._report(occurrence, level)
        self._on_lag(self._syncer.lag())
        if not self._is_step:  # there may be many, and a pass that fails as well says so
            record_pass(self._history, GroupSyncPass(observed_at=now, problem=problem), ())

    def on_done(self, done: GroupSyncPass) -> None:
        self._next_step_at = time.monotonic()  # at once: a pass reads the log at its beginning, and takes longer than a step
        self._on_lag(self._syncer.lag())
        self._report_polling(done)
        if done.committed_count:
            _log.info(
                "groups: %s of %s committed at the target, waiting: %d, not moved: %d",
                counted(done.committed_count, "offset"),
                counted(done.group_count, "group"),
                done.waiting_count,
                done.left_count,
            )

    def _report_polling(self, done: GroupSyncPass) -> None:
        """Report once that a fail-over repeats records, and once more when it is known how many."""
        repeats = done.repeats_sentence
        if repeats is None or not done.partition_count:
            self._told = None, False
            return
        told = done.not_followed, done.repeated_count is not None
        if told in (self._told, (self._told[0], False)):
            return
        self._told = told
        remedy = f"give the mirror's user Read on topic {GROUP_LOG} of the source, or set groups.follow to off"
        self._report(
            Problem(kind=ProblemKind.GROUP, text=f"groups: {repeats}", remedy=remedy, error_name="NotFollowedError"),
            logging.WARNING,
        )


def step_interval_s(took_s: float, *, commit_cpu_s: float, is_failed: bool) -> float:
    """Return the time from the beginning of a step to that of the next one. `commit_cpu_s`: without what reading the log took."""
    least_s = _FAILED_STEP_S if is_failed else STEP_S
    return max(least_s, took_s / STEP_SHARE, commit_cpu_s / STEP_CPU_SHARE)


def _pending(revision: Recorded | None) -> set[SlotTxn]:
    return set() if revision is None else set(revision.pending_txns)


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

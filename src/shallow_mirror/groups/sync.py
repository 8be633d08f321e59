"""Driver: keeps the target's groups in step while the mirror runs (`groups.sync`), and notes where the source's are.

A thread beside the query, with clients and a view of the map of its own. It writes to nothing that the mirror reads, is at work a
tenth of the time at most, and whatever befalls it is told and tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from shallow_mirror.checkpoints.backends.best_effort_table import ObservationStore
from shallow_mirror.checkpoints.group_offset_history import GroupPosition, GroupSyncPass, note_pass, tidy
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.problem_log import log_problem
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.eligibility import commits_of
from shallow_mirror.groups.offset_translation import CommitTranslator
from shallow_mirror.groups.report import Group, GroupPartition, Outcome, Step
from shallow_mirror.groups.sync_plan import GroupLook, add_rows
from shallow_mirror.plurals import counted
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

QUESTION_S = 10.0
"""Each question to a cluster."""
SHARE = 0.1
"""Of the time that a look may take; the pause behind a long one is longer."""
WHOLE_EVERY_S = 3600.0
TIDY_EVERY_LOOKS = 200
LAST_LOOK_S, END_S = 15.0, 2.0
"""How long the end of a run waits for its last look, and for the one that runs where no more is wanted."""


class GroupLooks:
    """One look after the other; what was translated once is not looked for in the map again. Not for several threads."""

    def __init__(self, config: MirrorConfig, store: ObservationStore, spark: Any = None) -> None:
        self._config, self._store, self._spark = config, store, spark
        self._groups = GroupLook(config, timeout_s=QUESTION_S)
        self._map: OffsetMap | None = None
        self._translator: CommitTranslator | None = None
        self._noted: dict[tuple[str, SourcePartition], GroupPosition] = {}
        self._whole_at: datetime | None = None
        self._count = 0

    def close(self) -> None:
        self._groups.close()

    def once(self, now: datetime) -> GroupSyncPass:
        """Commits what can be, notes what changed. Raises MirrorError, OSError."""
        began = time.monotonic()
        committed = self._groups.committed(lambda _: True)
        offset_map = self._refreshed_map()
        held = self._groups.held(committed, offset_map)
        clusters = self._groups.clusters(held, offset_map)
        commits = commits_of(held, clusters)
        translator = CommitTranslator(commits) if self._translator is None else self._translator.followed_by(commits)
        self._translator = None  # until it has all rows: one that was interrupted cannot be gone on from
        add_rows(translator, offset_map, {one.source.topic for one in commits}, translator.reads_from())
        self._translator = translator
        found = list(self._groups.stepped(self._groups.judged(held, translator, clusters), is_applied=True))
        is_whole = self._whole_at is None or (now - self._whole_at).total_seconds() >= WHOLE_EVERY_S
        done = _pass_of(found, now, is_whole, time.monotonic() - began)
        note_pass(self._store, done, self._changed(found, is_whole))
        self._whole_at = now if is_whole else self._whole_at
        self._count += 1
        if self._count % TIDY_EVERY_LOOKS == 1:
            tidy(self._store, now - timedelta(seconds=self._config.groups.keep_s))
        return done

    def _refreshed_map(self) -> OffsetMap:
        if self._map is None:
            self._map = OffsetMap.open(self._config.table_storage, self._spark, mirror=self._config.mirror)
        else:
            self._map.refresh()
        return self._map

    def _changed(self, found: Sequence[Group], is_whole: bool) -> list[GroupPosition]:
        """Positions that are not as they were noted, and those that are gone. Of a pending one the last that was known stands."""
        partitions = [one for group in found for one in group.partitions]
        now = {one.key: one for partition in partitions for one in _position(partition)}
        pending = {(one.group, one.source) for one in partitions if one.outcome is Outcome.PENDING}
        now |= {key: one for key, one in self._noted.items() if key in pending}
        gone = [
            GroupPosition(group=group, source=source, offset=None) for group, source in self._noted if (group, source) not in now
        ]
        changed = [one for key, one in now.items() if is_whole or self._noted.get(key) != one]
        self._noted = now
        return [*changed, *gone]


class GroupSync:
    """Context manager: the thread. With `is_last_wanted` set, the end of the block waits for one more look."""

    def __init__(
        self,
        config: MirrorConfig,
        interval_s: float,
        store: ObservationStore,
        spark: Any = None,
        *,
        tell: Callable[[Problem, int], None] = log_problem,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`tell` hears of every look that failed, with the level at which it is worth logging."""
        self._config, self._interval_s, self._store, self._spark, self._now = config, interval_s, store, spark, now
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-sync", daemon=True)
        self._problem: str | None = None
        self.is_last_wanted = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        patience_s = LAST_LOOK_S if self.is_last_wanted else END_S
        self._thread.join(patience_s)
        if self._thread.is_alive():
            _log.warning("groups: the last look was not over after %.0f s and is given up", patience_s)

    def _run(self) -> None:
        with closing(GroupLooks(self._config, self._store, self._spark)) as looks:
            while True:
                began = time.monotonic()
                self._look(looks)
                took = time.monotonic() - began
                if self._stop.wait(max(self._interval_s - took, took * (1 - SHARE) / SHARE)):
                    break
            if self.is_last_wanted:
                self._look(looks)

    def _look(self, looks: GroupLooks) -> None:
        now = self._now()
        try:
            done = looks.once(now)
        except Exception as error:  # noqa: BLE001 - nothing that befalls the groups may end or hold up the mirror
            if self._stop.is_set() and not self.is_last_wanted:
                return  # what it needs may be gone already
            problem = f"{type(error).__name__}: {error}"
            met = Problem(
                kind=ProblemKind.GROUP,
                text=f"groups: could not be brought in step: {problem}",
                remedy="do what the message says, if it asks for something; it is tried again by itself",
                error_name=type(error).__name__,
            )
            self._tell(met, logging.DEBUG if problem == self._problem else logging.WARNING)
            self._problem = problem
            note_pass(self._store, GroupSyncPass(observed_at=now, problem=problem), ())
            return
        if self._problem is not None:
            _log.info("groups: in step again")
        self._problem = None
        if done.committed_count:
            _log.info(
                "groups: %s of %s committed at the target, waiting: %d, left alone: %d",
                counted(done.committed_count, "offset"),
                counted(done.group_count, "group"),
                done.waiting_count,
                done.left_count,
            )


def _pass_of(found: Sequence[Group], now: datetime, is_whole: bool, seconds: float) -> GroupSyncPass:
    mirrored = [one for group in found for one in group.partitions if one.outcome is not Outcome.NOT_MIRRORED]
    is_waiting = (Outcome.WAITS, Outcome.PENDING)
    return GroupSyncPass(
        observed_at=now,
        is_whole=is_whole,
        group_count=len(found),
        partition_count=len(mirrored),
        in_place_count=sum(one.step in (Step.IN_PLACE, Step.FURTHER) for one in mirrored),
        committed_count=sum(one.step is Step.COMMITTED for one in mirrored),
        waiting_count=sum(one.outcome in is_waiting for one in mirrored),
        left_count=sum(one.is_left and one.outcome not in is_waiting for one in mirrored),
        seconds=seconds,
    )


def _position(one: GroupPartition) -> Sequence[GroupPosition]:
    """None of what no source partition is known of, nor of an offset that is not known yet."""
    if one.source is None or one.offset is None:
        return ()
    return (
        GroupPosition(
            group=one.group,
            source=one.source,
            offset=one.offset,
            metadata=one.metadata,
            target_topic=None if one.to_place is None else one.to_place.topic,
            target_partition=None if one.to_place is None else one.to_place.partition,
            target_offset=one.to_offset,
            outcome=one.outcome.value,
        ),
    )

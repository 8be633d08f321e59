"""Driver, for the cli: how far a mirror is, how far behind, what it did last and what it waits for. Starts no JVM.

What the map and the observations say is read first, the source is asked after that: a mirror that runs meanwhile can only
seem to be further behind than it is, never ahead of its source.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.cluster_metadata import ListedOffset
from shallow_mirror.checkpoints import observations
from shallow_mirror.checkpoints.controls import open_controls_to_read
from shallow_mirror.checkpoints.group_positions import GroupSyncPass, last_pass
from shallow_mirror.checkpoints.observation_stores import ObservationStore, open_store_to_read
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.problem_log import read_problems
from shallow_mirror.checkpoints.problems import KnownProblem
from shallow_mirror.checkpoints.quarantine import undescribed_entries
from shallow_mirror.checkpoints.recorded import Recorded
from shallow_mirror.checkpoints.schema import ms_of
from shallow_mirror.checkpoints.table_writer import Comparison
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import Retriable
from shallow_mirror.streaming import notes
from shallow_mirror.streaming.left_out import LeftOut, read_left_out
from shallow_mirror.streaming.open_transactions import OpenTransaction, ask_open_transactions
from shallow_mirror.streaming.plan_settings import PlanSettings
from shallow_mirror.streaming.planner import Planner
from shallow_mirror.types import IsolationLevel, SourcePartition

PATIENCE_MS = 5_000
"""A status without lag is still a status: it does not wait longer for either cluster."""

MICRO_BATCHES_SHOWN = 5
PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """`position`: everything below it is accounted for. `end` is the source's high watermark: what is behind an open transaction
    has not been copied either.

    `lag_ms`: how old the first record that is not copied yet is, by its own timestamp; 0 when there is no lag. Where the
    source cannot name that record (timestamps that do not rise), the age of the last copied batch, which is no younger.
    `end` and both lags are None when the source does not say, or does not know the topic (any more).
    """

    source: SourcePartition
    position: int
    end: int | None
    lag_offsets: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchStatus:
    """A row of `micro_batches`; `dropped_batch_counts` by segment kind."""

    micro_batch: int
    run_epoch: int
    settled_at_ms: int
    record_count: int
    size_bytes: int
    seconds: float
    raw_batch_count: int
    rebuilt_batch_count: int
    dropped_batch_counts: Mapping[str, int]
    lag_offsets: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The run that owns the map. `outcome` and `ended_at_ms` are None until it ended, and for ever when it was killed.

    `is_alive` is None when it cannot be known from here: the run is on another host.
    """

    run_epoch: int
    run_id: str
    host: str
    pid: int
    version: str | None
    started_at_ms: int
    ended_at_ms: int | None
    outcome: str | None
    is_alive: bool | None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.is_alive is False


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTopic:
    topic: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """`micro_batches`: the last few, newest last. `waiting_for` is None as well when no run is there to wait.

    `source_problem`: why log ends and lags are missing; `target_problem`: why nothing can be written now. `planned_at_ms`:
    when the planner was last heard of.
    `starting`: what a start does that has not come to its first plan.
    `quarantined_batches` and `quarantined_bytes` are what is in quarantine now.
    `gone_topics`: mirrored topics that the source does not have any more; `topic_problems`: settings that are not followed; both
    as the mirror saw them last.
    `left_out`: partitions that are broken, while the others are copied without them; empty when no run is there.
    `problems`: the last few that the last runs met, newest last. `groups`: the last look at consumer groups, None without
    `groups.sync`.
    """

    mirror: str
    at_ms: int
    run: RunStatus | None
    source_problem: str | None
    waiting_for: str | None
    waiting_since_ms: int | None
    planned_at_ms: int | None
    micro_batches: tuple[MicroBatchStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    target_problem: str | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    quarantined_batches: int = 0
    quarantined_bytes: int = 0
    paused_topics: tuple[PausedTopic, ...] = ()
    gone_topics: tuple[str, ...] = ()
    topic_problems: tuple[str, ...] = ()
    starting: str | None = None
    starting_since_ms: int | None = None
    groups: GroupSyncPass | None = None
    problems: tuple[KnownProblem, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def document(self) -> dict[str, Any]:
        """For JSON."""
        places = {name: [_flat(one) for one in getattr(self, name)] for name in ("partitions", "open_transactions")}
        left_out = {"left_out": [one.document() for one in self.left_out]}
        groups = None
        if self.groups is not None:
            groups = {**asdict(self.groups), "observed_at": self.groups.observed_at.isoformat()}
        return {**asdict(self), **places, "groups": groups, "problems": [one.document() for one in self.problems], **left_out}


def _flat(one: PartitionStatus | OpenTransaction) -> dict[str, Any]:
    fields = {**one.source._asdict(), **asdict(one)}
    del fields["source"]
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """What the source says of the partitions it has. `later`: the first record newer than what was copied, offset -1 for none."""

    ends: Mapping[SourcePartition, int] = field(default_factory=dict)
    later: Mapping[SourcePartition, ListedOffset] = field(default_factory=dict)
    open_transactions: tuple[OpenTransaction, ...] = ()
    problem: str | None = None


def gather_status(
    config: MirrorConfig, now_ms: Callable[[], int] = lambda: int(time.time() * 1000), *, spark: Any = None
) -> StatusReport:
    """`spark`: the session that reaches tables in a catalog; others are read without.

    Raises ConfigError when the mirror never ran, or the tables are another one's; OffsetMapConflict when its map is damaged.
    """
    offset_map = OffsetMap.open(config.table_storage, spark, mirror=config.mirror)
    store = open_store_to_read(config.table_storage, spark)
    found = of_included_topics(config, offset_map.positions())
    positions = {source: position.offset for source, position in found.items()}
    copied_until_ms = copied_until(found)
    recorded = offset_map.recorded()
    run = None if recorded is None else _read_run(store, recorded)
    done = () if recorded is None else _read_micro_batches(store, recorded.micro_batch)
    quarantined = [one.segment for one in undescribed_entries(offset_map) if not one.is_released]
    note = notes.read_note(notes.note_path(config.checkpoint))
    topics = notes.read_topics(notes.topics_path(config.checkpoint))
    paused = open_controls_to_read(config.table_storage, spark).paused()
    view = ask_source(config, positions, copied_until_ms)
    at_ms = now_ms()
    is_waiting = note is not None and not (run is not None and run.is_over)
    start = _current_start(notes.read_start(notes.start_path(config.checkpoint)), run, note)
    return StatusReport(
        mirror=config.mirror,
        at_ms=at_ms,
        run=run,
        source_problem=view.problem,
        waiting_for=note.waiting_for if note is not None and is_waiting else None,
        waiting_since_ms=note.since_ms if note is not None and is_waiting else None,
        planned_at_ms=None if note is None else note.at_ms,
        micro_batches=done,
        partitions=partition_statuses(positions, copied_until_ms, view, at_ms),
        target_problem=ask_target(config),
        open_transactions=view.open_transactions,
        quarantined_batches=len(quarantined),
        quarantined_bytes=sum(one.size_bytes for one in quarantined),
        paused_topics=tuple(PausedTopic(topic=topic, since_ms=since_ms) for topic, since_ms in paused.items()),
        gone_topics=() if topics is None else topics.gone,
        topic_problems=() if topics is None else topics.problems,
        starting=None if start is None else start.step,
        starting_since_ms=None if start is None else start.since_ms,
        groups=None if config.groups.sync_s is None else last_pass(store, datetime.now(UTC)),
        left_out=read_left_out(notes.left_out_path(config.checkpoint)) if run is not None and not run.is_over else (),
        problems=() if recorded is None else read_problems(store, recorded.run_epoch)[-PROBLEMS_SHOWN:],
    )


def _current_start(
    start: notes.StartNote | None, run: RunStatus | None, planned: notes.PlannerNote | None
) -> notes.StartNote | None:
    """None where the run is over, or was heard to plan, or to wait, after that step began."""
    if start is None or run is None or run.is_over or start.since_ms < run.started_at_ms:
        return None
    return None if planned is not None and planned.at_ms >= start.since_ms else start


def of_included_topics(config: MirrorConfig, found: Mapping[SourcePartition, Position]) -> dict[SourcePartition, Position]:
    """Topics that are excluded now keep their positions in the map; nobody waits for them."""
    return {source: position for source, position in found.items() if config.topics.is_included(source.topic)}


def copied_until(found: Mapping[SourcePartition, Position]) -> dict[SourcePartition, int]:
    """Timestamp of the last copied batch of each partition that has one."""
    return {
        source: position.max_timestamp_ms
        for source, position in found.items()
        if position.max_timestamp_ms is not None and position.max_timestamp_ms >= 0
    }


def partition_statuses(
    positions: Mapping[SourcePartition, int], copied_until_ms: Mapping[SourcePartition, int], view: SourceView, at_ms: int
) -> tuple[PartitionStatus, ...]:
    """Pure. Of a topic that was created again, the one that the source has now."""
    statuses, current = [], {one.topic: one.topic_id for one in view.ends}
    for source, position in sorted(positions.items()):
        if current.get(source.topic, source.topic_id) != source.topic_id:
            continue
        end = view.ends.get(source)
        lag = None if end is None else max(0, end - position)
        lag_ms = 0 if lag == 0 else None
        if lag:
            since_ms = first_missing_ms(position, copied_until_ms.get(source), view.later.get(source))
            lag_ms = None if since_ms is None else max(0, at_ms - since_ms)
        statuses.append(PartitionStatus(source=source, position=position, end=end, lag_offsets=lag, lag_ms=lag_ms))
    return tuple(statuses)


def first_missing_ms(position: int, copied_until_ms: int | None, later: ListedOffset | None) -> int | None:
    """Pure: timestamp of the first record at or above `position`, or of the last copied batch; None when nobody knows.

    `later` answers "the first record with a timestamp above `copied_until_ms`"; one below `position` was copied already.
    """
    if later is None:
        return None
    return later.timestamp_ms if later.offset >= position else copied_until_ms


def ask_source(
    config: MirrorConfig,
    positions: Mapping[SourcePartition, int],
    copied_until_ms: Mapping[SourcePartition, int],
    clock: Callable[[], float] = time.monotonic,
) -> SourceView:
    """One listing of log ends (high watermarks), and one of the first records that are newer than what was copied, where there is
    lag; under read_committed also who holds the last stable offsets."""
    settings = replace(PlanSettings.of_mirror(config), isolation=IsolationLevel.READ_UNCOMMITTED)
    ends: Mapping[SourcePartition, int] = {}
    with closing(Cluster(config.source.client)) as cluster:
        deadline = Deadline.after_ms(min(PATIENCE_MS, config.source.client.request_timeout_ms), clock)
        try:
            ends = Planner(settings, cluster).log_ends(deadline).ends
            behind = {one.topic_partition: one for one, position in positions.items() if ends.get(one, position) > position}
            asked = {name: copied_until_ms.get(one, -1) + 1 for name, one in behind.items()}
            found = cluster.list_offsets(asked, settings.isolation, deadline) if asked else {}
            is_committed = config.read.isolation_level is IsolationLevel.READ_COMMITTED
            there = {one: ends[one] for one in positions if one in ends} if is_committed else {}
            open_transactions = ask_open_transactions(cluster, there, deadline)
        except Retriable as error:
            return SourceView(ends=ends, problem=str(error))
    later = {behind[name]: listed for name, listed in found.items()}
    return SourceView(ends=ends, later=later, open_transactions=open_transactions)


def ask_target(config: MirrorConfig, clock: Callable[[], float] = time.monotonic) -> str | None:
    """Why the target does not answer: a task that waits for it cannot say so itself."""
    with closing(Cluster(config.target.client)) as cluster:
        deadline = Deadline.after_ms(min(PATIENCE_MS, config.target.client.request_timeout_ms), clock)
        try:
            cluster.cluster_id(deadline)
        except Retriable as error:
            return str(error)
    return None


def run_of(config: MirrorConfig, spark: Any = None) -> RunStatus | None:
    """The run that took the map over last. Raises as `gather_status`."""
    recorded = OffsetMap.open(config.table_storage, spark, mirror=config.mirror).recorded()
    return None if recorded is None else _read_run(open_store_to_read(config.table_storage, spark), recorded)


def _read_run(store: ObservationStore, recorded: Recorded) -> RunStatus:
    """As the map records it; `runs` adds how it ended, where it was written."""
    rows = store.read(observations.RUNS_TABLE, (Comparison("run_epoch", "=", recorded.run_epoch),))
    known = {name: value for row in rows for name, value in row.items() if value is not None}
    outcome, run = known.get("outcome"), recorded.run
    return RunStatus(
        run_epoch=recorded.run_epoch,
        run_id=run.run_id,
        host=run.host,
        pid=run.pid,
        version=known.get("version"),
        started_at_ms=run.started_at_ms,
        ended_at_ms=ms_of(known["ended_at"]) if "ended_at" in known else None,
        outcome=outcome,
        is_alive=False if outcome is not None else _is_alive(run.host, run.pid),
    )


def _is_alive(host: str, pid: int) -> bool | None:
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_micro_batches(store: ObservationStore, newest: int) -> tuple[MicroBatchStatus, ...]:
    recent = Comparison("micro_batch", ">", newest - 20 * MICRO_BATCHES_SHOWN)
    rows = store.read(observations.MICRO_BATCHES_TABLE, (recent,))
    ordered = sorted(rows, key=lambda row: (row["micro_batch"], row["settled_at"]))
    return tuple(_micro_batch(row) for row in ordered[-MICRO_BATCHES_SHOWN:])


def _micro_batch(row: Mapping[str, Any]) -> MicroBatchStatus:
    return MicroBatchStatus(
        micro_batch=row["micro_batch"],
        run_epoch=row["run_epoch"],
        settled_at_ms=ms_of(row["settled_at"]),
        record_count=row["record_count"],
        size_bytes=row["size_bytes"],
        seconds=json.loads(row["duration_ms"]).get("Total", 0.0) / 1000,
        raw_batch_count=row["raw_batch_count"],
        rebuilt_batch_count=row["rebuilt_batch_count"],
        dropped_batch_counts=json.loads(row["dropped_batch_counts"]),
        lag_offsets=row["lag_offsets"],
    )


def total(values: Sequence[int | None]) -> int | None:
    """None when one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

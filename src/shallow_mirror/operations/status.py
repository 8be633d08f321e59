"""Driver, for the cli: positions, lag, recent micro-batches and waits of a mirror or a restore. Starts no JVM.

The tables are read first and the source is queried after that: a mirror that runs meanwhile can only seem to be further behind
than it is, never ahead of its source.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.access import AccessPass
from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.ledger import Recorded, RestoredTopicsTable, RestoreRangesTable
from shallow_mirror.checkpoints.logs import GroupSyncPass, last_pass, undescribed_entries
from shallow_mirror.checkpoints.logs.runs import CountedProblem, read_problems, run_history
from shallow_mirror.checkpoints.logs.topics import Controls, ForgottenTopics, is_closed
from shallow_mirror.checkpoints.rows import FILLER_COLUMNS, TopicOffsets, preserved_topics, recorded_fillers, topics_with_offsets
from shallow_mirror.checkpoints.tables import BestEffortTables, Comparison, TableStorage, ms_of
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.config.restore_changes import accepted_changes, refused_changes
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations.recover import older_tables
from shallow_mirror.processes import is_process
from shallow_mirror.streaming.planning import LeftOutPartition, planner_state, read_left_out
from shallow_mirror.streaming.runs import paused_topics
from shallow_mirror.streaming.watch import (
    PATIENCE_MS,
    OpenTransaction,
    PartitionStatus,
    SourceView,
    copied_until,
    included_positions,
    partition_statuses,
    query_source,
    query_target,
)
from shallow_mirror.types import SourcePartition

MICRO_BATCHES_SHOWN = 5
PROBLEMS_SHOWN = 5


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
    """The run that owns the map. `outcome` and `ended_at_ms` are None until it ended, and stay None when it was killed.

    `is_alive` is None if it cannot be checked: the run is on another host.
    """

    run_epoch: int
    run_id: str
    host: str
    pid: int
    version: str | None = None
    started_at_ms: int
    ended_at_ms: int | None = None
    outcome: str | None = None
    is_alive: bool | None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.is_alive is False


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTopic:
    """`is_handed_over`: by a migration or a fail-over; the mirror does not copy it any more."""

    topic: str
    since_ms: int
    is_handed_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """State of a mirror or restore, by its tables and both clusters."""

    mirror: str
    is_restore: bool = False
    """The source is an archive, and the end of a partition is that of the restore."""
    at_ms: int
    run: RunStatus | None
    source_problem: str | None
    """Why log ends and lags are missing."""
    waiting_for: str | None
    """None as well while no run is alive."""
    waiting_since_ms: int | None
    planned_at_ms: int | None
    """When the planner wrote its state last."""
    micro_batches: tuple[MicroBatchStatus, ...]
    """The last few, newest last."""
    partitions: tuple[PartitionStatus, ...]
    target_problem: str | None = None
    """Why nothing can be written now."""
    older_tables: str | None = None
    """What the target knows that the tables lack: what they say is not the newest state, and lags are wrong."""
    older_tables_unknown: str | None = None
    """Why the target could not tell that, although it answers."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    quarantined_batches: int = 0
    """In quarantine now, as `quarantined_bytes`."""
    quarantined_bytes: int = 0
    paused_topics: tuple[PausedTopic, ...] = ()
    gone_topics: tuple[str, ...] = ()
    """Mirrored topics that were deleted at the source, as of the mirror's last check."""
    followed_topics: tuple[str, ...] = ()
    """Those of which `topic_problems` say what becomes of the target topic (`topics.deleted: delete`)."""
    topic_problems: tuple[str, ...] = ()
    """Settings that are not synchronized, as of the mirror's last check."""
    starting: str | None = None
    """The step of a start before its first plan."""
    starting_since_ms: int | None = None
    groups: GroupSyncPass | None = None
    """The last synchronization of consumer groups. None without `groups.sync`."""
    acls: AccessPass | None = None
    """The last comparison. None without `acls.sync`."""
    quotas: AccessPass | None = None
    """The last comparison. None without `quotas.sync`."""
    schemas: AccessPass | None = None
    """The last comparison. None without `schemas.sync`."""
    problems: tuple[CountedProblem, ...] = ()
    """The last few of the last runs, newest last."""
    left_out: tuple[LeftOutPartition, ...] = ()
    """Broken partitions, while the others are copied without them; empty while no run is alive."""
    topics: tuple[TopicOffsets, ...] = ()
    """Whether the records of each topic keep their offsets."""
    paused_retention: tuple[str, ...] = ()
    """Target topics of a restore from which nothing is deleted before `restore --lift-retention`."""
    changed_settings: tuple[str, ...] = ()
    """Differences of a restore file to that of the first start."""

    @property
    def older_sentence(self) -> str | None:
        """Return why the report is not the newest state, or why that is not known; None if it is."""
        if self.older_tables is not None:
            return f"what follows is not the newest state, and its lag is wrong: {self.older_tables}"
        if self.older_tables_unknown is not None:
            return f"whether the tables are the newest is not known: {self.older_tables_unknown}"
        return None

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        flat = {name: [_flat(entry) for entry in getattr(self, name)] for name in ("partitions", "open_transactions")}
        left_out = {"left_out": [entry.document() for entry in self.left_out]}
        groups = None
        if self.groups is not None:
            groups = {**asdict(self.groups), "observed_at": self.groups.observed_at.isoformat()}
        problems = [problem.document() for problem in self.problems]
        return {**asdict(self), **flat, "groups": groups, "problems": problems, **left_out}


def _flat(entry: PartitionStatus | OpenTransaction) -> dict[str, Any]:
    fields = {**entry.source._asdict(), **asdict(entry)}
    del fields["source"]
    return fields


def gather_status(
    config: MirrorConfig | RestoreConfig, now_ms: Callable[[], int] = lambda: int(time.time() * 1000), *, spark: Any = None
) -> StatusReport:
    """Return the state of a mirror or a restore. `spark`: the session for tables in a catalog; others are read without.

    Raises ConfigError when the mirror never ran, or the tables are another mirror's; OffsetMapConflictError when the offset
    map is damaged.
    """
    storage = TableStorage(config.table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    tables = storage.best_effort_tables()
    restore = _restore_status(config, storage) if isinstance(config, RestoreConfig) else None
    controls = Controls.open(storage).read()
    mapped = offset_map.positions()
    forgotten, names = controls.forgotten, controls.forgotten.names(mapped)
    included = included_positions(config, forgotten.without(mapped)) if restore is None else mapped
    positions = {source: position.offset for source, position in included.items()}
    if restore is not None:  # also of partitions that are not registered yet
        positions = {**restore.starts, **positions}
    copied_until_ms = copied_until(included)
    recorded = offset_map.recorded()
    run = None if recorded is None else run_status(tables, recorded)
    micro_batches = () if recorded is None else _read_micro_batches(tables, recorded.micro_batch)
    quarantined = [entry.segment for entry in undescribed_entries(offset_map) if not entry.is_released]
    quarantined = [segment for segment in quarantined if not forgotten.has(segment.source)]
    planned = planner_state.read_state(planner_state.planner_state_path(config.checkpoint), planner_state.PlannerState)
    topics = planner_state.read_state(planner_state.topics_state_path(config.checkpoint), planner_state.TopicsState)
    start = planner_state.read_state(planner_state.start_state_path(config.checkpoint), planner_state.StartState)
    if restore is not None:
        view = SourceView(ends=restore.ends)
        # A restore has no planner that writes its state again: what came in front of the last micro-batch is over.
        settled_at_ms = micro_batches[-1].settled_at_ms if micro_batches else 0
        planned = None if planned is None or planned.at_ms <= settled_at_ms else planned
        start = None if start is None or start.since_ms <= settled_at_ms else start
    else:
        assert isinstance(config, MirrorConfig)
        view = query_source(config, positions, copied_until_ms, cluster_id=offset_map.source_cluster_id)
    at_ms = now_ms()
    target_problem = query_target(config, cluster_id=offset_map.target_cluster_id)
    older, older_unknown = _older_tables(config, spark) if target_problem is None else (None, None)
    is_waiting = planned is not None and not (run is not None and run.is_over)
    start = _current_start(start, run, planned)
    is_running = run is not None and not run.is_over
    return StatusReport(
        mirror=config.mirror,
        is_restore=isinstance(config, RestoreConfig),
        at_ms=at_ms,
        run=run,
        source_problem=view.problem,
        waiting_for=planned.waiting_for if planned is not None and is_waiting else None,
        waiting_since_ms=planned.since_ms if planned is not None and is_waiting else None,
        planned_at_ms=None if planned is None else planned.at_ms,
        micro_batches=micro_batches,
        partitions=partition_statuses(positions, copied_until_ms, view, at_ms),
        target_problem=target_problem,
        older_tables=older,
        older_tables_unknown=older_unknown,
        paused_retention=() if restore is None else restore.paused_retention,
        changed_settings=() if restore is None else restore.changed_settings,
        open_transactions=view.open_transactions,
        quarantined_batches=len(quarantined),
        quarantined_bytes=sum(segment.size_bytes for segment in quarantined),
        paused_topics=tuple(
            PausedTopic(topic=topic, since_ms=since_ms, is_handed_over=topic in controls.moving)
            for topic, since_ms in sorted(
                {**controls.paused, **controls.requested, **controls.handed_over, **controls.failed_over}.items()
            )
        ),
        gone_topics=() if topics is None else tuple(name for name in topics.gone if not is_closed("", topics.at_ms, names, name)),
        followed_topics=() if topics is None else topics.followed,
        topic_problems=()
        if topics is None
        else tuple(text for text in topics.problems if not is_closed(text, topics.at_ms, names, topics.topics.get(text))),
        starting=None if start is None else start.step,
        starting_since_ms=None if start is None else start.since_ms,
        groups=None
        if isinstance(config, RestoreConfig) or config.groups.sync_s is None
        else last_pass(tables, datetime.now(UTC)),
        topics=_topics(offset_map, included, forgotten),
        acls=None
        if isinstance(config, RestoreConfig) or config.acls.sync_s is None
        else planner_state.read_state(planner_state.acls_state_path(config.checkpoint), AccessPass),
        quotas=None
        if isinstance(config, RestoreConfig) or config.quotas.sync_s is None
        else planner_state.read_state(planner_state.quotas_state_path(config.checkpoint), AccessPass),
        schemas=None
        if isinstance(config, RestoreConfig) or config.schemas.sync_s is None
        else planner_state.read_state(planner_state.schemas_state_path(config.checkpoint), AccessPass),
        left_out=tuple(
            left
            for left in (read_left_out(planner_state.left_out_path(config.checkpoint)) if is_running else ())
            if not forgotten.has(left.source)
        ),
        problems=() if recorded is None else _open_problems(tables, recorded.run_epoch, names),
    )


def _older_tables(config: MirrorConfig | RestoreConfig, spark: Any) -> tuple[str | None, str | None]:
    """Return what the target knows that the tables lack, and why that is not known."""
    try:
        older = older_tables(config, spark, patience_ms=min(PATIENCE_MS, config.target.client.request_timeout_ms))
    except (ConfigError, RetriableError) as error:
        return None, str(error)
    return None if older is None else str(older), None


def _open_problems(tables: BestEffortTables, run_epoch: int, names: Mapping[str, int]) -> tuple[CountedProblem, ...]:
    """Return the last problems without those of forgotten topics. `names`: as `ForgottenTopics.names`."""
    open_problems = [
        entry
        for entry in read_problems(tables, run_epoch)
        if not is_closed(entry.problem.text, entry.last_at_ms, names, entry.problem.source_topic)
    ]
    return tuple(open_problems[-PROBLEMS_SHOWN:])


def _topics(
    offset_map: OffsetMap, positions: Mapping[SourcePartition, Position], forgotten: ForgottenTopics
) -> tuple[TopicOffsets, ...]:
    preserved = preserved_topics(positions)
    pieces = offset_map.settled_pieces(columns=FILLER_COLUMNS) if preserved else ()
    return topics_with_offsets(positions, recorded_fillers(pieces, preserved, forgotten.topic_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RestoreStatus:
    """The decision of a restore; empty before its first start has made it."""

    starts: Mapping[SourcePartition, int]
    ends: Mapping[SourcePartition, int]
    changed_settings: tuple[str, ...]
    paused_retention: tuple[str, ...]


def _restore_status(config: RestoreConfig, storage: TableStorage) -> _RestoreStatus:
    decided = RestoreRangesTable.of(storage).read()
    if decided is None:
        return _RestoreStatus(starts={}, ends={}, changed_settings=(), paused_retention=())
    refused = [f"the next start will be refused: {change}" for change in refused_changes(decided, config)]
    return _RestoreStatus(
        starts={source: offsets.start for source, offsets in decided.ranges.items()},
        ends={source: offsets.end for source, offsets in decided.ranges.items()},
        changed_settings=(*refused, *accepted_changes(decided, config)),
        paused_retention=_paused_retention(config, storage),
    )


def _paused_retention(config: RestoreConfig, storage: TableStorage) -> tuple[str, ...]:
    """Return the target topics whose retention the restore has paused, as they are now; none if the target does not answer."""
    recorded = RestoredTopicsTable.of(storage).read().values()
    with closing(Cluster(config.target.client)) as cluster:
        try:
            return tuple(paused_topics(cluster, recorded, Deadline.after_ms(PATIENCE_MS, time.monotonic)))
        except RetriableError:  # query_target says so
            return ()


def _current_start(
    start: planner_state.StartState | None, run: RunStatus | None, planned: planner_state.PlannerState | None
) -> planner_state.StartState | None:
    """Return `start`; None if the run is over, or its planner wrote its state after that step began."""
    if start is None or run is None or run.is_over or start.since_ms < run.started_at_ms:
        return None
    return None if planned is not None and planned.at_ms >= start.since_ms else start


def read_run(config: MirrorConfig | RestoreConfig, spark: Any = None) -> RunStatus | None:
    """Return the run that took over the map last. Raises as `gather_status`."""
    storage = TableStorage(config.table_location, spark)
    recorded = OffsetMap.open(storage, mirror=config.mirror, counts_rows=False).recorded()
    return None if recorded is None else run_status(storage.best_effort_tables(), recorded)


def run_status(tables: BestEffortTables, recorded: Recorded) -> RunStatus:
    """Return the run as the map records it; the table `runs` adds its version and outcome, unless they were not written."""
    # Runs with copies of the tables number their run epochs alike.
    of_run = (Comparison("run_epoch", "=", recorded.run_epoch), Comparison("run_id", "=", recorded.run.run_id))
    rows = tables.read(run_history.RUNS_TABLE, of_run)
    columns = {name: value for row in rows for name, value in row.items() if value is not None}
    outcome, run = columns.get("outcome"), run_of(recorded)
    return replace(
        run,
        version=columns.get("version"),
        ended_at_ms=ms_of(columns["ended_at"]) if "ended_at" in columns else None,
        outcome=outcome,
        is_alive=run.is_alive if outcome is None else False,
    )


def run_of(recorded: Recorded) -> RunStatus:
    """Return the run that a table of decisions records, without what the table `runs` adds."""
    run = recorded.run
    return RunStatus(
        run_epoch=recorded.run_epoch,
        run_id=run.run_id,
        host=run.host,
        pid=run.pid,
        started_at_ms=run.started_at_ms,
        is_alive=_is_alive(run.host, run.pid),
    )


def _is_alive(host: str, pid: int) -> bool | None:
    return is_process(pid) if host == socket.gethostname() else None


def _read_micro_batches(tables: BestEffortTables, newest: int) -> tuple[MicroBatchStatus, ...]:
    recent = Comparison("micro_batch", ">", newest - 20 * MICRO_BATCHES_SHOWN)
    rows = tables.read(run_history.MICRO_BATCHES_TABLE, (recent,))
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
    """Return the sum; None when one of the values is None."""
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None

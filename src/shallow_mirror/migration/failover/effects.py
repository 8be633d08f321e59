"""Driver: effects and observations of a fail-over: the target, and the tables of the mirror."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from shallow_mirror.access import open_topics
from shallow_mirror.broker import METADATA_TOO_LARGE, Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs import positions_as_of
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.deadline import Deadline, request_deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step as GroupStep
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.migration.conductor_ports import Detail
from shallow_mirror.migration.failover.abort import group_problems, moved_digests, source_problems, target_problems
from shallow_mirror.migration.failover.conductor import Reports
from shallow_mirror.migration.failover.copies_below import ends_below
from shallow_mirror.migration.failover.losses import COUNT_COLUMNS, CopiedCounter, count_rows, losses_of, to_count
from shallow_mirror.migration.failover.state import FailoverState
from shallow_mirror.migration.failover.steps import Step
from shallow_mirror.migration.failover.undecided_copies import undecided_copies
from shallow_mirror.migration.failover.way_back import WayBack
from shallow_mirror.migration.hooks.hook_call import unready
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import LogEnd, named, open_partitions
from shallow_mirror.migration.passage import run_of
from shallow_mirror.migration.permissions import UserView, missing_in_transactions, missing_on_groups, missing_to_change_acls
from shallow_mirror.migration.session import Options
from shallow_mirror.operations.operator_session import open_operator_session
from shallow_mirror.operations.recover import inspect, older_tables, require_newest_tables
from shallow_mirror.sinks.kafka import NewestControl, transactional_id
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import OffsetRange, SourcePartition, TopicPartition

PROBE_MS = 3_000
"""After which a source that has not answered counts as gone."""
FENCE_MS = 120_000


@dataclass(slots=True)
class FailoverEffects:
    """Effects are idempotent: after a crash each may be called again. None but those of `way_back` need the source.

    Raises RetriableError if a cluster does not answer, OutcomeUnknownError if a table does not, ConfigError if an operator has to
    act.
    """

    files: FailoverFiles
    reports: Reports
    options: Options
    despite_source: bool = False
    """Fail over although the source answers."""
    _target: Cluster = field(init=False)
    _source_answered: bool | None = field(default=None, init=False)
    way_back: WayBack = field(init=False)

    def __post_init__(self) -> None:
        self._target = Cluster(self.files.mirror.target.client)
        self.way_back = WayBack(self.files, self.reports, self.options, self._target)

    def close(self) -> None:
        self._target.close()

    @property
    def source_alias(self) -> str:
        return self.files.mirror.source.alias

    @property
    def target_alias(self) -> str:
        return self.files.mirror.target.alias

    @property
    def mirror_id(self) -> str:
        return self.files.mirror.mirror

    @property
    def _storage(self) -> TableStorage:
        return TableStorage(self.files.mirror.table_location)

    def source_answers(self) -> bool:
        """Return whether a broker of the source answers within PROBE_MS. It is asked once: readers wait for the second look."""
        if self._source_answered is None:
            try:
                with closing(Cluster(self.files.mirror.source.client)) as source:
                    source.metadata([], Deadline.after_ms(PROBE_MS, time.monotonic))
                self._source_answered = True
            except MirrorError:  # whatever keeps it from answering: it is not there for the mirror
                self._source_answered = False
        return self._source_answered

    def topics(self) -> list[str]:
        """Return the source topics that fail over."""
        return sorted({source.topic for source in self._positions()})

    def _positions(self) -> dict[SourcePartition, Position]:
        """Return the positions of the map, without those of topics that do not fail over: what has their names is of others."""
        left_out, forgotten = self._left_out(), Controls.open(self._storage).read().forgotten
        positions = forgotten.without(OffsetMap.open(self._storage, mirror=self.files.mirror.mirror).positions())
        return {source: position for source, position in positions.items() if source.topic not in left_out}

    def _left_out(self) -> set[str]:
        """Return the topics that are in use at the target since a migration, and that the mirror file excludes."""
        return {topic for topic in self._moved() if not self.files.mirror.topics.is_included(topic)}

    def _moved(self) -> set[str]:
        """Return the topics that a migration has moved, or is moving."""
        controls = Controls.open(self._storage).read()
        return {*controls.requested, *controls.handed_over}

    def problems(self) -> list[str]:
        """Return everything that is in the way of the fail-over."""
        mirror = self.files.mirror
        offset_map = OffsetMap.open(self._storage, mirror=mirror.mirror)
        metadata = reach(self._target, mirror.target_cluster_name, request_deadline())
        offset_map.require_clusters(target=metadata.cluster_id)
        problems, positions = [], self._positions()
        if not offset_map.positions():
            problems.append(f"mirror {mirror.mirror} has copied nothing: there is nothing to fail over to")
        elif not positions:
            problems.append(
                f"mirror {mirror.mirror} has copied nothing that was not moved by a migration: there is nothing to fail over"
            )
        problems += self._moved_problems({source.topic for source in positions})
        if not self.despite_source and self.source_answers():
            problems.append(
                f"{mirror.source_cluster_name} answers: `shallow-mirror migrate` moves without loss; if it has to be a fail-over "
                "all the same, give --despite-source"
            )
        older = older_tables(mirror)
        if older is not None:
            problems.append(str(older))
        elif any(report.needs_choice for report in inspect(mirror)):
            problems.append(f"a decision needs the operator: run `shallow-mirror recover {self.files.config.mirror}` first")
        problems += self._preserved_problems(positions.values())
        view = UserView(self._target, mirror.target_cluster_name)
        problems += missing_in_transactions(view, transactional_id(mirror.mirror, 0), "the mirror's transactions are resolved")
        if mirror.acls.read_only:
            problems += missing_to_change_acls(view, "the Deny ACLs of acls.read_only are deleted there")
        problems += missing_on_groups(view, self.recorded_groups(), "the groups' offsets are committed there")
        problems += unready(self.files.config.hooks)
        return problems

    def _moved_problems(self, topics: Collection[str]) -> list[str]:
        """Return that topics are in use at the target already: their positions are those of before the move."""
        moved = sorted(self._moved().intersection(topics))
        if not moved:
            return []
        return [
            f"a migration has moved {named(moved)} to {self.target_alias}, or is moving them: the mirror does not copy them any "
            "more, also behind a rollback. `shallow-mirror migrate rollback` brings back what has moved (`migrate abort` before "
            f"the point of no return). Write them to topics.exclude of {self.files.config.mirror}: they stay where they are, and "
            "the rest fails over"
        ]

    def _preserved_problems(self, positions: Collection[Position]) -> list[str]:
        """Return that the mirror has to be stopped: what it writes without transactions, nothing can fence."""
        if not any(position.shared_producer_id is not None for position in positions):
            return []
        run = run_of(self.files.mirror)
        if run is None or run.is_over or run.is_alive is None:
            return []
        return [f"{run.description} of mirror {self.files.mirror.mirror} runs, and preserves offsets: stop it first"]

    def recorded_groups(self) -> list[str]:
        """Return the groups whose offsets the mirror has recorded and that continue at the target."""
        try:
            recorded = positions_as_of(self._storage.best_effort_tables(), datetime.now(UTC))
        except ConfigError:  # groups.sync was off: `move_groups` says what that means
            return []
        left_out = self._left_out()
        names = {position.group for position in recorded.positions if position.source.topic not in left_out}
        included = (self.files.config.groups, self.files.mirror.groups)
        return sorted(name for name in names if all(patterns.is_included(name) for patterns in included))

    def fence(self) -> Detail:
        """End the mirror for good and resolve its transactions. Return where it ended."""
        mirror = self.files.mirror
        topics = self.topics()
        require_newest_tables(mirror)
        controls = Controls.open(TableStorage.to_write(mirror.table_location, mirror.tables_writer))
        # Before the take-over: a run that starts meanwhile is ended by one of the two.
        if new := [topic for topic in topics if topic not in controls.read().failed_over]:
            controls.add("fail-over", new)
        deadline = Deadline.after_ms(FENCE_MS, time.monotonic)
        with open_operator_session(mirror, "failover", deadline, spark=None, reads_source=False) as session:
            session.recover(deadline)
            self._note(controls)
            session.owner.settle()
            positions = controls.read().forgotten.without(session.owner.positions())
            positions = {source: position for source, position in positions.items() if source.topic in topics}
            session.end.outcome = "failover: ended the mirror"
        targets = sorted({position.target.topic for position in positions.values()})
        ends = list_log_ends(self._target, targets, request_deadline())
        copied = self._copied_ends(positions, ends)
        seen = planner_state.read_state(planner_state.planner_state_path(mirror.checkpoint), planner_state.PlannerState)
        partitions = [
            {
                "topic": source.topic,
                "topic_id": source.topic_id,
                "partition": source.partition,
                "start": position.start,
                "end": copied[source],
                "seen_end": None if seen is None else max(position.offset, seen.ends.get(source, 0)),
            }
            for source, position in sorted(positions.items())
        ]
        return {
            "mirror": mirror.mirror,
            "partitions": partitions,
            "seen_at_ms": None if seen is None else seen.at_ms,
            "open": [f"{name} from offset {ends[name].stable:,}" for name in open_partitions(ends)],
        }

    def _copied_ends(
        self, positions: Mapping[SourcePartition, Position], ends: Mapping[TopicPartition, LogEnd]
    ) -> dict[SourcePartition, int]:
        """Return the source offset up to which the target has the copies. `ends`: of its logs."""
        copied, lost = dict[SourcePartition, int](), dict[SourcePartition, int]()
        for source, position in positions.items():
            log = ends.get(position.target.topic_partition)
            copied[source] = position.offset
            if log is not None and log.end < position.target_end:
                lost[source] = log.end
            elif log is not None and position.shared_producer_id is not None:
                # Records of preserved partitions count as soon as they are in the log, whatever the map says.
                copied[source] = max(position.offset, log.end)
        below = ends_below(OffsetMap.open(self._storage, mirror=self.files.mirror.mirror), lost)
        return copied | {source: max(positions[source].start, end) for source, end in below.items()}

    def open_topics(self) -> int:
        """Let others write to the topics at the target. Return how many Deny ACLs were deleted."""
        return open_topics(self.files.mirror, None)

    def report_groups(self, as_of: datetime, *, is_applied: bool) -> GroupsReport | None:
        """Translate the recorded offsets, and commit them if `is_applied`. None: nothing was recorded."""
        names = self.recorded_groups()
        if not names:
            return None
        pattern = "|".join(re.escape(name) for name in names)
        left_out = self._left_out()
        return sync_groups(
            self.files.mirror, pattern=pattern, as_of=as_of, left_out=left_out, is_applied=is_applied, keeps_handed_over=False
        )

    def move_groups(self) -> Detail:
        report = self.report_groups(datetime.now(UTC), is_applied=True)
        if report is None or report.as_of is None:
            committed = self._moved_digests()
            return {"groups": 0, "offsets": 0, "nearest": 0, "observed_at": None, "left": [], "committed": committed}
        groups, nearest = report.groups, 0
        if self.files.config.groups.inexact == "nearest":
            with closing(GroupClient(self.files.mirror.target.client, self.files.mirror.target_cluster_name)) as client:
                moved = [_commit_nearest(client, group) for group in groups]
            groups, nearest = tuple(group for group, _ in moved), sum(count for _, count in moved)
        partitions = [partition for group in groups for partition in group.partitions]
        mirrored = [partition for partition in partitions if partition.outcome is not Outcome.NOT_MIRRORED]
        return {
            "groups": len(groups),
            "offsets": sum(not partition.is_left for partition in mirrored),
            "nearest": nearest,
            "observed_at": report.as_of.observed_at.isoformat(),
            "left": [
                f"{partition.group}: {partition.topic_partition}: {partition.reason or partition.outcome.value}"
                for partition in mirrored
                if partition.is_left
            ],
            "committed": self._moved_digests(),
        }

    def _moved_digests(self) -> dict[str, str]:
        return moved_digests(self.files, self._positions())

    def abort_problems(self, state: FailoverState, *, despite_groups: bool) -> list[str]:
        """Return everything that is in the way of taking the fail-over back."""
        if not self.source_answers():
            return [f"{self.files.mirror.source_cluster_name} does not answer: there is nothing to go back to"]
        require_newest_tables(self.files.mirror)  # those of before the fail-over do not know that it ended the mirror
        offset_map = OffsetMap.open(self._storage, mirror=self.files.mirror.mirror)
        metadata = reach(self._target, self.files.mirror.target_cluster_name, request_deadline())
        offset_map.require_clusters(target=metadata.cluster_id)
        positions = self._positions()
        return [
            *source_problems(self.files, offset_map),
            *target_problems(self.files, self._target, positions, state),
            *group_problems(self.files, positions, state, despite_groups=despite_groups),
        ]

    def release(self, state: FailoverState, *, despite_groups: bool) -> list[str]:
        """Let the mirror start again, unless there are problems, which are returned as by `abort_problems`."""
        mirror = self.files.mirror
        require_newest_tables(mirror)
        controls = Controls.open(TableStorage.to_write(mirror.table_location, mirror.tables_writer))
        # None: a command was killed behind the rows. The mirror may write again, and is no problem.
        if fenced := sorted(controls.read().failed_over):
            if problems := self.abort_problems(state, despite_groups=despite_groups):
                return problems
            controls.add("abort-fail-over", fenced)
        self._note(controls)
        return []

    def _note(self, controls: Controls) -> None:
        """Note the newest row on the target, so that older tables are noticed. Raises OlderTablesError, RetriableError."""
        mirror = self.files.mirror
        map_id = OffsetMap.open(self._storage, mirror=mirror.mirror).map_id
        if not NewestControl(mirror.target.client, mirror.mirror, map_id).note(controls.read().rows):
            raise RetriableError("NOT_NOTED", f"{mirror.target_cluster_name} has not taken the newest row of the table controls")

    def count_losses(self, state: FailoverState) -> Detail:
        """Return what each group repeats and lacks at most."""
        observed_at = state.done[Step.MOVE_GROUPS]["observed_at"]
        report = None if observed_at is None else self.report_groups(datetime.fromisoformat(observed_at), is_applied=False)
        if report is None:
            return {"groups": {}}
        fenced = state.done[Step.FENCE]
        ends, seen = dict[SourcePartition, int](), dict[SourcePartition, int]()
        for row in fenced["partitions"]:
            source = SourcePartition(row["topic"], row["topic_id"], row["partition"])
            ends[source] = row["end"]
            if row["seen_end"] is not None:
                seen[source] = row["seen_end"]
        counter = CopiedCounter(to_count(report))
        offset_map = OffsetMap.open(self._storage, mirror=self.files.mirror.mirror)
        for rows in offset_map.settled_pieces((Comparison("source_end", ">", counter.lowest),), COUNT_COLUMNS):
            counter.add(rows)
        # Writers may be at the target by now: what they write is behind the ends of when the mirror was fenced.
        behind = {
            source: OffsetRange(lowest, end)
            for source, end in ends.items()
            if (lowest := counter.lowest_of(source)) is not None and lowest < end
        }
        counter.add(count_rows(undecided_copies(self._target, offset_map.positions(), behind)))
        losses = losses_of(report, counter.counts, ends, None if fenced["seen_at_ms"] is None else seen)
        return {"groups": {name: [loss.document() for loss in found] for name, found in losses.items()}}


def _commit_nearest(client: GroupClient, group: Group) -> tuple[Group, int]:
    """Commit the nearest offset where there is no exact one, never backwards. Return the group, and how many it has by that.

    A conductor that was killed behind its commit, or a fail-over that was aborted, has left the nearest offset in place.
    """
    if group.clients:
        return group, 0
    offsets = {
        partition.to_topic_partition: (partition.to_offset, partition.metadata)
        for partition in group.partitions
        if _is_inexact(partition)
        and partition.to_topic_partition is not None
        and partition.to_offset is not None
        and (partition.has is None or partition.has < partition.to_offset)
    }
    refused = client.commit(group.name, offsets) if offsets else {}
    # As of exact offsets: the offset matters more than what an application noted beside it.
    bare = {place: (offsets[place][0], "") for place, why in refused.items() if why == METADATA_TOO_LARGE}
    if bare:
        refused = {place: why for place, why in refused.items() if place not in bare} | client.commit(group.name, bare)
    partitions = tuple(
        partition
        if not _is_inexact(partition)
        else partition._replace(step=GroupStep.REFUSED, reason=refused[partition.to_topic_partition])
        if partition.to_topic_partition in refused
        else partition._replace(step=GroupStep.COMMITTED, has=partition.to_offset)
        if partition.to_topic_partition in offsets
        else partition._replace(step=GroupStep.IN_PLACE if partition.has == partition.to_offset else GroupStep.FURTHER)
        for partition in group.partitions
    )
    return replace(group, partitions=partitions), sum(
        _is_inexact(partition) and partition.step in (GroupStep.COMMITTED, GroupStep.IN_PLACE) for partition in partitions
    )


def _is_inexact(partition: GroupPartition) -> bool:
    return partition.outcome in (Outcome.WAITS, Outcome.LOST) and partition.to_offset is not None

"""Driver: effects and observations of a fail-over: the target, the tables of the mirror, and the source once it has returned."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shallow_mirror.access import open_topics
from shallow_mirror.broker import Cluster, delete_topic_by_id
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs import positions_as_of
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.deadline import Deadline, request_deadline
from shallow_mirror.errors import ConfigError, CopiesDifferError, MirrorError, RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step as GroupStep
from shallow_mirror.groups.sync_once import REQUEST_S, sync_groups
from shallow_mirror.groups.sync_plan import GroupOffsets, committed_offsets
from shallow_mirror.migration.conductor_ports import Detail
from shallow_mirror.migration.failover.abort import group_problems, moved_digests, source_problems, target_problems
from shallow_mirror.migration.failover.conductor import Reports
from shallow_mirror.migration.failover.divergence import Divergence
from shallow_mirror.migration.failover.losses import COUNT_COLUMNS, CopiedCounter, losses_of, to_count
from shallow_mirror.migration.failover.state import FailoverState
from shallow_mirror.migration.failover.steps import Step
from shallow_mirror.migration.hooks.hook_call import unready
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import LogEnds, MirrorRun, named, open_partitions
from shallow_mirror.migration.passage import commit_id, run_of
from shallow_mirror.migration.permissions import UserView, missing_in_transactions, missing_on_groups, missing_to_change_acls
from shallow_mirror.migration.reverse_mirror import reverse_positions
from shallow_mirror.migration.sentences import release_sentences
from shallow_mirror.migration.session import Options, abort, read_newest_state, run_migration
from shallow_mirror.migration.state import Phase, WaveState
from shallow_mirror.migration.steps import Step as MigrationStep
from shallow_mirror.migration.topic_ids import copied_ids, lost_topics
from shallow_mirror.operations.operator_session import open_operator_session
from shallow_mirror.operations.recover import inspect, older_tables, require_newest_tables
from shallow_mirror.sinks.kafka import NewestControl, transactional_id
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import OffsetRange, SourcePartition, TopicPartition

PROBE_MS = 3_000
"""After which a source that has not answered counts as gone."""
FENCE_MS = 120_000
_GONE_MS = 30_000
_WAVE = "back"


@dataclass(slots=True)
class FailoverEffects:
    """Effects are idempotent: after a crash each may be called again. Nothing before `back_problems` needs the source.

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
    _ends_to_fill: LogEnds | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._target = Cluster(self.files.mirror.target.client)

    def close(self) -> None:
        self._target.close()

    @property
    def source_alias(self) -> str:
        return self.files.mirror.source.alias

    @property
    def target_alias(self) -> str:
        return self.files.mirror.target.alias

    @property
    def back_file(self) -> str | None:
        return self.files.config.back.mirror

    @property
    def starts_back(self) -> bool:
        return self.files.config.back.start == "conductor"

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
        """Return the positions of the map, without those of topics that do not fail over."""
        left_out = self._left_out()
        positions = OffsetMap.open(self._storage, mirror=self.files.mirror.mirror).positions()
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
        seen = planner_state.read_state(planner_state.planner_state_path(mirror.checkpoint), planner_state.PlannerState)
        partitions = [
            {
                "topic": source.topic,
                "topic_id": source.topic_id,
                "partition": source.partition,
                "start": position.start,
                # Records of preserved partitions count as soon as they are in the log, whatever the map says.
                "end": max(position.offset, self._end_of(position, ends)),
                "seen_end": None if seen is None else max(position.offset, seen.ends.get(source, 0)),
            }
            for source, position in sorted(positions.items())
        ]
        return {
            "partitions": partitions,
            "seen_at_ms": None if seen is None else seen.at_ms,
            "open": [f"{name} from offset {ends[name].stable:,}" for name in open_partitions(ends)],
        }

    @staticmethod
    def _end_of(position: Position, ends: Mapping[TopicPartition, Any]) -> int:
        log = ends.get(position.target.topic_partition)
        return log.end if log is not None and position.shared_producer_id is not None else 0

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
        return sync_groups(self.files.mirror, pattern=pattern, as_of=as_of, left_out=left_out, is_applied=is_applied)

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
        losses = losses_of(report, counter.counts, ends, None if fenced["seen_at_ms"] is None else seen)
        return {"groups": {name: [loss.document() for loss in found] for name, found in losses.items()}}

    def back_problems(self, state: FailoverState) -> list[str]:
        """Return everything that is in the way of the way back, and that waiting does not change."""
        files, back = self.files, self.files.back
        if back is None:
            return [f"{files.config.path}: back.mirror: is not set: name the mirror file that fills the old topics again"]
        mirror, problems = files.mirror, list[str]()
        with closing(Cluster(mirror.source.client)) as source:
            found_id = reach(source, mirror.source_cluster_name, request_deadline()).cluster_id
        known_id = OffsetMap.open(self._storage, mirror=mirror.mirror).source_cluster_id
        if found_id != known_id:
            return [
                f"{mirror.source_cluster_name} is another cluster (id {found_id}) than the one that failed ({known_id}): mirror "
                "everything into it as into a new one, and move there with `shallow-mirror migrate`"
            ]
        topics = sorted(self.topic_ids(state))
        if not topics:
            problems.append(f"{mirror.source_cluster_name} has none of the topics: run the mirror back, and `migrate`")
        problems += _selection_problems(back, topics)
        taken = sorted(files.kept_topic(topic) for topic in topics if files.kept_topic(topic) in topics)
        if taken:
            problems.append(f"back.kept: {named(taken)} is a mirrored topic: give another name")
        problems += unready([*files.config.hooks, *files.config.back.hooks])
        if reverse_positions(back):
            problems.append(
                f"mirror {back.mirror} has run before the old topics were deleted: give it another mirror id and other tables"
            )
        return problems

    def active_groups(self) -> list[str]:
        """Return the groups that have members at the source."""
        mirror, wanted = self.files.mirror, self.files.config.groups
        with closing(GroupClient(mirror.source.client, mirror.source_cluster_name)) as groups:
            listed = groups.listed().values()
        return sorted(group.name for group in listed if wanted.is_included(group.name) and not group.is_free)

    def _divergence(self) -> Divergence:
        return Divergence(self.files)

    def _mirrored(self, state: FailoverState) -> dict[str, tuple[str, dict[TopicPartition, OffsetRange]]]:
        mirrored: dict[str, tuple[str, dict[TopicPartition, OffsetRange]]] = {}
        for row in state.done[Step.FENCE]["partitions"]:
            _, ranges = mirrored.setdefault(row["topic"], (row["topic_id"], {}))
            ranges[TopicPartition(row["topic"], row["partition"])] = OffsetRange(row["start"], row["end"])
        return mirrored

    def open_at_source(self, state: FailoverState) -> list[str]:
        return self._divergence().open_partitions(sorted(self.topic_ids(state)))

    def topic_ids(self, state: FailoverState) -> dict[str, str]:
        return self._divergence().topic_ids(self._mirrored(state))

    def diverged(self, state: FailoverState, ids: Mapping[str, str]) -> list[LateWrite]:
        now = self.topic_ids(state)
        same = {topic: topic_id for topic, topic_id in ids.items() if now.get(topic) == topic_id}
        mirrored = self._mirrored(state) | self._filled(state, same)
        return self._divergence().find(same, mirrored, [LateWrite.of(write) for write in state.keeping])

    def _filled(self, state: FailoverState, ids: Mapping[str, str]) -> dict[str, tuple[str, dict[TopicPartition, OffsetRange]]]:
        """Return what mirrors back have copied into those of the topics `ids` that they created. The target has all of it."""
        filled: dict[str, tuple[str, dict[TopicPartition, OffsetRange]]] = {}
        for former in state.filled_by:
            for position in _positions_of(self._mirror_back(former)).values():
                name, topic_id = position.target.topic_partition, position.target.topic_id
                if ids.get(name.topic) == topic_id:
                    _, ranges = filled.setdefault(name.topic, (topic_id, {}))
                    ranges[name] = OffsetRange(0, position.offset)  # offsets are preserved
        return filled

    def keep(self, write: LateWrite) -> Detail:
        return self._divergence().keep(write)

    def compare_kept(self, writes: Sequence[LateWrite]) -> list[str]:
        return self._divergence().compare(writes)

    def delete_topics(self, ids: Mapping[str, str]) -> None:
        """Delete these topics at the source, and wait until their names are free. Topics that have these names by now stay."""
        mirror = self.files.mirror
        deadline = Deadline.after_ms(_GONE_MS, time.monotonic)
        with closing(Cluster(mirror.source.client)) as source:
            reach(source, mirror.source_cluster_name, deadline)
            for name, topic_id in ids.items():
                delete_topic_by_id(source, name, topic_id, deadline)
            while left := [
                name
                for name, topic in source.metadata(list(ids), deadline).topics.items()
                if topic.error_code == 0 and topic.topic_id == ids[name]
            ]:
                if deadline.is_over():
                    raise RetriableError("DEADLINE", f"{mirror.source_cluster_name} still has {named(left)}")
                self.options.clock.sleep(0.1)

    def back(self) -> Detail:
        """Return which mirror fills the topics, for a row."""
        assert self.files.back is not None, "the check asks for it"
        return {"mirror": self.files.back.mirror, "tables": self.files.back.tables}

    def _mirror_back(self, noted: Mapping[str, Any]) -> MirrorConfig:
        """Return the settings of a mirror back that a row names: those of the present one, with its id and tables."""
        assert self.files.back is not None, "the check asks for it"
        return self.files.back.model_copy(update={"mirror": noted["mirror"], "tables": noted["tables"]})

    def replacing_problems(self, state: FailoverState, topics: Sequence[str]) -> list[str]:
        """Return why the mirror back cannot take the place of the one that has begun to fill the topics."""
        back, former = self.files.back, state.filling
        assert back is not None, "the check asks for it"
        assert former is not None, "nothing is replaced"
        wave = self._wave(topics)
        if wave.phase is Phase.MOVED or (wave.is_under_way and not wave.can_abort):
            return [
                f"{self.files.config.path}: back.mirror: is {back.mirror} now, but {former['mirror']} has filled the topics, and "
                f"their writers may be at {self.source_alias} already: undo that change"
            ]
        problems = _selection_problems(back, topics)
        if _positions_of(back):
            problems.append(f"mirror {back.mirror} has run already: give it another mirror id and other tables")
        return problems

    def run_of_replaced(self, former: Detail) -> MirrorRun | None:
        return run_of(self._mirror_back(former))

    def take_back(self, former: Detail, topics: Sequence[str]) -> None:
        """Abort the wave that was begun with a mirror back that is replaced, unless none is under way."""
        wave = self._wave(topics)
        if not wave.is_under_way:
            return
        files = self._migration(topics, self.groups_of(topics))
        if wave.next_step is not None and wave.next_step.step is MigrationStep.COMMIT_GROUPS:
            commits = GroupOffsets(files.mirror, timeout_s=REQUEST_S, transactional_id=commit_id(former["mirror"]))
            with closing(commits) as groups:
                groups.other.begin_commits()  # takes back what a conductor has prepared that was killed
        abort(files, self.reports, self._migration_options, is_replaced=True)
        for sentence in release_sentences(files.wave(wave.name), self.target_alias):
            self.reports.says(f"{wave.name}: NOW: {sentence}")

    def filling_problems(self, topics: Sequence[str]) -> list[str]:
        """Return why the mirror back will never have filled the topics."""
        back = self.files.back
        assert back is not None, "the check asks for it"
        known = copied_ids(back) if _positions_of(back) else {}
        with closing(Cluster(back.target.client)) as source:
            reach(source, back.target_cluster_name, request_deadline())
            lost = sorted(lost_topics(source, {topic: topic for topic in topics if topic in known}, known))
        if not lost:
            excluded = [topic for topic in topics if not back.topics.is_included(topic)]
            return [f"{_not_copied(back, excluded)}: let it copy them, and restart it"] if excluded else []
        were, them = ("was", "it") if len(lost) == 1 else ("were", "them")
        return [
            f"{named(lost)} {were} deleted at {self.source_alias} since mirror {back.mirror} has begun to fill {them}: it copies "
            f"nothing of {them} any more. {self.target_alias} has every record. Stop that mirror, write another mirror id, other "
            f"tables and another checkpoint into {self.back_file}, exclude no topic, and run `{self._command}` again: what it "
            "has filled is deleted, and filled again by the other one"
        ]

    def prepare_back(self, topics: Sequence[str]) -> None:
        """Let the mirror back write to the topics: the mirror that copied them in the other direction has ended for good."""
        back = self.files.back
        assert back is not None, "the check asks for it"
        controls = Controls.open(TableStorage.to_write(back.table_location, back.tables_writer))
        if new := [topic for topic in topics if topic not in controls.read().received]:
            controls.add("receive", new)

    def back_run(self) -> MirrorRun | None:
        assert self.files.back is not None, "the check asks for it"
        return run_of(self.files.back)

    def start_back(self) -> str:
        assert self.back_file is not None, "the check asks for it"
        return str(self.options.launch(self.back_file, Path(f"{self.back_file}.log"), ()))

    def unfilled(self, topics: Sequence[str]) -> list[str]:
        """Return the partitions that the mirror back has not copied up to where they ended at the first look."""
        assert self.files.back is not None, "the check asks for it"
        if self._ends_to_fill is None:
            self._ends_to_fill = list_log_ends(self._target, topics, request_deadline())
        positions = reverse_positions(self.files.back)
        return sorted(str(name) for name, log in self._ends_to_fill.items() if positions.get(name, -1) < log.stable)

    def groups_of(self, topics: Sequence[str]) -> list[str]:
        """Return the groups that have offsets of these topics at the target, and come back with them."""
        mirror, wanted = self.files.mirror, self.files.config.groups
        with closing(GroupClient(mirror.target.client, mirror.target_cluster_name)) as groups:
            names = [name for name in sorted(groups.listed()) if wanted.is_included(name)]
            committed = committed_offsets(groups, names)
        return sorted({commit.group for commit in committed if commit.topic_partition.topic in topics})

    def hand_back(self, topics: Sequence[str], groups: Sequence[str]) -> Detail:
        """Move topics, groups and writers back, as a migration of one wave with the mirror back. Continues an earlier call."""
        self._require_filled(topics)
        try:
            state = run_migration(self._migration(topics, groups), self.reports, self._migration_options)
        except (ConfigError, CopiesDifferError) as error:
            # The migration names what a wave of several topics can do.
            self._require_filled(topics, error)
            raise
        wave = state.waves[_WAVE]
        if wave.phase is not Phase.MOVED:
            raise ConfigError(f"the wave back is {wave.phase}")
        moved = wave.done[MigrationStep.REPORT]
        return {"writers_stopped_s": moved["writers_stopped_s"], "records": moved["records_verified"], "groups": moved["groups"]}

    def _require_filled(self, topics: Sequence[str], cause: Exception | None = None) -> None:
        """Raise ConfigError if the mirror back will never have filled the topics, unless they are in use already."""
        wave = self._wave(topics)
        if not (wave.phase is Phase.AT_SOURCE or wave.can_abort):
            return
        if problems := self.filling_problems(topics):
            raise ConfigError(problems) from cause

    def _wave(self, topics: Sequence[str]) -> WaveState:
        return read_newest_state(self._migration(topics, ())).waves[_WAVE]

    @property
    def _command(self) -> str:
        return f"shallow-mirror failover back {shlex.quote(self.files.config.path)}"

    @property
    def _migration_options(self) -> Options:
        hooks = {hook.name for hook in self.files.config.back.hooks}
        return replace(self.options, skipped_hooks=self.options.skipped_hooks & hooks, command=self._command)

    def _migration(self, topics: Sequence[str], groups: Sequence[str]) -> MigrationFiles:
        """Return the migration of the last step."""
        config = self.files.config
        document = {
            "migration": f"{config.failover}-back",
            "mirror": config.back.mirror,
            "waves": [
                {
                    "name": _WAVE,
                    "topics": [re.escape(topic) for topic in topics],
                    "groups": [re.escape(group) for group in groups],
                }
            ],
            "writers": config.writers.model_dump(mode="json"),
            "hooks": [hook.model_dump(mode="json") for hook in config.back.hooks],
            "tables": f"{config.tables}/back",
            "storage": config.storage.model_dump(mode="json"),
        }
        return MigrationFiles(MigrationConfig.from_document(document, folder=Path(config.path).parent, path=config.path))


def _positions_of(mirror: MirrorConfig) -> dict[SourcePartition, Position]:
    """Return the positions of a mirror; none before it has a map."""
    storage = TableStorage(mirror.table_location)
    if storage.offset_map.snapshot() is None:
        return {}
    return OffsetMap.open(storage, mirror=mirror.mirror).positions()


def _selection_problems(back: MirrorConfig, topics: Collection[str]) -> list[str]:
    """Return topics that the mirror back does not copy, or not with their offsets."""
    excluded = [topic for topic in topics if not back.topics.is_included(topic)]
    problems = [_not_copied(back, excluded)] if excluded else []
    moved = [topic for topic in topics if not back.topics.is_preserved(topic)]
    if moved:
        problems.append(
            f'mirror {back.mirror} does not preserve the offsets of {named(moved)}: write offsets: {{".*": preserved}}'
        )
    return problems


def _not_copied(back: MirrorConfig, topics: Collection[str]) -> str:
    return f"mirror {back.mirror} does not copy {named(topics)} (topics.include, topics.exclude)"


def _commit_nearest(client: GroupClient, group: Group) -> tuple[Group, int]:
    """Commit the nearest offset where there is no exact one, never backwards. Return the group, and how many were committed."""
    inexact = [partition for partition in group.partitions if _is_inexact(partition)]
    offsets = {
        partition.to_topic_partition: (partition.to_offset, partition.metadata)
        for partition in inexact
        if partition.to_topic_partition is not None and partition.to_offset is not None
    }
    if not offsets or group.clients:
        return group, 0
    refused = client.commit(group.name, offsets)
    partitions = tuple(
        partition
        if not _is_inexact(partition)
        else partition._replace(step=GroupStep.REFUSED, reason=refused[partition.to_topic_partition])
        if partition.to_topic_partition in refused
        else partition._replace(step=GroupStep.COMMITTED, has=partition.to_offset)
        for partition in group.partitions
    )
    return replace(group, partitions=partitions), len(offsets) - len(refused)


def _is_inexact(partition: GroupPartition) -> bool:
    if partition.outcome not in (Outcome.WAITS, Outcome.LOST) or partition.to_offset is None:
        return False
    return partition.has is None or partition.has < partition.to_offset

"""Driver: effects and observations of the way back of a fail-over: the source that has returned, and the mirror that fills it."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shallow_mirror.broker import Cluster, delete_topic_by_id
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.deadline import Deadline, request_deadline
from shallow_mirror.errors import ConfigError, CopiesDifferError, RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_once import REQUEST_S
from shallow_mirror.groups.sync_plan import GroupOffsets, committed_offsets
from shallow_mirror.migration.conductor_ports import Detail
from shallow_mirror.migration.failover.conductor import Reports
from shallow_mirror.migration.failover.divergence import Divergence
from shallow_mirror.migration.failover.expired_copies import expired_ends
from shallow_mirror.migration.failover.state import FailoverState
from shallow_mirror.migration.failover.steps import Step
from shallow_mirror.migration.failover.undecided_copies import undecided_ends
from shallow_mirror.migration.hooks.hook_call import unready
from shallow_mirror.migration.late_writes import LateWrite, find_late_writes
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import LogEnds, MirrorRun, named
from shallow_mirror.migration.passage import commit_id, run_of
from shallow_mirror.migration.reverse_mirror import positions_of, reverse_positions
from shallow_mirror.migration.sentences import release_sentences
from shallow_mirror.migration.session import Options, abort, read_newest_state, run_migration
from shallow_mirror.migration.state import Phase, WaveState
from shallow_mirror.migration.steps import Direction, Step as MigrationStep
from shallow_mirror.migration.topic_ids import copied_ids, lost_topics
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.sinks.kafka.targets.settings import pause_of
from shallow_mirror.types import OffsetRange, SourcePartition

_GONE_MS = 30_000
_LOOK_MS = 120_000
_WAVE = "back"


@dataclass(slots=True)
class WayBack:
    """Effects are idempotent: after a crash each may be called again. Raises as `FailoverEffects`."""

    files: FailoverFiles
    reports: Reports
    options: Options
    target: Cluster
    """That of the mirror: of which the topics come back."""
    _ends_to_fill: LogEnds | None = field(default=None, init=False)
    _seen_ends: LogEnds = field(default_factory=dict, init=False)
    """Of the old source, when it was looked last for what only that has."""

    @property
    def source_alias(self) -> str:
        return self.files.mirror.source.alias

    @property
    def target_alias(self) -> str:
        return self.files.mirror.target.alias

    @property
    def starts_back(self) -> bool:
        return self.files.config.back.start == "conductor"

    @property
    def back_file(self) -> str | None:
        return self.files.config.back.mirror

    def back_problems(self, state: FailoverState) -> list[str]:
        """Return everything that is in the way of the way back, and that waiting does not change."""
        files, back = self.files, self.files.back
        if back is None:
            return [f"{files.config.path}: back.mirror: is not set: name the mirror file that fills the old topics again"]
        mirror, problems = files.mirror, list[str]()
        with closing(Cluster(mirror.source.client)) as source:
            found_id = reach(source, mirror.source_cluster_name, request_deadline()).cluster_id
        known_id = OffsetMap.open(mirror.table_location, mirror=mirror.mirror).source_cluster_id
        if found_id != known_id:
            return [
                f"{mirror.source_cluster_name} is another cluster (id {found_id}) than the one that failed ({known_id}): mirror "
                "everything into it as into a new one, and move there with `shallow-mirror migrate`"
            ]
        require_newest_tables(mirror)  # those of before the fail-over do not know what was mirrored, nor that it has ended
        if not Controls.open(TableStorage(mirror.table_location)).read().failed_over:
            return [
                f"mirror {mirror.mirror} is not failed over any more, by its tables: it may copy from {self.source_alias} again, "
                f"whose topics `failover back` would delete. If {self.target_alias} is to take its place all the same, fail over "
                "again, with another name (failover) and other tables in the file"
            ]
        ids = self.topic_ids(state)
        topics = sorted(ids)
        if not any(ids.values()):
            problems.append(f"{mirror.source_cluster_name} has none of the topics: run the mirror back, and `migrate`")
        problems += _selection_problems(back, topics)
        taken = sorted(files.kept_topic(topic) for topic in topics if files.kept_topic(topic) in topics)
        if taken:
            problems.append(f"back.kept: {named(taken)} is a mirrored topic: give another name")
        problems += self._kept_topic_problems(topics)
        problems += self._spanning_problems(topics)
        problems += self._left_group_problems(topics)
        problems += unready([*files.config.hooks, *files.config.back.hooks])
        if reverse_positions(back):
            problems.append(
                f"mirror {back.mirror} has run before the old topics were deleted: give it another mirror id and other tables"
            )
        return problems

    def _kept_topic_problems(self, topics: Collection[str]) -> list[str]:
        """Return the topics of kept records that exist, and of which brokers would delete the only copy of what they get."""
        listed = self.target.metadata(sorted(map(self.files.kept_topic, topics)), request_deadline()).topics
        existing = sorted(name for name, topic in listed.items() if topic.error_code == 0)
        settings = self.target.topic_configs(existing, request_deadline()) if existing else {}
        pauses = {name: pause_of({"cleanup.policy": "delete", **settings[name]}) for name in existing}
        return [
            f"back.kept: topic {name} exists at {self.target_alias}, and brokers would delete records that are kept there: set "
            f"{', '.join(f'{setting}={value}' for setting, value in pause.items())} on it, or give another name"
            for name, pause in pauses.items()
            if pause
        ]

    def active_groups(self) -> list[str]:
        """Return the groups that have members at the source."""
        mirror, wanted = self.files.mirror, self.files.config.groups
        with closing(GroupClient(mirror.source.client, mirror.source_cluster_name)) as groups:
            listed = groups.listed().values()
        return sorted(group.name for group in listed if wanted.is_included(group.name) and not group.is_free)

    def _divergence(self) -> Divergence:
        return Divergence(self.files)

    @staticmethod
    def _mirrored(state: FailoverState) -> dict[SourcePartition, OffsetRange]:
        """Return what was mirrored, of each incarnation of a topic: of one that was created again, the map has several."""
        return {
            SourcePartition(row["topic"], row["topic_id"], row["partition"]): OffsetRange(row["start"], row["end"])
            for row in state.done[Step.FENCE]["partitions"]
        }

    def open_at_source(self, state: FailoverState) -> list[str]:
        return self._divergence().open_partitions([topic for topic, topic_id in self.topic_ids(state).items() if topic_id])

    def topic_ids(self, state: FailoverState) -> dict[str, str]:
        checked = [topic for step in (Step.CHECK_BACK, Step.KEEP) for topic in state.done.get(step, {}).get("topics", ())]
        forgotten = Controls.open(TableStorage(self.files.mirror.table_location)).read().forgotten
        return self._divergence().topic_ids({*checked, *(source.topic for source in self._mirrored(state))}, forgotten)

    def diverged(self, state: FailoverState, ids: Mapping[str, str]) -> list[LateWrite]:
        require_newest_tables(self.files.mirror)  # older ones do not know of every cut of a log that the mirror has seen
        now = self.topic_ids(state)
        same = {topic: topic_id for topic, topic_id in ids.items() if topic_id and now.get(topic) == topic_id}
        at_target = self.target.metadata(sorted(same), request_deadline()).topics if same else {}
        copies = {topic: listed.topic_id for topic, listed in at_target.items()}
        positions = positions_of(self.files.mirror)
        fenced = {
            source: offsets
            for source, offsets in self._mirrored(state).items()
            if same.get(source.topic) == source.topic_id
            # A target topic that was created again has none of it.
            and ((position := positions.get(source)) is None or position.target.topic_id == copies.get(position.target.topic))
        }
        copied = {source: position for source, position in positions.items() if source in fenced}
        fenced_ends = {source: offsets.end for source, offsets in fenced.items()}
        held = undecided_ends(self.target, copied, fenced_ends, Deadline.after_ms(_LOOK_MS, time.monotonic))
        # The target may have had less than the map says: the end of its log was lost before the fail-over.
        ends = {source: min(end, held.get(source, end)) for source, end in fenced_ends.items()}
        expired = self._expired_ends(copied)
        starts = {source: max(offsets.start, expired.get(source, 0)) for source, offsets in fenced.items()}
        mirrored = {source: OffsetRange(start, max(start, ends[source])) for source, start in starts.items()}
        mirrored |= self._filled(state, same, copies)
        divergence = self._divergence()
        found = divergence.find(same, mirrored, [LateWrite.of(write) for write in state.keeping], positions)
        self._seen_ends = divergence.seen_ends
        return found

    def _expired_ends(self, copied: Mapping[SourcePartition, Position]) -> dict[SourcePartition, int]:
        mirror = self.files.mirror
        offset_map = OffsetMap.open(TableStorage(mirror.table_location), mirror=mirror.mirror)
        with closing(Cluster(mirror.source.client)) as source:
            reach(source, mirror.source_cluster_name, request_deadline())
            return expired_ends(source, self.target, copied, offset_map)

    def _filled(
        self, state: FailoverState, ids: Mapping[str, str], copies: Mapping[str, str]
    ) -> dict[SourcePartition, OffsetRange]:
        """Return what mirrors back have copied into those of the topics `ids` that they created, and that the target has.

        `copies`: ids of the topics at the target, by name.
        """
        return {
            SourcePartition(target.topic, target.topic_id, target.partition): OffsetRange(0, position.offset)  # as preserved
            for former in state.filled_by
            for source, position in positions_of(self._mirror_back(former)).items()
            if ids.get((target := position.target).topic) == target.topic_id and copies.get(source.topic) == source.topic_id
        }

    def keep(self, write: LateWrite) -> Detail:
        return self._divergence().keep(write)

    def compare_kept(self, writes: Sequence[LateWrite]) -> list[str]:
        return self._divergence().compare(writes)

    def delete_topics(self, ids: Mapping[str, str]) -> list[str]:
        """Delete these topics at the source, and wait until their names are free. Topics that have these names by now stay.

        Return the topics that were written to since `diverged` has looked: they stay as well.
        """
        mirror, written = self.files.mirror, list[str]()
        with closing(Cluster(mirror.source.client)) as source:
            reach(source, mirror.source_cluster_name, request_deadline())
            for name, topic_id in ids.items():
                if topic_id and self._is_written(source, name):
                    written.append(name)
                elif topic_id:
                    delete_topic_by_id(source, name, topic_id, request_deadline())
            deleted = {name: topic_id for name, topic_id in ids.items() if topic_id and name not in written}
            deadline = Deadline.after_ms(_GONE_MS, time.monotonic)
            while left := [
                name
                for name, topic in source.metadata(list(deleted), deadline).topics.items()
                if topic.error_code == 0 and topic.topic_id == deleted[name]
            ]:
                if deadline.is_over():
                    raise RetriableError("DEADLINE", f"{mirror.source_cluster_name} still has {named(left)}")
                self.options.clock.sleep(0.1)
        return written

    def _is_written(self, source: Cluster, topic: str) -> bool:
        ends = list_log_ends(source, [topic], request_deadline())
        return any(log != self._seen_ends.get(name) or log.stable < log.end for name, log in ends.items())

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
        if positions_of(back):
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
        known = copied_ids(back) if positions_of(back) else {}
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
            self._ends_to_fill = list_log_ends(self.target, topics, request_deadline())
        positions = reverse_positions(self.files.back)
        return sorted(str(name) for name, log in self._ends_to_fill.items() if positions.get(name, -1) < log.stable)

    def groups_of(self, topics: Sequence[str]) -> list[str]:
        """Return the groups that have offsets of these topics at the target, and come back with them."""
        return sorted(self._topics_of_groups(topics))

    def _topics_of_groups(self, topics: Collection[str]) -> dict[str, set[str]]:
        """Return the topics of each group that has offsets of `topics` at the target."""
        mirror, wanted = self.files.mirror, self.files.config.groups
        with closing(GroupClient(mirror.target.client, mirror.target_cluster_name)) as groups:
            names = [name for name in sorted(groups.listed()) if wanted.is_included(name)]
            committed = committed_offsets(groups, names)
        found: dict[str, set[str]] = {}
        for commit in committed:
            found.setdefault(commit.group, set()).add(commit.topic_partition.topic)
        return {group: read for group, read in found.items() if not read.isdisjoint(topics)}

    def _spanning_problems(self, topics: Collection[str]) -> list[str]:
        """Return the groups that read topics which only the target has, and which the mirror back copies."""
        back = self.files.back
        assert back is not None, "the check asks for it"
        problems = []
        for group, read in sorted(self._topics_of_groups(topics).items()):
            if others := sorted(topic for topic in read.difference(topics) if back.topics.is_included(topic)):
                them = "it" if len(others) == 1 else "them"
                problems.append(
                    f"group {group} reads {named(others)} as well, of which {self.target_alias} has the only log, so that what "
                    f"comes back does not include {them}: exclude {them} in {self.back_file} (topics.exclude), and restart that "
                    f"mirror if it runs: {them} and the offsets of {group} there stay at {self.target_alias}"
                )
        return problems

    def _left_group_problems(self, topics: Sequence[str]) -> list[str]:
        """Return the groups that have offsets of the topics at the source only: they are deleted with the topics."""
        mirror, wanted = self.files.mirror, (self.files.config.groups, self.files.mirror.groups)
        with closing(GroupClient(mirror.source.client, mirror.source_cluster_name)) as groups:
            names = [name for name in sorted(groups.listed()) if all(patterns.is_included(name) for patterns in wanted)]
            committed = committed_offsets(groups, names)
        at_source = {commit.group for commit in committed if commit.topic_partition.topic in topics}
        if not (left := sorted(at_source.difference(self.groups_of(topics)))):
            return []
        command = f"shallow-mirror groups {shlex.quote(self.files.config.mirror)} --group NAME --apply --force"
        return [
            f"groups have offsets of these topics at {self.source_alias} only, and Kafka deletes them with the topics: "
            f"{named(left)}: `{command}` commits them at {self.target_alias}, so that they come back; groups.exclude of "
            f"{self.files.config.path} gives them up"
        ]

    def hand_back(self, topics: Sequence[str], groups: Sequence[str]) -> Detail:
        """Move topics, groups and writers back, as a migration of one wave with the mirror back. Continues an earlier call.

        Return also what is left at the target: late writes, groups of the topics that are not among `groups`, other topics that
        the mirror back copies, Deny ACLs.
        """
        assert self.files.back is not None, "the check asks for it"
        self._require_filled(topics)
        migration = self._migration(topics, groups)
        try:
            state = run_migration(migration, self.reports, self._migration_options)
        except (ConfigError, CopiesDifferError) as error:
            # The migration names what a wave of several topics can do.
            self._require_filled(topics, error)
            raise
        wave = state.waves[_WAVE]
        if wave.phase is not Phase.MOVED:
            raise ConfigError(f"the wave back is {wave.phase}")
        moved = wave.done[MigrationStep.REPORT]
        return {
            "writers_stopped_s": moved["writers_stopped_s"],
            "records": moved["records_verified"],
            "groups": moved["groups"],
            # Looked for once more: an earlier call may have been killed behind its last step.
            "late_writes": [write.document() for write in find_late_writes(migration, migration.wave(_WAVE), wave)],
            "left_groups": sorted(set(self.groups_of(topics)).difference(groups)),
            "left_topics": sorted({source.topic for source in positions_of(self.files.back)}.difference(topics)),
            "denied": list(wave.denied.get(Direction.MOVE, ())),
        }

    def _require_filled(self, topics: Sequence[str], cause: Exception | None = None) -> None:
        """Raise ConfigError if the mirror back will never have filled the topics, or they cannot come back as they are; not if
        they are in use already.
        """
        wave = self._wave(topics)
        if not (wave.phase is Phase.AT_SOURCE or wave.can_abort):
            return
        problems = self.filling_problems(topics)
        if not problems and wave.phase is Phase.AT_SOURCE:  # a wave under way takes no other topics.exclude
            problems = self._spanning_problems(topics)
        if problems:
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

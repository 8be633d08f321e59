"""Effects and observations of one wave in one direction: two clusters, one mirror that copies, its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shallow_mirror import routing
from shallow_mirror.access import open_topics, write_deny
from shallow_mirror.broker import Cluster, ProducerState
from shallow_mirror.broker.admin.access import Acl
from shallow_mirror.broker.produce.txn import list_transactional_ids
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls, DeniedWrites, TopicControls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import ConfigError, OlderTablesError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.offset_translation import Side
from shallow_mirror.groups.report import GroupsReport
from shallow_mirror.groups.sync_once import REQUEST_S, sync_groups
from shallow_mirror.groups.sync_plan import GroupOffsets
from shallow_mirror.migration.blockers import problems_of
from shallow_mirror.migration.group_return import require_map_of_move, return_groups
from shallow_mirror.migration.late_writes import LateWrite, copying_mirror, find_late_writes
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.mirror_process import Launch, StartedMirror, start_process
from shallow_mirror.migration.observations import Compared, LogEnds, MappedEnd, MirrorRun, named
from shallow_mirror.migration.reverse_mirror import register_positions
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction
from shallow_mirror.migration.topic_ids import copied_ids, created_again, lost_topics, replaced_topics, source_ids
from shallow_mirror.migration.wave_groups import WaveGroups
from shallow_mirror.migration.writer_denies import WriterDenies
from shallow_mirror.migration.writer_rhythm import read_longest_pause_s
from shallow_mirror.operations.noted_controls import add_noted
from shallow_mirror.operations.recover import older_tables
from shallow_mirror.operations.status import read_run
from shallow_mirror.sinks.slots import FOLLOW_MS
from shallow_mirror.types import OffsetRange, TopicPartition
from shallow_mirror.verify import verify_mirror

SUSPENDED_MS = 3_600_000
"""So long after the end of an attempt a hand-over of one of its conductors is still one of that attempt."""


@dataclass(slots=True)
class Passage:
    """Effects are idempotent: after a crash each may be called again. Raises RetriableError if a cluster does not answer,
    OutcomeUnknownError if a table or a commit of offsets does not, ConfigError if an operator has to act."""

    files: MigrationFiles
    wave: WaveSettings
    direction: Direction
    on_progress: Callable[[Any], None] = lambda _: None
    boundary: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of a rollback: where the logs of the target ended at the point of no return of the move."""
    copied_by_move: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of a rollback: where the logs of the source ended then, all of which the move had copied."""
    moved_topics: frozenset[str] = frozenset()
    """Of a rollback: the topics that the move has moved, by their names at the target."""
    known_late_writes: Sequence[LateWrite] = ()
    """Of a rollback: records that a client wrote to the source after the move, and that were settled."""
    are_writers_denied_at_other: bool = False
    """Of a rollback: the move has created Deny ACLs, which the rollback deletes."""
    launch: Launch = start_process
    _origin: Cluster = field(init=False)
    _other: Cluster = field(init=False)
    _groups: GroupClient = field(init=False)
    _topics: tuple[str, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._origin, self._other = Cluster(self.mirror.source.client), Cluster(self.mirror.target.client)
        self._groups = GroupClient(self.mirror.source.client, self.mirror.source_cluster_name)

    def close(self) -> None:
        for connection in (self._origin, self._other, self._groups):
            connection.close()

    @property
    def mirror(self) -> MirrorConfig:
        """Return the mirror that copies in this direction. Raises ConfigError if the file does not name it any more."""
        return copying_mirror(self.files, self.wave, self.direction)

    @property
    def reverse(self) -> MirrorConfig | None:
        return self.files.reverses.get(self.wave.name)

    @property
    def origin_alias(self) -> str:
        return self.mirror.source.alias

    @property
    def other_alias(self) -> str:
        return self.mirror.target.alias

    def topics(self) -> tuple[str, ...]:
        """Return the topics of the wave that the origin has; the first answer is kept, so that a wave does not grow."""
        if self._topics is None:
            self._topics = self.listed_topics()
        return self._topics

    def listed_topics(self) -> tuple[str, ...]:
        """Return the topics that the origin has now and the patterns of the wave match, without forgotten ones.

        A rollback leaves later topics where they are if the operator has excluded them from the reverse mirror, also later ones
        with the names of topics that were moved and deleted. So it does with topics of which the other cluster has lost the copy.
        """
        ids, forgotten = self.topic_ids(), self._forgotten_ids()
        names = [name for name, topic_id in ids.items() if topic_id not in forgotten and self.wave.has_topic(name)]
        if self.direction is Direction.ROLLBACK:
            excluded = {name for name in names if not self.mirror.topics.is_included(name)}
            moved = excluded & self.moved_topics
            left = replaced_topics(self.mirror, {name: ids[name] for name in moved}) | self.lost_topics(moved)
            names = [name for name in names if name not in excluded or name in moved - left]
        # Internal topics are never mirrored, whichever pattern matches them.
        return tuple(sorted(name for name in names if not name.startswith(routing.INTERNAL_PREFIX)))

    def left_topics(self) -> frozenset[str]:
        """Of a rollback: return the moved topics that stay where the wave is, or were deleted there."""
        return self.moved_topics.difference(self.topics())

    def moved_with_others(self) -> frozenset[str]:
        """Of a rollback: return the topics that other waves have moved. Where a group continues there, this wave cannot know."""
        moved = frozenset[str]() if self.direction is Direction.MOVE else self._controls(self.files.mirror).read().moving
        return frozenset(topic for topic in moved if not self.wave.has_topic(topic))

    def replaced_topics(self) -> frozenset[str]:
        """Of a rollback: return the topics that were deleted since the move, and created again."""
        return created_again(self.topic_ids(), copied_ids(self.files.mirror)).intersection(self.topics())

    def lost_topics(self, names: Collection[str]) -> frozenset[str]:
        """Return those of `names` whose records the other cluster does not have any more: their topics there were deleted, and
        maybe created again, since the mirror copied to them; of a rollback since the move.
        """
        targets = {name: self.target_topic(name) for name in names}
        if self.direction is Direction.ROLLBACK:
            return lost_topics(self._other, targets, source_ids(self.files.mirror))
        known = copied_ids(self.mirror)
        return lost_topics(self._other, {name: target for name, target in targets.items() if target in known}, known)

    def forgotten_topics(self) -> tuple[str, ...]:
        """Return the topics that the origin has now and the mirror copies nothing of, because they are forgotten."""
        forgotten = self._forgotten_ids()
        return tuple(sorted(name for name, topic_id in self.topic_ids().items() if topic_id in forgotten)) if forgotten else ()

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of all topics of the origin, by name."""
        listed = self._origin.metadata(None, request_deadline()).topics
        return {name: topic.topic_id for name, topic in listed.items() if topic.error_code == 0}

    def _forgotten_ids(self) -> frozenset[str]:
        return self.controls().forgotten.topic_ids

    def use_topics(self, names: Sequence[str]) -> None:
        """Take the topics that the check of this wave recorded."""
        self._topics = tuple(names)

    def target_topic(self, topic: str) -> str:
        return routing.target_topic_name(self.mirror.topics.target_name, self.mirror.source.alias, topic)

    def run(self) -> MirrorRun | None:
        """Return the run of the mirror that copies; None before its first one."""
        return run_of(self.mirror)

    def log_ends(self) -> LogEnds:
        """Return the log ends of the topics at the origin."""
        return list_log_ends(self._origin, self.topics(), request_deadline())

    def longest_pause_s(self) -> float:
        """Return how long the writers at the origin pause, by the last batches of the topics."""
        return read_longest_pause_s(self._origin, self.mirror.source.client, self.log_ends())

    def producers(
        self, partitions: Sequence[TopicPartition], *, at_origin: bool = True
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the producers that the leaders of partitions remember."""
        cluster = self._origin if at_origin else self._other
        return cluster.describe_producers(partitions, request_deadline()) if partitions else {}

    def transactional_ids(self, producer_ids: Collection[int], *, at_origin: bool = True) -> dict[int, str]:
        """Return the transactional ids of producers that the user may describe. Raises BrokerTooOldError before Kafka 3.0."""
        return list_transactional_ids(self._origin if at_origin else self._other, producer_ids, request_deadline())

    def other_log_ends(self) -> LogEnds:
        """Return the log ends of their copies."""
        return list_log_ends(self._other, [self.target_topic(topic) for topic in self.topics()], request_deadline())

    @property
    def micro_batch_s(self) -> float:
        """Return how long a micro-batch of the mirror takes at most when it has caught up: it reads on for records to come."""
        topics = self.mirror.topics
        reads_on = self.mirror.read.transfer == "direct" and any(topics.is_preserved(topic) for topic in self.topics())
        return self.mirror.trigger_s + (FOLLOW_MS / 1000 if reads_on else 0)

    def mapped_ends(self) -> dict[TopicPartition, MappedEnd]:
        """Return the settled positions of the mirror, by partition of the origin."""
        positions = OffsetMap.open(TableStorage(self.mirror.table_location), mirror=self.mirror.mirror).positions()
        ids = self._groups.topic_ids(self.topics())
        return {
            source.topic_partition: MappedEnd(position.offset, position.target_end)
            for source, position in positions.items()
            # The map also has positions of former topics of the same names.
            if ids.get(source.topic) == source.topic_id
        }

    def older_tables(self) -> str | None:
        """Return what the target has from the mirror that its tables lack, and the way on; None if they have all."""
        older = older_tables(self.mirror)
        return None if older is None else str(older)

    def written_targets(self) -> frozenset[TopicPartition]:
        """Return the partitions of the other cluster to which the mirror has copied records, also those of former topics of the
        same names, and of a decision that is not settled yet."""
        offset_map = OffsetMap.open(TableStorage(self.mirror.table_location), mirror=self.mirror.mirror)
        # In this order: what is settled in between is among the positions.
        undecided = {row.segment.target.topic_partition for row in offset_map.unsettled_rows()}
        positions = offset_map.positions().items()
        copied = (source.topic_partition for source, position in positions if position.target_end)
        return frozenset(undecided | {TopicPartition(self.target_topic(name.topic), name.partition) for name in copied})

    def compare(self, after: Mapping[TopicPartition, MappedEnd]) -> Compared:
        """Verify the copies behind `after`."""
        known: dict[TopicPartition, list[OffsetRange]] = {}
        # Settled late writes are on one side only, and no difference.
        for write in self.known_late_writes:
            known.setdefault(write.topic_partition, []).append(OffsetRange(write.start, write.end))
        try:
            report = verify_mirror(self.mirror, topics=self.topics(), after=after, known=known, on_progress=self.on_progress)
        except ConfigError as error:
            # Tables that are older than the target may lack what the conductor has seen copied: then their remedy is the one.
            if (older := self.older_tables()) is not None:
                raise ConfigError(older) from error
            raise
        return Compared(
            # What is covered is known from the positions and log ends. A topic whose records have all expired can be moved.
            is_equal=not report.difference_counts,
            sentences=report.sentences(),
            seconds=report.seconds,
            size_bytes=report.source_bytes + report.target_bytes,
            record_count=report.record_count,
        )

    def active_groups(self) -> dict[str, tuple[str, ...]]:
        """Return the groups of the wave that have members at the origin, with their clients as far as they are known."""
        # A list of groups does not tell their clients.
        return dict.fromkeys(self._wave_groups().active(), ())

    def group_offsets(self) -> dict[str, set[str]]:
        """Return the topics for which each group of the wave has offsets at the origin; only groups that have any."""
        return self._wave_groups().offsets()

    def may_hide_groups(self) -> bool:
        """Return whether the origin may have groups that it does not list for our user."""
        return self._groups.may_hide_groups()

    def move_groups(self, *, is_applied: bool) -> GroupsReport | None:
        """Translate the offsets of the wave's groups, and commit them at the other cluster if `is_applied`."""
        if not self.wave.groups or not self.group_offsets():
            return None
        # Two maps meet on the way back: the move's below `boundary`, the reverse mirror's above it.
        if self.direction is Direction.ROLLBACK:
            mirror, pattern = self.files.mirror, self.wave.group_pattern
            require_map_of_move(mirror, self.copied_by_move, self.wave.name)
            return return_groups(
                mirror,
                self.mirror,
                self.boundary,
                pattern,
                left=self.left_topics() | self.moved_with_others(),
                are_ends_final=self._are_ends_final(),
                is_applied=is_applied,
                transactional_id=self.commit_id,
            )
        try:
            return sync_groups(
                self.mirror,
                pattern=self.wave.group_pattern,
                is_applied=is_applied,
                transactional_id=self.commit_id,
                are_ends_final=self._are_ends_final(),
                keeps_handed_over=False,
            )
        except ConfigError:
            if self.group_offsets():
                raise
            return None  # the offsets were deleted since, with their topic

    def _are_ends_final(self) -> bool:
        """Return whether the mirror copies nothing more of the wave: all topics are handed over."""
        return set(self.topics()) <= self.controls().moving

    def end_commits(self) -> None:
        """Take back the offsets of groups that were prepared in a transaction and not committed."""
        if self.wave.groups:
            side: Side = "source" if self.direction is Direction.MOVE else "target"
            with closing(GroupOffsets(self.files.mirror, side, timeout_s=REQUEST_S, transactional_id=self.commit_id)) as groups:
                groups.other.begin_commits()

    def missing_denies(self) -> list[Acl]:
        """Return the Deny ACLs that stop the writers and that the origin does not have yet."""
        return self._denies().missing(self.topics(), self.files.config.writers.principals)

    def denies_at_other(self) -> list[Acl]:
        """Return the Deny ACLs that keep the writers from the copies, without those that the wave deletes itself.

        Raises ConfigError where the cluster has no authorizer, or does not show its ACLs.
        """
        copies, principals = list(map(self.target_topic, self.topics())), self.files.config.writers.principals
        own = {write_deny(*denied) for denied in DeniedWrites.open(TableStorage(self.mirror.table_location)).read_former()}
        if self.are_writers_denied_at_other:
            own |= {write_deny(topic, principal) for topic in copies for principal in principals}
        return [acl for acl in self._denies(at_origin=False).found(copies, principals) if acl not in own]

    def create_denies(self, acls: Sequence[Acl]) -> None:
        self._denies().create(acls)

    def delete_denies(self, acls: Sequence[Acl], *, at_origin: bool = True) -> None:
        # A rollback deletes the ACLs of the move, at the cluster that it goes back to.
        self._denies(at_origin=at_origin).delete(acls)

    def open_topics(self) -> int:
        """Let others write to the copies: delete the Deny ACLs of `acls.read_only`. Return how many there were."""
        return open_topics(self.mirror, [self.target_topic(topic) for topic in self.topics()])

    def controls(self) -> TopicControls:
        return self._controls(self.mirror).read()

    def hand_over(self) -> None:
        """Ask the mirror to plan nothing of the topics any more, unless it was asked already."""
        state = self.controls()
        # Not again after a crash: each row of the table is a request that the mirror has to answer.
        wanted = [topic for topic in self.topics() if topic not in state.moving]
        if wanted:
            self._add_control("hand-over", wanted)

    def handed_over_within(
        self, attempts: Sequence[tuple[datetime, datetime]], conductors: Collection[tuple[str, int]]
    ) -> list[str]:
        """Return the topics that are handed over since one of these attempts, given by begin and end.

        `conductors`: hosts and pids of theirs. One that was suspended may have asked for it behind the end.
        """
        state = self.controls()
        since_ms = {**state.requested, **state.handed_over}
        asked_by = {row.topic: (row.host, row.pid) for row in state.rows if row.action == "hand-over"}
        spans = [(int(begun.timestamp() * 1000), math.ceil(ended.timestamp() * 1000)) for begun, ended in attempts]
        late_ms = {topic: SUSPENDED_MS if asked_by.get(topic) in conductors else 0 for topic in since_ms}
        return [
            topic
            for topic in self.topics()
            if topic in since_ms and any(begun <= since_ms[topic] <= ended + late_ms[topic] for begun, ended in spans)
        ]

    def resume(self) -> None:
        """Undo `hand_over`. Raises ConfigError if the mirror in the other direction may write to the topics already.

        Only a conductor that was suspended, while another one passed the point of no return, gets there.
        """
        if self.direction is Direction.MOVE and self.reverse is not None:
            received = sorted(self._controls(self.reverse).read().received & set(map(self.target_topic, self.topics())))
            if received:
                raise ConfigError(
                    f"{named(received)} were handed over to mirror {self.reverse.mirror}: with {self.mirror.mirror} both would "
                    f"copy in a ring. The way back is `shallow-mirror migrate rollback {self.files.config.path}`"
                )
        state = self.controls()
        # None is handed over if the attempt was aborted before that step.
        handed = [topic for topic in self.topics() if topic in state.moving]
        if handed:
            self._add_control("take-back", handed)

    def _add_control(self, action: ControlAction, topics: Sequence[str]) -> None:
        """Raise ConfigError where the tables of the mirror are older than the target: the newest ones would not have the row."""
        try:
            add_noted(self.mirror, action, topics)
        except OlderTablesError as older:
            raise ConfigError(str(older)) from older

    def problems(self) -> list[str]:
        """Return everything that is in the way of the wave and that waiting does not change."""
        return problems_of(self)

    def late_writes(self, wave: WaveState) -> list[LateWrite]:
        """Return the writes to the cluster that the wave has left last that are not settled."""
        return find_late_writes(self.files, self.wave, wave)

    def prepare_reverse(self, starts: Mapping[TopicPartition, int]) -> frozenset[str]:
        """Register `starts`, offsets of the other cluster, as the positions of the reverse mirror. Return the topics that the
        other cluster does not have any more, or has created again."""
        assert self.reverse is not None, "asked for only where a reverse mirror is named"
        return register_positions(self.reverse, starts, copied_ids(self.mirror))

    def reverse_run(self) -> MirrorRun | None:
        return None if self.reverse is None else run_of(self.reverse, since_registration=True)

    def start_reverse(self) -> StartedMirror:
        """Start the reverse mirror. Two of them may run for a moment after a crash: the later one fences the other."""
        assert self.wave.reverse is not None, "asked for only where a reverse mirror is named"
        return self.launch(self.wave.reverse, Path(f"{self.wave.reverse}.log"), ())

    @property
    def reverse_file(self) -> str | None:
        return self.wave.reverse if self.direction is Direction.MOVE else None

    @property
    def commit_id(self) -> str:
        """Return the transactional id in which offsets of groups are committed at the other cluster."""
        return commit_id(self.mirror.mirror)

    @property
    def mirror_id(self) -> str:
        return self.mirror.mirror

    @property
    def mirror_file(self) -> str:
        """Return the path of the file of the mirror that copies in this direction."""
        return self.files.config.mirror if self.direction is Direction.MOVE else str(self.wave.reverse)

    @property
    def origin(self) -> Cluster:
        return self._origin

    @property
    def other(self) -> Cluster:
        return self._other

    def _denies(self, *, at_origin: bool = True) -> WriterDenies:
        if at_origin:
            return WriterDenies(self.mirror.source.client, self.mirror.source_cluster_name)
        return WriterDenies(self.mirror.target.client, self.mirror.target_cluster_name)

    def _wave_groups(self) -> WaveGroups:
        return WaveGroups(self._groups, self.wave.group_pattern if self.wave.groups else None)

    @staticmethod
    def _controls(config: MirrorConfig) -> Controls:
        return Controls.open(TableStorage.to_write(config.table_location, config.tables_writer))


def commit_id(mirror: str) -> str:
    """Return the transactional id in which offsets of groups are committed, of a mirror with this id."""
    return f"{mirror}-groups"


def run_of(config: MirrorConfig, *, since_registration: bool = False) -> MirrorRun | None:
    """Return the run that took over the map of a mirror last; None if there is no map.

    `since_registration`: also None if it is the command that registered its positions.
    """
    if TableStorage(config.table_location).offset_map.snapshot() is None:
        return None
    run = read_run(config)
    # The registration takes over the map as a run of its own, which says nothing of the mirror.
    if run is None or (since_registration and (run.outcome or "").startswith("migrate")):
        return None
    return MirrorRun(description=f"run {run.run_epoch} on {run.host} (pid {run.pid})", is_alive=run.is_alive, is_over=run.is_over)

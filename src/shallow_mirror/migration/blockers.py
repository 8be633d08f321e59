"""Driver: everything that is in the way of a wave and that waiting does not change, asked for without changing anything."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Protocol

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin.access import Acl
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.topics import TopicControls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.deadline import Deadline, request_deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.report import GroupsReport
from shallow_mirror.migration.group_blockers import elsewhere_problems, plan_problems, spanning_problems
from shallow_mirror.migration.hooks.hook_call import unready
from shallow_mirror.migration.late_writes import holding_records
from shallow_mirror.migration.observations import LogEnds, MappedEnd, named
from shallow_mirror.migration.permissions import (
    TO_READ,
    UserView,
    missing_in_transactions,
    missing_on_groups,
    missing_on_topics,
    missing_to_change_acls,
    missing_to_list,
)
from shallow_mirror.migration.reverse_blockers import reverse_problems
from shallow_mirror.migration.steps import Direction
from shallow_mirror.streaming.runs import unauthorized_topics
from shallow_mirror.types import TopicPartition

SETTLED_WITHIN_MS = 5_000
"""After which rows of a decision are settled, unless the mirror is stopped: then the next start settles them."""


class Passage(Protocol):
    """What is looked at: `passage.Passage`."""

    files: MigrationFiles
    wave: WaveSettings
    direction: Direction
    moved_topics: frozenset[str]
    are_writers_denied_at_other: bool

    @property
    def mirror(self) -> MirrorConfig: ...
    @property
    def reverse(self) -> MirrorConfig | None: ...
    @property
    def origin(self) -> Cluster: ...
    @property
    def other(self) -> Cluster: ...
    @property
    def origin_alias(self) -> str: ...
    @property
    def other_alias(self) -> str: ...
    def topics(self) -> tuple[str, ...]: ...
    def left_topics(self) -> frozenset[str]: ...
    def moved_with_others(self) -> frozenset[str]: ...
    def forgotten_topics(self) -> tuple[str, ...]: ...
    def target_topic(self, topic: str, /) -> str: ...
    def older_tables(self) -> str | None: ...
    def lost_topics(self, names: Collection[str], /) -> frozenset[str]: ...
    def mapped_ends(self) -> Mapping[TopicPartition, MappedEnd]: ...
    def written_targets(self) -> frozenset[TopicPartition]: ...
    def log_ends(self) -> LogEnds: ...
    def other_log_ends(self) -> LogEnds: ...
    def controls(self) -> TopicControls: ...
    def group_offsets(self) -> Mapping[str, set[str]]: ...
    def may_hide_groups(self) -> bool: ...
    def move_groups(self, *, is_applied: bool) -> GroupsReport | None: ...
    def missing_denies(self) -> Sequence[Acl]: ...
    def denies_at_other(self) -> Sequence[Acl]: ...
    @property
    def commit_id(self) -> str: ...
    @property
    def mirror_file(self) -> str: ...


def problems_of(passage: Passage) -> list[str]:
    """Return a sentence for each problem. Raises RetriableError, with the cluster's name, if one does not answer."""
    for cluster, where in (
        (passage.origin, passage.mirror.source_cluster_name),
        (passage.other, passage.mirror.target_cluster_name),
    ):
        reach(cluster, where, request_deadline())
    problems = list(_topic_problems(passage))
    try:
        mapped = passage.mapped_ends()
        _require_clusters(passage)
    except ConfigError as error:
        return [*problems, *(f"mirror {passage.mirror.mirror}: {problem}" for problem in error.problems)]
    problems += _map_problems(passage, mapped)
    for check in (_control_problems, _group_problems, _permission_problems, _deny_problems, reverse_problems):
        try:
            problems += check(passage)
        except ConfigError as error:
            problems += error.problems
    problems += unready(passage.files.config.hooks)
    return list(dict.fromkeys(problems))


def _topic_problems(passage: Passage) -> Iterator[str]:
    topics, wave, left = passage.topics(), passage.wave, passage.left_topics()
    if left and not topics:
        here = passage.origin_alias
        yield (
            f"waves: {wave.name}: nothing to roll back: no topic of it is left at {here} that the mirror copies "
            f"({named(sorted(left))}). Other waves can go back with `shallow-mirror migrate rollback FILE --wave NAME`"
        )
    hidden = unauthorized_topics(passage.origin, wave.topics, (), topics, request_deadline())
    forgotten = passage.forgotten_topics()
    for pattern in wave.topics:
        if pattern in hidden:
            yield f"{passage.mirror.source_cluster_name}: topic {pattern}: {hidden[pattern]}"
        elif any(re.fullmatch(pattern, topic) for topic in {*topics, *left}):
            continue
        elif closed := [topic for topic in forgotten if re.fullmatch(pattern, topic)]:
            yield (
                f"waves: {wave.name}: topics: {_forgotten_sentence(closed)}: remove {pattern} from the wave, or move with "
                "another mirror id, tables and checkpoint"
            )
        else:
            yield f"waves: {wave.name}: topics: {pattern} matches no topic of {passage.mirror.source.alias}"
    excluded = [topic for topic in topics if not passage.mirror.topics.is_included(topic)]
    if excluded:
        them = "it" if len(excluded) == 1 else "them"
        instead = f" or leave {them} out of the wave" if passage.direction is Direction.MOVE else f" to move {them} back"
        yield (
            f"mirror {passage.mirror.mirror} does not copy {named(excluded)} (topics.include, topics.exclude): let it copy "
            f"{them}{instead}"
        )
    if passage.direction is Direction.ROLLBACK:
        yield from _lost_origin_problems(passage)
        yield from _dropped_problems(passage)
    for other in passage.files.config.waves:
        shared = [topic for topic in topics if other.name != wave.name and other.has_topic(topic)]
        if shared:
            yield f"waves: {wave.name} and {other.name} both have {named(shared)}: a topic moves once"


def _lost_origin_problems(passage: Passage) -> Iterator[str]:
    """Yield a sentence for moved topics that cannot go back: what was moved is at the cluster of the wave only."""
    lost = sorted(passage.lost_topics(passage.moved_topics.intersection(passage.topics())))
    if lost:
        were, them = ("was", "it") if len(lost) == 1 else ("were", "them")
        here = passage.origin_alias
        yield (
            f"{named(lost)} {were} deleted at {passage.mirror.target.alias} since the move, and only {here} has what was moved: "
            f"exclude {them} in {passage.mirror_file} (topics.exclude) to leave {them} at {here}, and restart that mirror"
        )


def _dropped_problems(passage: Passage) -> Iterator[str]:
    """Yield a sentence for moved topics that the file does not have in the wave any more: they would stay, without a way back."""
    wave, mirror = passage.wave, passage.mirror
    dropped = [name for name in passage.moved_topics if not wave.has_topic(name) and mirror.topics.is_included(name)]
    if dropped:
        them, where = "it" if len(dropped) == 1 else "them", passage.origin_alias
        yield (
            f"waves: {wave.name}: topics: {named(sorted(dropped))} moved with this wave, and the file does not have {them} there "
            f"any more: undo that change, or exclude {them} in {passage.mirror_file} (topics.exclude) to leave {them} at {where}"
        )


def _lost_copy_problem(lost: Sequence[str], mirror: MirrorConfig) -> str:
    were, them = ("was", "it") if len(lost) == 1 else ("were", "them")
    return (
        f"{named(lost)} {were} deleted at {mirror.target.alias}, with what mirror {mirror.mirror} had copied: move {them} with a "
        "mirror that has another mirror id, tables and checkpoint, or exclude "
        f"{them} (topics.exclude) and leave {them} out of the wave"
    )


def _forgotten_sentence(topics: Sequence[str]) -> str:
    is_one = len(topics) == 1
    return (
        f"{named(topics)} {'is' if is_one else 'are'} forgotten (`shallow-mirror forget`), so nothing of "
        f"{'it' if is_one else 'them'} is copied"
    )


def _require_clusters(passage: Passage) -> None:
    config = passage.mirror
    offset_map = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror)
    source = reach(passage.origin, config.source_cluster_name, request_deadline()).cluster_id
    target = reach(passage.other, config.target_cluster_name, request_deadline()).cluster_id
    offset_map.require_clusters(source=source, target=target)


def _map_problems(passage: Passage, mapped: Mapping[TopicPartition, MappedEnd]) -> Iterator[str]:
    missing = sorted(set(passage.topics()) - {name.topic for name in mapped})
    later = [name for name in missing if passage.direction is Direction.ROLLBACK and name not in passage.moved_topics]
    if later:
        them, where = "it" if len(later) == 1 else "them", passage.origin_alias
        yield (
            f"{named(later)} appeared at {where} after the move, and mirror {passage.mirror.mirror} has copied nothing of {them} "
            f"back: exclude {them} in its file (topics.exclude) to leave {them} at {where}"
        )
    if (missing := [name for name in missing if name not in later]) and (older := passage.older_tables()) is not None:
        yield older  # they lack what was registered
    elif missing:
        yield (
            f"mirror {passage.mirror.mirror} has not registered {named(missing)} yet: run it until `shallow-mirror status "
            f"{passage.mirror_file}` shows positions; what it waits for is there as well"
        )
    if passage.direction is Direction.ROLLBACK:
        return  # its targets are the topics that the writers used before the move
    if lost := sorted(passage.lost_topics(passage.topics())):
        yield _lost_copy_problem(lost, passage.mirror)
    foreign = _foreign_partitions(passage)
    if foreign and (older := passage.older_tables()) is not None:
        yield older  # they are copies that these tables do not know
    elif foreign:
        yield (
            f"{passage.mirror.target.alias}: {named(foreign)} hold records that the mirror did not write: a move needs "
            "topics that only the mirror has written to"
        )


def _foreign_partitions(passage: Passage) -> list[TopicPartition]:
    """Return partitions of the target that have records although the mirror has copied none to them, nor to former topics.

    The first micro-batch of a mirror is visible a moment before its rows are settled, and before it has any where offsets are
    preserved: they are looked for again. There, fillers take the offsets below the position.
    """
    deadline = Deadline.after_ms(SETTLED_WITHIN_MS, time.monotonic)
    ends = passage.other_log_ends()
    while True:
        filled_ends = {
            TopicPartition(passage.target_topic(name.topic), name.partition): end.offset
            for name, end in passage.mapped_ends().items()
            if passage.mirror.topics.is_preserved(name.topic)
        }
        own = passage.written_targets()
        foreign = [name for name, log in sorted(ends.items()) if log.stable > filled_ends.get(name, 0) and name not in own]
        # A log of which nothing was copied may have markers: of transactions with records of other partitions only.
        foreign = holding_records(passage.other, passage.mirror.target.client, {name: ends[name].stable for name in foreign})
        if not foreign or deadline.is_over():
            return foreign
        passage.other.wait(500, deadline)


def _control_problems(passage: Passage) -> Iterator[str]:
    controls, topics = passage.controls(), set(passage.topics())
    handed = sorted(topics & controls.moving)
    if handed:
        were = "was" if len(handed) == 1 else "were"
        yield (
            f"{named(handed)} {were} handed over by a migration before: a topic moves once with one mirror. What an attempt that "
            "is under way, or was aborted, has handed over, `migrate abort` takes back"
        )
    paused = sorted(topics & controls.paused.keys())
    if paused:
        command = f"shallow-mirror resume {passage.mirror_file} {' '.join(paused)}"
        yield f"{named(paused)} {'is' if len(paused) == 1 else 'are'} paused: `{command}` continues the copy"


def _group_problems(passage: Passage) -> Iterator[str]:
    wave = passage.wave
    if not wave.groups:
        return
    topics_of = passage.group_offsets()
    origin = UserView(passage.origin, passage.mirror.source_cluster_name)
    for pattern in wave.groups:
        if any(re.fullmatch(pattern, name) for name in topics_of):
            continue
        hidden = list(missing_to_list(origin, [pattern] if routing.is_plain_name(pattern) else [], "needed to see it"))
        yield from hidden
        if not hidden:
            yield f"waves: {wave.name}: groups: {pattern} has no group with committed offsets at {passage.mirror.source.alias}"
    excluded = [name for name in topics_of if not passage.files.mirror.groups.is_included(name)]
    if excluded:
        yield f"mirror {passage.files.mirror.mirror} leaves out groups {named(excluded)} (groups.include, groups.exclude)"
    yield from elsewhere_problems(topics_of, passage.moved_with_others(), passage.origin_alias, passage.other_alias)
    forgotten = passage.forgotten_topics()
    yield from spanning_problems(
        topics_of, wave.has_topic, lambda topic: passage.mirror.topics.is_included(topic) and topic not in forgotten
    )
    report = passage.move_groups(is_applied=False)
    if report is not None:
        # The ends are listed after the offsets were read: a log that grows meanwhile makes no offset one beyond its end.
        ends = {name: log.end for name, log in passage.log_ends().items()}
        # Their copies are lost: that is said of the topic.
        lost = passage.lost_topics(passage.topics()) if passage.direction is Direction.MOVE else ()
        yield from plan_problems(report, ends, lost)


def _permission_problems(passage: Passage) -> Iterator[str]:
    """Yield missing permissions of comparisons and commits of groups. The run of the mirror has checked its own."""
    config, topics = passage.mirror, passage.topics()
    origin, other = UserView(passage.origin, config.source_cluster_name), UserView(passage.other, config.target_cluster_name)
    yield from missing_on_topics(origin, topics, TO_READ, "needed to compare both clusters")
    copies = [passage.target_topic(topic) for topic in topics]
    yield from missing_on_topics(other, copies, TO_READ, "needed to compare both clusters, and to commit offsets of groups")
    groups = sorted(passage.group_offsets())
    in_txn = "needed to commit offsets of groups in a transaction"
    if passage.direction is Direction.MOVE:
        yield from missing_on_groups(other, groups, "needed to commit its offsets")
        if groups:
            yield from missing_in_transactions(other, passage.commit_id, in_txn, with_receipts=False)
        if passage.reverse is not None:
            yield from missing_on_groups(origin, groups, "needed to commit its offsets in a rollback")
        return
    client = passage.files.mirror.source.client  # of a rollback: the user of the move commits offsets where it read them
    with closing(Cluster(client)) as source:
        committing = UserView(source, passage.files.mirror.source_cluster_name)
        yield from missing_on_groups(committing, groups, "needed to commit its offsets")
        if groups:
            yield from missing_in_transactions(committing, passage.commit_id, in_txn, with_receipts=False)


def notes_of(passage: Passage) -> list[str]:
    """Return facts that an operator has to check, because a plan cannot."""
    left = [topic for topic in passage.forgotten_topics() if passage.wave.has_topic(topic)]
    notes = [f"{passage.mirror.source_cluster_name}: {_forgotten_sentence(left)}: the wave moves without"] if left else []
    notes += _unknown_denies(passage)
    patterns = [pattern for pattern in passage.wave.groups if not routing.is_plain_name(pattern)]
    if not patterns or not passage.may_hide_groups():
        return notes
    return [
        *notes,
        f"{passage.mirror.source_cluster_name}: groups that the user of the mirror file may not describe are not seen and would "
        f"not move: grant Describe on the cluster, or on every group of {named(patterns)}",
    ]


def _unknown_denies(passage: Passage) -> list[str]:
    if not passage.files.config.writers.is_denied:
        return []
    try:
        passage.denies_at_other()
    except ConfigError as error:
        return [f"Deny ACLs that would keep the writers from {passage.other_alias} are not looked for: {error}"]
    return []


def _deny_problems(passage: Passage) -> Iterator[str]:
    writers = passage.files.config.writers
    if passage.are_writers_denied_at_other:
        other = UserView(passage.other, passage.mirror.target_cluster_name)
        yield from missing_to_change_acls(other, "needed to delete the Deny ACLs that the move has created")
    if passage.mirror.acls.read_only:
        other = UserView(passage.other, passage.mirror.target_cluster_name)
        yield from missing_to_change_acls(other, "needed to delete the Deny ACLs of acls.read_only")
    at_origin = ["writers.stop: deny"] if writers.is_denied else []
    if passage.direction is Direction.MOVE and passage.reverse is not None and passage.reverse.acls.read_only:
        at_origin.append(f"acls.read_only of mirror {passage.reverse.mirror}")
    if at_origin and passage.mirror.acls.sync_s is not None:
        yield (
            f"mirror {passage.mirror.mirror}: acls.sync copies the Deny ACLs of {' and '.join(at_origin)} to "
            f"{passage.mirror.target.alias}: set acls.sync: off and restart the mirror first"
        )
    if not writers.is_denied:
        return
    passage.missing_denies()  # raises ConfigError where the cluster has no authorizer, or does not show its ACLs
    with suppress(ConfigError):  # `notes_of` says so
        for acl in passage.denies_at_other():
            yield (
                f"{passage.mirror.target_cluster_name}: {acl} would keep the writers from writing there: delete it "
                "(kafka-acls.sh --remove)"
            )
    origin = UserView(passage.origin, passage.mirror.source_cluster_name)
    yield from missing_to_change_acls(origin, "needed for writers.stop: deny")
    for config in (passage.files.mirror, *passage.files.reverses.values()):
        for client in (config.source.client, config.target.client):
            user = client.value("sasl.username") if client.uses_sasl else ""
            if f"User:{user}" in writers.principals:
                yield f"writers.principals: User:{user} is the user of mirror {config.mirror}, which has to write on"

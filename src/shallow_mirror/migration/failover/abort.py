"""Driver: whether a fail-over that was a false alarm can be taken back, and what is in the way.

The mirror may continue if the target was not used: it ended at a decision, its transactions were resolved, and the offsets
that were committed for groups are those that it commits itself. Records of others behind its copies would be missing at the
source, and what groups have read at the target, they would read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.deadline import request_deadline
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_plan import Committed, committed_offsets
from shallow_mirror.migration.failover.state import FailoverState
from shallow_mirror.migration.failover.steps import Step
from shallow_mirror.migration.failover.undecided_copies import undecided_ends
from shallow_mirror.migration.late_writes import LateWrite, read_records
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import named, open_partitions
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, OffsetRange, SourcePartition, TopicPartition

_DIGEST_CHARACTERS = 16
_COMES_BACK = "`failover back` brings topics, groups and writers back without loss"


def source_problems(files: FailoverFiles, offset_map: OffsetMap) -> list[str]:
    """Return why the mirror could not continue from its source. Raises RetriableError."""
    mirror = files.mirror
    with closing(Cluster(mirror.source.client)) as source:
        found_id = reach(source, mirror.source_cluster_name, request_deadline()).cluster_id
    known_id = offset_map.source_cluster_id
    if found_id == known_id:
        return []
    return [f"{mirror.source_cluster_name} is another cluster (id {found_id}) than the one that was left ({known_id})"]


def target_problems(
    files: FailoverFiles, target: Cluster, positions: Mapping[SourcePartition, Position], state: FailoverState
) -> list[str]:
    """Return what others have written to the target behind the copies. Raises RetriableError."""
    alias = files.mirror.target.alias
    ends = list_log_ends(target, sorted(target_topics(positions)), request_deadline())
    problems = [f"a transaction is open at {alias}: {name}: end it, and try again" for name in open_partitions(ends)]
    copied = _copied_ends(target, positions, state)
    behind = {name: log.stable for name, log in ends.items() if log.stable > copied.get(name, 0)}
    timestamps = dict.fromkeys(behind, EARLIEST_TIMESTAMP)
    starts = target.list_offsets(timestamps, IsolationLevel.READ_COMMITTED, request_deadline()) if behind else {}
    ranges = [
        (name, OffsetRange(begin, end))
        for name, end in sorted(behind.items())
        if (begin := max(copied.get(name, 0), starts[name].offset)) < end
    ]
    written: list[LateWrite] = list(read_records(files.mirror.target.client, ranges)) if ranges else []
    if written:
        source = files.mirror.source.alias
        problems.append(f"records were written to {alias} since, which {source} lacks: {named(map(str, written))}: {_COMES_BACK}")
    return problems


def _copied_ends(
    target: Cluster, positions: Mapping[SourcePartition, Position], state: FailoverState
) -> dict[TopicPartition, int]:
    """Return the target offset below which everything is the mirror's own, by target partition. Raises RetriableError.

    Of preserved partitions the log may hold copies that no row names, if the mirror was killed: they end at most where the log
    did when the mirror was fenced.
    """
    fenced = {
        SourcePartition(row["topic"], row["topic_id"], row["partition"]): int(row["end"])
        for row in state.done.get(Step.FENCE, {}).get("partitions", ())
    }
    undecided = undecided_ends(target, positions, fenced, request_deadline())
    ends: dict[TopicPartition, int] = {}
    for source, position in positions.items():
        preserved_end = undecided[source] if position.shared_producer_id is not None else 0
        name = position.target.topic_partition
        ends[name] = max(ends.get(name, 0), position.target_end, preserved_end)
    return ends


def group_problems(
    files: FailoverFiles, positions: Mapping[SourcePartition, Position], state: FailoverState, *, despite_groups: bool
) -> list[str]:
    """Return the groups that use the copies, or have used them since their offsets were moved. Raises RetriableError."""
    alias, topics = files.mirror.target.alias, target_topics(positions)
    with closing(GroupClient(files.mirror.target.client, files.mirror.target_cluster_name)) as client:
        listed = {name: group for name, group in client.listed().items() if _is_included(files, name)}
        committed = committed_offsets(client, sorted(listed))
    # A group without any offset is new, and may read the copies; one with offsets of other topics only does not.
    of_others = {commit.group for commit in committed} - {
        commit.group for commit in committed if commit.topic_partition.topic in topics
    }
    active = sorted(name for name, group in listed.items() if not group.is_free and name not in of_others)
    now = group_digests(committed, topics)
    problems = [f"groups have members at {alias}: {named(active)}: stop their consumers"] if active else []
    if despite_groups or Step.MOVE_GROUPS not in state.done:
        return problems
    moved = state.done[Step.MOVE_GROUPS].get("committed", {})
    used = sorted(name for name in now.keys() | moved.keys() if now.get(name) != moved.get(name))
    if used:
        problems.append(
            f"groups have committed offsets at {alias} since: {named(used)}: move them with `shallow-mirror groups "
            f"{files.config.mirror} --reverse --apply`, and give --despite-groups; what they have read behind that is read again"
        )
    return problems


def group_digests(committed: Iterable[Committed], topics: Collection[str]) -> dict[str, str]:
    """Return a digest of the offsets that each group has of `topics`, for groups that have some."""
    offsets: dict[str, list[str]] = {}
    for commit in committed:
        if commit.topic_partition.topic in topics:
            offsets.setdefault(commit.group, []).append(f"{commit.topic_partition}:{commit.offset}")
    return {
        group: hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:_DIGEST_CHARACTERS]
        for group, lines in sorted(offsets.items())
    }


def moved_digests(files: FailoverFiles, positions: Mapping[SourcePartition, Position]) -> dict[str, str]:
    """Return the digests of the offsets of the copies at the target, as of now. Raises RetriableError."""
    with closing(GroupClient(files.mirror.target.client, files.mirror.target_cluster_name)) as client:
        names = [name for name in sorted(client.listed()) if _is_included(files, name)]
        return group_digests(committed_offsets(client, names), target_topics(positions))


def target_topics(positions: Mapping[SourcePartition, Position]) -> frozenset[str]:
    return frozenset(position.target.topic for position in positions.values())


def _is_included(files: FailoverFiles, group: str) -> bool:
    return files.config.groups.is_included(group) and files.mirror.groups.is_included(group)

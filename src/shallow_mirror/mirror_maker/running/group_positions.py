"""Commands: groups that read topics of MirrorMaker 2, moved to the topics of a mirror on the same cluster. Starts no JVM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror import routing
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.report import GroupPartition, Outcome
from shallow_mirror.groups.sync_once import REQUEST_S, group_filter, plan_committed
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets
from shallow_mirror.mirror_maker.running.copies import copies_of
from shallow_mirror.mirror_maker.running.log_reader import LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames
from shallow_mirror.mirror_maker.running.positions import PositionFinder, SourcePosition
from shallow_mirror.plurals import counted
from shallow_mirror.types import IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPartition:
    """An offset of a group in a topic of MirrorMaker 2. `translated` None: no record of the source was found for it."""

    group: str
    copy: TopicPartition
    position: int | None
    source: TopicPartition
    found: SourcePosition
    translated: GroupPartition | None

    @property
    def repeats(self) -> int:
        """Return how many records the group may read again, at most."""
        return self.found.repeats + ((self.translated.repeats or 0) if self.translated is not None else 0)

    @property
    def is_left(self) -> bool:
        return self.translated is None or self.translated.to_offset is None or self.translated.is_left

    @property
    def result(self) -> str:
        """Return `exact`, `repeats 3`, or `left`: with no target offset, or one that may not be committed."""
        if self.translated is None or self.translated.outcome is not Outcome.TRANSLATED:
            return "left"
        return f"repeats {self.repeats:,}" if self.repeats else "exact"

    @property
    def reasons(self) -> str:
        texts = (self.found.reason, self.translated.reason if self.translated is not None else None)
        return "; ".join(text for text in texts if text)

    def document(self) -> dict[str, Any]:
        translated = self.translated
        return {
            "topic": self.copy.topic,
            "partition": self.copy.partition,
            "offset": self.position,
            "source_topic": self.source.topic,
            "source_offset": self.found.offset,
            "to_topic": None if translated is None or (to := translated.to_topic_partition) is None else to.topic,
            "to_offset": None if translated is None else translated.to_offset,
            "repeats": self.repeats,
            "result": self.result,
            "outcome": None if translated is None else translated.outcome.value,
            "step": None if translated is None else translated.step.value,
            "reason": self.reasons or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedGroup:
    name: str
    state: str
    """Kafka's word."""
    partitions: tuple[MovedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedGroups:
    """All groups with offsets in topics of MirrorMaker 2."""

    mirror: str
    cluster: str
    is_applied: bool
    groups: tuple[MovedGroup, ...]

    @property
    def is_done(self) -> bool:
        return not any(partition.is_left for group in self.groups for partition in group.partitions)

    def document(self) -> dict[str, Any]:
        return {
            "mirror": self.mirror,
            "cluster": self.cluster,
            "applied": self.is_applied,
            "is_done": self.is_done,
            "groups": [
                {
                    "group": group.name,
                    "state": group.state,
                    "partitions": [partition.document() for partition in group.partitions],
                }
                for group in self.groups
            ],
        }


def move_groups(
    config: MirrorConfig,
    names: MirrorMakerNames,
    *,
    spark: Any = None,
    pattern: str | None = None,
    is_applied: bool = False,
    is_forced: bool = False,
    most_bytes: int,
    on_wait: Callable[[str], None] = lambda _: None,
) -> MovedGroups:
    """Find the source record at which each group stands, and translate it by the offset map. `pattern`: as `sync_groups`.

    `most_bytes`: of a source partition that are read for one position. Raises ConfigError, RetriableError,
    OffsetMapConflictError. With `is_applied` groups may have been committed before it raises.
    """
    is_wanted = group_filter(pattern)
    _require_other_topics(config, names)
    storage = TableStorage(config.table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    on_wait(f"{config.target_cluster_name} to answer")
    with (
        LogReader(config.source.client, config.source_cluster_name, names.isolation) as source,
        LogReader(config.target.client, config.target_cluster_name, IsolationLevel.READ_COMMITTED) as target,
        closing(GroupOffsets(config, "target", timeout_s=REQUEST_S)) as at_target,
        closing(GroupOffsets(config, timeout_s=REQUEST_S)) as groups,
    ):
        groups.require(groups.source, offset_map)
        groups.require(groups.target, offset_map)
        on_wait(f"the groups of {config.target_cluster_name} and their committed offsets")
        copies = copies_of(config, names, source, target).sources
        committed = [commit for commit in at_target.committed(is_wanted) if commit.topic_partition in copies]
        if not committed:
            raise _no_groups(config, names, pattern)
        on_wait(f"the records of {counted(len(committed), 'position')}")
        finder = PositionFinder(names, source, target, most_bytes=most_bytes)
        finder.prepare({copies[commit.topic_partition] for commit in committed})
        found = {
            (commit.group, source_partition): (commit, _find(finder, source_partition, commit))
            for commit in committed
            if (source_partition := copies[commit.topic_partition])
        }
        planned = plan_committed(
            groups,
            [
                Committed(commit.group, source_partition, position.offset, commit.metadata)
                for (_, source_partition), (commit, position) in found.items()
                if position.offset is not None
            ],
            offset_map,
            storage,
            is_applied=is_applied,
            is_forced=is_forced,
            on_wait=on_wait,
        )
        listed = groups.target.listed()
    by_source = {(group.name, partition.topic_partition): partition for group in planned for partition in group.partitions}
    moved: dict[str, list[MovedPartition]] = {}
    for key, (commit, position) in found.items():
        partition = MovedPartition(
            group=commit.group,
            copy=commit.topic_partition,
            position=commit.offset,
            source=key[1],
            found=position,
            translated=by_source.get(key),
        )
        moved.setdefault(commit.group, []).append(partition)
    return MovedGroups(
        mirror=config.mirror,
        cluster=config.target.alias,
        is_applied=is_applied,
        groups=tuple(
            MovedGroup(
                name=name,
                state=listed[name].state.lower() if name in listed else "gone",
                partitions=tuple(sorted(partitions, key=lambda partition: partition.copy)),
            )
            for name, partitions in sorted(moved.items())
        ),
    )


def _find(finder: PositionFinder, source: TopicPartition, commit: Committed) -> SourcePosition:
    if commit.offset is None:
        return SourcePosition(offset=None, reason="a transaction of the group that commits this offset is open: try again")
    return finder.find(source, commit.offset)


def _require_other_topics(config: MirrorConfig, names: MirrorMakerNames) -> None:
    """Raise ConfigError if the mirror writes to the topics of MirrorMaker 2: their offsets need no translation."""
    if names.target_topic("t") == routing.target_topic_name(config.topics.target_name, config.source.alias, "t"):
        raise ConfigError(
            f"topics.target_name {config.topics.target_name!r} names the topics of MirrorMaker 2 ({names.template!r}): groups "
            "that read them keep their offsets. Only a mirror with topics of its own needs this command"
        )


def _no_groups(config: MirrorConfig, names: MirrorMakerNames, pattern: str | None) -> ConfigError:
    which = "no group" if pattern is None else f"--group {pattern}: no group of this name"
    return ConfigError(
        f"{config.target_cluster_name}: {which} that the mirror file includes has committed offsets in topics of MirrorMaker 2 "
        f"({names.target_topic('TOPIC')})"
    )

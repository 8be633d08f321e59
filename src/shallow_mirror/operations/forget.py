"""Driver: `forget`: close what concerns topics that are gone, by topic id.

Nothing is deleted: the offset map, the quarantine and the problems keep their rows. The decision is rows of `controls`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import REACH_MS, gone_topics, reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs import undescribed_entries
from shallow_mirror.checkpoints.logs.topics import Controls, TopicControls, TopicIncarnation
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.noted_controls import note_added
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.plurals import counted
from shallow_mirror.types import SourcePartition

_ANSWER_MS = 20_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneTopic:
    """A topic of the offset map that is gone at the source or the target, and its entries that `forget` closes."""

    topic: TopicIncarnation
    reason: str
    partition_count: int
    quarantined_count: int
    ends_pause: bool
    """The pause is by name: it ends unless another topic has the name by now."""
    keeps: tuple[str, ...] = ()
    """What `forget` leaves as it is."""

    def sentences(self) -> list[str]:
        lines = [
            f"{self.topic.topic} (id {self.topic.topic_id}): {self.reason}",
            f"  {counted(self.partition_count, 'partition')}: nothing is copied or reported of it, its offsets stay in the map",
        ]
        if self.quarantined_count:
            lines.append(f"  {counted(self.quarantined_count, 'batch')} in quarantine: stay, and are not listed without --all")
        if self.ends_pause:
            lines.append("  its pause ends")
        return [*lines, *(f"  {kept}" for kept in self.keeps)]


def forget(
    config: MirrorConfig, storage: TableStorage, names: Sequence[str], spark: Any = None, *, is_applied: bool
) -> list[GoneTopic]:
    """Return the topics of these names that are gone; with `is_applied` close their entries.

    `spark`: the session of `storage`. Both clusters are asked now. Raises ConfigError with every name that is not gone, was never
    mirrored or is forgotten already, and if a migration is handing it over; OlderTablesError; RetriableError if a cluster does
    not answer; as `Controls`.
    """
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    table = Controls.open(storage)
    controls = table.read()
    positions = controls.forgotten.without(offset_map.positions())
    problems = [problem for name in names if (problem := _problem_of(name, positions, controls)) is not None]
    if problems:
        raise ConfigError(problems)
    with closing(Cluster(config.source.client)) as source, closing(Cluster(config.target.client)) as target:
        deadline = Deadline.after_ms(_ANSWER_MS, time.monotonic)
        offset_map.require_clusters(
            source=reach(source, config.source_cluster_name, Deadline.after_ms(REACH_MS, time.monotonic)).cluster_id,
            target=reach(target, config.target_cluster_name, Deadline.after_ms(REACH_MS, time.monotonic)).cluster_id,
        )
        quarantined = [entry.segment.source for entry in undescribed_entries(offset_map) if not entry.is_released]
        gone, alive = list[GoneTopic](), list[str]()
        for topic in sorted({TopicIncarnation(key.topic, key.topic_id) for key in positions if key.topic in names}):
            of_topic = {key: at for key, at in positions.items() if TopicIncarnation(*key[:2]) == topic}
            now_at_source = gone_topics(source, {topic.topic: topic.topic_id}, deadline).get(topic.topic)
            reason = _reason(config, topic, now_at_source, _gone_target(of_topic, target, deadline))
            if reason is None:
                alive.append(topic.topic)
                continue
            gone.append(
                GoneTopic(
                    topic=topic,
                    reason=reason,
                    partition_count=len(of_topic),
                    quarantined_count=sum(TopicIncarnation(*key[:2]) == topic for key in quarantined),
                    ends_pause=topic.topic in controls.paused and not now_at_source,
                    keeps=_kept(topic.topic, controls, now_at_source),
                )
            )
    remaining = sorted(set(alive) - {entry.topic.topic for entry in gone})
    if remaining:
        raise ConfigError([f"{name}: the source and the target still have it: exclude it (topics.exclude)" for name in remaining])
    if is_applied:
        require_newest_tables(config, spark)
        table.forget([entry.topic for entry in gone], sorted({entry.topic.topic for entry in gone if entry.ends_pause}))
        note_added(config, table, spark)
    return gone


def _problem_of(name: str, positions: Mapping[SourcePartition, Position], controls: TopicControls) -> str | None:
    """Return why `name` cannot be forgotten, whatever the clusters have."""
    if name in controls.requested:
        return (
            f"{name}: a migration is handing it over: end that first (`shallow-mirror migrate abort FILE`; if it is the last "
            "step of `shallow-mirror failover back FILE`, that command says how to go on)"
        )
    if any(source.topic == name for source in positions):
        return None
    if any(topic.topic == name for topic in controls.forgotten.at_ms):
        return f"{name}: is forgotten already"
    return f"{name}: is not in the offset map: it was never mirrored"


def _gone_target(positions: Mapping[SourcePartition, Position], target: Cluster, deadline: Deadline) -> str | None:
    """Return the first target topic of one source topic that is gone; None if the target has all with their ids."""
    for name, topic_id in sorted({(at.target.topic, at.target.topic_id) for at in positions.values()}):
        if name in gone_topics(target, {name: topic_id}, deadline):
            return name
    return None


def _reason(config: MirrorConfig, topic: TopicIncarnation, now_at_source: str | None, gone_target: str | None) -> str | None:
    """Return the cluster that the topic is gone from, or None. `now_at_source`: None: there; "": deleted; else the new id."""
    reasons = []
    if now_at_source is not None:
        what = f"was deleted and created again (id {now_at_source})" if now_at_source else "was deleted"
        reasons.append(f"it {what} at the {config.source_cluster_name}")
    if gone_target is not None:
        reasons.append(f"its target topic {gone_target} was deleted, or created again, at the {config.target_cluster_name}")
    return "; ".join(reasons) or None


def _kept(name: str, controls: TopicControls, now_at_source: str | None) -> tuple[str, ...]:
    kept = []
    if now_at_source and name not in controls.not_copied:
        kept.append("what has its name now is another topic: the next start mirrors it from its start")
    if now_at_source and name in controls.paused:
        kept.append("what has its name now is another topic: its pause stays")
    if name in controls.handed_over:
        kept.append("a migration has handed it over: that stays")
    return tuple(kept)

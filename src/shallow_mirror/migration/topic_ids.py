"""Driver: the ids of the topics that a mirror has copied, compared with those that clusters have now under the same names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import absent_topics
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import request_deadline


def copied_ids(config: MirrorConfig) -> dict[str, frozenset[str]]:
    """Return the ids of the target topics to which a mirror has copied, by name."""
    positions = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror).positions().values()
    return _ids_by_name((position.target.topic, position.target.topic_id) for position in positions)


def source_ids(config: MirrorConfig) -> dict[str, frozenset[str]]:
    """Return the ids of the source topics that a mirror has copied, by name."""
    positions = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror).positions()
    return _ids_by_name((source.topic, source.topic_id) for source in positions)


def _ids_by_name(topics: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    ids: dict[str, set[str]] = {}
    for name, topic_id in topics:
        ids.setdefault(name, set()).add(topic_id)
    return {name: frozenset(known) for name, known in ids.items()}


def created_again(ids: Mapping[str, str], known: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the topics of `ids` (of now, by name) that are others than the known ones; none of which no id is known."""
    return frozenset(name for name, topic_id in ids.items() if topic_id not in known.get(name, (topic_id,)))


def replaced_topics(config: MirrorConfig, ids: Mapping[str, str]) -> frozenset[str]:
    """Return those of the moved topics `ids` (of now, by name) that were deleted since, and created again.

    None before the positions of the mirror were registered, which is done for all topics at once.
    """
    if not ids or TableStorage(config.table_location).offset_map.snapshot() is None:
        return frozenset()
    known = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror).positions().keys()
    copied = {(source.topic, source.topic_id) for source in known}
    return frozenset(name for name, topic_id in ids.items() if (name, topic_id) not in copied) if copied else frozenset()


def lost_topics(cluster: Cluster, targets: Mapping[str, str], known: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the topics whose target the cluster does not have any more, or only as one that was created again.

    `targets`: names of target topics, by topic. `known`: ids that they had, by name.
    """
    if not targets:
        return frozenset()
    gone = absent_topics(cluster, targets.values(), request_deadline())
    listed = cluster.metadata(sorted(set(targets.values()) - gone), request_deadline()).topics
    again = created_again({name: topic.topic_id for name, topic in listed.items()}, known)
    return frozenset(name for name, target in targets.items() if target in gone or target in again)

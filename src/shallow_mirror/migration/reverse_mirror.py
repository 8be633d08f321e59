"""Driver: the mirror in the other direction: its positions, registered where the target's logs ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from shallow_mirror import routing
from shallow_mirror.broker.cluster import absent_topics
from shallow_mirror.broker.net import error_name
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.migration.observations import named
from shallow_mirror.migration.topic_ids import created_again
from shallow_mirror.operations.operator_session import open_operator_session
from shallow_mirror.sinks.kafka.targets import TargetTopics, first_rows
from shallow_mirror.types import SourcePartition, TopicPartition

START_MS = 120_000


def positions_of(config: MirrorConfig) -> dict[SourcePartition, Position]:
    """Return the positions of a mirror; none before it has a map."""
    storage = TableStorage(config.table_location)
    return {} if storage.offset_map.snapshot() is None else OffsetMap.open(storage, mirror=config.mirror).positions()


def reverse_positions(config: MirrorConfig) -> dict[TopicPartition, int]:
    """Return the offsets of a reverse mirror; none before it has a map."""
    return {source.topic_partition: position.offset for source, position in positions_of(config).items()}


def preserving_problem(config: MirrorConfig, topics: Iterable[str]) -> str | None:
    """Return why the mirror cannot copy back behind the records that its target topics hold; None if it can."""
    preserved = sorted(topic for topic in topics if config.topics.is_preserved(topic))
    if not preserved:
        return None
    return (
        f"{named(preserved)} would keep their offsets, but what comes back is appended behind the records that are there: remove "
        "topics.offsets from the file of the reverse mirror"
    )


def register_positions(
    config: MirrorConfig, starts: Mapping[TopicPartition, int], moved_ids: Mapping[str, Collection[str]]
) -> frozenset[str]:
    """Register `starts` as the first positions of the mirror, and let it write to the topics that were handed over to it.

    Takes over its map for that, unless all of it is done. `moved_ids`: of the topics in which these are offsets, by name.
    Return the topics that its source does not have any more, and that got no position: of one that is created again, everything
    is copied.

    Raises ConfigError if it has other positions already, RetriableError.
    """
    topics = sorted({name.topic for name in starts})
    preserving = preserving_problem(config, topics)
    if preserving is not None:
        raise ConfigError(f"reverse mirror {config.mirror}: {preserving}")
    present = reverse_positions(config)
    differing = sorted(name for name, start in starts.items() if present.get(name, start) < start)
    if differing:
        name = differing[0]
        raise ConfigError(
            f"reverse mirror {config.mirror}: its position in {name} is {present[name]:,}, but it has to begin at "
            f"{starts[name]:,}: it has run before the move. Give it another mirror id and other tables"
        )
    controls = Controls.open(TableStorage.to_write(config.table_location, config.tables_writer))
    new = [topic for topic in topics if topic not in controls.read().received]
    # One that was killed in front of its last row is the last run of the map, and would pass for the mirror: it is repeated.
    gone = frozenset[str]() if present.keys() >= starts.keys() and not new else _register(config, starts, moved_ids)
    if new:
        controls.add("receive", new)
    return gone


def _register(
    config: MirrorConfig, starts: Mapping[TopicPartition, int], moved_ids: Mapping[str, Collection[str]]
) -> frozenset[str]:
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    with open_operator_session(config, "migrate", deadline, spark=None) as session:
        session.recover(deadline)
        assert session.source is not None, "a mirror reads a cluster"
        topics = {name.topic for name in starts}
        gone = absent_topics(session.source, topics, deadline)
        listed = session.source.metadata(sorted(topics - gone), deadline).topics if topics - gone else {}
        for name, topic in listed.items():
            if topic.error_code:
                raise RetriableError(error_name(topic.error_code), f"topic {name} of {config.source_cluster_name}")
        gone |= created_again({name: topic.topic_id for name, topic in listed.items()}, moved_ids)
        positions = session.owner.positions()
        targets = TargetTopics(
            config,
            session.source,
            session.target,
            positions=positions,
            route=lambda topic: routing.target_topic_name(config.topics.target_name, config.source.alias, topic),
        )
        wanted = {
            SourcePartition(name.topic, listed[name.topic].topic_id, name.partition): start
            for name, start in starts.items()
            if name.topic not in gone
        }
        rows = first_rows(
            targets, session.source, {source: start for source, start in wanted.items() if source not in positions}, deadline
        )
        if rows:
            session.register(rows, deadline)
        session.end.outcome = "migrate: positions registered"
    return gone

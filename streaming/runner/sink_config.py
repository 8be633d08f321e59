"""Driver: what the mirror file says to the sinks, whichever command runs them: to the tasks of slots, and of target topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.sinks.base import Observer
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob
from shallow_mirror.sinks.kafka.targets.log_append_time import LogAppendTimeTopics
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.types import SourcePartition


def job_template(config: MirrorConfig, *, map_id: str, run_id: str, observer: Observer) -> SlotJob:
    """Without what belongs to one micro-batch: decision, routes, positions, ends, time."""
    return SlotJob(
        mirror=config.mirror,
        map_id=map_id,
        run_id=run_id,
        decision=0,
        source=config.source.client,
        target=config.target.client,
        routes={},
        positions={},
        epoch_ends={},
        target_ends={},
        isolation=config.read.isolation_level,
        fetch_bytes=config.read.fetch_bytes,
        in_flight_requests=config.write.in_flight_requests,
        in_flight_bytes=config.write.in_flight_bytes,
        max_segments=config.read.max_segments,
        commit_interval_ms=config.write.commit_interval_s * 1000,
        transaction_timeout_ms=config.write.transaction_timeout_ms,
        time_left_ms=0.0,
        quarantine=config.write.quarantine_limits,
        continues_after_data_loss=config.read.on_data_loss == "continue",
        observer=observer,
    )


def target_topics(
    config: MirrorConfig,
    source: Cluster,
    target: Cluster,
    known: Mapping[SourcePartition, Position],
    *,
    route: Callable[[str], str],
    announce: Callable[[Mapping[str, str]], None] = lambda _: None,
    stamping: LogAppendTimeTopics | None = None,
) -> TargetTopics:
    """`known`: the positions of the map, whose target topics stand. `route` names those of other source topics, and
    `announce` hears of all of them before anything is copied to new ones."""
    return TargetTopics(
        source,
        target,
        config.target.client,
        mirrored={one.topic: position.target for one, position in known.items()},
        route=route,
        announce=announce,
        create=config.topics.create,
        copies_configs=config.topics.configs != "off",
        replication_factor=config.topics.replication_factor,
        isolation=config.read.isolation_level,
        log_append_time=config.read.log_append_time,
        coalesce_bytes=config.write.coalesce_bytes,
        stamping=stamping,
    )

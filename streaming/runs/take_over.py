"""Driver: the take-over of the offset map, by a mirror, a restore or an operator's command."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.ledger import OffsetMapOwner, RunIdentity
from shallow_mirror.checkpoints.tables import MirrorStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.kafka import id_count, transactional_ids
from shallow_mirror.sinks.kafka.protocol import refuse_used_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIds:
    """Ids of the clusters between which the map translates offsets. `source`: for a restore, of the cluster that was archived."""

    source: str
    target: str


def take_over_offset_map(
    config: MirrorConfig | RestoreConfig,
    storage: MirrorStorage,
    ids: ClusterIds,
    run: RunIdentity,
    *,
    before_creation: Callable[[], None] = lambda: None,
    accepted_version: int = 0,
) -> OffsetMapOwner:
    """Create the map if there is none, unless `before_creation` raises, and fence every older run.

    Arguments and errors are those of `OffsetMapOwner.take_over`.
    """
    return OffsetMapOwner.take_over(
        storage,
        mirror=config.mirror,
        source_cluster_id=ids.source,
        target_cluster_id=ids.target,
        run=run,
        now_ms=lambda: int(time.time() * 1000),
        before_creation=before_creation,
        # With the spare ids: a later start fences every id that this run may use, also if it decides nothing.
        slots=id_count(config.write.slots),
        accepted_version=accepted_version,
    )


def refuse_ids_of_another(config: MirrorConfig | RestoreConfig, target: Cluster, deadline: Deadline) -> None:
    """Raise as `refuse_used_ids` where one of the transactional ids of this mirror or restore was used in the target before."""
    refuse_used_ids(target, transactional_ids(config.mirror, id_count(config.write.slots)), deadline)

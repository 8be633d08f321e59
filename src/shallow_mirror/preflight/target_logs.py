"""Driver: logs of the target that the mirror has copied to, against their positions, as a start looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError, TargetDataLossError
from shallow_mirror.preflight.findings import Finding, Level, of_problems
from shallow_mirror.streaming.runs.target_logs import EndedPreservation, require_recorded_ends, sentences_of
from shallow_mirror.types import SourcePartition


def target_log_findings(
    config: MirrorConfig, target: Cluster, positions: Mapping[SourcePartition, Position], deadline: Callable[[], Deadline]
) -> Iterator[Finding]:
    """Yield a finding for each log that ends below its position, or was preserved until now and does not agree with it.

    `positions`: of partitions whose topics exist at the source with the ids that the map has. Those that are gone at the
    target, or were created again there, are `target_topic_policy.other_target_problem`. A log that looks too short is looked at
    for half a minute, because a broker that starts reports lower ends.
    """
    listed = target.metadata(sorted({position.target.topic for position in positions.values()}), deadline())
    present = {
        source: position
        for source, position in positions.items()
        if listed.has(position.target.topic_partition)
        and listed.topics[position.target.topic].topic_id == position.target.topic_id
    }
    try:
        require_recorded_ends(target, present.values(), deadline())
        undecided = EndedPreservation(config, target).undecided(present, deadline())
    except TargetDataLossError as error:
        yield Finding(Level.STOPS, f"target partition {error.topic_partition}", str(error))
    except ConfigError as error:
        yield from of_problems("topics.offsets", error)
    except RetriableError as error:
        yield Finding(Level.UNKNOWN, f"cluster {config.target.alias}", f"what its logs hold of this mirror is not known: {error}")
    else:
        for source, sentence in sentences_of(undecided).items():
            yield Finding(Level.DOUBT, f"target partition {present[source].target.topic_partition}", sentence)

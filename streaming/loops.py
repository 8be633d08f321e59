"""Driver: what keeps a mirror from feeding itself: target topics within the source's own cluster, and names that collide."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import routing

_log = logging.getLogger(__name__)


def without_own_targets(config: MirrorConfig, *, is_same_cluster: bool) -> MirrorConfig:
    """Within one cluster the mirror leaves its own target topics out. Raises ConfigError where each would be its own source."""
    if not is_same_cluster:
        return config
    topics, alias = config.topics, config.source.alias
    problem = routing.same_cluster_problem(topics.target_name, alias)
    if problem is not None:
        raise ConfigError(f"source {alias} and target {config.target.alias} are one cluster, {problem}")
    own = routing.own_targets_pattern(topics.target_name, alias)
    _log.info("source and target are one cluster: topics that match %s are this mirror's targets and are left out", own)
    return config.model_copy(update={"topics": topics.model_copy(update={"exclude": [*topics.exclude, own]})})


def target_of(config: MirrorConfig, topic: str) -> str:
    """Name of the target topic, also of one that appears while the mirror runs. Raises ConfigError where there can be none."""
    refuse_loops(config, [topic], is_same_cluster=False)
    return routing.target_topic_name(config.topics.target_name, config.source.alias, topic)


def refuse_loops(config: MirrorConfig, topics: Iterable[str], *, is_same_cluster: bool) -> None:
    """Raises ConfigError with every reason not to mirror `topics` as the mirror file says."""
    problems = routing.problems(
        sorted(set(topics)),
        template=config.topics.target_name,
        source_alias=config.source.alias,
        is_same_cluster=is_same_cluster,
    )
    if problems:
        raise ConfigError(problems)

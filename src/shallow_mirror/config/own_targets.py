"""Exclusion of the topics that would make a mirror its own source."""

from __future__ import annotations

import logging

from shallow_mirror import routing
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.errors import ConfigError

_log = logging.getLogger(__name__)


def exclude_own_targets(config: MirrorConfig, *, is_same_cluster: bool) -> MirrorConfig:
    """Return `config` without topics that would make a cycle. Raises ConfigError if each topic would be its own source.

    Within one cluster these are the mirror's own target topics; between two, with the source's alias in their names, those of a
    mirror in the other direction.
    """
    topics, source, target = config.topics, config.source.alias, config.target.alias
    if is_same_cluster:
        problem = routing.same_cluster_problem(topics.target_name, source)
        if problem is not None:
            raise ConfigError(f"source {source} and target {target} are one cluster, {problem}")
        excluded, reason = routing.own_targets_pattern(topics.target_name, source), "source and target are one cluster"
    elif routing.names_source(topics.target_name):
        excluded, reason = routing.own_targets_pattern(topics.target_name, target), f"names of copies from {target}"
    else:
        return config
    _log.info("topics that match %s are left out: %s", excluded, reason)
    return config.model_copy(update={"topics": topics.model_copy(update={"exclude": [*topics.exclude, excluded]})})

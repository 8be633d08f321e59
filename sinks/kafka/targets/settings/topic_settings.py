"""Driver: settings of topics that a cluster may hide one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

Settings = Mapping[str, str]


def settings_of(
    cluster: Cluster, names: Sequence[str], keys: Sequence[str], deadline: Deadline
) -> dict[str, Settings | ConfigError]:
    """Return the settings by topic, or why they may not be read: topic by topic if not all may. Raises RetriableError."""
    if not names:
        return {}
    try:
        return {**cluster.topic_configs(names, deadline, keys=keys)}
    except ConfigError as error:
        if len(names) == 1:
            return {names[0]: error}
    return {name: configs for name in names for configs in settings_of(cluster, [name], keys, deadline).values()}

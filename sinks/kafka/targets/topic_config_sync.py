"""Driver, beside the micro-batches: what becomes of mirrored topics at the source: their settings, and whether they are there.

Nothing here is needed for the copy: what fails is told, and tried again at the next look.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from shallow_mirror.broker.admin.topic_admin import set_topic_configs
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.routing import RoutedTopic

_log = logging.getLogger(__name__)

TOPICS_A_LOOK = 500
"""Settings of thousands of topics are gone through in several looks."""

_KEYS = (*target_topic_policy.COPIED, *target_topic_policy.FORCED)

Settings = Mapping[str, str]


class ConfigFollower:
    """`topics.configs: sync`."""

    def __init__(self, source: Cluster, target: Cluster, targets: TargetTopics) -> None:
        self._source, self._target, self._targets = source, target, targets
        self._begin = 0
        self._problems: dict[str, tuple[str, ...]] = {}

    def look(self, missing: Collection[str], deadline: Deadline) -> list[str]:
        """Sets what has changed. Returns every sentence about what is not as it should be, of earlier looks as well.

        Raises RetriableError when a cluster does not answer.
        """
        routes = {source: route for source, route in sorted(dict(self._targets.known).items()) if source not in missing}
        chosen = self._chosen(list(routes))
        of_source = self._settings(self._source, chosen, deadline)
        of_target = self._settings(self._target, [routes[one].target_topic for one in chosen], deadline)
        self._problems = {source: told for source, told in self._problems.items() if source in routes and source not in chosen}
        changes: dict[str, Settings] = {}
        for source in chosen:
            target = routes[source].target_topic
            one, other = of_source[source], of_target[target]
            if isinstance(one, ConfigError) or isinstance(other, ConfigError):
                self._tell(source, *(str(found) for found in (one, other) if isinstance(found, ConfigError)))
                continue
            self._take_in(source, routes[source], other)
            found = target_topic_policy.following(one, other)
            self._tell(source, *(f"target topic {target} {sentence}" for sentence in found.left))
            if found.changes:
                changes[source] = found.changes
        if changes:
            self._set(changes, routes, deadline)
        return [sentence for _, told in sorted(self._problems.items()) for sentence in told]

    def _take_in(self, source: str, route: RoutedTopic, settings: Settings) -> None:
        """What the brokers took a look ago they all know by now: batches of that size may be sent as they are."""
        most = int(settings.get("max.message.bytes", route.limits.max_message_bytes))
        if most != route.limits.max_message_bytes:
            self._targets.accept(source, most)

    def _chosen(self, names: Sequence[str]) -> list[str]:
        begin = self._begin if self._begin < len(names) else 0
        self._begin = begin + TOPICS_A_LOOK
        return list(names[begin : self._begin])

    def _set(self, changes: Mapping[str, Settings], routes: Mapping[str, RoutedTopic], deadline: Deadline) -> None:
        wanted = {routes[source].target_topic: settings for source, settings in changes.items()}
        refused = set_topic_configs(self._target.config, wanted, timeout_s=deadline.remaining_ms() / 1000)
        for source, settings in changes.items():
            target = routes[source].target_topic
            said = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
            if target in refused:
                self._tell(source, f"target topic {target}: {said} could not be set as at the source: {refused[target]}")
                continue
            _log.info("target topic %s was given %s, as source topic %s has", target, said, source)

    def _tell(self, source: str, *sentences: str) -> None:
        self._problems[source] = (*self._problems.get(source, ()), *sentences)

    def _settings(self, cluster: Cluster, names: Sequence[str], deadline: Deadline) -> dict[str, Settings | ConfigError]:
        """By topic, or why they may not be read: of one after the other where not all may."""
        if not names:
            return {}
        try:
            return {**cluster.topic_configs(names, deadline, keys=_KEYS)}
        except ConfigError as error:
            if len(names) == 1:
                return {names[0]: error}
        return {name: one for name in names for one in self._settings(cluster, [name], deadline).values()}

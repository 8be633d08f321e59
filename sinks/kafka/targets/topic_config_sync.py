"""Driver, beside the micro-batches: what becomes of mirrored topics at the source: their settings, and whether they are there.

Nothing here is needed for the copy: what fails is reported, and retried at the next look.
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
from shallow_mirror.sinks.routed_topic import RoutedTopic

_log = logging.getLogger(__name__)

TOPICS_PER_LOOK = 500
"""Settings of thousands of topics are gone through in several looks."""

_KEYS = (*target_topic_policy.COPIED, *target_topic_policy.FORCED)

Settings = Mapping[str, str]


class TopicConfigSync:
    """Sync of the settings of target topics with their source topics (`topics.configs: sync`)."""

    def __init__(self, source: Cluster, target: Cluster, targets: TargetTopics) -> None:
        self._source = source
        self._target = target
        self._targets = targets
        self._begin = 0
        self._problems: dict[str, tuple[str, ...]] = {}

    def sync(self, missing: Collection[str], deadline: Deadline) -> list[str]:
        """Set what has changed. Return every sentence about what is not as it should be, of earlier looks as well.

        Raises RetriableError when a cluster does not answer.
        """
        routes = {source: route for source, route in sorted(dict(self._targets.routes).items()) if source not in missing}
        chosen = self._chosen(list(routes))
        of_source = settings_of(self._source, chosen, _KEYS, deadline)
        of_target = settings_of(self._target, [routes[name].target_topic for name in chosen], _KEYS, deadline)
        self._problems = {
            source: sentences for source, sentences in self._problems.items() if source in routes and source not in chosen
        }
        changes: dict[str, Settings] = {}
        for source in chosen:
            target = routes[source].target_topic
            of_source_topic, of_target_topic = of_source[source], of_target[target]
            if isinstance(of_source_topic, ConfigError) or isinstance(of_target_topic, ConfigError):
                self._report(
                    source, *(str(refusal) for refusal in (of_source_topic, of_target_topic) if isinstance(refusal, ConfigError))
                )
                continue
            self._take_in(source, routes[source], of_target_topic)
            following = target_topic_policy.following(of_source_topic, of_target_topic)
            self._report(source, *(f"target topic {target} {sentence}" for sentence in following.left))
            if following.changes:
                changes[source] = following.changes
        if changes:
            self._set(changes, routes, deadline)
        return [sentence for _, sentences in sorted(self._problems.items()) for sentence in sentences]

    def _take_in(self, source: str, route: RoutedTopic, settings: Settings) -> None:
        """Accept a limit that was set at an earlier look: every broker has it by now, batches of that size may be sent whole."""
        most = int(settings.get("max.message.bytes", route.limits.max_message_bytes))
        if most != route.limits.max_message_bytes:
            self._targets.accept(source, most)

    def _chosen(self, names: Sequence[str]) -> list[str]:
        begin = self._begin if self._begin < len(names) else 0
        self._begin = begin + TOPICS_PER_LOOK
        return list(names[begin : self._begin])

    def _set(self, changes: Mapping[str, Settings], routes: Mapping[str, RoutedTopic], deadline: Deadline) -> None:
        wanted = {routes[source].target_topic: settings for source, settings in changes.items()}
        refused = set_topic_configs(self._target.config, wanted, timeout_s=deadline.remaining_ms() / 1000)
        for source, settings in changes.items():
            target = routes[source].target_topic
            assignments = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
            if target in refused:
                self._report(source, f"target topic {target}: {assignments} could not be set as at the source: {refused[target]}")
                continue
            _log.info("target topic %s was given %s, as source topic %s has", target, assignments, source)

    def _report(self, source: str, *sentences: str) -> None:
        self._problems[source] = (*self._problems.get(source, ()), *sentences)


def settings_of(
    cluster: Cluster, names: Sequence[str], keys: Sequence[str], deadline: Deadline
) -> dict[str, Settings | ConfigError]:
    """Return the settings by topic, or why they may not be read: topic by topic where not all may. Raises RetriableError."""
    if not names:
        return {}
    try:
        return {**cluster.topic_configs(names, deadline, keys=keys)}
    except ConfigError as error:
        if len(names) == 1:
            return {names[0]: error}
    return {name: configs for name in names for configs in settings_of(cluster, [name], keys, deadline).values()}

"""Driver: the settings of target topics with preserved offsets, compared again while the mirror runs.

The start refuses a topic whose settings would move records, show fillers or change times. Anybody may set them later, and a
Produce response shows one of them only (LogAppendTime, `writers/preserved_writer.py`). What is written between a change and the
next look is as the setting makes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import is_incarnation_gone
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings.topic_config_sync import TopicTurns
from shallow_mirror.sinks.kafka.targets.settings.topic_settings import Settings, settings_of
from shallow_mirror.sinks.slot_values import RoutedTopic

_log = logging.getLogger(__name__)

SETTINGS_EVERY_S = 5.0
"""How often settings are compared, before the tasks of a round start; with many topics, some of them (`TopicTurns`)."""

_LOOK_MS = 5_000


class PreservedSettings:
    """Of one query. Its start has compared the settings a moment ago."""

    def __init__(
        self, target: Cluster, clock: Callable[[], float] = time.monotonic, *, at_start: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`at_start`: problems that the start has found and isolated, by source topic."""
        self._target, self._clock = target, clock
        self._looked_at = clock()
        self._turns = TopicTurns()
        self._problems: dict[str, str] = dict(at_start)

    def problems(self, routes: Mapping[str, RoutedTopic], deadline: Deadline) -> Mapping[str, str]:
        """Return why nothing may be written to a target topic, by source topic; of an earlier look if none is due.

        Raises RetriableError if the target does not answer.
        """
        preserved = {source: route for source, route in sorted(routes.items()) if route.is_preserved}
        if not preserved or self._clock() - self._looked_at < SETTINGS_EVERY_S:
            return self._problems
        chosen = self._turns.take(list(preserved))
        try:
            settings = current_settings(self._target, {source: preserved[source] for source in chosen}, deadline.sooner(_LOOK_MS))
        except RetriableError as error:
            _log.info("settings of preserved target topics are compared again later: %s", error)
            return self._problems  # tasks do not reach the target either, or will be looked at before the next round
        self._looked_at = self._clock()
        self._problems = {
            source: text for source, text in self._problems.items() if source in preserved and source not in settings
        }
        for source, of_topic in settings.items():
            route = preserved[source]
            if isinstance(of_topic, ConfigError):
                problem: str | None = f"cannot be checked: {of_topic}"
            else:
                problem = target_topic_policy.changed_problem(of_topic, is_compacted=route.is_compacted)
            if problem is not None:
                self._problems[source] = f"target topic {route.target_topic} {problem}"
        return self._problems


def current_settings(target: Cluster, routes: Mapping[str, RoutedTopic], deadline: Deadline) -> dict[str, Settings | ConfigError]:
    """Return the settings on which preserved offsets depend, or why they may not be read, by source topic.

    A target topic that was deleted has none, and those of another one of its name say nothing of it: the task that would write
    to it finds that out. Raises RetriableError if the target does not answer.
    """
    listed = target.metadata([route.target_topic for route in routes.values()], deadline).topics
    existing = {
        source: route.target_topic
        for source, route in routes.items()
        if listed[route.target_topic].error_code == 0
        and not is_incarnation_gone(listed[route.target_topic], route.target_topic_id)
    }
    settings = settings_of(target, list(existing.values()), target_topic_policy.OF_PRESERVED, deadline)
    return {source: settings[name] for source, name in existing.items()}

"""Driver, beside the micro-batches: changes of mirrored topics at the source: settings and deletions.

Nothing here is needed for the copy: a failure is reported, and retried at the next look.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import set_topic_configs
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings.refusing_settings import following, is_passed
from shallow_mirror.sinks.kafka.targets.settings.topic_settings import Settings, settings_of
from shallow_mirror.sinks.kafka.targets.source_ends import source_ends
from shallow_mirror.sinks.kafka.targets.target_topic_policy import is_compacted
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.slot_values import RoutedTopic
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

TOPICS_PER_LOOK = 500
"""Settings of thousands of topics are gone through in several looks."""

_KEYS = (*target_topic_policy.COPIED, *target_topic_policy.FORCED)

_WHY_LATER = "it could refuse records that the source held before, which are copied first"


@dataclass(slots=True)
class _Awaiting:
    """`settings` of a source topic that wait until the map has passed `ends` (None: not listed yet). `most_bytes`: of a batch."""

    settings: Settings
    ends: Mapping[SourcePartition, int] | None = None
    most_bytes: int = sys.maxsize


class TopicTurns:
    """Takes TOPICS_PER_LOOK names at a time, and begins again after the last one."""

    def __init__(self) -> None:
        self._begin = 0

    def take(self, names: Sequence[str]) -> Sequence[str]:
        begin = self._begin if self._begin < len(names) else 0
        self._begin = begin + TOPICS_PER_LOOK
        return names[begin : self._begin]


class TopicConfigSync:
    """Sync of the settings of target topics with their source topics (`topics.configs: sync`)."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        targets: TargetTopics,
        positions: Callable[[], Mapping[SourcePartition, Position]],
    ) -> None:
        """`positions`: returns the settled ones of the offset map. Raises as the map."""
        self._source = source
        self._target = target
        self._targets = targets
        self._positions = positions
        self._turns = TopicTurns()
        self._problems: dict[str, tuple[str, ...]] = {}
        self._awaiting: dict[str, _Awaiting] = {}

    def sync(self, missing: Collection[str], deadline: Deadline) -> dict[str, tuple[str, ...]]:
        """Set the changed values. Return sentences about every remaining difference, by source topic, of earlier looks as well.

        Raises RetriableError when a cluster does not answer.
        """
        routes = {source: route for source, route in sorted(dict(self._targets.routes).items()) if source not in missing}
        chosen = self._turns.take(list(routes))
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
            if routes[source].is_preserved and is_compacted(of_source_topic) is not is_compacted(of_target_topic):
                policy, kept = of_source_topic["cleanup.policy"], of_target_topic["cleanup.policy"]
                # A policy that was changed at the target is found by `IdleSettings`, which has another remedy.
                if is_compacted(of_target_topic) is routes[source].is_compacted:
                    self._report(source, target_topic_policy.kept_policy_problem(target, kept, policy))
                of_source_topic = {**of_source_topic, "cleanup.policy": kept}
            config_changes = following(of_source_topic, of_target_topic, is_passed=False)
            if self._has_passed(source, routes[source], config_changes.waiting, deadline):
                config_changes = following(of_source_topic, of_target_topic, is_passed=True)
            if config_changes.changes:
                changes[source] = config_changes.changes
        if changes:
            self._set(changes, routes, deadline)
        return dict(sorted(self._problems.items()))

    def _has_passed(self, source: str, route: RoutedTopic, waiting: Settings, deadline: Deadline) -> bool:
        """Return whether everything is copied that these settings could refuse, over several looks.

        The first look sees a setting, which every broker of the source has by the second. That one lists the ends of the logs,
        and the map passes them later. Before a smaller limit of batches is set, the mirror itself has to keep it: the batches of
        the micro-batch that runs meanwhile end below the ends that are listed then.
        """
        before = self._awaiting.pop(source, None)
        if not waiting:
            return False
        awaiting = self._awaiting[source] = before if before is not None and before.settings == waiting else _Awaiting(waiting)
        if awaiting is not before:
            _log.info("target topic %s gets %s later: %s", route.target_topic, _assignments(waiting), _WHY_LATER)
            return False
        if awaiting.ends is None:
            awaiting.ends = source_ends(self._source, source, deadline)
            return False
        if not is_passed(awaiting.ends, self._positions()):
            return False
        least = int(waiting.get("max.message.bytes", route.limits.max_message_bytes))
        if least < route.limits.max_message_bytes:
            self._targets.accept(source, least)
            awaiting.ends = source_ends(self._source, source, deadline)
            awaiting.most_bytes = least
            return False
        return True

    def _take_in(self, source: str, route: RoutedTopic, settings: Settings) -> None:
        """Accept a limit that was set at an earlier look: every broker has it by now, batches of that size may be sent whole."""
        most = int(settings.get("max.message.bytes", route.limits.max_message_bytes))
        if source in self._awaiting:
            most = min(most, self._awaiting[source].most_bytes)
        if most != route.limits.max_message_bytes:
            self._targets.accept(source, most)

    def _set(self, changes: Mapping[str, Settings], routes: Mapping[str, RoutedTopic], deadline: Deadline) -> None:
        wanted = {routes[source].target_topic: settings for source, settings in changes.items()}
        refused = set_topic_configs(self._target, wanted, deadline)
        for source, settings in changes.items():
            target = routes[source].target_topic
            assignments = _assignments(settings)
            if target in refused:
                self._report(source, f"target topic {target}: {assignments} could not be set as at the source: {refused[target]}")
                continue
            _log.info("target topic %s was given %s, as source topic %s has", target, assignments, source)

    def _report(self, source: str, *sentences: str) -> None:
        self._problems[source] = (*self._problems.get(source, ()), *sentences)


def _assignments(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))

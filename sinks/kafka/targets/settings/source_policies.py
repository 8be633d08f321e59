"""Driver, beside the micro-batches: source topics with preserved offsets that were compacted, or no longer are, since the start.

Their target topics may not follow while the mirror runs, and the next start refuses topics that differ in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings.topic_config_sync import TopicTurns
from shallow_mirror.sinks.kafka.targets.settings.topic_settings import settings_of
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics

_POLICY = "cleanup.policy"


class SourcePolicies:
    """Where `TopicConfigSync`, which sees it as well, is not wanted."""

    def __init__(self, source: Cluster, target: Cluster, targets: TargetTopics) -> None:
        self._source, self._target, self._targets = source, target, targets
        self._turns = TopicTurns()
        self._problems: dict[str, tuple[str, ...]] = {}

    def sync(self, missing: Collection[str], deadline: Deadline) -> Mapping[str, tuple[str, ...]]:
        """Set nothing. Return as `TopicConfigSync.sync`. Raises RetriableError when a cluster does not answer."""
        routes = {
            source: route
            for source, route in sorted(dict(self._targets.routes).items())
            if route.is_preserved and source not in missing
        }
        chosen = self._turns.take(list(routes))
        of_source = settings_of(self._source, chosen, (_POLICY,), deadline)
        of_target = settings_of(self._target, [routes[name].target_topic for name in chosen], (_POLICY,), deadline)
        kept = {source: texts for source, texts in self._problems.items() if source in routes and source not in chosen}
        for source in chosen:
            target, is_compacted = routes[source].target_topic, routes[source].is_compacted
            now, at_target = of_source[source], of_target[target]
            if isinstance(now, ConfigError) or isinstance(at_target, ConfigError):
                kept[source] = tuple(str(refusal) for refusal in (now, at_target) if isinstance(refusal, ConfigError))
            elif target_topic_policy.is_compacted(at_target) is not is_compacted:
                pass  # changed at the target, not at the source: `IdleSettings` finds it, which has another remedy
            elif target_topic_policy.is_compacted(now) is not is_compacted:
                kept[source] = (target_topic_policy.kept_policy_problem(target, at_target[_POLICY], now[_POLICY]),)
        self._problems = kept
        return dict(sorted(kept.items()))

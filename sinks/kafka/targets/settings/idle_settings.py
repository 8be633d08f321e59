"""Driver, beside the micro-batches: settings of target topics with preserved offsets, also of those to which nothing is written.

Before tasks start, `PreservedSettings` compares the settings of the topics that they write to. A topic that is idle at the source
is in no micro-batch, so that its change would show with its next record only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings.preserved_settings import current_settings
from shallow_mirror.sinks.kafka.targets.settings.topic_config_sync import TopicTurns
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.slot_values import RoutedTopic, Side, UnfinishedRange
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

_LOOK_MS = 5_000


class IdleSettings:
    """Of one query. `look` is for the thread of the topic monitor, `require_unchanged` for that of the query."""

    def __init__(
        self,
        targets: TargetTopics,
        positions: Callable[[], Mapping[SourcePartition, Position]],
        isolate: Callable[[Sequence[UnfinishedRange]], None] | None,
    ) -> None:
        """`positions`: returns the settled ones of the offset map. Raises as the map.

        `isolate`: is given all partitions of topics that were changed whenever these topics are others than before. None: a
        change ends the run.
        """
        self._targets, self._positions, self._isolate = targets, positions, isolate
        self._turns = TopicTurns()
        self._suspected: frozenset[str] = frozenset()
        """Source topics whose target topics had a problem at the last look that was answered."""
        self._changed: dict[str, str] = {}
        """Sentences of those that had one twice, by source topic."""
        self._isolated: Mapping[str, str] = {}
        """`_changed`, as it was passed to `isolate`."""

    def begin(self, unfit: Mapping[str, str]) -> None:
        """Take over what the start has compared, before the first look. Raises as `positions` and `isolate`.

        `unfit`: sentences of topics that it isolates, by source topic.
        """
        self._changed, self._suspected = dict(unfit), frozenset(unfit)
        self._isolate_changed()

    def look(self, target: Cluster, not_written: Collection[str], deadline: Deadline, *, is_due: bool) -> None:
        """Compare the settings of topics with a problem and, if `is_due`, of TOPICS_PER_LOOK others.

        `not_written`: source topics to whose target topics this mirror writes nothing. Their settings are the business of others.
        Raises as `positions` and `isolate`; a target that does not answer changes nothing.
        """
        routes = {
            source: route
            for source, route in sorted(dict(self._targets.routes).items())
            if route.is_preserved and source not in not_written
        }
        self._suspected &= routes.keys()
        self._changed = {source: text for source, text in self._changed.items() if source in routes}
        chosen = self._suspected.union(self._turns.take(list(routes)) if is_due else ())
        if chosen:
            try:
                self._compare(target, {source: routes[source] for source in sorted(chosen)}, deadline.sooner(_LOOK_MS))
            except RetriableError as error:
                _log.info("settings of preserved target topics are compared again later: %s", error)
        self._isolate_changed()

    def require_unchanged(self) -> None:
        """Raise TopicSettingsError if a change was found, unless changed topics are isolated."""
        changed = self._changed
        if changed and self._isolate is None:
            routes = self._targets.routes
            raise target_topic_policy.changed_error({routes[source].target_topic: text for source, text in changed.items()})

    def _compare(self, target: Cluster, routes: Mapping[str, RoutedTopic], deadline: Deadline) -> None:
        """Take over what the target says of these topics. Raises RetriableError.

        A problem counts at the second look in a row that shows it. Any broker may answer, and one that lags behind the others
        returns settings that are older than those with which the run has begun. In between the monitor also reads the controls:
        of a topic that was handed over before it was changed, there is no second look.
        """
        suspected, changed = set(self._suspected), dict(self._changed)
        for source, settings in current_settings(target, routes, deadline).items():
            if isinstance(settings, ConfigError):
                continue  # no change: a missing permission is reported where settings are followed
            route = routes[source]
            problem = target_topic_policy.changed_problem(settings, is_compacted=route.is_compacted)
            if problem is None:
                suspected.discard(source)
                changed.pop(source, None)
            elif source in suspected:
                changed[source] = f"target topic {route.target_topic} {problem}"
            else:
                suspected.add(source)
        self._suspected, self._changed = frozenset(suspected), changed

    def _isolate_changed(self) -> None:
        if self._isolate is not None and self._changed != self._isolated:
            changed = dict(self._changed)
            self._isolate(self._ranges_of(changed) if changed else ())
            self._isolated = changed

    def _ranges_of(self, changed: Mapping[str, str]) -> list[UnfinishedRange]:
        """Return an empty range at the position of each partition, as a slot would leave it out. Raises as the map."""
        routes = self._targets.routes
        errors = {
            source: target_topic_policy.changed_error({routes[source].target_topic: text}) for source, text in changed.items()
        }
        return [
            UnfinishedRange.of(source, at.offset, Side.TARGET, errors[source.topic])
            for source, at in sorted(self._positions().items())
            # A former source topic of the same name has a target topic of its own.
            if source.topic in errors and at.target.topic_id == routes[source.topic].target_topic_id
        ]

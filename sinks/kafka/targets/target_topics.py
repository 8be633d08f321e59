"""Driver: the target topic of each source topic: found or created, checked, and kept for the life of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from shallow_mirror.broker import Cluster, TopicMetadata
from shallow_mirror.broker.admin import TopicSpec, add_partitions, ensure_topics
from shallow_mirror.broker.cluster import await_logs, gone_topics, is_incarnation_gone, missing_topics
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, error_name, is_forbidden, refusal
from shallow_mirror.checkpoints import DecidedSegment, Position, first_rows_at
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings.log_append_time import LogAppendTimeTopics
from shallow_mirror.sinks.kafka.targets.settings.topic_settings import settings_of
from shallow_mirror.sinks.kafka.targets.target_checks import collision_problems, replica_problem
from shallow_mirror.sinks.slot_values import RoutedTopic
from shallow_mirror.types import BatchLimits, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)


class TopicConfigs(Protocol):
    """Knows the settings of source topics: a cluster, or an archive of one."""

    def topic_configs(self, names: Sequence[str], deadline: Deadline, /) -> Mapping[str, Mapping[str, str]]:
        """Return the settings that differ from the defaults, by topic. Raises RetriableError."""
        ...


class TargetTopics:
    """Routes, by source topic name, found when they are first needed; settings of a target topic are read then.

    If the map has records of a source topic the rest has to go, and such a target topic gets the partitions that the
    source topic gained since.
    """

    def __init__(
        self,
        config: MirrorConfig | RestoreConfig,
        source: TopicConfigs,
        target: Cluster,
        *,
        positions: Mapping[SourcePartition, Position],
        route: Callable[[str], str],
        announce: Callable[[Mapping[str, str]], None] = lambda _: None,
        stamping: LogAppendTimeTopics | None = None,
        adjust_new: Callable[[Mapping[str, TopicSpec]], Mapping[str, TopicSpec]] = lambda specs: specs,
        isolates: bool = False,
    ) -> None:
        """Read no cluster yet: `prepare` does.

        `positions`: those of the offset map, with the target topics that hold the copied records. `route` returns the name of
        a target topic by source topic. `announce` is called with all names when there are new ones, before anything is copied
        to them. `stamping` is kept up to date; None: its problems are logged. `adjust_new` is called right before topics are
        created, with their specifications by source topic, and returns those to use instead. `isolates`: target topics that
        are gone are left out (`gone`), and so are copies with preserved offsets whose settings were changed (`unfit`), else
        they are a ConfigError.
        """
        self._isolates = isolates
        self._unfit_problems: dict[str, str] = {}
        self._gone_problems: dict[str, str] = {}
        self._hidden: frozenset[str] = frozenset()
        self._adjust_new = adjust_new
        self._announce = announce
        self.stamping = LogAppendTimeTopics() if stamping is None else stamping
        self._config = config
        self._source = source
        self._target = target
        self._positions = positions
        self._mirrored = {source.topic: position.target for source, position in positions.items()}
        self._route = route
        self._routes: dict[str, RoutedTopic] = {}
        self._partitions: dict[str, int] = {}

    @property
    def routes(self) -> Mapping[str, RoutedTopic]:
        """Every route found so far, by source topic."""
        return self._routes

    def names(self) -> dict[str, str]:
        """Of the target topics that are there, by source topic. From any thread."""
        gone = self._gone_problems
        return {source: route.target_topic for source, route in dict(self._routes).items() if source not in gone}

    def partition_counts(self, sources: Iterable[str]) -> dict[str, int]:
        """Return how many partitions the target topics of these source topics have, without preserved ones, by target topic."""
        return {
            route.target_topic: self._partitions[source]
            for source in sources
            if (route := self._routes.get(source)) is not None and not route.is_preserved
        }

    def leave_former(self, topic_ids: Mapping[str, str]) -> None:
        """Let topics that were created again at the source have other target topics than before. `topic_ids`: as they are now.

        The copied part of a topic binds the rest of it to its target topic, but not a new topic of the same name: its target may
        have been deleted for that.
        """
        targets = {(source.topic, source.topic_id): position.target for source, position in self._positions.items()}
        for name, topic_id in topic_ids.items():
            if (name, topic_id) in targets:
                self._mirrored[name] = targets[name, topic_id]
            elif self.is_preserved(name):
                self._mirrored.pop(name, None)

    def accept(self, source: str, max_message_bytes: int) -> None:
        """From the next micro-batch on. From any thread: a route is replaced, none is added."""
        route = self._routes[source]
        self._routes[source] = replace(route, limits=replace(route.limits, max_message_bytes=max_message_bytes))

    def prepare(self, topics: Mapping[str, int], deadline: Deadline, *, handed_over: Collection[str] = ()) -> None:
        """Make sure of `topics` (source name -> number of source partitions). Raises ConfigError with every problem.

        `handed_over`: source topics to whose targets nothing is written, because a migration has moved their writers there.
        Their settings and partitions are the business of those writers and are not compared, and whether they are gone or hidden:
        these are left out (`gone`) in any case.
        """
        unknown = {name: count for name, count in topics.items() if self._partitions.get(name, 0) < count}
        if unknown:
            self._look_up(unknown, deadline, handed_over)

    def _look_up(self, topics: Mapping[str, int], deadline: Deadline, handed_over: Collection[str]) -> None:
        names = {source: self._route(source) for source in topics}
        for source, problem in self._hidden_targets(names, deadline, handed_over).items():
            self._leave_out(source, topics[source], problem)
            self._hidden |= {source}
            del names[source]
        existing = self._existing(list(names.values()), deadline)
        for source, problem in self._unreadable_targets(names, existing, handed_over, deadline).items():
            self._leave_out(source, topics[source], problem)
            self._hidden |= {source}
            existing.pop(names.pop(source))
        isolated = names if self._isolates else {source: name for source, name in names.items() if source in handed_over}
        gone = self._gone(isolated, existing, deadline)
        for source, problem in gone.items():
            self._leave_out(source, topics[source], problem)
            existing.pop(names.pop(source), None)
        if not names:
            return
        self._require_same_targets(names, existing)
        missing = {source: target for source, target in names.items() if self._config.topics.create and target not in existing}
        if missing:
            collisions = collision_problems(self._target, missing.values(), deadline)
            if collisions:
                raise ConfigError([f"target topic {name} {problem}" for name, problem in collisions.items()])
            self._create_missing(missing, topics, deadline)
        grown = {
            target: topics[source]
            for source, target in names.items()
            if source not in handed_over and self._has_grown(source, topics, existing.get(target))
        }
        if grown:
            _log.info("adding partitions to target topics: %s", ", ".join(f"{name} (now {n})" for name, n in grown.items()))
            add_partitions(self._target, grown, deadline)
        if missing or grown:
            wanted = {names[source]: topics[source] for source in missing} | grown
            existing = self._await_listed(list(names.values()), wanted, deadline)
            new = [TopicPartition(name, partition) for name, count in wanted.items() for partition in range(count)]
            await_logs(self._target, new, deadline)
        self._take_in(topics, names, existing, handed_over, deadline)

    @property
    def gone(self) -> Mapping[str, str]:
        """Return why nothing is written to target topics that are gone and left out, by source topic."""
        return self._gone_problems

    @property
    def hidden(self) -> frozenset[str]:
        """Return the source topics that were handed over and whose target topics, or their settings, the user may not describe.

        They are in `gone`.

        Before anything of them is copied again they have to be prepared anew.
        """
        return self._hidden

    @property
    def unfit(self) -> Mapping[str, str]:
        """Return why nothing may be written to target topics with preserved offsets that are left out, by source topic.

        As they were found: a setting may have been put back since.
        """
        return self._unfit_problems

    def _gone(self, names: Mapping[str, str], existing: Mapping[str, TopicMetadata], deadline: Deadline) -> dict[str, str]:
        """Return why nothing is written to target topics that are gone, by source topic. Raises RetriableError.

        `names`: those that may be left out.
        """
        ids = {
            target: self._mirrored[source].topic_id
            for source, target in names.items()
            if source in self._mirrored and self._mirrored[source].topic == target
        }
        suspected = {
            target: topic_id
            for target, topic_id in ids.items()
            if target not in existing or is_incarnation_gone(existing[target], topic_id)
        }
        gone = gone_topics(self._target, suspected, deadline)
        if suspected.keys() - gone.keys():
            raise RetriableError(
                error_name(UNKNOWN_TOPIC_OR_PARTITION),
                f"not every broker of the target knows topic {', '.join(sorted(suspected.keys() - gone.keys()))}",
            )
        return {
            source: target_topic_policy.gone_problem(source, self._mirrored[source], gone[target])
            for source, target in names.items()
            if target in gone and source in self._mirrored
        }

    def _hidden_targets(self, names: Mapping[str, str], deadline: Deadline, handed_over: Collection[str]) -> dict[str, str]:
        """Return why target topics of topics that were handed over cannot be seen any more, by source topic."""
        moved = {source: target for source, target in names.items() if source in handed_over and source in self._mirrored}
        hidden = missing_topics(self._target, sorted(moved.values()), deadline).hidden
        return {source: f"target topic {target}: {hidden[target]}" for source, target in moved.items() if target in hidden}

    def _unreadable_targets(
        self,
        names: Mapping[str, str],
        existing: Mapping[str, TopicMetadata],
        handed_over: Collection[str],
        deadline: Deadline,
    ) -> dict[str, str]:
        """Return why settings of target topics of topics that were handed over cannot be read any more, by source topic."""
        moved = {
            source: target
            for source, target in names.items()
            if source in handed_over and source in self._mirrored and target in existing
        }
        settings = settings_of(self._target, sorted(moved.values()), ("max.message.bytes",), deadline)
        found = {source: settings[target] for source, target in moved.items()}
        return {
            source: f"target topic {moved[source]}: {of_it}" for source, of_it in found.items() if isinstance(of_it, ConfigError)
        }

    def _leave_out(self, source: str, partition_count: int, problem: str) -> None:
        self._routes[source] = self._route_to_gone(source)
        self._partitions[source] = partition_count
        self._gone_problems[source] = problem

    def _route_to_gone(self, source: str) -> RoutedTopic:
        """Return a route to which tasks write nothing."""
        limits = BatchLimits(
            max_message_bytes=1,
            isolation_level=self._config.read.isolation_level,
            log_append_time=self._config.read.log_append_time,
        )
        before = self._mirrored[source]
        return RoutedTopic(target_topic=before.topic, target_topic_id=before.topic_id, limits=limits)

    def _take_in(
        self,
        topics: Mapping[str, int],
        names: Mapping[str, str],
        existing: Mapping[str, TopicMetadata],
        handed_over: Collection[str],
        deadline: Deadline,
    ) -> None:
        settings = self._target.topic_configs(sorted(existing), deadline)
        written = {source: name for source, name in sorted(names.items()) if name in existing and source not in handed_over}
        preserved = {source: name for source, name in written.items() if self.is_preserved(source)}
        sources = self._source.topic_configs(list(preserved), deadline) if preserved else {}
        unfit = self._unfit(preserved, settings, sources) if self._isolates else {}
        problems = [
            f"target topic {target} {target_topic_policy.missing_problem(source, topics[source])}"
            for source, target in sorted(names.items())
            if target not in existing
        ]
        for source, target in written.items():
            of_target = {} if source in unfit else settings[target]
            found = target_topic_policy.problems_of(source, topics[source], len(existing[target].partitions), of_target)
            if source in preserved and source not in unfit:
                found += target_topic_policy.preserving_problems(of_target, sources[source], is_begun=source in self._mirrored)
            replica_count = min((partition.replica_count for partition in existing[target].partitions.values()), default=None)
            if (problem := replica_problem(self._target, settings[target], replica_count, deadline)) is not None:
                found.append(problem)
            problems += [f"target topic {target} {problem}" for problem in found]
        if problems:
            raise ConfigError(problems)
        self._unfit_problems = {source: text for source, text in self.unfit.items() if source not in names} | unfit
        for target in sorted(existing):
            self.stamping.configured(target, settings[target])
        has_new = not names.keys() <= self._routes.keys()
        for source, target in names.items():
            self._routes[source] = RoutedTopic(
                target_topic=target,
                target_topic_id=existing[target].topic_id,
                limits=BatchLimits(
                    max_message_bytes=int(settings[target]["max.message.bytes"]),
                    isolation_level=self._config.read.isolation_level,
                    log_append_time=self._config.read.log_append_time,
                    coalesce_bytes=None if self.is_preserved(source) else self._config.write.coalesce_limit_bytes,
                    coalesces_where_cheaper=self._config.write.coalesces_where_cheaper,
                ),
                is_preserved=self.is_preserved(source),
                # Of an unfit topic as it has to be: fillers have a key, or none, for that.
                is_compacted=target_topic_policy.is_compacted(sources[source] if source in unfit else settings[target]),
            )
            self._partitions[source] = len(existing[target].partitions)
            self._mirrored[source] = self._routes[source].target_of(SourcePartition(source, "", 0))
        if has_new:
            self._announce(self.names())

    def is_preserved(self, source: str) -> bool:
        """Return whether the records of a source topic keep their offsets."""
        return self._config.topics.is_preserved(source)

    def _unfit(
        self,
        preserved: Mapping[str, str],
        settings: Mapping[str, Mapping[str, str]],
        sources: Mapping[str, Mapping[str, str]],
    ) -> dict[str, str]:
        """Return why topics that this mirror has begun to fill are no longer fit for preserved offsets, by source topic.

        `preserved`: target topics by source topic. `settings`: of the target topics. `sources`: of the source topics.
        """
        unfit = {}
        for source, target in preserved.items():
            is_compacted = target_topic_policy.is_compacted(sources[source])
            problem = target_topic_policy.changed_problem(settings[target], is_compacted=is_compacted)
            if problem is not None and source in self._mirrored:
                unfit[source] = f"target topic {target} {problem}"
        return unfit

    def _has_grown(self, source: str, topics: Mapping[str, int], target: TopicMetadata | None) -> bool:
        """More partitions at the source than at a target topic that this mirror fills already."""
        return (
            self._config.topics.create
            and source in self._mirrored
            and target is not None
            and len(target.partitions) < topics[source]
        )

    def _require_same_targets(self, names: Mapping[str, str], existing: Mapping[str, TopicMetadata]) -> None:
        """Raise ConfigError if earlier copies are not in the topic that would get the rest."""
        mirrored = {source: self._mirrored[source] for source in names if source in self._mirrored}
        problems_of_targets = (
            target_topic_policy.other_target_problem(source, before, names[source], existing.get(names[source]))
            for source, before in mirrored.items()
        )
        problems = [problem for problem in problems_of_targets if problem is not None]
        if problems:
            raise ConfigError(problems)

    def _await_listed(self, names: Sequence[str], wanted: Mapping[str, int], deadline: Deadline) -> dict[str, TopicMetadata]:
        """Return the metadata once it lists the new topics and partitions: brokers learn of them after the controller."""
        tries = 0
        while True:
            existing = self._existing(names, deadline)
            late = [name for name, count in wanted.items() if name not in existing or len(existing[name].partitions) < count]
            if not late:
                return existing
            deadline.require(f"the target's brokers to list the new partitions of {late[0]}")
            self._target.pause(tries, deadline)
            tries += 1

    def _existing(self, names: Sequence[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        self._target.forget_metadata()
        listed = self._target.metadata(names, deadline).topics
        problems = [
            f"target topic {name}: {refusal(topic.error_code, 'Produce', topic=name)}"
            for name, topic in listed.items()
            if is_forbidden(topic.error_code)
        ]
        if problems:
            raise ConfigError(problems)
        return {name: topic for name, topic in listed.items() if topic.error_code == 0}

    def _create_missing(self, missing: Mapping[str, str], partitions: Mapping[str, int], deadline: Deadline) -> None:
        settings = self._source.topic_configs(sorted(missing), deadline) if self._config.topics.configs != "off" else {}
        replicas = self._replicas(deadline)
        by_source = {
            source: TopicSpec(
                target,
                partitions[source],
                replicas,
                target_topic_policy.configs_of_new(settings.get(source, {}), is_preserved=self.is_preserved(source)),
            )
            for source, target in sorted(missing.items())
        }
        specs = list(self._adjust_new(by_source).values())
        _log.info(
            "creating target topics: %s", ", ".join(f"{spec.name} ({counted(spec.partitions, 'partition')})" for spec in specs)
        )
        try:
            ensure_topics(self._target, specs, deadline)
        except ConfigError as refused:
            if not target_topic_policy.are_limits_unknown(refused.problems):
                raise
            older = [replace(spec, configs=target_topic_policy.before_3_6(spec.configs)) for spec in specs]
            ensure_topics(self._target, older, deadline)

    def _replicas(self, deadline: Deadline) -> int | None:
        brokers = len(self._target.metadata([], deadline).brokers)
        configured = self._config.topics.replication_factor
        bounded = target_topic_policy.bounded_replicas(configured, brokers)
        if bounded != configured:
            _log.warning(
                "topics.replication_factor is %s, the target has %s: new topics get %s",
                configured,
                counted(brokers, "broker"),
                counted(bounded, "replica"),
            )
        return bounded


def first_rows(
    targets: TargetTopics, source: Cluster, starts: Mapping[SourcePartition, int], deadline: Deadline
) -> tuple[DecidedSegment, ...]:
    """Prepare the target topics and return the zero-length first row of each partition, at its start.

    Raises ConfigError if a target topic cannot be used, RetriableError.
    """
    if not starts:
        return ()
    topics = sorted({source_partition.topic for source_partition in starts})
    listed = source.metadata(topics, deadline).topics
    missing = [name for name in topics if listed[name].error_code]
    if missing:
        raise RetriableError(error_name(listed[missing[0]].error_code), f"source topic {missing[0]} is not there any more")
    targets.prepare({name: len(listed[name].partitions) for name in topics}, deadline)
    return rows_at(starts, targets)


def rows_at(starts: Mapping[SourcePartition, int], targets: TargetTopics) -> tuple[DecidedSegment, ...]:
    """Return the zero-length first row of each partition, at its start. The targets of their topics are known."""
    return first_rows_at(starts, lambda source: targets.routes[source.topic].target_of(source))

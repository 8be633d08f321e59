"""Driver: settings of target topics that a mirror creates, held back until what the source held is copied.

A source that was compacted later may still hold records without a key, which a compacted target refuses. So its copy is created
without compaction, and the table `created_topics` says so before that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, set_topic_configs
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs.topics import CreatedTopic, CreatedTopicsTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks.kafka import before_compaction
from shallow_mirror.sinks.kafka.targets.settings import BEFORE_COMPACTION, is_passed, settings_of
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

Positions = Mapping[SourcePartition, Position]


class HeldSettings:
    """Of one run. For the thread of the query (`hold`) and the topic monitor (`release`)."""

    def __init__(self, config: MirrorConfig, source: Cluster, storage: TableStorage, run_epoch: int) -> None:
        """Read no table yet: the first call does."""
        self._config, self._source, self._run_epoch = config, source, run_epoch
        self._storage = storage
        self._table = CreatedTopicsTable.of(storage)
        self._held: dict[str, CreatedTopic] | None = None
        self._lock = threading.Lock()

    def hold(self, specs: Mapping[str, TopicSpec]) -> Mapping[str, TopicSpec]:
        """Return the specifications to create instead of `specs`, by source topic, after recording them.

        With preserved offsets a copy is compacted from its beginning: its fillers depend on that. Raises as `DurableTable`,
        ConfigError, RetriableError.
        """
        adjusted, created = dict(specs), []
        timeout_ms = self._source.config.request_timeout_ms
        for topic, spec in specs.items():
            if self._config.topics.is_preserved(topic):
                continue
            before, ends = before_compaction(self._source, topic, spec.configs, Deadline.after_ms(timeout_ms, time.monotonic))
            if not before:
                continue
            adjusted[topic] = replace(spec, configs={**spec.configs, **before})
            created.append(
                CreatedTopic(
                    source_topic=topic,
                    source_topic_id=next(iter(ends)).topic_id,
                    target_topic=spec.name,
                    held_settings=tuple(before),
                    source_ends=tuple(end for _, end in sorted(ends.items())),
                )
            )
            _log.info("target topic %s is compacted like %s once what that holds now is copied", spec.name, topic)
        self._record(created)
        return adjusted

    def release(self, source: Cluster, target: Cluster, deadline: Deadline) -> dict[str, str]:
        """Set the settings that the map has passed, as they are at the source now. Return why that failed, by source topic.

        Raises as `DurableTable`, RetriableError, and as the offset map.
        """
        held = self._read()
        if not held:
            return {}
        positions = OffsetMap.open(self._storage.to_read(), mirror=self._config.mirror).positions()
        held |= self._begin_again(held, positions, source, deadline)
        passed = {topic: row for topic, row in held.items() if is_passed(_ends_of(row), positions)}
        passed = _existing(passed, positions, source, target, deadline)
        if not passed:
            return {}
        names = sorted({name for row in passed.values() for name in row.held_settings})
        of_source = settings_of(source, sorted(passed), names, deadline)
        of_target = settings_of(target, sorted(row.target_topic for row in passed.values()), names, deadline)
        changes: dict[str, dict[str, str]] = {}
        problems: dict[str, str] = {}
        for topic, row in passed.items():
            settings, now = of_source[topic], of_target[row.target_topic]
            if isinstance(settings, ConfigError) or isinstance(now, ConfigError):
                problems[topic] = "; ".join(str(problem) for problem in (settings, now) if isinstance(problem, ConfigError))
            elif any(now.get(name) != BEFORE_COMPACTION[name] for name in row.held_settings):
                self._record([replace(row, held_settings=())])  # an operator, or `topics.configs: sync`, has changed them
            else:
                changes[topic] = {name: settings[name] for name in row.held_settings if name in settings}
        wanted = {passed[topic].target_topic: settings for topic, settings in changes.items()}
        refused = set_topic_configs(target, wanted, deadline) if wanted else {}
        for topic in changes:
            target_topic = passed[topic].target_topic
            if target_topic in refused:
                problems[topic] = f"target topic {target_topic} cannot be compacted like {topic}: {refused[target_topic]}"
            else:
                _log.info("target topic %s was given %s, as source topic %s has", target_topic, wanted[target_topic], topic)
                self._record([replace(passed[topic], held_settings=())])
        return problems

    def _begin_again(
        self, held: Mapping[str, CreatedTopic], positions: Positions, source: Cluster, deadline: Deadline
    ) -> dict[str, CreatedTopic]:
        """Record the rows of source topics that were created again, and are copied: with the ends of what has their names now.

        Nothing more is copied of the former ones.
        """
        listed = source.metadata(sorted(held), deadline).topics
        copied = {(key.topic, key.topic_id) for key in positions}
        rows = {}
        for topic, row in held.items():
            now = listed[topic]
            if now.error_code or now.topic_id == row.source_topic_id or (topic, now.topic_id) not in copied:
                continue
            try:
                _, ends = before_compaction(source, topic, {"cleanup.policy": "compact"}, deadline)
            except RetriableError:
                continue  # a partition without a leader keeps no other topic waiting
            of_topic = tuple(end for _, end in sorted(ends.items()))
            rows[topic] = replace(row, source_topic_id=now.topic_id, source_ends=of_topic)
        self._record(list(rows.values()))
        return rows

    def _read(self) -> dict[str, CreatedTopic]:
        with self._lock:
            if self._held is None:
                self._held = {topic: row for topic, row in self._table.read().items() if row.held_settings}
            return dict(self._held)

    def _record(self, rows: list[CreatedTopic]) -> None:
        self._read()
        self._table.record(rows, run_epoch=self._run_epoch, at_ms=int(time.time() * 1000))
        with self._lock:
            assert self._held is not None, "read above"
            self._held.update({row.source_topic: row for row in rows})
            self._held = {topic: row for topic, row in self._held.items() if row.held_settings}


def _existing(
    rows: Mapping[str, CreatedTopic], positions: Positions, source: Cluster, target: Cluster, deadline: Deadline
) -> dict[str, CreatedTopic]:
    """Return the rows of topics that both clusters have: one that was deleted must not keep the others waiting.

    A target topic that was created again is another one: what it holds is not known.
    """
    if not rows:
        return {}
    of_source = source.metadata(sorted(rows), deadline).topics
    of_target = target.metadata(sorted(row.target_topic for row in rows.values()), deadline).topics
    copied_to = {(key.topic, at.target.topic, at.target.topic_id) for key, at in positions.items()}
    return {
        topic: row
        for topic, row in rows.items()
        if not of_source[topic].error_code
        and not of_target[row.target_topic].error_code
        and (topic, row.target_topic, of_target[row.target_topic].topic_id) in copied_to
    }


def _ends_of(row: CreatedTopic) -> dict[SourcePartition, int]:
    return {SourcePartition(row.source_topic, row.source_topic_id, number): end for number, end in enumerate(row.source_ends)}

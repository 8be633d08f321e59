"""Driver: retention of the target topics of a restore: paused in those that it creates, compared in those that exist."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec
from shallow_mirror.checkpoints.ledger import ArchiveTable, LedgerOwner, PausedTopic, RestoredTopicsTable, RestoreRanges
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.config.restore_changes import unfinished_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted, listed
from shallow_mirror.sinks.kafka.targets.settings import existing_topic_findings, may_delete_or_refuse, pause_of
from shallow_mirror.streaming.planning.amounts_to_restore import restored_amounts
from shallow_mirror.streaming.runs.paused_retention import LIFT, paused_topics

_log = logging.getLogger(__name__)


class RestoredRetention:
    """Of one run, which owns the offset map."""

    def __init__(self, config: RestoreConfig, target: Cluster, storage: TableStorage, owner: LedgerOwner) -> None:
        self._config = config
        self._target = target
        self._table = RestoredTopicsTable.of(storage)
        self._owner = owner

    def pause_new(self, specs: Mapping[str, TopicSpec]) -> Mapping[str, TopicSpec]:
        """Return new target topics, by archived topic, with the settings that keep restored records, and record these settings.

        They are recorded before the topics are created, so that none is forgotten. Raises as `DurableTable`.
        """
        if not self._config.topics.pauses_retention:
            return specs
        pauses = {topic: pause_of(spec.configs) for topic, spec in specs.items()}
        paused = [
            PausedTopic(source_topic=topic, target_topic=specs[topic].name, settings=pause)
            for topic, pause in sorted(pauses.items())
            if pause
        ]
        self._owner.check_ownership()
        self._table.record(paused, run_epoch=self._owner.run_epoch, at_ms=_now_ms())
        if paused:
            _log.info(
                "retention is paused in new target topics, so that nothing that is restored is deleted: %s; %s sets the archived "
                "values later",
                listed(topic.target_topic for topic in paused),
                LIFT,
            )
        return {topic: replace(spec, configs={**spec.configs, **pauses[topic]}) for topic, spec in specs.items()}

    def require_kept(self, archive: ArchiveTable, decided: RestoreRanges, deadline: Deadline) -> None:
        """Raise ConfigError if an existing target topic would delete or refuse records that are still to be restored.

        With `topics.retention: archived` its deletions are logged.
        """
        unfinished = {source.topic for source in unfinished_partitions(decided, self._owner.positions())}
        targets = {topic: self._config.target_topic(topic) for topic in sorted(unfinished)}
        listed_topics = self._target.metadata(sorted(set(targets.values())), deadline).topics if targets else {}
        existing = [name for name, topic in listed_topics.items() if topic.error_code == 0]
        settings = self._target.topic_configs(sorted(existing), deadline) if existing else {}
        doubtful = {
            topic: target for topic, target in targets.items() if target in settings and may_delete_or_refuse(settings[target])
        }
        amounts = restored_amounts(archive, decided, doubtful.keys())
        all_problems, now_ms = [], _now_ms()
        for topic, target in doubtful.items():
            problems, notes = existing_topic_findings(
                settings[target],
                amounts[topic],
                now_ms,
                is_paused=self._config.topics.pauses_retention,
                stops_at_refused=self._config.write.on_refused == "stop",
            )
            all_problems += [f"target topic {target} {problem}" for problem in problems]
            for note in notes:
                _log.warning("target topic %s %s", target, note)
        if all_problems:
            raise ConfigError(all_problems)

    def log_paused(self, deadline: Deadline) -> None:
        """Log the topics of this restore whose retention is paused, and the command that ends the pause."""
        names = paused_topics(self._target, self._table.read().values(), deadline)
        if names:
            _log.warning(
                "retention is paused in %s (%s): nothing is deleted there before %s",
                counted(len(names), "topic"),
                listed(names),
                LIFT,
            )


def _now_ms() -> int:
    return int(time.time() * 1000)

"""Driver: what keeps mirrors from feeding themselves and each other: names, and the notes that mirrors leave in their targets.

A mirror leaves a note in its target cluster (`sinks/kafka/targets/mirror_registration.py`); one that reads from there sees
whether it would send topics back to where they came from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from shallow_mirror.broker.admin.group_metadata_store import MAX_NOTE_BYTES, read_group_notes, write_group_note
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.kafka.targets.mirror_registration import GROUP_SUFFIX, Origin, loop_problems

_log = logging.getLogger(__name__)

_NOTE_S = 10.0
REGISTRATION_EVERY_S, REGISTRATION_RETRY_S = 6 * 3600.0, 60.0
"""`offsets.retention.minutes` of the target is a week by default."""


def exclude_own_targets(config: MirrorConfig, *, is_same_cluster: bool) -> MirrorConfig:
    """Within one cluster the mirror leaves its own target topics out; between two, with the source's alias in their names, those
    that a mirror in the other direction makes. Raises ConfigError where each topic would be its own source."""
    topics, source, target = config.topics, config.source.alias, config.target.alias
    if is_same_cluster:
        problem = routing.same_cluster_problem(topics.target_name, source)
        if problem is not None:
            raise ConfigError(f"source {source} and target {target} are one cluster, {problem}")
        left_out, why = routing.own_targets_pattern(topics.target_name, source), "source and target are one cluster"
    elif routing.names_source(topics.target_name):
        left_out, why = routing.own_targets_pattern(topics.target_name, target), f"names of copies from {target}"
    else:
        return config
    _log.info("topics that match %s are left out: %s", left_out, why)
    return config.model_copy(update={"topics": topics.model_copy(update={"exclude": [*topics.exclude, left_out]})})


class CycleDetector:
    """Of one run. What other mirrors say in the source cluster is read when it begins, and when topics come."""

    def __init__(self, config: MirrorConfig, *, source_cluster_id: str, target_cluster_id: str) -> None:
        self._config, self._source_id, self._target_id = config, source_cluster_id, target_cluster_id
        self._origins: Sequence[Origin] = ()
        self._note_due_at = -math.inf

    def read(self) -> None:
        """A source that does not tell its groups, for want of a right, is a doubt in the log."""
        try:
            notes = read_group_notes(self._config.source.client, GROUP_SUFFIX, timeout_s=_NOTE_S)
        except (RetriableError, ConfigError) as error:
            _log.warning("whether other mirrors bring topics to the source from the target is not known: %s", error)
            return
        found = [Origin.parse(text) for text in notes.values()]
        self._origins = [one for one in found if one is not None]

    def announce(self, routes: Mapping[str, str]) -> None:
        """Once the target has its topics, and before anything is copied to them: of two mirrors that begin at the same time one
        sees the note of the other. `routes`: target topic by source topic. Raises ConfigError.
        """
        self.keep_note(routes)
        self.read()
        self.refuse(routes)

    def keep_note(self, routes: Mapping[str, str]) -> None:
        """In the target, for mirrors that read from there: when there is a topic that can hold it, and again before the broker
        forgets it."""
        if routes and time.monotonic() >= self._note_due_at:
            is_written = self._tell(min(routes.values()))
            self._note_due_at = time.monotonic() + (REGISTRATION_EVERY_S if is_written else REGISTRATION_RETRY_S)

    def _tell(self, target_topic: str) -> bool:
        config = self._config
        origin = Origin(
            mirror=config.mirror,
            source_cluster_id=self._source_id,
            source_alias=config.source.alias,
            target_name=config.topics.target_name,
            include=tuple(config.topics.include),
            exclude=tuple(config.topics.exclude),
        )
        group, note = f"{config.mirror}{GROUP_SUFFIX}", origin.build(MAX_NOTE_BYTES)
        try:
            write_group_note(config.target.client, group, target_topic, note, timeout_s=_NOTE_S)
        except (RetriableError, OutcomeUnknownError, ConfigError) as error:
            _log.warning("mirrors in the other direction will not see this one: %s", error)
            return False
        return True

    def refuse(self, topics: Iterable[str]) -> None:
        """Raises ConfigError with every reason not to mirror `topics` as the mirror file says."""
        names, config = sorted(set(topics)), self._config
        template, alias = config.topics.target_name, config.source.alias
        problems = routing.problems(
            names, template=template, source_alias=alias, is_same_cluster=self._source_id == self._target_id
        )
        if self._source_id != self._target_id:
            problems += loop_problems(
                names, self._origins, template=template, source_alias=alias, target_cluster_id=self._target_id
            )
        if problems:
            raise ConfigError(problems)

    def target_of(self, topic: str) -> str:
        """Name of the target topic, also of one that appears later. Raises ConfigError where there can be none."""
        self.refuse([topic])
        return routing.target_topic_name(self._config.topics.target_name, self._config.source.alias, topic)

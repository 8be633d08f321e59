"""Driver: detection of replication cycles, by names and by the registrations of mirrors in their target clusters.

A mirror registers in its target cluster (`sinks/kafka/targets/mirror_registration.py`). One that reads from there detects
whether it would send topics back to where they came from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from shallow_mirror import routing
from shallow_mirror.broker.admin.group_metadata_store import MAX_NOTE_BYTES, read_group_notes, write_group_note
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks.kafka.targets.mirror_registration import GROUP_SUFFIX, Origin, loop_problems

_log = logging.getLogger(__name__)

_REQUEST_S = 10.0
REGISTRATION_EVERY_S, REGISTRATION_RETRY_S = 6 * 3600.0, 60.0
"""`offsets.retention.minutes` of the target is a week by default."""


def exclude_own_targets(config: MirrorConfig, *, is_same_cluster: bool) -> MirrorConfig:
    """Return `config` without topics that would make a cycle. Raises ConfigError where each topic would be its own source.

    Within one cluster these are the mirror's own target topics; between two, with the source's alias in their names, those of a
    mirror in the other direction.
    """
    topics, source, target = config.topics, config.source.alias, config.target.alias
    if is_same_cluster:
        problem = routing.same_cluster_problem(topics.target_name, source)
        if problem is not None:
            raise ConfigError(f"source {source} and target {target} are one cluster, {problem}")
        excluded, reason = routing.own_targets_pattern(topics.target_name, source), "source and target are one cluster"
    elif routing.names_source(topics.target_name):
        excluded, reason = routing.own_targets_pattern(topics.target_name, target), f"names of copies from {target}"
    else:
        return config
    _log.info("topics that match %s are left out: %s", excluded, reason)
    return config.model_copy(update={"topics": topics.model_copy(update={"exclude": [*topics.exclude, excluded]})})


class CycleDetector:
    """Of one run. Registrations of other mirrors in the source cluster are read when it begins, and when topics are added."""

    def __init__(self, config: MirrorConfig, *, source_cluster_id: str, target_cluster_id: str) -> None:
        self._config = config
        self._source_id = source_cluster_id
        self._target_id = target_cluster_id
        self._origins: Sequence[Origin] = ()
        self._registration_due_at = -math.inf

    def read_registrations(self) -> None:
        """Read what other mirrors registered in the source. A source that does not list its groups is only logged."""
        try:
            notes = read_group_notes(self._config.source.client, GROUP_SUFFIX, timeout_s=_REQUEST_S)
        except (RetriableError, ConfigError) as error:
            _log.warning(
                "registrations of other mirrors cannot be read, so cycles through the source are not detected: %s", error
            )
            return
        origins = [Origin.parse(text) for text in notes.values()]
        self._origins = [origin for origin in origins if origin is not None]

    def register(self, routes: Mapping[str, str]) -> None:
        """Register in the target, then check against all registrations. Raises ConfigError. `routes`: targets by source topic.

        In this order, after the target has its topics and before anything is copied to them: of two mirrors that begin at the
        same time one sees the registration of the other.
        """
        self.refresh_registration(routes)
        self.read_registrations()
        self.require_no_cycles(routes)

    def refresh_registration(self, routes: Mapping[str, str]) -> None:
        """Write the registration once there is a topic to commit it for, and again before the broker expires it."""
        if routes and time.monotonic() >= self._registration_due_at:
            is_written = self._write_registration(min(routes.values()))
            self._registration_due_at = time.monotonic() + (REGISTRATION_EVERY_S if is_written else REGISTRATION_RETRY_S)

    def _write_registration(self, target_topic: str) -> bool:
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
            write_group_note(config.target.client, group, target_topic, note, timeout_s=_REQUEST_S)
        except (RetriableError, OutcomeUnknownError, ConfigError) as error:
            _log.warning("mirrors in the other direction will not detect this one: %s", error)
            return False
        return True

    def require_no_cycles(self, topics: Iterable[str]) -> None:
        """Raise ConfigError with every reason not to mirror `topics` as the mirror file says."""
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

    def target_topic_name(self, topic: str) -> str:
        """Return the name of a target topic, also of a source topic that appears later. Raises ConfigError if none is valid."""
        self.require_no_cycles([topic])
        return routing.target_topic_name(self._config.topics.target_name, self._config.source.alias, topic)

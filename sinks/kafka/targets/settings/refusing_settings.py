"""Pure: settings of a source topic that its target topic gets later, because they could refuse records that are yet to be copied.

The invariant: a setting that may refuse records is set on a target topic only when the offset map has passed the ends that the
source's logs had after the setting was seen there. Records behind them were accepted by brokers with that setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shallow_mirror.checkpoints import Position
from shallow_mirror.sinks.kafka.targets.target_topic_policy import COPIED, FORCED, is_compacted
from shallow_mirror.types import SourcePartition

BEFORE_COMPACTION: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a copy before it is compacted: it takes records without a key, and deletes nothing."""


def is_passed(ends: Mapping[SourcePartition, int], positions: Mapping[SourcePartition, Position]) -> bool:
    """Return whether everything below `ends` is copied. A partition without a position is not, unless it was empty."""
    return all(not end or (source in positions and positions[source].offset >= end) for source, end in ends.items())


def settings_before_compaction(source: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a target topic before it is compacted like its source topic; nothing if the source is not compacted.

    A topic that is compacted and deletes as well has its own retention.
    """
    if not is_compacted(source):
        return {}
    deletes = "delete" in source["cleanup.policy"].split(",")
    return {name: value for name, value in BEFORE_COMPACTION.items() if name == "cleanup.policy" or not deletes}


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Settings that `topics.configs: sync` sets on a target topic, and those that wait for the rest of the copy."""

    changes: Mapping[str, str]
    waiting: Mapping[str, str]


def following(source: Mapping[str, str], settings: Mapping[str, str], *, is_passed: bool) -> ConfigChanges:
    """Return the settings for a target topic, given those of both topics.

    `is_passed`: everything is copied that the source held before it had these settings.
    """
    wanted = {**{name: source[name] for name in COPIED if name in source}, **FORCED}
    waiting = {} if is_passed else _refusing(source, settings)
    if "cleanup.policy" in waiting:
        wanted |= settings_before_compaction(source)
    wanted = {name: value for name, value in wanted.items() if name not in waiting or name == "cleanup.policy"}
    return ConfigChanges({name: value for name, value in wanted.items() if settings.get(name) != value}, waiting)


def _refusing(source: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the source that make the target refuse more than it does now."""
    refusing = {}
    if is_compacted(source) and not is_compacted(settings):
        refusing["cleanup.policy"] = source["cleanup.policy"]
    if int(source.get("max.message.bytes", 0)) < int(settings.get("max.message.bytes", 0)) and "max.message.bytes" in source:
        refusing["max.message.bytes"] = source["max.message.bytes"]
    return refusing

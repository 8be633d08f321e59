"""Driver and commands: changes of a restore file since the first start of its restore, and their effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pydantic import ValidationError

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import RestoredTopic, RestoreRanges, RestoreSettings
from shallow_mirror.config.restore_config import Cut, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import listed
from shallow_mirror.types import OffsetRange, SourcePartition

_OTHER_RESTORE = "Another restore needs a `restore` name, `tables` and a topics.target_name of its own"
_OPTIONS = {
    "time": "--until",
    "decision": "--at-decision",
    "whole_transactions": "--whole-transactions",
}
"""Options of the command line that replace a field of `until`."""


def settings_of(config: RestoreConfig) -> RestoreSettings:
    """Return the settings to record with the first decision."""
    return RestoreSettings(
        include=tuple(config.topics.include),
        exclude=tuple(config.topics.exclude),
        isolation_level=config.read.isolation_level.value,
        log_append_time=config.read.log_append_time.value,
        configs=config.topics.configs,
        groups_commit=config.groups.commit,
        groups_include=tuple(config.groups.include),
        groups_exclude=tuple(config.groups.exclude),
    )


def restored_topics(config: RestoreConfig, topics: Iterable[str]) -> dict[str, RestoredTopic]:
    """Return how each archived topic is restored, to record with the first decision."""
    return {topic: RestoredTopic(config.target_topic(topic), config.topics.is_preserved(topic)) for topic in topics}


def refused_changes(decided: RestoreRanges, config: RestoreConfig) -> list[str]:
    """Return a sentence for each change that another result would follow from, with its remedy. No archive is needed."""
    problems = _changes_of_cut(decided, config.until)
    if decided.settings is None or decided.topics is None:
        return problems
    then, now = decided.settings, settings_of(config)
    for name, setting in (
        ("isolation_level", "read.isolation_level"),
        ("log_append_time", "read.log_append_time"),
        ("configs", "topics.configs"),
    ):
        if getattr(then, name) != getattr(now, name):
            problems.append(_change(setting, getattr(then, name), getattr(now, name)))
    renamed = {
        topic: restored.target_topic
        for topic, restored in sorted(decided.topics.items())
        if restored.target_topic != config.target_topic(topic)
    }
    if renamed:
        examples = listed(f"{topic} as {target}" for topic, target in renamed.items())
        others = listed(f"{topic} as {config.target_topic(topic)}" for topic in renamed)
        problems.append(_change("topics.target_name (or an alias in it)", examples, others))
    for is_preserved, kind, other in ((True, "preserved", "translated"), (False, "translated", "preserved")):
        changed = [
            topic
            for topic, restored in sorted(decided.topics.items())
            if restored.is_preserved is is_preserved and config.topics.is_preserved(topic) is not is_preserved
        ]
        if changed:
            back = f"set it back, or give --offsets {kind} again (for all topics)"
            problems.append(_change("topics.offsets", f"{kind} offsets of {listed(changed)}", other, back))
    return problems


def require_same_restore(
    decided: RestoreRanges, config: RestoreConfig, archive_id: str, positions: Mapping[SourcePartition, Position]
) -> None:
    """Raise ConfigError with every difference to the first start that is not taken up. `positions`: of the offset map."""
    problems = refused_changes(decided, config)
    if decided.archive_id != archive_id:
        problems.insert(0, _change("archive", f"archive {decided.archive_id}", archive_id, "correct archive.tables"))
    left = unfinished_partitions(decided, positions)
    for topic in dropped_topics(decided, config):
        where = [
            f"{source.topic_partition} at {at.start:,} of {at.end:,}" for source, at in left.items() if source.topic == topic
        ]
        if where:
            problems.append(
                f"topics.include, topics.exclude: this restore began with {topic}, the file leaves it out, and it is not "
                f"complete ({listed(where)}): include it again until it is complete. {_OTHER_RESTORE}"
            )
    if problems:
        raise ConfigError(problems)


def dropped_topics(decided: RestoreRanges, config: RestoreConfig) -> list[str]:
    """Return the topics of the restore that the file does not include any more."""
    return sorted(topic for topic in decided.topic_names if not config.topics.is_included(topic))


def unfinished_partitions(
    decided: RestoreRanges, positions: Mapping[SourcePartition, Position]
) -> dict[SourcePartition, OffsetRange]:
    """Return the rest to restore of each partition, in order: its position and its end."""
    left = {}
    for source, offsets in sorted(decided.ranges.items()):
        position = positions[source].offset if source in positions else offsets.start
        if source not in positions or position < offsets.end:
            left[source] = OffsetRange(position, offsets.end)
    return left


def accepted_changes(decided: RestoreRanges, config: RestoreConfig) -> list[str]:
    """Return a sentence for each difference to the first start that is no reason to refuse the file."""
    if decided.settings is None:
        return [
            "this restore was begun by a release that did not record read.isolation_level, read.log_append_time, topics.configs "
            "and groups: they are not compared with the file, and topics are not added to it"
        ]
    then, now = decided.settings, settings_of(config)
    sentences = [
        f"topics.include, topics.exclude: {topic} is complete and stays as it is; the file does not include it any more"
        for topic in dropped_topics(decided, config)
    ]
    if (then.include, then.exclude) != (now.include, now.exclude):
        sentences.append(
            f"topics: this restore began with {_patterns(then.include, then.exclude)}, the file has "
            f"{_patterns(now.include, now.exclude)}: what it includes in addition is restored at the same cut"
        )
    groups = ("groups_commit", "groups_include", "groups_exclude")
    if any(getattr(then, name) != getattr(now, name) for name in groups):
        sentences.append(
            f"groups: this restore began with commit {then.groups_commit}, "
            f"{_patterns(then.groups_include, then.groups_exclude)}, the file has commit {now.groups_commit}, "
            f"{_patterns(now.groups_include, now.groups_exclude)}: the file is followed, and offsets that were committed before "
            "stay committed"
        )
    return sentences


def _changes_of_cut(decided: RestoreRanges, now: Cut) -> list[str]:
    try:
        then = Cut.model_validate_json(decided.until)
    except ValidationError:  # of a newer release
        return [_change("until", decided.until, now.model_dump_json())]
    problems = []
    for name in Cut.model_fields:
        before, after = getattr(then, name), getattr(now, name)
        is_same = then.time_ms == now.time_ms if name == "time" else before == after
        if not is_same:
            option = _OPTIONS.get(name)
            back = None if option is None else f"set it back, or give {option} as at the first start"
            problems.append(_change(f"until.{name}", _text(before), _text(after), back))
    return problems


def _change(setting: str, then: str, now: str, back: str | None = None) -> str:
    return f"{setting}: this restore began with {then}, the file has {now}: {back or 'set it back'}. {_OTHER_RESTORE}"


def _text(value: object) -> str:
    return "none" if value is None or value == {} else str(value).lower() if isinstance(value, bool) else str(value)


def _patterns(include: Iterable[str], exclude: Collection[str]) -> str:
    excluded = f" exclude {', '.join(exclude)}" if exclude else ""
    return f"include {', '.join(include)}{excluded}"

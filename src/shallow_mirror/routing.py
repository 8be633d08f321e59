"""Pure: which topics patterns select, the names of their target topics, and which names would make a replication cycle."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

INTERNAL_PREFIX = "__"

HEARTBEATS = "heartbeats"
"""The topic of MirrorMaker 2's heartbeats, on every cluster."""

REHEARSAL_PREFIX = "migrate-rehearsal-"
"""Begins the names of the topics, groups and mirrors of a rehearsal of a migration, before eight hexadecimal digits."""
_OF_REHEARSAL = re.compile(rf"{REHEARSAL_PREFIX}[0-9a-f]{{8}}\.")

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_FIELDS = frozenset({"topic", "source"})

_T = TypeVar("_T")


def is_included(topic: str, include: Sequence[str], exclude: Sequence[str], *, is_internal: bool = False) -> bool:
    """Return whether the patterns select a topic. They match whole names; an exclusion wins.

    Internal topics never match: those that brokers mark as internal, and by convention all that begin with two underscores.
    Topics of a rehearsal, and their copies, match only patterns that contain the name of that rehearsal: those of its mirrors.
    """
    if is_internal or topic.startswith(INTERNAL_PREFIX):
        return False
    rehearsal = _OF_REHEARSAL.search(topic)
    if rehearsal is not None:
        include = [pattern for pattern in include if re.escape(rehearsal[0]) in pattern]
    return any(re.fullmatch(pattern, topic) for pattern in include) and not any(
        re.fullmatch(pattern, topic) for pattern in exclude
    )


def unmatched_entries(include: Iterable[str], exclude: Sequence[str], topics: Collection[str]) -> list[str]:
    """Return the entries of `include` that match none of `topics`: what was asked for, and is not there.

    `topics`: without internal ones, with excluded ones. An entry of which everything is excluded asks for nothing: one that
    matches excluded topics only, or a plain name that `exclude` matches, whether there is such a topic or not.
    """
    return [
        entry
        for entry in include
        if not any(is_included(topic, [entry], ()) for topic in topics)
        and not (is_plain_name(entry) and any(re.fullmatch(pattern, entry) for pattern in exclude))
    ]


def is_plain_name(pattern: str) -> bool:
    """Return whether a regular expression is most likely the name of one topic or group."""
    return _LEGAL_TOPIC_NAME.fullmatch(pattern) is not None


KEPT_OFFSETS = ("preserved", "continued")
"""Values of `topics.offsets` with which every record has the offset of the source."""


def first_match(topic: str, rules: Iterable[tuple[str, _T]]) -> _T | None:
    """Return the value of the first pattern that matches the whole name, or None."""
    return next((value for pattern, value in rules if re.fullmatch(pattern, topic)), None)


def template_problem(template: str) -> str | None:
    """Return why `template` cannot name target topics; None when it can."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return f"{template!r} is not a template: {error}"
    fields = [name for _, name, _, _ in parts if name is not None]
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        return f"{template!r}: unknown field {{{unknown[0]}}}; known are {{topic}} and {{source}}"
    if any(spec or conversion for _, name, spec, conversion in parts if name is not None):
        return f"{template!r}: fields take no format: write {{topic}} and {{source}} only"
    if "topic" not in fields:
        return f"{template!r} does not contain {{topic}}: every source topic would get the same target topic"
    if any(text and not _LEGAL_TOPIC_NAME.fullmatch(text) for text, _, _, _ in parts):
        return f"{template!r}: topic names hold letters, digits, '.', '_' and '-' only"
    return None


def names_source(template: str) -> bool:
    return any(field == "source" for _, field, _, _ in string.Formatter().parse(template))


def target_topic_name(template: str, source_alias: str, topic: str) -> str:
    return template.format(topic=topic, source=source_alias)


def same_cluster_problem(template: str, source_alias: str) -> str | None:
    """Return why one cluster cannot be source and target with this template, as the end of a sentence; None when it can."""
    if target_topic_name(template, source_alias, "t") != "t":
        return None
    return (
        f"and topics.target_name {template!r} would mirror each topic onto itself: change it, for example to {{source}}.{{topic}}"
    )


def own_targets_pattern(template: str, source_alias: str) -> str:
    """Return a regular expression of the names that `template` gives, whatever the topic.

    Within one cluster they must not be sources, or the mirror would feed itself.
    """
    pattern, is_first = "", True
    for text, field, _, _ in string.Formatter().parse(template):
        pattern += re.escape(text)
        if field == "source":
            pattern += re.escape(source_alias)
        elif field == "topic":
            pattern += "(?P<topic>.+)" if is_first else "(?P=topic)"
            is_first = False
    return pattern


def problems(topics: Iterable[str], *, template: str, source_alias: str, is_same_cluster: bool) -> list[str]:
    """Return every reason not to mirror `topics` this way: loops, two topics to one, names that brokers refuse."""
    sentences: list[str] = []
    source_of: dict[str, str] = {}
    names = sorted(set(topics))
    included = frozenset(names)
    for topic in names:
        target = target_topic_name(template, source_alias, topic)
        if is_same_cluster and target in included:
            sentences.append(_loop_sentence(topic, target))
        if target in source_of:
            sentences.append(f"source topics {source_of[target]} and {topic} would both be written to target topic {target}")
        source_of.setdefault(target, topic)
        sentences += name_problems(topic, target)
    return sentences


def name_problems(topic: str, target: str) -> list[str]:
    """Return why no topic of a mirror may be called `target`."""
    sentences = []
    if target.startswith(INTERNAL_PREFIX):
        sentences.append(
            f"source topic {topic} would be written to {target}: names that begin with {INTERNAL_PREFIX} are internal"
        )
    if not _LEGAL_TOPIC_NAME.fullmatch(target):
        sentences.append(f"target topic name {target!r} (for {topic}): topic names hold letters, digits, '.', '_' and '-' only")
    if len(target) > MAX_TOPIC_NAME_LENGTH:
        sentences.append(
            f"target topic name {target} (for {topic}) has {len(target)} characters, brokers allow {MAX_TOPIC_NAME_LENGTH}"
        )
    return sentences


def _loop_sentence(topic: str, target: str) -> str:
    if topic == target:
        what = f"source topic {topic} would be mirrored onto itself"
    else:
        what = f"target topic {target} of source topic {topic} is itself a mirrored topic"
    return f"{what}: source and target are the same cluster. Change topics.target_name, or exclude it in topics.exclude"

"""What an operator does after a run that ended with an error: what the error says, no more. Texts are compared word for word."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from tests.operators.world import World

from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    DataLossError,
    FencedError,
    IncompleteRunError,
    LogTruncatedError,
    MirrorError,
    OlderTablesError,
    PreservedLogDamagedError,
    RecoverNeededError,
    TargetDataLossError,
    TopicRecreatedError,
)
from shallow_mirror.operations.recover import accept_repeats, inspect, older_tables, resolve
from shallow_mirror.sinks.kafka.protocol import TxnFate

Remedy = Callable[[World, MirrorError], str]


def put_newest_tables_back(world: World, _error: MirrorError) -> str:
    assert world.newest is not None, "the newest tables are in their place, and are called older"
    world.put_back(world.newest)
    world.newest = None
    return "put the newest tables back"


def accept_repeated_copies(world: World, _error: MirrorError) -> str:
    older = older_tables(world.config)
    assert older is not None, "`recover CONF` does not see what the run saw"
    accept_repeats(world.config, older)
    world.continue_from_older()
    return "recover --accept-repeats"


def skip_what_is_lost(world: World, _error: MirrorError) -> str:
    world.settings.on_data_loss = "continue"
    return "read.on_data_loss: continue"


def forget_former_topic(world: World, error: MirrorError) -> str:
    assert isinstance(error, TopicRecreatedError)
    world.forget(error.topic_partition.topic)
    return f"shallow-mirror forget {error.topic_partition.topic}"


def close_recreated_topics(world: World, error: MirrorError) -> str:
    """Do what `status` says of topics that were created again while they were paused."""
    named = sorted(topic for topic in world.topics if f"source topic {topic} was deleted and created again" in str(error))
    for topic in named:
        world.forget(topic)
    return f"shallow-mirror forget {named}"


def exclude_recreated_topics(world: World, error: MirrorError) -> str:
    named = {topic for topic in world.topics if f"source topic {topic} was deleted and created again" in str(error)}
    world.settings.excluded |= named
    return f"topics.exclude: {sorted(named)}"


def exclude_topic(world: World, error: MirrorError) -> str:
    """Exclude the topic of the error, or all that its lines name."""
    topic_partition = getattr(error, "topic_partition", None)
    named = {topic_partition.topic.partition(".")[0]} if topic_partition is not None else _named_topics(world, str(error))
    assert named, f"no topic is named: {error}"
    world.settings.excluded |= named
    return f"topics.exclude: {sorted(named)}"


def use_another_mirror(world: World, _error: MirrorError) -> str:
    world.begin_another_mirror()
    return "another mirror id, tables and checkpoint"


def start_again(_world: World, _error: MirrorError) -> str:
    """Do nothing else: the topic was deleted at the source while the run copied it."""
    return "started again"


def use_new_target_topics(world: World, _error: MirrorError) -> str:
    world.begin_another_mirror()
    world.settings.target_name = f"{{topic}}.{world.settings.number}"
    return "new target topics, another mirror id, tables and checkpoint"


def translate_offsets(world: World, _error: MirrorError) -> str:
    world.settings.offsets = "translated"
    return "topics.offsets: translated"


def preserve_offsets(world: World, _error: MirrorError) -> str:
    world.settings.offsets = "preserved"
    return "topics.offsets: preserved"


def copy_what_is_held_as_well(world: World, error: MirrorError) -> str:
    world.leave_copies()
    return translate_offsets(world, error)


def delete_target_topics(world: World, error: MirrorError) -> str:
    named = sorted(set(re.findall(r"target partition (\S+)-\d+ is not new", str(error))))
    for topic in named:
        world.delete_target_topic(topic)
    return f"deleted target topics {named}"


def name_new_target_topics(world: World, _error: MirrorError) -> str:
    world.leave_copies()
    world.settings.target_name = f"{{topic}}.n{world.runs}"
    if world.settings.offsets == "continued":
        world.settings.offsets = "preserved"
    return f"topics.target_name: {world.settings.target_name}"


def copy_damaged_topic_again(world: World, error: MirrorError) -> str:
    assert isinstance(error, PreservedLogDamagedError)
    world.may_write_foreign = False
    world.delete_target_topic(error.topic_partition.topic)
    world.begin_another_mirror()
    return f"took Write away from others, deleted target {error.topic_partition.topic}, {_ANOTHER_MIRROR}"


def continue_or_translate(world: World, error: MirrorError) -> str:
    """Look, as the message says, whether these logs hold the source's records at their offsets."""
    named = re.findall(r"target partition (\S+)-(\d+) is not new", str(error))
    is_held = True
    for topic, number in named:
        log = world.logs[world.key_of(topic.partition(".")[0], int(number))]
        produced = {record.offset: record.value for record in log.records}
        is_held &= world.target.read(topic, int(number)).items() <= produced.items()
    world.settings.offsets = "continued" if is_held else "translated"
    return f"topics.offsets: {world.settings.offsets}"


def add_target_partitions(world: World, error: MirrorError) -> str:
    lacking = re.findall(r"target topic (\S+) has fewer partitions \(\d+\) than source topic \S+ \((\d+)\)", str(error))
    for topic, count in lacking:
        world.target.add_partitions(topic, int(count))
    return f"added partitions to target {lacking}"


def raise_limit(world: World, error: MirrorError) -> str:
    assert isinstance(error, BatchRefusedError)
    (wanted,) = re.findall(r"Set its max\.message\.bytes to (\d+) or more", str(error))
    topic = world.settings.target_name.format(topic=error.topic_partition.topic)
    world.target.set_config(topic, "max.message.bytes", wanted)
    return f"max.message.bytes of target {topic}: {wanted}"


def quarantine_refused(world: World, _error: MirrorError) -> str:
    world.settings.on_refused = "quarantine"
    return "write.on_refused: quarantine"


def set_compression(world: World, error: MirrorError) -> str:
    named = re.findall(r"target topic (\S+) has compression\.type=\w+", str(error))
    for topic in named:
        world.target.set_config(topic, "compression.type", "producer")
    return f"compression.type=producer on target {named}"


def choose_for_lost_records(world: World, _error: MirrorError) -> str:
    """Copy again only where all records of the transaction are lost: `--redo` copies those that are not lost a second time."""
    reports = inspect(world.config)
    is_redo = all(len(report.lost) == len(report.decided.written) for report in reports if report.needs_choice)
    resolve(world.config, reports, TxnFate.NOT_COMMITTED if is_redo else TxnFate.COMMITTED)
    return "recover --redo" if is_redo else "recover --commit"


def _named_topics(world: World, text: str) -> set[str]:
    """Return the source topics that a message names."""
    return {topic for topic in world.topics if re.search(rf"(?:\(for |topic ){re.escape(topic)}\b", text)}


_ANOTHER_MIRROR = "another mirror id, tables and checkpoint"

_REMEDIES: Sequence[tuple[type[MirrorError], str, Remedy]] = (
    (OlderTablesError, "Put the newest tables back (all of the folder or prefix of `tables`)", put_newest_tables_back),
    (OlderTablesError, "`shallow-mirror recover CONF --accept-repeats`", accept_repeated_copies),
    (DataLossError, "set read.on_data_loss: continue and start again", skip_what_is_lost),
    (TopicRecreatedError, "close the former topic (`shallow-mirror forget CONF TOPIC --apply`)", forget_former_topic),
    (DataLossError, "exclude the topic (topics.exclude)", exclude_topic),
    (DataLossError, f"mirror it with {_ANOTHER_MIRROR}", use_another_mirror),
    (TopicRecreatedError, f"mirror it to a new target topic with {_ANOTHER_MIRROR}", use_new_target_topics),
    (TargetDataLossError, "exclude it (topics.exclude)", exclude_topic),
    (TargetDataLossError, f"Mirror the topic from its start with {_ANOTHER_MIRROR}", use_another_mirror),
    (
        PreservedLogDamagedError,
        f"delete the target topic and copy it again: a mirror with {_ANOTHER_MIRROR}",
        copy_damaged_topic_again,
    ),
    (PreservedLogDamagedError, "A mirror can also continue with topics.offsets: translated", translate_offsets),
    (PreservedLogDamagedError, "Set topics.offsets to translated for this topic again", translate_offsets),
    (ConfigError, "Set topics.offsets back to preserved", preserve_offsets),
    (ConfigError, f"or mirror the topic to a new target topic with {_ANOTHER_MIRROR}", use_new_target_topics),
    (RecoverNeededError, "`shallow-mirror recover CONF` shows what is known and takes the choice", choose_for_lost_records),
    (BatchRefusedError, " or more and start again", raise_limit),
    (BatchRefusedError, "write.on_refused: quarantine", quarantine_refused),
    (ConfigError, "Set compression.type=producer on it", set_compression),
    (ConfigError, "Mirror the topic to a new one (topics.target_name) with topics.offsets: preserved", name_new_target_topics),
    (
        ConfigError,
        "or use topics.offsets: translated, which copies all of it, also what the target holds already",
        copy_what_is_held_as_well,
    ),
    (ConfigError, "add partitions to the target topic", add_target_partitions),
    (ConfigError, "(they are matched by number), or exclude", exclude_topic),
    (ConfigError, "they cannot become preserved ones. Set it to translated", translate_offsets),
    (ConfigError, f"mirror it to a new target topic with {_ANOTHER_MIRROR}", use_new_target_topics),
    (
        IncompleteRunError,
        "any more). The rest is complete. `shallow-mirror status` names the remedies; then start again",
        start_again,
    ),
    *(
        (
            IncompleteRunError,
            "): nothing of it is copied. The rest is complete. `shallow-mirror status` names the remedies; then start again",
            remedy,
        )
        for remedy in (skip_what_is_lost, close_recreated_topics, exclude_recreated_topics)
    ),
    (FencedError, "This run stops; do not restart it while the other one runs", start_again),
    (ConfigError, f"Mirror the topic to a new target topic with {_ANOTHER_MIRROR}", use_new_target_topics),
    (ConfigError, "with preserved offsets the target topic has to be new. Delete it", delete_target_topics),
    (ConfigError, "name another one (topics.target_name)", name_new_target_topics),
    (
        ConfigError,
        "continued where it holds the source's records at their offsets, or translated where it does not",
        continue_or_translate,
    ),
    (ConfigError, f"from its start with {_ANOTHER_MIRROR}, or exclude it (topics.exclude)", use_another_mirror),
    (ConfigError, "or exclude it (topics.exclude)", exclude_topic),
)
"""By kind of error and what its message has to say."""


def take_remedy(world: World, error: MirrorError, chance: random.Random) -> str | None:
    """Take one of the remedies that the message names, and return it; None where it names none that is known here."""
    if isinstance(error, LogTruncatedError):
        return None  # nothing cuts the logs of the source here: a remedy would hide that it is not true
    named = [remedy for kind, text, remedy in _REMEDIES if isinstance(error, kind) and text in str(error)]
    return chance.choice(named)(world, error) if named else None

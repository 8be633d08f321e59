"""Commands: whether a mirror may continue in the topics of MirrorMaker 2: everything is copied, and no other client writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror import routing
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.mirror_maker.running.copies import (
    CopiedPartition,
    copied_partitions,
    copies_of,
    recorded_offsets,
)
from shallow_mirror.mirror_maker.running.internal_records import heartbeat_key
from shallow_mirror.mirror_maker.running.log_reader import ByteBudget, LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames, require_connect_offsets
from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition

_HEARTBEAT_BYTES = 1 << 20
"""Of the heartbeats that were written while the logs are watched at most so much is read."""

_OTHER_WORKERS = "its workers are those of a Connect cluster: check there that the connector is stopped"

Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverCheck:
    """What is in the way of a take-over. `notes`: what could not be checked."""

    flow: str
    partitions: int
    watched_s: float
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_fine(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "partitions": self.partitions,
            "watched_s": self.watched_s,
            "is_fine": self.is_fine,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        what = f"MirrorMaker 2 {self.flow}: {counted(self.partitions, 'partition')}, watched for {self.watched_s:g} s"
        verdict = "the mirror may continue in its topics" if self.is_fine else "the mirror must not run yet"
        return [f"{what}: {verdict}", *(f"- {problem}" for problem in self.problems), *(f"note: {note}" for note in self.notes)]


def check_take_over(
    config: MirrorConfig,
    names: MirrorMakerNames,
    where: str,
    *,
    watch_s: float,
    sleep: Callable[[float], None],
    on_wait: Callable[[str], None],
) -> TakeOverCheck:
    """Compare the logs, watch both clusters for a time, and look for the workers of MirrorMaker 2. Nothing is changed.

    `where`: the configuration of MirrorMaker 2, in messages. Raises ConfigError, RetriableError.
    """
    offsets_topic = require_connect_offsets(names, where)
    on_wait(f"{config.source_cluster_name} and {config.target_cluster_name} to answer")
    with (
        LogReader(config.source.client, config.source_cluster_name, names.isolation) as source,
        LogReader(config.source.client, config.source_cluster_name, config.read.isolation_level) as as_mirror,
        LogReader(config.target.client, config.target_cluster_name, IsolationLevel.READ_COMMITTED) as target,
        LogReader(config.target.client, config.target_cluster_name, IsolationLevel.READ_UNCOMMITTED) as watched,
        closing(GroupClient(config.target.client, config.target_cluster_name)) as groups,
    ):
        recorded = recorded_offsets(names, offsets_topic, target)
        found = copies_of(config, names, source, target)
        copies = found.sources
        heartbeats = [
            TopicPartition(routing.HEARTBEATS, partition) for partition in target.partitions().get(routing.HEARTBEATS, ())
        ]
        source_places = list(copies.values())
        before = source.ranges(source_places), watched.ranges([*copies, *heartbeats])
        on_wait(f"{watch_s:g} s to pass, in which nobody may write")
        sleep(watch_s)
        after = source.ranges(source_places), watched.ranges([*copies, *heartbeats])
        on_wait("the ends of both logs of each partition")
        partitions = copied_partitions(copies, recorded, source, target)
        workers = () if names.worker_group is None else groups.clients(names.worker_group)
        held = source.ranges(found.missing)
        readers = {names.isolation: source, config.read.isolation_level: as_mirror}
        between = _between_ends(readers, sorted(source_places)) if len(readers) > 1 else {}
        missing = [partition for partition in found.missing if held[partition].end > held[partition].start]
        beats = _heartbeat_count(names, watched, heartbeats, before[1], after[1])
    problems = [
        *_settings_problems(config, names, sorted({source.topic for source in copies.values()})),
        *_writer_problems(names, workers, beats, watch_s),
        *_growth_problems(before, after, copies, watch_s),
        *_copy_problems(partitions, missing),
        *_transaction_problems(between),
    ]
    notes = () if names.worker_group else (_OTHER_WORKERS,)
    return TakeOverCheck(
        flow=f"{names.source}->{names.target}",
        partitions=len(copies),
        watched_s=watch_s,
        problems=tuple(problems),
        notes=notes,
    )


def _settings_problems(config: MirrorConfig, names: MirrorMakerNames, topics: Collection[str]) -> Iterator[str]:
    template = config.topics.target_name
    if names.target_topic("t") != routing.target_topic_name(template, config.source.alias, "t"):
        yield f"topics.target_name is {template!r}, MirrorMaker 2 writes to {names.template!r}: the mirror would use other topics"
    starts = {topic: routing.first_match(topic, config.topics.start.items()) or config.read.start for topic in topics}
    if again := [topic for topic, start in starts.items() if start == "earliest"]:
        yield f"{listed(again)} would be copied from the start again (read.start, topics.start): set latest"
    if elsewhere := [topic for topic, start in starts.items() if start not in ("earliest", "latest")]:
        yield (
            f"{listed(elsewhere)} would be copied from a time or from offsets on, wherever MirrorMaker 2 has ended (read.start, "
            "topics.start): set latest"
        )


def _writer_problems(names: MirrorMakerNames, workers: tuple[str, ...], beats: int, watch_s: float) -> Iterator[str]:
    if workers:
        yield f"MirrorMaker 2 still runs: its group {names.worker_group} has members ({listed(workers)}): stop it"
    if beats:
        yield f"MirrorMaker 2 still runs: {counted(beats, 'heartbeat')} of this flow within {watch_s:g} s: stop it"


def _growth_problems(
    before: tuple[Ranges, Ranges], after: tuple[Ranges, Ranges], copies: Mapping[TopicPartition, TopicPartition], watch_s: float
) -> Iterator[str]:
    at_source, at_target = (
        [str(place) for place in sorted(places) if after[side][place].end > before[side][place].end]
        for side, places in enumerate((list(copies.values()), list(copies)))
    )
    if at_target:
        yield f"somebody wrote to {listed(at_target)} of the target within {watch_s:g} s: stop MirrorMaker 2 and other producers"
    if at_source:
        yield f"producers wrote to {listed(at_source)} of the source within {watch_s:g} s: stop them until the mirror runs"


def _copy_problems(partitions: list[CopiedPartition], missing: list[TopicPartition]) -> Iterator[str]:
    if missing:
        names = listed(str(partition) for partition in missing)
        yield f"MirrorMaker 2 has no copy of {names}: exclude the topics (topics.exclude), or let it copy them"
    for partition in partitions:
        if partition.lag_records:
            lag = ("" if partition.is_counted else "at most ") + counted(partition.lag_records, "record")
            yield f"{partition.source}: {lag} not copied yet, as far as Connect has recorded: let MirrorMaker 2 copy them"
        elif not partition.has_same_end:
            yield f"{partition.source} and {partition.copy} do not end with the same record: find out who wrote to which of them"


def _between_ends(readers: Mapping[IsolationLevel, LogReader], places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offsets of the logs that end behind them: transactions are open there."""
    # In this order: what is written in between lies behind the ends.
    ends = readers[IsolationLevel.READ_UNCOMMITTED].ranges(places)
    stable = readers[IsolationLevel.READ_COMMITTED].ranges(places)
    return {place: stable[place].end for place in places if stable[place].end < ends[place].end}


def _transaction_problems(between: Mapping[TopicPartition, int]) -> Iterator[str]:
    for partition, stable in between.items():
        yield (
            f"{partition}: a transaction is open at the source from offset {stable:,} on, and the mirror and MirrorMaker 2 read "
            "it with different isolation levels: some records would be copied twice or not at all. Wait until it has ended, or "
            "end it"
        )


def _heartbeat_count(
    names: MirrorMakerNames, target: LogReader, heartbeats: list[TopicPartition], before: Ranges, after: Ranges
) -> int:
    """Count the heartbeats of this flow that were written in between."""
    key, budget = heartbeat_key(names.source, names.target), ByteBudget(_HEARTBEAT_BYTES)
    return sum(
        record.key == key and record.offset >= before[place].end
        for place in heartbeats
        for records in target.records(place, OffsetRange(before[place].end, max(before[place].end, after[place].end)), budget)
        for record in records
    )

"""Driver: what the old source still has of what was mirrored of it, where unclean leader elections have cut its logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import topic_storage
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.deadline import request_deadline
from shallow_mirror.types import EpochEnd, OffsetRange, SourcePartition, TopicPartition

_KEYS = ["source_topic", "source_topic_id", "source_partition"]
_EPOCH, _END = "source_leader_epoch", "source_end"


def uncut(
    source: Cluster,
    mirrored: Mapping[SourcePartition, OffsetRange],
    positions: Mapping[SourcePartition, Position],
    offset_map: OffsetMap,
) -> dict[SourcePartition, list[OffsetRange]]:
    """Return what the log of each partition still has of what was mirrored of it. Raises RetriableError.

    An unclean leader election cuts the end of a log, and what is written then takes the offsets of what was mirrored (KIP-320).
    With `read.on_data_loss: continue` a mirror continues at its position: earlier leader epochs tell of such cuts.
    """
    present = _present_partitions(source, mirrored)
    wholes = _uncut_at_the_end(source, mirrored, positions, present)
    cuts = _earlier_cuts(source, {name: end for name, end in _read_epochs(offset_map).items() if name in mirrored}, present)
    return {partition: list(_without(offsets, cuts.get(partition, ()))) for partition, offsets in wholes.items()}


def _present_partitions(source: Cluster, mirrored: Mapping[SourcePartition, OffsetRange]) -> frozenset[TopicPartition]:
    topics = sorted({partition.topic for partition in mirrored})
    present = source.metadata(topics, request_deadline()).topics if topics else {}
    return frozenset(TopicPartition(name, number) for name, topic in present.items() for number in topic.partitions)


def _answers(
    source: Cluster, epochs: Mapping[SourcePartition, EpochEnd], present: frozenset[TopicPartition]
) -> dict[SourcePartition, EpochEnd]:
    """Return where the source says that these leader epochs end."""
    asked = {name.topic_partition: read.leader_epoch for name, read in epochs.items() if name.topic_partition in present}
    answers = source.epoch_ends(asked, request_deadline()) if asked else {}
    return {name: answers[name.topic_partition] for name in epochs if name.topic_partition in answers}


def _uncut_at_the_end(
    source: Cluster,
    mirrored: Mapping[SourcePartition, OffsetRange],
    positions: Mapping[SourcePartition, Position],
    present: frozenset[TopicPartition],
) -> dict[SourcePartition, OffsetRange]:
    """Return the mirrored offsets up to where the log was cut behind the last leader epoch that was read."""
    read = {
        partition: position.epoch_end
        for partition in mirrored
        if (position := positions.get(partition)) is not None and position.epoch_end is not None
    }
    wholes = dict(mirrored)
    for partition, answer in _answers(source, read, present).items():
        offsets, epoch_end = mirrored[partition], read[partition]
        if answer.leader_epoch == epoch_end.leader_epoch:
            # Behind the position the map knows no leader epoch: what a later one has written counts as another record.
            is_cut = answer.end < epoch_end.end
            end = min(offsets.end, answer.end if is_cut else max(positions[partition].offset, answer.end))
        elif _was_compacted_away(source, partition, epoch_end, answer):
            end = offsets.end
        else:
            end = offsets.start  # where the logs part is not known
        wholes[partition] = OffsetRange(offsets.start, max(offsets.start, end))
    return wholes


def _earlier_cuts(
    source: Cluster, epochs: Mapping[SourcePartition, Sequence[EpochEnd]], present: frozenset[TopicPartition]
) -> dict[SourcePartition, list[OffsetRange]]:
    """Return mirrored offsets at which the source has other records since, of all leader epochs but the last one."""
    cuts: dict[SourcePartition, list[OffsetRange]] = {}
    begins = {name: [0, *(read.end for read in ends)] for name, ends in epochs.items()}
    for number in range(max((len(ends) for ends in epochs.values()), default=0) - 1):
        asked = {name: ends[number] for name, ends in epochs.items() if number < len(ends) - 1}
        for name, answer in _answers(source, asked, present).items():
            begin, read = begins[name][number], asked[name]
            if answer.leader_epoch == read.leader_epoch:
                begin = max(begin, answer.end)
            elif _was_compacted_away(source, name, read, answer):
                continue
            if begin < read.end:
                cuts.setdefault(name, []).append(OffsetRange(begin, read.end))
    return cuts


def _was_compacted_away(source: Cluster, partition: SourcePartition, read: EpochEnd, answer: EpochEnd) -> bool:
    """Return whether compaction has removed every batch of a leader epoch that the source does not have any more."""
    if answer.leader_epoch < 0 or answer.end < read.end:
        return False
    return topic_storage(source, partition.topic, request_deadline()).is_compacted


def _read_epochs(offset_map: OffsetMap) -> dict[SourcePartition, list[EpochEnd]]:
    """Return up to which offset each leader epoch was read, in their order.

    Of several within one row only the last is known: the mirror compares their ends with the log while it reads them.
    """
    ends: dict[SourcePartition, dict[int, int]] = {}
    for rows in offset_map.settled_pieces(columns=[*_KEYS, _EPOCH, _END]):
        grouped = rows.drop_null().group_by([*_KEYS, _EPOCH]).aggregate([(_END, "max")])
        for *key, epoch, end in _values(grouped, [*_KEYS, _EPOCH, f"{_END}_max"]):
            of_partition = ends.setdefault(SourcePartition(*key), {})
            of_partition[epoch] = max(end, of_partition.get(epoch, 0))
    return {name: [EpochEnd(epoch, end) for epoch, end in sorted(of.items())] for name, of in ends.items()}


def _values(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in columns), strict=True)


def _without(offsets: OffsetRange, cuts: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the rest of `offsets`. `cuts`: in their order."""
    bounds = [OffsetRange(offsets.start, offsets.start), *cuts, OffsetRange(offsets.end, offsets.end)]
    for before, after in pairwise(bounds):
        start, end = max(before.end, offsets.start), min(after.start, offsets.end)
        if start < end:
            yield OffsetRange(start, end)

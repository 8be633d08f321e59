"""Pure: which topics keep the source's offsets on the target, and how many of these offsets fillers take there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.rows.positions import Position
from shallow_mirror.checkpoints.rows.schema import DecidedSegment
from shallow_mirror.types import COPIED_KINDS, SourcePartition

FILLER_COLUMNS = [
    "source_topic",
    "source_topic_id",
    "source_start",
    "source_end",
    "kind",
    "transactional_id",
    "target_producer_id",
    "target_producer_epoch",
]
"""Of an offset map, what `recorded_fillers` reads."""

PRESERVED, TRANSLATED = "preserved", "translated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """`offsets`: `preserved` if every partition was last written with the offsets of the source, else `translated`.

    `filler_count`: offsets without a record that fillers take. Those below the first offset are deleted again, and not counted.
    """

    topic: str
    offsets: str
    filler_count: int = 0


def preserved_topics(positions: Mapping[SourcePartition, Position]) -> frozenset[str]:
    """Return the topics whose partitions all have a producer id that their writers share."""
    topics = {source.topic for source in positions}
    return frozenset(topics - {source.topic for source, position in positions.items() if position.shared_producer_id is None})


def topics_with_offsets(
    positions: Mapping[SourcePartition, Position], fillers: Mapping[str, int] | None = None
) -> tuple[TopicOffsets, ...]:
    """Return every topic, in order. `fillers`: those of preserved topics, by topic."""
    preserved = preserved_topics(positions)
    return tuple(
        TopicOffsets(
            topic=topic,
            offsets=PRESERVED if topic in preserved else TRANSLATED,
            filler_count=(fillers or {}).get(topic, 0) if topic in preserved else 0,
        )
        for topic in sorted({source.topic for source in positions})
    )


def recorded_fillers(pieces: Iterable[pa.Table], preserved: Collection[str], forgotten_ids: Collection[str] = ()) -> Counter[str]:
    """Return the fillers of preserved topics, by topic. `pieces` are of an offset map and have FILLER_COLUMNS at least.

    `forgotten_ids`: of topics that do not count; others may have their names by now.
    Every offset that holds no record takes one, so rows of other kinds than copied records count with their length. Rows of a
    transaction are of a time when the topic was not preserved; records that the target had before the mirror were not written.
    """
    counts: Counter[str] = Counter()
    copied = pa.array([kind.value for kind in COPIED_KINDS])
    names, forgotten = pa.array(sorted(preserved), pa.string()), pa.array(sorted(forgotten_ids), pa.string())
    for piece in pieces:
        is_filled = pc.and_(pc.is_null(piece["transactional_id"]), pc.invert(pc.is_in(piece["kind"], value_set=copied)))
        is_continued = pc.and_(pc.is_valid(piece["target_producer_id"]), pc.is_null(piece["target_producer_epoch"]))
        is_filled = pc.and_(is_filled, pc.invert(is_continued))
        is_filled = pc.and_(is_filled, pc.invert(pc.is_in(piece["source_topic_id"], value_set=forgotten)))
        rows = piece.filter(pc.and_(is_filled, pc.is_in(piece["source_topic"], value_set=names)))
        lengths = pa.table({"topic": rows["source_topic"], "length": pc.subtract(rows["source_end"], rows["source_start"])})
        for row in lengths.group_by("topic").aggregate([("length", "sum")]).to_pylist():
            counts[row["topic"]] += row["length_sum"]
    return counts


def decided_fillers(rows: Iterable[DecidedSegment], preserved: Collection[str]) -> Counter[str]:
    """Return the fillers that a decision adds to preserved topics, by topic."""
    counts: Counter[str] = Counter()
    for row in rows:
        segment = row.segment
        if row.txn is None and segment.kind not in COPIED_KINDS and segment.source.topic in preserved:
            counts[segment.source.topic] += segment.source_end - segment.source_start
    return counts

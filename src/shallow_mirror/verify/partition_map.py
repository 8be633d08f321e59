"""Pure: the map's rows of one source topic as pairs of partitions: each target partition with the rows that lead to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.types import Segment, SourcePartition, TargetPartition
from shallow_mirror.verify.differences import DifferenceKind
from shallow_mirror.verify.fingerprints import NOWHERE
from shallow_mirror.verify.map_index import (
    COLUMNS,
    DATA,
    KINDS,
    QUARANTINED,
    RELEASED,
    Longs,
    MapRows,
    RowProblem,
    released_problems,
    row_problems,
)

_PLACE = ["source_topic_id", "source_partition", "target_topic", "target_topic_id", "target_partition"]
PAIR_COLUMNS = [*_PLACE, *COLUMNS, "transactional_id", "target_producer_id", "target_producer_epoch"]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionPair:
    """A partition of the source with its copy, by the rows of the map."""

    source: SourcePartition
    target: TargetPartition
    rows: MapRows
    """Of the source topic as it is now; none if it is gone."""
    elsewhere: tuple[Longs, Longs]
    """Target offsets [starts, ends), ascending, that other rows name: of an incarnation that is gone, of batches that were
    released from quarantine, or of a decision that may still be taken back."""
    gone_offsets: int
    """Copied from former incarnations, without forgotten ones."""
    quarantines: bool
    """Some batch was quarantined."""
    problems: tuple[RowProblem, ...]
    """Contradictions between the map's own rows."""
    is_preserved: bool = False
    """Some records were written so that they keep their offsets."""
    filler_count: int = 0
    """Offsets without a record that fillers took in such rows."""


def partition_pairs(
    table: pa.Table,
    topic: str,
    topic_id: str | None,
    undecided: Iterable[Segment],
    *,
    forgotten_ids: Collection[str] = (),
) -> list[PartitionPair]:
    """Return the pairs in PAIR_COLUMNS of all settled rows of a topic. `topic_id`: of the current topic; None if it is gone.

    `forgotten_ids`: of topics of this name that the operator has closed. Their rows only tell which records of the target are
    no additional ones.
    """
    pending = [segment for segment in undecided if segment.source.topic == topic and segment.target_start is not None]
    return [_partition_pair(rows, topic, topic_id, pending, forgotten_ids) for rows in _by_partition(table)]


def _by_partition(table: pa.Table) -> Iterator[pa.Table]:
    partitions = np.asarray(table.column("source_partition").to_numpy(), np.int64)
    order = np.argsort(partitions, kind="stable")
    for row_numbers in np.split(order, np.flatnonzero(np.diff(partitions[order])) + 1):
        if len(row_numbers):
            yield table.take(pa.array(row_numbers))


def _partition_pair(
    table: pa.Table, topic: str, topic_id: str | None, pending: Sequence[Segment], forgotten_ids: Collection[str]
) -> PartitionPair:
    partition = int(table.column("source_partition")[0].as_py())
    ids = _codes(table, "source_topic_id")
    live_code = ids.names.index(topic_id) if topic_id in ids.names else NOWHERE
    targets = [_codes(table, name) for name in ("target_topic", "target_topic_id", "target_partition")]
    keys = np.stack([column.codes for column in targets], axis=1)
    is_live = ids.codes == live_code
    is_open = ~np.isin(ids.codes, [code for code, name in enumerate(ids.names) if name in forgotten_ids])
    # A topic that was created again may have another target than the one before it, which may have had more rows.
    chosen = next(rows for rows in (is_live, is_open, np.ones_like(is_open)) if rows.any())
    distinct, counts = np.unique(keys[chosen], axis=0, return_counts=True)
    main = distinct[int(np.argmax(counts))]
    target = TargetPartition(*(column.names[code] for column, code in zip(targets, main.tolist(), strict=True)))
    leads_here = (keys == main).all(axis=1)
    kinds = np.array(table.column("kind").to_pylist())
    is_released = kinds == KINDS[RELEASED].value
    rows = _rows(table, is_live & leads_here & ~is_released)
    expired = _rows(table, ~is_live & leads_here & ~is_released)
    gone = _rows(table, ~is_live & is_open & ~is_released)
    released = _rows(table, leads_here & is_released)
    strays = _rows(table, is_live & ~leads_here)
    # Written with a producer id that writers share: at the offsets of the source.
    is_shared = pc.and_(pc.is_null(table["transactional_id"]), pc.is_valid(table["target_producer_id"]))
    keeps_offsets = np.asarray(is_shared.to_numpy(), np.bool_)
    preserved = _rows(table, is_live & leads_here & keeps_offsets)
    was_written = np.asarray(table["target_producer_epoch"].is_valid().to_numpy(), np.bool_)
    written = _rows(table, is_live & leads_here & keeps_offsets & was_written)
    last_id = [name for name in ids.names if name not in forgotten_ids] or ids.names
    source_id = topic_id if live_code != NOWHERE and topic_id is not None else last_id[-1]
    return PartitionPair(
        source=SourcePartition(topic, source_id, partition),
        target=target,
        rows=rows,
        elsewhere=_elsewhere([expired, released], [segment for segment in pending if segment.target == target]),
        gone_offsets=int((gone.end - gone.start)[gone.kind == DATA].sum()),
        quarantines=bool((is_open & (kinds == KINDS[QUARANTINED].value)).any()),
        problems=(
            *row_problems(rows),
            *released_problems(rows, _rows(table, is_live & is_released)),
            *_stray_problems(strays),
            *_shifted_problems(preserved),
        ),
        is_preserved=bool(keeps_offsets[chosen].any()),
        filler_count=int((written.end - written.start)[~written.is_data].sum()),
    )


def _rows(table: pa.Table, chosen: np.ndarray) -> MapRows:
    return MapRows.of(table.select(COLUMNS).filter(pa.array(chosen)))


def _stray_problems(strays: MapRows) -> Iterator[RowProblem]:
    for start, end in zip(strays.start.tolist(), strays.end.tolist(), strict=True):
        yield RowProblem(DifferenceKind.REORDERED, start, end, "the map assigns them to another target partition than the others")


def _shifted_problems(preserved: MapRows) -> Iterator[RowProblem]:
    shifted = np.flatnonzero(preserved.is_data & (preserved.shift != 0))
    for start, end in zip(preserved.start[shifted].tolist(), preserved.end[shifted].tolist(), strict=True):
        yield RowProblem(DifferenceKind.REORDERED, start, end, "their offsets are preserved, and the map names other ones")


def _elsewhere(settled: Sequence[MapRows], pending: Sequence[Segment]) -> tuple[Longs, Longs]:
    """Join adjacent ranges: several rows may name one batch of the target."""
    named = [pair for rows in settled for pair in zip(rows.target_starts.tolist(), rows.target_ends.tolist(), strict=True)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*named, *((segment.target_start or 0, segment.target_end or 0) for segment in pending)]):
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return np.array([start for start, _ in joined], np.int64), np.array([end for _, end in joined], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    names: list[Any]
    codes: Longs


def _codes(table: pa.Table, column: str) -> _Codes:
    encoded = table.column(column).combine_chunks().dictionary_encode()
    return _Codes(encoded.dictionary.to_pylist(), np.asarray(encoded.indices.to_numpy(), np.int64))

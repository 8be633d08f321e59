"""Driver: the offset map as any Delta reader sees it: what was copied, what was dropped, where each record went.

It uses the table's public columns only, not the code that wrote them.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

_COLUMNS = (
    "source_topic",
    "source_partition",
    "source_start",
    "source_end",
    "kind",
    "target_start",
    "record_count",
    "batch_count",
    "rebuilt_batch_count",
    "size_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """A row for source offsets [source_start, source_end); `target_start` is None unless `kind` is data."""

    source_topic: str
    source_partition: int
    source_start: int
    source_end: int
    kind: str
    target_start: int | None
    record_count: int
    batch_count: int
    rebuilt_batch_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    rows: int = 0
    records: int = 0
    batches: int = 0
    rebuilt_batches: int = 0
    size_bytes: int = 0

    def plus(self, row: MapRow) -> Totals:
        return Totals(
            rows=self.rows + 1,
            records=self.records + row.record_count,
            batches=self.batches + row.batch_count,
            rebuilt_batches=self.rebuilt_batches + row.rebuilt_batch_count,
            size_bytes=self.size_bytes + row.size_bytes,
        )


def offset_map_path(tables: Path) -> Path:
    return tables / "offset_map"


def load_rows(tables: Path) -> tuple[MapRow, ...]:
    """Read all rows."""
    loaded: list[dict[str, Any]] = DeltaTable(str(offset_map_path(tables))).to_pyarrow_table(columns=list(_COLUMNS)).to_pylist()
    return tuple(MapRow(**row) for row in loaded)


def totals(rows: Iterable[MapRow]) -> Mapping[tuple[str, str], Totals]:
    """Return totals by (source topic, kind). Pure."""
    by_topic_and_kind: defaultdict[tuple[str, str], Totals] = defaultdict(Totals)
    for row in rows:
        by_topic_and_kind[row.source_topic, row.kind] = by_topic_and_kind[row.source_topic, row.kind].plus(row)
    return by_topic_and_kind


class RowTranslation:
    """Translation of source offsets by the rows alone: the `Translate` of the checker. Pure."""

    def __init__(self, rows: Iterable[MapRow]) -> None:
        by_partition: defaultdict[tuple[str, int], list[MapRow]] = defaultdict(list)
        for row in rows:
            if row.source_start < row.source_end:
                by_partition[row.source_topic, row.source_partition].append(row)
        self._rows = {
            partition_key: sorted(partition_rows, key=lambda row: row.source_start)
            for partition_key, partition_rows in by_partition.items()
        }
        self._starts = {
            partition_key: [row.source_start for row in partition_rows] for partition_key, partition_rows in self._rows.items()
        }

    def __call__(self, topic: str, partition: int, offset: int) -> tuple[str, bool, int | None]:
        """Return kind, exactness and target offset; ("unknown", False, None) if no row holds the offset."""
        index = bisect.bisect_right(self._starts.get((topic, partition), []), offset) - 1
        if index < 0:
            return ("unknown", False, None)
        row = self._rows[topic, partition][index]
        if offset >= row.source_end:
            return ("unknown", False, None)
        if row.kind != "data" or row.target_start is None:
            return (row.kind, False, None)
        return (row.kind, True, row.target_start + offset - row.source_start)

    def overlaps(self) -> tuple[str, ...]:
        """Return source offsets between the first row and the last that are in two rows or in none."""
        problems = []
        for (topic, partition), rows in sorted(self._rows.items()):
            for row, following in itertools.pairwise(rows):
                if row.source_end != following.source_start:
                    problems.append(
                        f"{topic}-{partition}: a row ends at {row.source_end}, the next starts at {following.source_start}"
                    )
        return tuple(problems)

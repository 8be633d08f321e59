"""Driver: the table `restore_ranges`: what a restore copies of each partition, decided at its first start and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import OffsetRange, SourcePartition

RESTORE_RANGES_TABLE = "restore_ranges"

RESTORE_RANGES = pa.schema(
    [
        ("archive_id", pa.string()),
        ("until", pa.string()),
        ("last_decision", pa.int64()),
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("lineage", pa.int32()),
        ("source_start", pa.int64()),
        ("source_end", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRanges:
    """`until`: the cut as the restore file has it. `last_decision`: of the archive, up to which its rows are read.

    `lineages`: of each partition, the lineage whose log is restored.
    """

    archive_id: str
    until: str
    last_decision: int
    ranges: Mapping[SourcePartition, OffsetRange]
    lineages: Mapping[SourcePartition, int]


class RestoreRangesTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: MirrorStorage) -> RestoreRangesTable:
        return cls(storage.durable_table(RESTORE_RANGES_TABLE))

    def read(self) -> RestoreRanges | None:
        """Return what the first start decided; None before it."""
        rows = self._table.read((), None)
        if not rows:
            return None
        return RestoreRanges(
            archive_id=rows[0]["archive_id"],
            until=rows[0]["until"],
            last_decision=rows[0]["last_decision"],
            ranges={
                SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]): OffsetRange(
                    row["source_start"], row["source_end"]
                )
                for row in rows
            },
            lineages={
                SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]): row["lineage"]
                for row in rows
            },
        )

    def write(self, decided: RestoreRanges) -> None:
        """Append all in one commit. Raises ConfigError for a cut that holds no partition."""
        if not decided.ranges:
            raise ConfigError("nothing to restore: the archive has no segment of these topics before the cut")
        rows = [
            {
                "archive_id": decided.archive_id,
                "until": decided.until,
                "last_decision": decided.last_decision,
                "source_topic": source.topic,
                "source_topic_id": source.topic_id,
                "source_partition": source.partition,
                "lineage": decided.lineages[source],
                "source_start": offsets.start,
                "source_end": offsets.end,
            }
            for source, offsets in sorted(decided.ranges.items())
        ]
        self._table.append(pa.Table.from_pylist(rows, schema=RESTORE_RANGES))

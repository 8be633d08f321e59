"""Driver, for the cli: the batches in quarantine as lines, as JSON, and as files of raw bytes. Starts no JVM.

Reading changes nothing and is safe beside a running mirror.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from shallow_mirror.checkpoints.logs import Quarantine, QuarantineEntry
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.errors import ConfigError, OffsetMapConflictError
from shallow_mirror.plurals import counted

LINES_FILE = "batches.jsonl"

_DESCRIBED = (
    "error_name",
    "rule",
    "remedy",
    "size_bytes",
    "batch_crc32c",
    "base_offset",
    "records_count",
    "attributes",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "crc",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Batches by source topic, partition, and an offset of the batch; None: any."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def entries(self, quarantine: Quarantine) -> tuple[QuarantineEntry, ...]:
        """Return the selected entries. Raises ConfigError if nothing was ever quarantined at `offset`."""
        columns = (("source_topic", self.topic), ("source_partition", self.partition))
        entries = quarantine.entries(tuple(Comparison(name, "=", value) for name, value in columns if value is not None))
        if self.offset is None:
            return entries
        at_offset = tuple(entry for entry in entries if entry.segment.source_start <= self.offset < entry.segment.source_end)
        if not at_offset:
            raise ConfigError(f"no batch was quarantined at offset {self.offset} of {self.topic or 'any topic'}")
        return at_offset


def in_quarantine(entries: Sequence[QuarantineEntry], storage: TableStorage) -> list[QuarantineEntry]:
    """Return the entries that are in quarantine now: not released, and not of topics that the operator has forgotten."""
    forgotten = Controls.open(storage).read().forgotten
    return [entry for entry in entries if not entry.is_released and not forgotten.has(entry.segment.source)]


def document_of(entry: QuarantineEntry) -> dict[str, Any]:
    """Return an entry for JSON. Columns of the table `quarantine` are null if its row was deleted."""
    segment, described = entry.segment, entry.described or {}
    return {
        "topic": segment.source.topic,
        "topic_id": segment.source.topic_id,
        "partition": segment.source.partition,
        "source_start": segment.source_start,
        "source_end": segment.source_end,
        "target_topic": segment.target.topic,
        "target_partition": segment.target.partition,
        "record_count": segment.record_count,
        "decided_at": entry.decided_at.isoformat(timespec="milliseconds"),
        **{name: described.get(name) for name in _DESCRIBED},
        "released": [
            {"source_start": segment.source_start, "source_end": segment.source_end, "target_start": segment.target_start}
            for segment in entry.released
        ],
    }


def show(entries: Sequence[QuarantineEntry], console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps([document_of(entry) for entry in entries]), file=console.file)
        return
    count = counted(len(entries), "batch") if entries else "no batch"
    console.print("\n".join([count, *(_line(entry) for entry in entries)]), markup=False)


def _line(entry: QuarantineEntry) -> str:
    reason = "its row of the table quarantine was deleted"
    if entry.described is not None:
        reason = f"{entry.described['rule']}. {entry.described['remedy']}"
    if entry.is_released:
        offset = entry.released[0].target_start
        reason = f"released to {entry.segment.target.topic_partition}, offset {offset}; before that: {reason}"
    return f"{entry}, {counted(entry.segment.record_count, 'record')}, {counted(entry.segment.size_bytes, 'byte')}: {reason}"


def export(quarantine: Quarantine, entries: Sequence[QuarantineEntry], folder: Path) -> int:
    """Write one file per batch with its bytes as the source sent them, and a line of JSON for each in LINES_FILE.

    Return their number. Raises OffsetMapConflictError with all batches that the table has lost or changed; the others are
    exported all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines, problems = [], []
    for entry in entries:
        source = entry.segment.source
        name = f"{source.topic}-{source.partition}-{entry.segment.source_start:020}-{source.topic_id}.batch"
        try:
            (folder / name).write_bytes(quarantine.batch(entry).batch)
        except OffsetMapConflictError as problem:
            problems.append(str(problem))
            continue
        lines.append(json.dumps({"file": name, **document_of(entry)}))
    (folder / LINES_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if problems:
        raise OffsetMapConflictError("; ".join(problems))
    return len(lines)

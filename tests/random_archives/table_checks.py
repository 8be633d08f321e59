"""Checks of what commands do to a random archive: expiry, clean and rebuild. Differences are sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.random_archives.documented_reader import VISIBLE, DocumentedReader, Row
from tests.random_archives.histories import ArchiveHistory

from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.rebuild import rebuild

_HOUR_MS = 3_600_000
_RowKey = tuple[object, ...]


def retention_differences(history: ArchiveHistory, reader: DocumentedReader) -> Iterator[str]:
    """Yield rows that were deleted although a rule keeps them, and objects that are there although no row names them."""
    kept_bytes: dict[str, int] = {}
    for row in reader.rows:
        if row.has_batches:
            kept_bytes[row.source.topic] = kept_bytes.get(row.source.topic, 0) + row.size_bytes
    for row in reader.rows:
        rule = history.retention.get(row.source.topic)
        if row.state == VISIBLE:
            continue
        name = f"{row.source.topic}-{row.source.partition} [{row.start}, {row.end})"
        age_ms = history.now_ms - round(row.decided_at.timestamp() * 1000)
        if rule is None:
            yield f"{name} was deleted without a rule"
        elif not _is_old(rule, age_ms) and kept_bytes.get(row.source.topic, 0) < rule.get("keep_bytes", 1 << 62):
            yield f"{name} was deleted after {age_ms} ms, {kept_bytes.get(row.source.topic, 0)} bytes are kept"
        if row.object_name is not None and (reader.objects / row.object_name).exists():
            yield f"{name} was deleted, and {row.object_name} is there"


def _is_old(rule: Mapping[str, Any], age_ms: int) -> bool:
    return "keep" in rule and age_ms >= int(str(rule["keep"]).split()[0]) * _HOUR_MS


def clean_differences(history: ArchiveHistory, reader: DocumentedReader) -> Iterator[str]:
    """Clean, and yield the objects that are wrongly gone or left."""
    named = {row.object_name for row in reader.rows if row.has_batches}
    clean(history.writer.config, older_than_s=0)
    left = {path.relative_to(reader.objects).as_posix() for path in reader.objects.rglob("*.batches")}
    yield from (f"clean deleted {name}, which a row names" for name in sorted(filter(None, named - left)))
    yield from (
        f"clean left {name}, which no row names" for name in sorted(left - named) if not _may_be_an_only_copy(reader, name)
    )


def _may_be_an_only_copy(reader: DocumentedReader, object_name: str) -> bool:
    """Return whether an object has offsets that no row with batches has: such a one is kept."""
    covered = {
        (*row.source, row.lineage, offset) for row in reader.rows if row.has_batches for offset in range(row.start, row.end)
    }
    return any(
        (row["source_topic"], row["source_topic_id"], row["source_partition"], row["lineage"], offset) not in covered
        for row in reader.footer_rows(object_name)
        if row["kind"] == "data"
        for offset in range(row["source_start"], row["source_end"])
    )


def rebuild_differences(history: ArchiveHistory, reader: DocumentedReader, folder: Path) -> Iterator[str]:
    """Rebuild the table from the objects, orphans among them, and yield the rows in which it differs from the lost one.

    Rows of a decision without any object are in no footer: they may be recorded as gaps. Objects that were never committed and that
    no later one contradicts may count as committed: they hold what the source has.
    """
    try:
        rebuild(history.writer.config, str(folder / "rebuilt"), accepts_holes=True)
    except ConfigError as error:
        # Two tries of the last decision may differ: then nothing says which one was committed.
        if "nothing says which" not in str(error) or not history.writer.orphans:
            yield f"rebuild refused: {error}"
        return
    rebuilt = DocumentedReader(folder / "rebuilt", reader.objects)
    for source, lineage in sorted({(row.source, row.lineage) for row in reader.rows if row.state != VISIBLE}):
        before, after = (each.log(source, lineage=lineage) for each in (reader, rebuilt))
        if before is not None and (after is None or after.start != before.start) and before.end > before.start:
            yield f"{source}, lineage {lineage}: begins at {after and after.start} after a rebuild, not at {before.start}"
    lost, made = _data_rows(reader), _data_rows(rebuilt)
    for key, row in sorted(lost.items()):
        if key not in made and not _has_twin(row, made):
            yield f"the rebuilt table lacks {row}"
    for key, row in sorted(made.items()):
        if key not in lost and not _has_twin(row, lost) and row.object_name not in history.writer.orphans:
            yield f"the rebuilt table has {row} as well"


def _data_rows(reader: DocumentedReader) -> dict[_RowKey, Row]:
    return {(*row.source, row.lineage, row.start, row.end, row.object_name): row for row in reader.rows if row.has_batches}


def _has_twin(row: Row, rows: Mapping[_RowKey, Row]) -> bool:
    """Return whether another try of the same slot has the same bytes."""
    keys = [(each.source, each.lineage, each.start, each.end, each.crc32c, each.aborted) for each in rows.values()]
    return (row.source, row.lineage, row.start, row.end, row.crc32c, row.aborted) in keys

"""What the tables of a mirror and of an archive hold, by the public interface: run by an earlier release's code and by today's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from shallow_mirror import ArchiveReader, OffsetMap

MIRROR, ARCHIVE, RESTORE = "upgraded", "upgraded-archive", "upgraded-restore"
MIRROR_TABLES, ARCHIVE_TABLES, ARCHIVE_OBJECTS, RESTORE_TABLES = "mirror", "archive", "objects", "restore"
ORDERS, PAYMENTS, NARROW = "orders", "payments", "narrow"
PARTITIONS = ((ORDERS, 0), (ORDERS, 1), (PAYMENTS, 0), (NARROW, 0))


def contents(folder: Path) -> dict[str, Any]:
    """Return positions and translations of both maps, the archived records, and the number of rows of every table."""
    return {
        "mirror": _map_contents(OffsetMap.open(str(folder / MIRROR_TABLES), mirror=MIRROR)),
        "restore": _map_contents(OffsetMap.open(str(folder / RESTORE_TABLES), mirror=RESTORE)),
        "archive": _archive_contents(ArchiveReader.open(str(folder / ARCHIVE_TABLES), str(folder / ARCHIVE_OBJECTS))),
        "rows": {
            f"{log.parent.parent.name}/{log.parent.name}": DeltaTable(log.parent).to_pyarrow_table().num_rows
            for log in sorted(folder.glob("*/*/_delta_log"))
        },
    }


def _map_contents(offset_map: OffsetMap) -> dict[str, Any]:
    positions = {f"{source.topic}-{source.partition}": position.offset for source, position in offset_map.positions().items()}
    translations = {
        f"{topic}-{partition}": [
            [found.target_offset, found.exact]
            for found in (
                offset_map.translate(topic, partition, offset) for offset in range(positions[f"{topic}-{partition}"] + 1)
            )
        ]
        for topic, partition in PARTITIONS
    }
    return {"positions": dict(sorted(positions.items())), "translations": translations}


def _archive_contents(archive: ArchiveReader) -> dict[str, list[list[Any]]]:
    return {
        f"{topic}-{partition}": [
            [record.offset, None if record.value is None else record.value[:20].decode()]
            for record in archive.read_records(topic, partition)
        ]
        for topic, partition in PARTITIONS
    }


if __name__ == "__main__":
    print(json.dumps(contents(Path(sys.argv[1])), indent=1))

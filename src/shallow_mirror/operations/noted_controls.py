"""Driver: rows that commands add to the table `controls`: only to the newest copy of it, which a note on the target tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import OlderTablesError
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.sinks.kafka import NewestControl


def add_noted(config: MirrorConfig, action: ControlAction, topics: Sequence[str], spark: Any = None) -> None:
    """Add rows to the table. Raises OlderTablesError where the target knows more than the tables; as `require_newest_tables`."""
    require_newest_tables(config, spark)
    controls = Controls.open(TableStorage.to_write(config.table_location, config.tables_writer, spark))
    controls.add(action, topics)
    note_added(config, controls, spark)


def note_added(config: MirrorConfig, controls: Controls, spark: Any = None) -> None:
    """Note the row that was added last. Where the target does not answer, that is logged.

    Raises OlderTablesError if tables were exchanged for older ones meanwhile, to which it may have been added.
    """
    rows = controls.read().rows
    require_newest_tables(config, spark)
    map_id = OffsetMap.open(config.table_location, spark, mirror=config.mirror, counts_rows=False).map_id
    newest = NewestControl(config.target.client, config.mirror, map_id)
    try:
        newest.note(rows)
    except OlderTablesError:
        newest.require_in(controls.read)  # the mirror may have noted its answer, a later row

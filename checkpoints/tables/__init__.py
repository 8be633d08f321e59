"""Where the tables are, and through which library they are read and written."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.rows.codec import ms_of as ms_of
    from shallow_mirror.checkpoints.rows.table_layout import (
        ARCHIVE_LAYOUT as ARCHIVE_LAYOUT,
        OFFSET_MAP_LAYOUT as OFFSET_MAP_LAYOUT,
        WRITTEN_RECORDS_LAYOUT as WRITTEN_RECORDS_LAYOUT,
        TableLayout as TableLayout,
    )
    from shallow_mirror.checkpoints.tables.best_effort_tables import (
        BestEffortTables as BestEffortTables,
        RepeatedWarnings as RepeatedWarnings,
    )
    from shallow_mirror.checkpoints.tables.storage import TableStorage as TableStorage, choose_writer as choose_writer
    from shallow_mirror.checkpoints.tables.table_location import TableLocation as TableLocation, Tables as Tables
    from shallow_mirror.checkpoints.tables.table_protocol import (
        Comparison as Comparison,
        Condition as Condition,
        TableWriter as TableWriter,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""The offset map and the other Delta tables."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if __name__ != "shallow_mirror.checkpoints":
    raise ImportError("import shallow_mirror.checkpoints, not checkpoints: the folder is part of the shallow_mirror package")

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.ledger.offset_map import OffsetMap as OffsetMap
    from shallow_mirror.checkpoints.ledger.written_records import WrittenRecords as WrittenRecords
    from shallow_mirror.checkpoints.rows.lineages import Lineages as Lineages, LineageView as LineageView, TxnKey as TxnKey
    from shallow_mirror.checkpoints.rows.positions import Position as Position
    from shallow_mirror.checkpoints.rows.schema import (
        CATALOG as CATALOG,
        PROPERTY_MAP_ID as PROPERTY_MAP_ID,
        PROPERTY_REBUILT_FROM as PROPERTY_REBUILT_FROM,
        PROPERTY_TABLE_ID as PROPERTY_TABLE_ID,
        DecidedSegment as DecidedSegment,
        Removal as Removal,
        WrittenBy as WrittenBy,
        first_rows_at as first_rows_at,
        in_source_order as in_source_order,
        rows_from_arrow as rows_from_arrow,
        schema_of as schema_of,
        table_properties as table_properties,
    )
    from shallow_mirror.checkpoints.rows.written_rows import (
        newest_batch_of as newest_batch_of,
        segment_of as segment_of,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

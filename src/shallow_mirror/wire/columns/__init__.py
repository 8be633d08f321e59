"""Records in columns (Arrow): their partitions, and the record batches that hold them."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.columns.column_batches import (
        ColumnBatch as ColumnBatch,
        Compression as Compression,
        encode_columns as encode_columns,
    )
    from shallow_mirror.wire.columns.content_digest import ContentDigest as ContentDigest
    from shallow_mirror.wire.columns.partitioner import Partitioner as Partitioner, murmur2 as murmur2
    from shallow_mirror.wire.columns.record_columns import RecordColumns as RecordColumns, byte_lengths as byte_lengths
else:
    __getattr__, __dir__ = lazy_names(__name__)

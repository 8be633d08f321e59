"""Pure: the format of an archive's objects: their names, their footer, and where record batches lie in them."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.archive_format.archived_batches import (
        INDEX_BYTES as INDEX_BYTES,
        AbortedTxn as AbortedTxn,
        ArchivedSegment as ArchivedSegment,
        IndexEntry as IndexEntry,
        LeaderEpochStart as LeaderEpochStart,
        StoredBatches as StoredBatches,
    )
    from shallow_mirror.archive_format.object_footer import (
        TAIL_BYTES as TAIL_BYTES,
        ObjectFooter as ObjectFooter,
        ObjectHeader as ObjectHeader,
        build_footer as build_footer,
        footer_size as footer_size,
        parse_footer as parse_footer,
    )
    from shallow_mirror.archive_format.object_names import ObjectName as ObjectName
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""Reports of a run: logs, metrics, health, lag."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.streaming.watch.error_hints import with_remedy as with_remedy
    from shallow_mirror.streaming.watch.lag import (
        PATIENCE_MS as PATIENCE_MS,
        PartitionStatus as PartitionStatus,
        SourceView as SourceView,
        copied_until as copied_until,
        included_positions as included_positions,
        partition_statuses as partition_statuses,
        query_source as query_source,
        query_target as query_target,
    )
    from shallow_mirror.streaming.watch.open_transactions import OpenTransaction as OpenTransaction
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""The foreachBatch sink: slots, Kafka transactions, decision, recovery."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if __name__ != "shallow_mirror.sinks":
    raise ImportError("import shallow_mirror.sinks, not sinks: the folder is part of the shallow_mirror package")

if TYPE_CHECKING:
    from shallow_mirror.sinks.archive.archive_owner import (
        NO_TARGET_CLUSTER as NO_TARGET_CLUSTER,
        ArchiveOwner as ArchiveOwner,
        check_before_take_over as check_before_take_over,
        take_over_archive as take_over_archive,
    )
    from shallow_mirror.sinks.archive.archive_sink import ArchiveSink as ArchiveSink
    from shallow_mirror.sinks.archive.archive_slot_job import (
        ArchiveSlotJob as ArchiveSlotJob,
        archived_partition as archived_partition,
    )
    from shallow_mirror.sinks.archive.row_copies import KEY_COLUMNS as KEY_COLUMNS, RowCopies as RowCopies
    from shallow_mirror.sinks.base import Observer as Observer, TaskFunction as TaskFunction, observe_nothing as observe_nothing
    from shallow_mirror.sinks.slot_values import (
        EarlyEnd as EarlyEnd,
        ReadPart as ReadPart,
        RoutedTopic as RoutedTopic,
        Side as Side,
        SlotResult as SlotResult,
        SteadyCopying as SteadyCopying,
        UnfinishedRange as UnfinishedRange,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""What is decided: the offset map, the segments of an archive, and the commits of their owner."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.ledger.archive_table import (
        EVERY_STATE as EVERY_STATE,
        VISIBLE as VISIBLE,
        ArchiveTable as ArchiveTable,
        of_partition as of_partition,
    )
    from shallow_mirror.checkpoints.ledger.archived_topics import (
        ArchivedTopics as ArchivedTopics,
        SeenTopic as SeenTopic,
        TopicDescription as TopicDescription,
        seen_topics as seen_topics,
    )
    from shallow_mirror.checkpoints.ledger.commit_metadata import (
        Recorded as Recorded,
        RunIdentity as RunIdentity,
        taken_over_error as taken_over_error,
        version_of as version_of,
    )
    from shallow_mirror.checkpoints.ledger.commits import read_snapshot as read_snapshot
    from shallow_mirror.checkpoints.ledger.offset_map_writer import LedgerOwner as LedgerOwner
    from shallow_mirror.checkpoints.ledger.restore_ranges import (
        RestoredTopic as RestoredTopic,
        RestoreRanges as RestoreRanges,
        RestoreRangesTable as RestoreRangesTable,
        RestoreSettings as RestoreSettings,
    )
    from shallow_mirror.checkpoints.ledger.restored_topics import (
        PausedTopic as PausedTopic,
        RestoredTopicsTable as RestoredTopicsTable,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

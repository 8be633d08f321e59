"""Pure: the columns of the tables, and what their rows mean."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.rows.archive_schema import (
        ARCHIVE_SEGMENTS as ARCHIVE_SEGMENTS,
        ARCHIVE_SEGMENTS_TABLE as ARCHIVE_SEGMENTS_TABLE,
        ArchiveRow as ArchiveRow,
        SegmentState as SegmentState,
        archive_rows_from_arrow as archive_rows_from_arrow,
        archive_rows_to_arrow as archive_rows_to_arrow,
        columns_of as columns_of,
        decided_segment_of as decided_segment_of,
    )
    from shallow_mirror.checkpoints.rows.migration_rows import (
        ENDED as ENDED,
        TAKEN_OVER as TAKEN_OVER,
        MigrationRow as MigrationRow,
    )
    from shallow_mirror.checkpoints.rows.paused_intervals import PausedInterval as PausedInterval
    from shallow_mirror.checkpoints.rows.segments import SegmentBuilder as SegmentBuilder
    from shallow_mirror.checkpoints.rows.topic_offsets import (
        FILLER_COLUMNS as FILLER_COLUMNS,
        PRESERVED as PRESERVED,
        TopicOffsets as TopicOffsets,
        decided_fillers as decided_fillers,
        preserved_topics as preserved_topics,
        recorded_fillers as recorded_fillers,
        topics_with_offsets as topics_with_offsets,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

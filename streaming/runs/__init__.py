"""Runs: a mirror, an archive, a restore, and what they prepare."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.streaming.runs.archive import Archive as Archive
    from shallow_mirror.streaming.runs.cycle_detection import CycleDetector as CycleDetector
    from shallow_mirror.streaming.runs.mirror import Mirror as Mirror
    from shallow_mirror.streaming.runs.mirrors import Mirrors as Mirrors
    from shallow_mirror.streaming.runs.partition_registration import decide_first_rows as decide_first_rows
    from shallow_mirror.streaming.runs.paused_retention import LIFT as LIFT, paused_topics as paused_topics
    from shallow_mirror.streaming.runs.permissions import (
        ON_SOURCE_TOPICS as ON_SOURCE_TOPICS,
        ON_TARGET_TOPICS as ON_TARGET_TOPICS,
        TO_ADD_PARTITIONS as TO_ADD_PARTITIONS,
        TO_CREATE as TO_CREATE,
        missing_on_topic as missing_on_topic,
        nothing_matches as nothing_matches,
        unauthorized_topics as unauthorized_topics,
    )
    from shallow_mirror.streaming.runs.preserved_restore import changed_offsets_problems as changed_offsets_problems
    from shallow_mirror.streaming.runs.restore import Restore as Restore
    from shallow_mirror.streaming.runs.restore_decision import decide_restore as decide_restore
    from shallow_mirror.streaming.runs.take_over import (
        ClusterIds as ClusterIds,
        KafkaAttempt as KafkaAttempt,
        take_over_offset_map as take_over_offset_map,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

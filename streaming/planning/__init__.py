"""Planning of micro-batches: source offsets, ranges, slots, and the state that the planner keeps."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.streaming.planning import offset_planning as offset_planning, planner_state as planner_state
    from shallow_mirror.streaming.planning.amounts_to_restore import restored_amounts as restored_amounts
    from shallow_mirror.streaming.planning.left_out_partitions import (
        LeftOutPartition as LeftOutPartition,
        read_left_out as read_left_out,
    )
    from shallow_mirror.streaming.planning.planner_config import PlannerConfig as PlannerConfig
    from shallow_mirror.streaming.planning.restore_planner import (
        OtherLineages as OtherLineages,
        RestorePlanner as RestorePlanner,
        described_topics as described_topics,
        group_times as group_times,
        unmatched_sentence as unmatched_sentence,
    )
    from shallow_mirror.streaming.planning.restore_steps import gone_offsets as gone_offsets, gone_problem as gone_problem
    from shallow_mirror.streaming.planning.source_offsets import LogEnds as LogEnds, SourceOffsets as SourceOffsets
else:
    __getattr__, __dir__ = lazy_names(__name__)

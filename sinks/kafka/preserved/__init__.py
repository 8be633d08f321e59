"""Target partitions whose records keep their offsets: agreements, and checks before anything is written."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.preserved.continuation import (
        INSTEAD as INSTEAD,
        ExistingLog as ExistingLog,
        continued_rows as continued_rows,
        problem_of_differences as problem_of_differences,
        problem_of_ends as problem_of_ends,
        problem_of_later_end as problem_of_later_end,
        problem_without_records as problem_without_records,
    )
    from shallow_mirror.sinks.kafka.preserved.held_records import HeldRecords as HeldRecords
    from shallow_mirror.sinks.kafka.preserved.log_guard import (
        FENCE_EPOCH as FENCE_EPOCH,
        GuardTimes as GuardTimes,
        own_in_place as own_in_place,
    )
    from shallow_mirror.sinks.kafka.preserved.offset_probe import require_preserved_offsets as require_preserved_offsets
    from shallow_mirror.sinks.kafka.preserved.shared_producers import (
        MOST_LEADING_FILLERS as MOST_LEADING_FILLERS,
        first_offset_problems as first_offset_problems,
        read_guard_times as read_guard_times,
        require_agreed as require_agreed,
        used_log_problems as used_log_problems,
        with_shared_producers as with_shared_producers,
    )
    from shallow_mirror.sinks.kafka.preserved.target_log import (
        TargetLogs as TargetLogs,
        responses_of_target as responses_of_target,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

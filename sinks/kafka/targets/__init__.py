"""Target topics: creation, policy, configuration and registration of mirrors."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.targets import target_topic_policy as target_topic_policy
    from shallow_mirror.sinks.kafka.targets.filled_topics import (
        existing_partitions as existing_partitions,
        filled_partitions as filled_partitions,
        filled_problems as filled_problems,
        refuse_filled_topics as refuse_filled_topics,
        refuse_overtaken_topics as refuse_overtaken_topics,
        taken_problems as taken_problems,
        taken_topics as taken_topics,
        unwritten_topics as unwritten_topics,
    )
    from shallow_mirror.sinks.kafka.targets.target_checks import (
        collision_problems as collision_problems,
        replica_problem as replica_problem,
    )
    from shallow_mirror.sinks.kafka.targets.target_topic_policy import (
        COPIED as COPIED,
        LIMIT_BEFORE_3_6 as LIMIT_BEFORE_3_6,
        NO_LIMIT_MS as NO_LIMIT_MS,
        TIMESTAMP_LIMITS as TIMESTAMP_LIMITS,
        gone_problem as gone_problem,
        is_stamping as is_stamping,
    )
    from shallow_mirror.sinks.kafka.targets.target_topics import (
        TargetTopics as TargetTopics,
        first_rows as first_rows,
        rows_at as rows_at,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

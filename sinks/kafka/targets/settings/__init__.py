"""Settings of target topics: preserved, refused, paused, followed."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.targets.settings.idle_settings import IdleSettings as IdleSettings
    from shallow_mirror.sinks.kafka.targets.settings.log_append_time import LogAppendTimeTopics as LogAppendTimeTopics
    from shallow_mirror.sinks.kafka.targets.settings.preserved_settings import PreservedSettings as PreservedSettings
    from shallow_mirror.sinks.kafka.targets.settings.refusing_settings import (
        BEFORE_COMPACTION as BEFORE_COMPACTION,
        is_passed as is_passed,
    )
    from shallow_mirror.sinks.kafka.targets.settings.retention_pause import (
        NOT_BY_KEY as NOT_BY_KEY,
        RestoredAmount as RestoredAmount,
        deletions as deletions,
        existing_topic_findings as existing_topic_findings,
        may_delete_or_refuse as may_delete_or_refuse,
        pause_of as pause_of,
    )
    from shallow_mirror.sinks.kafka.targets.settings.source_policies import SourcePolicies as SourcePolicies
    from shallow_mirror.sinks.kafka.targets.settings.topic_config_sync import TopicConfigSync as TopicConfigSync
    from shallow_mirror.sinks.kafka.targets.settings.topic_settings import settings_of as settings_of
else:
    __getattr__, __dir__ = lazy_names(__name__)

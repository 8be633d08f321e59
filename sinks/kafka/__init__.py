"""The Kafka sink: Kafka transactions on the target, decided by a commit to the offset map."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.kafka_sink import KafkaSink as KafkaSink
    from shallow_mirror.sinks.kafka.protocol.run_guard import RunGuard as RunGuard
    from shallow_mirror.sinks.kafka.protocol.stall_detector import StallDetector as StallDetector, StalledStep as StalledStep
    from shallow_mirror.sinks.kafka.quarantine_release import Releaser as Releaser, ReleaseResult as ReleaseResult
    from shallow_mirror.sinks.kafka.quarantine_source import QuarantineReadingFactory as QuarantineReadingFactory
    from shallow_mirror.sinks.kafka.single_slot import SINGLE_SLOT as SINGLE_SLOT, SingleSlot as SingleSlot
    from shallow_mirror.sinks.kafka.targets.mirror_registration import (
        GROUP_SUFFIX as GROUP_SUFFIX,
        Origin as Origin,
        upstream_of as upstream_of,
    )
    from shallow_mirror.sinks.kafka.targets.newest_control import NewestControl as NewestControl
    from shallow_mirror.sinks.kafka.targets.replication_rings import (
        Ring as Ring,
        RingMirror as RingMirror,
        find_rings as find_rings,
    )
    from shallow_mirror.sinks.kafka.targets.source_ends import before_compaction as before_compaction
    from shallow_mirror.sinks.kafka.targets.txn_ids import (
        id_count as id_count,
        transactional_id as transactional_id,
        transactional_ids as transactional_ids,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

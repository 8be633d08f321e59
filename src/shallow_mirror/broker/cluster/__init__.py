"""One Kafka cluster: metadata, leaders, coordinators and log end offsets."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.cluster.connection_pool import CONTROL as CONTROL
    from shallow_mirror.broker.cluster.connectivity import REACH_MS as REACH_MS, named_cluster as named_cluster, reach as reach
    from shallow_mirror.broker.cluster.new_logs import await_logs as await_logs
    from shallow_mirror.broker.cluster.read_replicas import LANES as LANES
    from shallow_mirror.broker.cluster.topic_presence import (
        absent_topics as absent_topics,
        gone_topics as gone_topics,
        is_incarnation_gone as is_incarnation_gone,
        listed_partitions as listed_partitions,
        missing_topics as missing_topics,
        suspected_topics as suspected_topics,
    )
    from shallow_mirror.broker.cluster.worker_clients import (
        buffers_of_worker as buffers_of_worker,
        cluster_of_worker as cluster_of_worker,
        freeze_imports_once as freeze_imports_once,
        keep_buffers as keep_buffers,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

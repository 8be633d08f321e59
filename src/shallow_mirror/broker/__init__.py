"""Connections to brokers: the only place with sockets."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.admin.consumer_groups import (
        MAX_NOTE_BYTES as MAX_NOTE_BYTES,
        METADATA_TOO_LARGE as METADATA_TOO_LARGE,
        CommittedOffset as CommittedOffset,
        ConsumerGroups as ConsumerGroups,
        ListedGroup as ListedGroup,
        read_group_notes as read_group_notes,
        write_group_note as write_group_note,
    )
    from shallow_mirror.broker.admin.group_admin import delete_groups as delete_groups
    from shallow_mirror.broker.admin.group_requests import BegunCommit as BegunCommit, BegunOffsets as BegunOffsets
    from shallow_mirror.broker.admin.topic_admin import delete_topic_by_id as delete_topic_by_id
    from shallow_mirror.broker.cluster.cluster import Cluster as Cluster
    from shallow_mirror.broker.cluster.cluster_metadata import (
        ClusterMetadata as ClusterMetadata,
        CoordinatorKind as CoordinatorKind,
        KnownCluster as KnownCluster,
        ListedOffset as ListedOffset,
        LogDescription as LogDescription,
        PathSpeeds as PathSpeeds,
        ProducerState as ProducerState,
        TopicMetadata as TopicMetadata,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""Administration of a cluster: topics, consumer groups, ACLs, hanging transactions."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.admin.acls import (
        Operation as Operation,
        Permissions as Permissions,
        missing_delete_permissions as missing_delete_permissions,
        missing_describe_permissions as missing_describe_permissions,
        missing_group_permissions as missing_group_permissions,
        missing_slot_permissions as missing_slot_permissions,
        request_permissions as request_permissions,
    )
    from shallow_mirror.broker.admin.hanging_transactions import (
        OpenTxn as OpenTxn,
        ProducersOfMap as ProducersOfMap,
        abort_hanging as abort_hanging,
        blocking_producers as blocking_producers,
        open_partitions as open_partitions,
        open_transactions as open_transactions,
        write_markers as write_markers,
    )
    from shallow_mirror.broker.admin.topic_admin import (
        TopicSpec as TopicSpec,
        add_partitions as add_partitions,
        delete_records as delete_records,
        delete_topics as delete_topics,
        ensure_topics as ensure_topics,
        set_topic_configs as set_topic_configs,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

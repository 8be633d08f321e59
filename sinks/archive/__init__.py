"""The archive sink: every slot writes objects of raw batches, and one commit to archive_segments decides them all."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.archive.deleted_topics import DeletedTopics as DeletedTopics
    from shallow_mirror.sinks.archive.divergence import (
        ArchivedRange as ArchivedRange,
        Divergence as Divergence,
        EpochHistory as EpochHistory,
    )
    from shallow_mirror.sinks.archive.expiry import (
        Expired as Expired,
        Expiry as Expiry,
        expired_objects as expired_objects,
        interrupted_objects as interrupted_objects,
        retention_of as retention_of,
    )
    from shallow_mirror.sinks.archive.group_note_expiry import GroupNoteExpiry as GroupNoteExpiry
    from shallow_mirror.sinks.archive.object_owner import (
        ObjectOwner as ObjectOwner,
        ObjectOwners as ObjectOwners,
        archive_id_of_entry as archive_id_of_entry,
        require_objects as require_objects,
    )
    from shallow_mirror.sinks.archive.retention import ExpiredObject as ExpiredObject
    from shallow_mirror.sinks.archive.topic_objects import SeenTopics as SeenTopics, TopicObjects as TopicObjects
    from shallow_mirror.sinks.archive.txn_outcomes import TxnOutcomes as TxnOutcomes
else:
    __getattr__, __dir__ = lazy_names(__name__)

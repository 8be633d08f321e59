"""Topics that were created, deleted, forgotten or paused."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.logs.topics.controls import (
        NO_CONTROLS as NO_CONTROLS,
        Controls as Controls,
        TopicControls as TopicControls,
        older_controls as older_controls,
    )
    from shallow_mirror.checkpoints.logs.topics.created_topics import (
        CreatedTopic as CreatedTopic,
        CreatedTopicsTable as CreatedTopicsTable,
    )
    from shallow_mirror.checkpoints.logs.topics.deleted_topics import (
        DeletedTopicsTable as DeletedTopicsTable,
        TopicIncarnation as TopicIncarnation,
    )
    from shallow_mirror.checkpoints.logs.topics.denied_writes import (
        DENIED_WRITES_TABLE as DENIED_WRITES_TABLE,
        DeniedWrite as DeniedWrite,
        DeniedWrites as DeniedWrites,
    )
    from shallow_mirror.checkpoints.logs.topics.forgotten_topics import (
        NOTHING_FORGOTTEN as NOTHING_FORGOTTEN,
        ForgottenTopics as ForgottenTopics,
        is_closed as is_closed,
    )
    from shallow_mirror.checkpoints.rows.paused_intervals import ControlAction as ControlAction, ControlRow as ControlRow
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""What is remembered beside the decisions: runs, problems, audits, groups, controls, quarantine, migrations."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.logs.group_offset_history import (
        GroupPosition as GroupPosition,
        GroupSyncPass as GroupSyncPass,
        changed_positions as changed_positions,
        delete_outdated as delete_outdated,
        last_pass as last_pass,
        lost_rows as lost_rows,
        positions_as_of as positions_as_of,
        record_pass as record_pass,
        thin_out as thin_out,
    )
    from shallow_mirror.checkpoints.logs.quarantine import (
        Quarantine as Quarantine,
        QuarantineEntry as QuarantineEntry,
        QuarantineTable as QuarantineTable,
        undescribed_entries as undescribed_entries,
    )
    from shallow_mirror.checkpoints.logs.quarantined_batches import BatchKey as BatchKey, QuarantinedBatch as QuarantinedBatch
    from shallow_mirror.checkpoints.logs.schema_imports import (
        SchemaImports as SchemaImports,
        UnfinishedImport as UnfinishedImport,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

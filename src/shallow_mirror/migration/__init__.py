"""Moving topics, groups and writers to another cluster, step by step, and back. Driver; starts no JVM."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.migration import view as view
    from shallow_mirror.migration.conductor_ports import WaitsForOutsideError as WaitsForOutsideError
    from shallow_mirror.migration.late_settling import Choice as Choice, settle_late_writes as settle_late_writes
    from shallow_mirror.migration.plan import plan_migration as plan_migration
    from shallow_mirror.migration.rehearsal.rehearsal import rehearse as rehearse
    from shallow_mirror.migration.sentences import lost_sentence as lost_sentence, release_sentences as release_sentences
    from shallow_mirror.migration.session import (
        Options as Options,
        abort as abort,
        read_late_writes as read_late_writes,
        read_newest_state as read_newest_state,
        read_state as read_state,
        require_wave as require_wave,
        roll_back as roll_back,
        run_migration as run_migration,
    )
    from shallow_mirror.migration.state import MigrationState as MigrationState, Phase as Phase
    from shallow_mirror.migration.view import Printed as Printed
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""Observations of runs, verifications and migrations, and their problems."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.logs.runs import run_history as run_history
    from shallow_mirror.checkpoints.logs.runs.migration_log import MigrationLog as MigrationLog, MigrationOwner as MigrationOwner
    from shallow_mirror.checkpoints.logs.runs.problem_log import (
        ProblemLog as ProblemLog,
        log_problem as log_problem,
        read_problems as read_problems,
    )
    from shallow_mirror.checkpoints.logs.runs.row_note import RowNote as RowNote
    from shallow_mirror.checkpoints.logs.runs.run_history import (
        MICRO_BATCHES_TABLE as MICRO_BATCHES_TABLE,
        MicroBatchObservation as MicroBatchObservation,
        RunEnd as RunEnd,
        RunHistory as RunHistory,
        recorded_run as recorded_run,
    )
    from shallow_mirror.checkpoints.logs.runs.verify_log import (
        RecordedVerification as RecordedVerification,
        VerifiedRange as VerifiedRange,
        VerifyIdentity as VerifyIdentity,
        VerifyLog as VerifyLog,
        interrupted_verification as interrupted_verification,
    )
    from shallow_mirror.checkpoints.rows.problems import (
        CountedProblem as CountedProblem,
        Problem as Problem,
        ProblemKind as ProblemKind,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

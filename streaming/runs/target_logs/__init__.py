"""Logs of the target at a start: what they hold beyond or below the positions of the offset map."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.streaming.runs.target_logs.continued_logs import ContinuedLogs as ContinuedLogs
    from shallow_mirror.streaming.runs.target_logs.ended_preservation import (
        EndedPreservation as EndedPreservation,
        sentences_of as sentences_of,
    )
    from shallow_mirror.streaming.runs.target_logs.preserved_log_filling import LogFilling as LogFilling
    from shallow_mirror.streaming.runs.target_logs.recorded_ends import require_recorded_ends as require_recorded_ends
else:
    __getattr__, __dir__ = lazy_names(__name__)

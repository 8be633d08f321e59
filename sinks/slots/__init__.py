"""Tasks of slots, for any sink: sources of batches, tries, left out ranges."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.slots.archive_readings import ArchiveInput as ArchiveInput
    from shallow_mirror.sinks.slots.batch_sources import ReadingLimits as ReadingLimits
    from shallow_mirror.sinks.slots.direct_readings import DirectReadingFactory as DirectReadingFactory
    from shallow_mirror.sinks.slots.log_end_readings import LogEndInput as LogEndInput
    from shallow_mirror.sinks.slots.planned_rows import arrow_batch_of as arrow_batch_of, ranges_by_slot as ranges_by_slot
    from shallow_mirror.sinks.slots.quarantine_policy import (
        REMEDY_OF_DAMAGE as REMEDY_OF_DAMAGE,
        UNLIMITED_QUARANTINE as UNLIMITED_QUARANTINE,
    )
    from shallow_mirror.sinks.slots.slot_job import FOLLOW_MS as FOLLOW_MS
    from shallow_mirror.sinks.slots.slot_task import SlotInput as SlotInput, fill_slot as fill_slot
    from shallow_mirror.sinks.slots.slot_time import SlotTime as SlotTime
    from shallow_mirror.sinks.slots.truncation_check import CheckedReadingFactory as CheckedReadingFactory
    from shallow_mirror.sinks.slots.worker_environment import (
        READS_PLANS_VARIABLE as READS_PLANS_VARIABLE,
        environment_of_copiers as environment_of_copiers,
        environment_of_plan_readers as environment_of_plan_readers,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

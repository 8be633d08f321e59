"""Target topics and batches that another application has written."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.targets.other_writers.foreign_batches import first_foreign_batch as first_foreign_batch
    from shallow_mirror.sinks.kafka.targets.other_writers.written_topics import (
        IS_WRITTEN_BY_OTHERS as IS_WRITTEN_BY_OTHERS,
        WRITTEN_BY_OTHERS as WRITTEN_BY_OTHERS,
        filled_by_mirror as filled_by_mirror,
        warn_of_others as warn_of_others,
        written_offsets as written_offsets,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

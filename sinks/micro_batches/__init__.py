"""Driver: rounds of a micro-batch, whatever the sink."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.micro_batches.micro_batch import (
        SLOWEST_SLOT as SLOWEST_SLOT,
        TOTAL as TOTAL,
        MicroBatchReport as MicroBatchReport,
        MicroBatchSink as MicroBatchSink,
        StoppedBeforeMicroBatchError as StoppedBeforeMicroBatchError,
    )
    from shallow_mirror.sinks.micro_batches.spark_failures import (
        find_unfit_python as find_unfit_python,
        find_unwritable_folder as find_unwritable_folder,
        lost_worker as lost_worker,
        raising_lost_jvm as raising_lost_jvm,
        raising_unfit_python as raising_unfit_python,
        raising_unwritable_folder as raising_unwritable_folder,
    )
    from shallow_mirror.sinks.micro_batches.truncated_logs import SOURCE_LOG_TRUNCATED as SOURCE_LOG_TRUNCATED
else:
    __getattr__, __dir__ = lazy_names(__name__)

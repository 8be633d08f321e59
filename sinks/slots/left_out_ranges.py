"""Executor: ranges that a slot leaves out so that the rest is copied, after lasting errors of one partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    PreservedLogDamagedError,
    TopicAccessError,
    TopicGoneError,
    TopicRecreatedError,
    TopicSettingsError,
)
from shallow_mirror.sinks.slot_values import Side, UnfinishedRange
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import SourcePartition


def ranges_to_isolate(
    error: MirrorError, job: SlotJob, positions: Mapping[SourcePartition, int], *, is_writing: bool
) -> Sequence[UnfinishedRange]:
    """Return ranges to leave out if `error` is of single partitions and `on_error` is isolate; else nothing.

    With `read.on_data_loss: continue` also a partition whose log ends below its position: it waits there.

    A topic that was created again at the source is another one under the same name: all of the former one is left out.
    `reached` is the end of the next try: in front of the batch that cannot be copied, if the error names one.
    """
    if job.continues_after_data_loss and isinstance(error, LogTruncatedError):
        if error.log_end is None:
            return ()  # the driver lets the next round continue behind it
    elif not job.isolates:
        return ()
    if isinstance(error, TopicRecreatedError):
        if job.continues_after_data_loss:
            return ()  # the driver begins again, with the partitions that the topic has now
        sources = [source for source in positions if source.topic == error.topic_partition.topic]
        return [UnfinishedRange.of(source, positions[source], Side.SOURCE, error) for source in sources]
    if isinstance(error, TopicAccessError | TopicSettingsError | TopicGoneError):
        side = Side.TARGET if is_writing else Side.SOURCE
        topic_of = {source: job.routes[source.topic].target_topic if is_writing else source.topic for source in positions}
        sources = [source for source in positions if topic_of[source] in error.topics]
        return [UnfinishedRange.of(source, positions[source], side, error) for source in sources]
    if isinstance(error, PreservedLogDamagedError):
        sources = [
            source for source in positions if job.routes[source.topic].target_of(source).topic_partition == error.topic_partition
        ]
        return [UnfinishedRange.of(source, positions[source], Side.TARGET, error) for source in sources]
    if not isinstance(error, BatchRefusedError | CorruptBatchError | DataLossError):
        return ()
    if (
        isinstance(error, DataLossError)
        and job.continues_after_data_loss
        and (error.log_start_offset or 0) > error.expected_offset
    ):
        return ()  # the driver has an answer to that
    side = Side.TARGET if isinstance(error, BatchRefusedError) else Side.SOURCE
    offset = error.expected_offset if isinstance(error, DataLossError) else error.base_offset
    sources = [source for source in positions if source.topic_partition == error.topic_partition]
    return [UnfinishedRange.of(source, max(positions[source], offset), side, error) for source in sources]

"""Everywhere: the error codes of Produce responses as exceptions, for one topic-partition or one batch."""

from __future__ import annotations

from shallow_mirror.broker.net.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    ErrorClass,
    error_class,
    error_name,
    is_forbidden,
    refusal,
)
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    MirrorError,
    ProducerEpochFencedError,
    RetriableError,
    TopicAccessError,
)
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import verify_crc


class ProduceRefusedError(MirrorError):
    """The target rejects one batch permanently. Batches before and behind it may have been appended."""

    def __init__(self, topic_partition: TopicPartition, index_in_queue: int, error_code: int, message: str) -> None:
        self.topic_partition = topic_partition
        self.index_in_queue = index_in_queue
        self.error_code = error_code
        self.message = message
        self.error_name = error_name(error_code)
        super().__init__(f"{topic_partition}: batch {index_in_queue} of the request refused: {self.error_name}: {message}")

    def __reduce__(self) -> tuple[type[ProduceRefusedError], tuple[TopicPartition, int, int, str]]:
        return type(self), (self.topic_partition, self.index_in_queue, self.error_code, self.message)


def produce_error(topic_partition: TopicPartition, position: int, code: int, message: str) -> MirrorError:
    """Return the error of one topic-partition. `position`: of its batch in the queue."""
    kind = error_class(code)
    if kind is ErrorClass.FENCED:
        return ProducerEpochFencedError(error_name(code), f"Produce to {topic_partition}: {message}")
    if is_forbidden(code):
        text = f"Produce to {topic_partition}: the target answered {refusal(code, 'Produce', topic=topic_partition.topic)}"
        return TopicAccessError(text, [topic_partition.topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)
    if kind is ErrorClass.DEFINITE:
        return ProduceRefusedError(topic_partition, position, code, message)
    return RetriableError(error_name(code), f"Produce to {topic_partition}: {message}")


def explain_refusal(
    refused: ProduceRefusedError,
    sent: memoryview,
    source: TopicPartition,
    base_offset: int,
    pos: int,
    *,
    is_preserved: bool = False,
) -> CorruptBatchError | BatchRefusedError:
    """Return the refusal in the source's terms: which batch, and whether it was damaged before the target saw it.

    `is_preserved`: it was sent with its offset. `sent` is the whole batch, before or after it was restamped: a patched CRC
    fails if the one before it did.
    """
    if not verify_crc(sent):
        return CorruptBatchError(source, base_offset, pos, "its CRC does not match its payload")
    rule = f"the target answered {refused.error_name} for {refused.topic_partition}: {refused.message}"
    remedies = {**_REMEDIES, **(_REMEDIES_WHERE_PRESERVED if is_preserved else {})}
    return BatchRefusedError(source, base_offset, rule, remedies.get(refused.error_name, _ANY_REMEDY))


_ANY_REMEDY = "Look at the settings of the target topic, then start again"


_WITHOUT_KEY = "Brokers refuse records without a key on a compacted topic; the source took them before it was compacted"
_COMPACT_LATER = (
    "Set cleanup.policy=delete and retention.ms=-1 on the target topic and start again, and cleanup.policy=compact once the "
    "mirror has no lag there"
)
_REMEDIES = {
    "MESSAGE_TOO_LARGE": "Raise max.message.bytes of the target topic and start again",
    "RECORD_LIST_TOO_LARGE": "Raise segment.bytes of the target topic and start again",
    "INVALID_TIMESTAMP": "Set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target topic to "
    "9223372036854775807 and start again",
    "INVALID_RECORD": f"{_WITHOUT_KEY}. {_COMPACT_LATER}",
}
_REMEDIES_WHERE_PRESERVED = {
    "INVALID_RECORD": f"{_WITHOUT_KEY}. With preserved offsets the target topic has to be compacted as well: use "
    f"topics.offsets: translated for it. {_COMPACT_LATER}",
}

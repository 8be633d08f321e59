"""Pure: which refusals a batch itself causes, for good: only such a batch may be quarantined.

What an operator should change first (an ACL, a missing topic, too few replicas) is no such refusal, nor what a retry may mend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError
from shallow_mirror.types import QuarantineLimits, TopicPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.records import open_batch

_OF_THE_BATCH = frozenset(
    {
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "RECORD_LIST_TOO_LARGE",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)
_IF_OF_ONE_RECORD = "MESSAGE_TOO_LARGE"
"""Batches of several records are split, once a start has read the limit that the target has now."""
_IF_UNREADABLE = frozenset({"CORRUPT_MESSAGE", "UNKNOWN_SERVER_ERROR"})
"""Answers of brokers that cannot open a batch whose checksum is right, and to much else."""


REMEDY_OF_DAMAGE = "It is damaged at the source"
"""There is no remedy: such a batch stays in quarantine."""

_MOST_OF_A_RULE = 1_000
"""Characters. A target may answer with a sentence for every record."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why one batch is not copied. `error_name`: the target's answer; None if it was not asked."""

    error: BatchRefusedError | CorruptBatchError
    error_name: str | None = None

    @property
    def rule(self) -> str:
        rule = self.error.rule if isinstance(self.error, BatchRefusedError) else f"corrupt record batch: {self.error.reason}"
        return rule if len(rule) <= _MOST_OF_A_RULE else f"{rule[:_MOST_OF_A_RULE]}…"

    @property
    def remedy(self) -> str:
        return self.error.remedy if isinstance(self.error, BatchRefusedError) else REMEDY_OF_DAMAGE


def quarantinable_refusal(
    name: str, explained: BatchRefusedError | CorruptBatchError, sent: memoryview, *, max_opened_bytes: int
) -> Refusal | None:
    """None if the batch `sent` is not to blame for the target's answer `name`, which is `explained` in the source's terms."""
    if isinstance(explained, CorruptBatchError) or name in _OF_THE_BATCH:
        return Refusal(explained, name)
    if name == _IF_OF_ONE_RECORD:
        return Refusal(explained, name) if _records_count(sent) == 1 else None
    damage = _damage(sent, explained.topic_partition, max_opened_bytes) if name in _IF_UNREADABLE else None
    if damage is None:
        return None
    return Refusal(CorruptBatchError(explained.topic_partition, explained.base_offset, damage.pos, damage.reason), name)


def _records_count(batch: memoryview) -> int:
    return int.from_bytes(batch[BATCH_HEADER_BYTES - 4 : BATCH_HEADER_BYTES], "big", signed=True)


def _damage(batch: memoryview, topic_partition: TopicPartition, max_opened_bytes: int) -> CorruptBatchError | None:
    """Return the damage that keeps its records from being read; None also if that cannot be found out here."""
    try:
        for _ in open_batch(batch, topic_partition, max_bytes=max_opened_bytes):
            pass
    except CorruptBatchError as damage:
        return damage
    except (BatchRefusedError, ConfigError):
        return None  # too large to be opened, or its codec's library is missing
    return None


UNLIMITED_QUARANTINE = QuarantineLimits(batches=1 << 62, size_bytes=1 << 62)


class QuarantineBudget:
    """Rest of the limits. They are soon used up if a setting of the target makes it refuse every batch."""

    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._batches = 0
        self._size_bytes = 0

    def take(self, quarantined: Iterable[QuarantinedBatch]) -> None:
        """Count batches against the limits. Raises BatchRefusedError for the first one that exceeds them."""
        for batch in quarantined:
            self._batches += 1
            self._size_bytes += len(batch.batch)
            if self._batches > self._limits.batches:
                raise _too_much(batch, f"write.max_quarantined_batches={self._limits.batches}")
            if self._size_bytes > self._limits.size_bytes:
                raise _too_much(batch, f"write.max_quarantined_bytes={self._limits.size_bytes}")


def _too_much(batch: QuarantinedBatch, limit: str) -> BatchRefusedError:
    return BatchRefusedError(
        batch.source.topic_partition,
        batch.source_start,
        f"{batch.rule}; and more than {limit} would have to be quarantined in one micro-batch",
        f"{batch.remedy}. Or, if all of it may be quarantined, raise {limit.partition('=')[0]}",
    )

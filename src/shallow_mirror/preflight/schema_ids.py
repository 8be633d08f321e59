"""Pure: which keys and values of a sample of batches begin like those of a Schema Registry's serializers: a byte 0 and an id.

Batches are opened only for this, and only if the mirror file names registries.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import SENT, Admission, BatchIndex
from shallow_mirror.wire.records import open_batch

_PREFIX_BYTES = 5
_MAGIC_BYTE = 0

MOST_BATCHES = 16
"""Opened of one partition: the first and the last of each response."""
MOST_RECORDS = 100
"""Looked at in one batch."""
MOST_OPENED_BYTES = 32 << 20


def schema_id_of(content: memoryview | None) -> int | None:
    """Return the id that a key or value begins with; None if it does not begin with a byte 0 and four more."""
    if content is None or len(content) < _PREFIX_BYTES or content[0] != _MAGIC_BYTE:
        return None
    return int.from_bytes(content[1:_PREFIX_BYTES])


@dataclass(slots=True)
class FieldIds:
    """Of the keys, or of the values, of one topic: `sampled` without null; `ids`: how many began with each id."""

    sampled: int = 0
    ids: Counter[int] = field(default_factory=Counter)

    def add(self, content: memoryview | None) -> None:
        if content is None:
            return
        self.sampled += 1
        schema_id = schema_id_of(content)
        if schema_id is not None:
            self.ids[schema_id] += 1


@dataclass(slots=True)
class TopicIds:
    """Result of the sample of a topic. `unopened`: why batches could not be opened."""

    keys: FieldIds = field(default_factory=FieldIds)
    values: FieldIds = field(default_factory=FieldIds)
    unopened: dict[str, int] = field(default_factory=dict)


class SchemaIdSampler:
    """Opens a few batches of each partition. `topics`: results by source topic."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicIds] = {}
        self._opened: Counter[TopicPartition] = Counter()

    def add(self, topic_partition: TopicPartition, index: BatchIndex, records: memoryview, admission: Admission) -> None:
        """Look at the first and the last batch of a response that readers see, until the partition had enough."""
        readable = np.flatnonzero(np.isin(admission.verdicts, SENT)).tolist()
        for i in dict.fromkeys((*readable[:1], *readable[-1:])):
            if self._opened[topic_partition] >= MOST_BATCHES:
                return
            self._opened[topic_partition] += 1
            start = int(index.pos[i])
            self._look_at(topic_partition, records[start : start + int(index.size_bytes[i])])

    def _look_at(self, topic_partition: TopicPartition, batch: memoryview) -> None:
        seen = self.topics.setdefault(topic_partition.topic, TopicIds())
        try:
            records = open_batch(batch, topic_partition, max_bytes=MOST_OPENED_BYTES)
            for record in itertools.islice(records, MOST_RECORDS):
                seen.keys.add(record.key)
                seen.values.add(record.value)
        except (CorruptBatchError, BatchRefusedError, ConfigError) as error:
            reason = str(error) if isinstance(error, ConfigError) else "batches that are damaged or too large when opened"
            seen.unopened[reason] = seen.unopened.get(reason, 0) + 1

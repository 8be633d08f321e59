"""Where logs end, asked of clusters that have just elected leaders."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from shallow_mirror.demo.checker import end_offsets
from shallow_mirror.types import IsolationLevel, TopicPartition

_PATIENCE_S = 60.0
_PAUSE_S = 0.2
_OF_ELECTIONS = {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
}
"""No leader that the client knows, one that does not know yet that it leads, or how far the others are."""


def settled_end_offsets(
    admin: AdminClient, keys: Collection[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    """Return the high watermark or last stable offset of each, when all have a leader that knows it. Raises KafkaException."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return end_offsets(admin, keys, isolation)
        except KafkaException as error:
            if error.args[0].code() not in _OF_ELECTIONS or time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE_S)

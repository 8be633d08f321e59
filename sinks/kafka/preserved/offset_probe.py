"""Driver: probe of a target's brokers for preserved offsets, with a topic that is deleted again."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, delete_topics, ensure_topics
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.broker.produce.txn import new_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, ProducerEpochFencedError, RetriableError
from shallow_mirror.sinks.kafka.targets.target_topic_policy import TIMESTAMP_LIMITS, are_limits_unknown, configs_of_new
from shallow_mirror.types import LATEST_TIMESTAMP, UNKNOWN_BYTES_PER_OFFSET, IsolationLevel, TopicPartition
from shallow_mirror.wire import build_batch
from shallow_mirror.wire.batches import SharedProducer, restamped_at
from shallow_mirror.wire.records import Fillers, parse_record, unpack_batch

_log = logging.getLogger(__name__)

PROBE_PREFIX = "__shallow_mirror_probe"
"""Begins the names of the topics: brokers and mirrors do not mirror topics that begin with two underscores."""

_RECORD = b"\x0c\x00\x00\x00\x01\x01\x00"
"""Without key, value and headers."""
_OLD_MS = 1_000
_FILLERS_AT, _NEW_AT, _OLD_AT, _BEHIND = 0, 3, 4, 5
_FETCH_BYTES = 1 << 20


def require_preserved_offsets(target: Cluster, mirror: str, deadline: Deadline) -> None:
    """Try fillers, a batch of an old record, a batch out of order, and a read by a consumer, in a topic of its own.

    Whether a consumer passes over fillers is up to its client, not to the brokers (docs/reference/preserved-readers.md lists
    clients): here the records are fetched, and counted by the rule that all clients share.

    Raises ConfigError if the target does something else than brokers of Kafka 3.6 and newer, or a permission is missing;
    RetriableError.
    """
    prefix = f"{PROBE_PREFIX}.{mirror}."
    left = [name for name in target.metadata(None, deadline).topics if name.startswith(prefix)]
    topic = f"{prefix}{uuid.uuid4().hex[:8]}"
    try:
        ensure_topics(target, [TopicSpec(topic, 1, None, configs_of_new({}, is_preserved=True))], deadline)
    except ConfigError as error:
        # Of brokers that are older; KIP-937 added the settings.
        if are_limits_unknown(error.problems):
            raise _refusal(f"they are older than Kafka 3.6 and do not know {TIMESTAMP_LIMITS[0]}") from error
        raise
    try:
        _try_out(target, TopicPartition(topic, 0), deadline)
    finally:
        # With time of its own: the trial may have ended because its deadline was over.
        delete_topics(target, [topic, *left], Deadline.after_ms(target.config.request_timeout_ms, deadline.clock))
    _log.info("the target takes batches at given offsets, as topics.offsets: preserved needs it")


def _try_out(target: Cluster, key: TopicPartition, deadline: Deadline) -> None:
    target.require_partitions([key], deadline)
    now_ms = int(time.time() * 1000)
    shared = SharedProducer(producer_id=new_producer_id(target, deadline).producer_id, now_ms=now_ms, old_before_ms=_OLD_MS + 1)
    parts = {
        _FILLERS_AT: Fillers(None, 1 << 20).batch(_NEW_AT, now_ms),
        _NEW_AT: _record_batch(now_ms),
        _OLD_AT: _record_batch(_OLD_MS),
    }
    batches = [restamped_at(batch, offset, shared) for offset, batch in parts.items()]
    appended = _produce(target, key, batches, deadline)
    if appended != list(parts):
        raise _refusal(f"batches of offsets {list(parts)} were appended at {appended}")
    producers = target.describe_producers([key], deadline)[key]
    if not any(state.last_sequence == _OLD_AT and state.last_timestamp_ms >= now_ms for state in producers):
        raise _refusal("the producer of an old record is remembered by the time of the record")
    try:
        at = _produce(target, key, [restamped_at(_record_batch(now_ms), _BEHIND + 1, shared)], deadline)
    except ProducerEpochFencedError:
        pass
    else:
        raise _refusal(f"a batch of offset {_BEHIND + 1} was appended at {at[0]}, behind offset {_OLD_AT}")
    seen = _consumed(target, key, deadline)
    if seen != [_NEW_AT, _OLD_AT]:
        raise _refusal(f"a consumer returned records at offsets {seen}, those written are at {[_NEW_AT, _OLD_AT]}")


def _record_batch(timestamp_ms: int) -> bytearray:
    batch = build_batch(
        _RECORD,
        attributes=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        records_count=1,
        last_offset_delta=0,
    )
    return bytearray(batch)


def _produce(target: Cluster, key: TopicPartition, batches: list[memoryview], deadline: Deadline) -> list[int]:
    pipeline = ProducePipeline(target, None, in_flight_requests=1, in_flight_bytes=1 << 20, deadline=deadline)
    try:
        return pipeline.produce_all({key: batches})[key]
    except (ProducerEpochFencedError, RetriableError):
        raise
    except MirrorError as error:
        raise _refusal(str(error)) from error


def _consumed(target: Cluster, key: TopicPartition, deadline: Deadline) -> list[int]:
    """Return the offsets of all records that a consumer would return."""
    end = target.list_offsets({key: LATEST_TIMESTAMP}, IsolationLevel.READ_COMMITTED, deadline)[key].offset
    reader = RangeReader(
        target,
        [ReadRange(key, 0, end, UNKNOWN_BYTES_PER_OFFSET)],
        isolation=IsolationLevel.READ_COMMITTED,
        fetch_bytes=_FETCH_BYTES,
        deadline=deadline,
    )
    try:
        return [offset for response in reader for fetched in response for offset in _visible_offsets(fetched)]
    except (ConfigError, RetriableError):
        raise
    except MirrorError as error:
        raise _refusal(f"a consumer cannot read them: {error}") from error


def _visible_offsets(fetched: IndexedPartition) -> Iterator[int]:
    """Yield the offset of each record by its delta. Consumers pass over those below the offset that they have reached."""
    index = fetched.index
    for i in range(len(index)):
        start = int(index.pos[i])
        batch = fetched.records[start : start + int(index.size_bytes[i])]
        unpacked, pos = unpack_batch(batch, fetched.topic_partition, max_bytes=_FETCH_BYTES), 0
        for _ in range(int(index.headers["records_count"][i])):
            try:
                pos, (_, offset_delta, *_) = parse_record(unpacked.block, pos)
            except (IndexError, ValueError) as error:
                raise unpacked.corrupt(pos, f"a record cannot be read: {error}") from error
            if offset_delta >= 0:
                yield int(index.headers["base_offset"][i]) + offset_delta


def _refusal(reason: str) -> ConfigError:
    return ConfigError(
        f"topics.offsets: the target's brokers cannot preserve offsets (tried with a topic that was deleted again): {reason}. "
        "Use topics.offsets: translated"
    )

"""Driver: independent check of a copy: read both clusters with a stock consumer and compare record by record.

It shares no code with the mirror: neither how it reads batches, nor how it decides what readers of the source see. It says which
records differ, and how. The fault campaigns (`tests/faults/check.py`) use it for every piece of a log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from confluent_kafka import (
    Consumer,
    IsolationLevel as ClientIsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition as ClientTopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from shallow_mirror.demo.history import (
    Difference,
    DifferenceKind,
    History,
    HistoryBuilder,
    Translate,
    compare_histories,
    mistranslated,
    record_digest,
)
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition

_SILENCE_S = 60.0
_CONSUME_MESSAGES = 2000
_CONSUME_S = 0.1
_FOREIGN = frozenset((DifferenceKind.EXTRA, DifferenceKind.CHANGED))
_CLIENT_LEVELS = {
    IsolationLevel.READ_COMMITTED: ClientIsolationLevel.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: ClientIsolationLevel.READ_UNCOMMITTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result. `source_records` and `target_records` count what a read_committed consumer sees, per source topic."""

    source_records: Mapping[str, int]
    target_records: Mapping[str, int]
    translated_offsets: int
    differences: tuple[Difference, ...]

    @property
    def counts(self) -> Mapping[DifferenceKind, int]:
        return Counter(difference.kind for difference in self.differences)


def end_offsets(
    admin: AdminClient, topic_partitions: Iterable[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    """Return the high watermark (read_uncommitted) or last stable offset (read_committed) of each. Raises KafkaException."""
    level = _CLIENT_LEVELS[isolation]
    requests = {
        ClientTopicPartition(topic_partition.topic, topic_partition.partition): OffsetSpec.latest()
        for topic_partition in topic_partitions
    }
    if not requests:
        return {}
    futures = admin.list_offsets(requests, isolation_level=level, request_timeout=10)
    return {
        TopicPartition(topic_partition.topic, topic_partition.partition): int(future.result().offset)
        for topic_partition, future in futures.items()
    }


def partitions_of(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of topics, sorted; a topic that does not exist has none."""
    listed = admin.list_topics(timeout=10).topics
    return sorted(TopicPartition(topic, number) for topic in topics if topic in listed for number in listed[topic].partitions)


def open_partitions(admin: AdminClient, topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return those with a transaction that is certainly open: the high watermark is read first, and the LSO is below it."""
    high_watermarks = end_offsets(admin, topic_partitions, IsolationLevel.READ_UNCOMMITTED)
    stable = end_offsets(admin, topic_partitions, IsolationLevel.READ_COMMITTED)
    return [topic_partition for topic_partition in topic_partitions if high_watermarks[topic_partition] > stable[topic_partition]]


def read_times(bootstrap: str, topic: str) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return offset and timestamp in ms of every record of a topic, also of aborted transactions, by partition.

    Raises RetriableError when a broker sends nothing for a minute.
    """
    partitions = partitions_of(AdminClient({"bootstrap.servers": bootstrap, "log_level": 3}), [topic])
    times: dict[TopicPartition, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    for messages in _read_messages(bootstrap, IsolationLevel.READ_UNCOMMITTED, dict.fromkeys(partitions, 0)):
        for message in messages:
            times[_partition_of(message)].append((message.offset(), message.timestamp()[1]))
    return times


def read_histories(
    bootstrap: str,
    topics: Iterable[str],
    isolation: IsolationLevel,
    on_progress: Callable[[int], None],
    clock: Callable[[], float] = time.monotonic,
    starts: Mapping[TopicPartition, int] | None = None,
    ends: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, History]:
    """Read everything from `starts` (0 if not named) up to, not including, `ends` (the end of the log if not named).

    Raises RetriableError when a broker sends nothing for a minute.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    topic_partitions = partitions_of(admin, topics)
    starts, ends = starts or {}, ends or {}
    positions = {
        topic_partition: starts.get(topic_partition, 0)
        for topic_partition in topic_partitions
        if topic_partition not in ends or starts.get(topic_partition, 0) < ends[topic_partition]
    }
    records = {topic_partition: HistoryBuilder() for topic_partition in topic_partitions}
    for messages in _read_messages(bootstrap, isolation, positions, ends, clock):
        for message in messages:
            timestamp_type, timestamp_ms = message.timestamp()
            digest = record_digest(message.key(), message.value(), message.headers() or (), timestamp_type, timestamp_ms)
            records[_partition_of(message)].add(message.offset(), digest)
        on_progress(len(messages))
    return {topic_partition: builder.build() for topic_partition, builder in records.items()}


def _read_messages(
    bootstrap: str,
    isolation: IsolationLevel,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Message]]:
    """Yield the records from `positions` up to `ends`, or to the end of the log if none is named, in pieces."""
    unfinished = set(positions)
    consumer = _consumer(bootstrap, isolation)
    try:
        consumer.assign(
            [ClientTopicPartition(*topic_partition, positions[topic_partition]) for topic_partition in sorted(positions)]
        )
        read_at = clock()
        while unfinished:
            messages = consumer.consume(_CONSUME_MESSAGES, _CONSUME_S)
            before = set(unfinished)
            wanted = [message for message in messages if _is_wanted(message, unfinished, ends)]
            if any(message.error() is None for message in messages) or unfinished != before:
                read_at = clock()
            elif clock() - read_at > _SILENCE_S:
                raise RetriableError(
                    "TIMED_OUT", f"{bootstrap} sent nothing for {_SILENCE_S:.0f} s; unread: {sorted(unfinished)}"
                )
            yield wanted
            # A log that grows faster than it is read would be read without end.
            bounded = [
                ClientTopicPartition(*topic_partition) for topic_partition in before - unfinished if topic_partition in ends
            ]
            if bounded:
                consumer.pause(bounded)
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: IsolationLevel) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "shallow-mirror-checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation.value,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 16384,
            "log_level": 3,
        }
    )


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _is_wanted(message: Message, unfinished: set[TopicPartition], ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether this is a record below its end. A partition that is read to its end is removed from `unfinished`.

    librdkafka passes over responses that hold nothing but fillers (preserved offsets), and from the eleventh on reports each as
    MSG_SIZE_TOO_LARGE. A record that is too large indeed is one that is never read.
    """
    topic_partition, error = _partition_of(message), message.error()
    if error is not None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        unfinished.discard(topic_partition)
        return False
    end = ends.get(topic_partition)
    if end is not None and message.offset() >= end - 1:
        unfinished.discard(topic_partition)
    return end is None or message.offset() < end


def _ignore(records: int) -> None:
    return None


def compare(
    source_bootstrap: str,
    target_bootstrap: str,
    topics: Mapping[str, str],
    translate: Translate | None = None,
    *,
    on_progress: Callable[[int], None] = _ignore,
) -> Comparison:
    """Compare what read_committed consumers see. `topics`: target topic of each source topic; `on_progress` gets records read."""
    committed = IsolationLevel.READ_COMMITTED
    source = read_histories(source_bootstrap, topics, committed, on_progress)
    target = read_histories(target_bootstrap, topics.values(), committed, on_progress)
    aborted = _AbortedDigests(source_bootstrap, source)
    differences = list(_still_open(target_bootstrap, topics))
    translated = 0
    empty = History.of(())
    source_names = {target_topic: topic for topic, target_topic in topics.items()}
    at_target = {TopicPartition(source_names[copy.topic], copy.partition) for copy in target}
    for topic_partition in sorted(source.keys() | at_target):
        source_history, target_history = (
            source.get(topic_partition, empty),
            target.get(TopicPartition(topics[topic_partition.topic], topic_partition.partition), empty),
        )
        compared = compare_histories(topic_partition, source_history, target_history)
        if any(difference.kind in _FOREIGN for difference in compared.differences):
            compared = compare_histories(topic_partition, source_history, target_history, aborted.of(topic_partition))
        differences += compared.differences
        if translate is not None:
            differences += mistranslated(topic_partition, compared.pairs, translate)
            translated += len(compared.pairs)
    return Comparison(
        source_records=_count(source, {topic: topic for topic in topics}),
        target_records=_count(target, source_names),
        translated_offsets=translated,
        differences=tuple(differences),
    )


class _AbortedDigests:
    """Digests of aborted source records, read only when the target holds records that the source does not show."""

    def __init__(self, bootstrap: str, committed: Mapping[TopicPartition, History]) -> None:
        self._bootstrap, self._committed = bootstrap, committed
        self._all: dict[str, dict[TopicPartition, History]] = {}

    def of(self, topic_partition: TopicPartition) -> frozenset[bytes]:
        if topic_partition.topic not in self._all:
            self._all[topic_partition.topic] = read_histories(
                self._bootstrap, [topic_partition.topic], IsolationLevel.READ_UNCOMMITTED, _ignore
            )
        everything = self._all[topic_partition.topic].get(topic_partition)
        if everything is None:
            return frozenset()
        visible = {digest.tobytes() for digest in self._committed[topic_partition].digests}
        return frozenset(digest.tobytes() for digest in everything.digests) - visible


def _still_open(bootstrap: str, topics: Mapping[str, str]) -> Iterable[Difference]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for topic_partition in open_partitions(admin, partitions_of(admin, topics.values())):
        yield Difference(
            kind=DifferenceKind.OPEN_TXN,
            topic_partition=topic_partition,
            detail="on the target: its high watermark is above its LSO",
        )


def _count(histories: Mapping[TopicPartition, History], names: Mapping[str, str]) -> dict[str, int]:
    counted = dict.fromkeys(names.values(), 0)
    for topic_partition, history in histories.items():
        counted[names[topic_partition.topic]] += len(history)
    return counted

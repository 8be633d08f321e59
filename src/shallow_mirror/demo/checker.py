"""Driver: an independent proof of copy: reads both clusters with a stock consumer and compares record by record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import IsolationLevel as ClientIsolationLevel
from confluent_kafka import TopicPartition as ClientTopicPartition
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
    """`source_records` and `target_records` count what a read_committed consumer sees, per source topic."""

    source_records: Mapping[str, int]
    target_records: Mapping[str, int]
    translated_offsets: int
    differences: tuple[Difference, ...]

    @property
    def counts(self) -> Mapping[DifferenceKind, int]:
        return Counter(difference.kind for difference in self.differences)


def end_offsets(admin: AdminClient, places: Iterable[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, int]:
    """High watermark (read_uncommitted) or last stable offset (read_committed) of each. Raises KafkaException."""
    level = _CLIENT_LEVELS[isolation]
    asked = {ClientTopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in places}
    if not asked:
        return {}
    answers = admin.list_offsets(asked, isolation_level=level, request_timeout=10)
    return {TopicPartition(place.topic, place.partition): int(answer.result().offset) for place, answer in answers.items()}


def partitions_of(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """Sorted; a topic that does not exist has none."""
    listed = admin.list_topics(timeout=10).topics
    return sorted(TopicPartition(topic, number) for topic in topics if topic in listed for number in listed[topic].partitions)


def open_partitions(admin: AdminClient, places: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Those with a transaction that is surely open: the high watermark is asked for first, and the LSO is still below it."""
    high_watermarks = end_offsets(admin, places, IsolationLevel.READ_UNCOMMITTED)
    stable = end_offsets(admin, places, IsolationLevel.READ_COMMITTED)
    return [place for place in places if high_watermarks[place] > stable[place]]


def read_histories(
    bootstrap: str,
    topics: Iterable[str],
    isolation: IsolationLevel,
    on_progress: Callable[[int], None],
    clock: Callable[[], float] = time.monotonic,
    starts: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, History]:
    """Everything from `starts` (0 where not named) to the end at this moment. Raises RetriableError when a broker is silent for a
    minute."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    places = partitions_of(admin, topics)
    unfinished = set(places)
    records = {place: HistoryBuilder() for place in places}
    consumer = Consumer(
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
    try:
        begin = {} if starts is None else starts
        consumer.assign([ClientTopicPartition(place.topic, place.partition, begin.get(place, 0)) for place in places])
        heard = clock()
        while unfinished:
            messages = consumer.consume(_CONSUME_MESSAGES, _CONSUME_S)
            if messages:
                heard = clock()
            elif clock() - heard > _SILENCE_S:
                raise RetriableError(
                    "TIMED_OUT", f"{bootstrap} sent nothing for {_SILENCE_S:.0f} s; unread: {sorted(unfinished)}"
                )
            for message in messages:
                _take(message, records, unfinished)
            on_progress(len(messages))
    finally:
        consumer.close()
    return {place: builder.build() for place, builder in records.items()}


def _take(message: Message, records: Mapping[TopicPartition, HistoryBuilder], unfinished: set[TopicPartition]) -> None:
    place = TopicPartition(message.topic(), message.partition())
    error = message.error()
    if error is None:
        timestamp_type, timestamp_ms = message.timestamp()
        digest = record_digest(message.key(), message.value(), message.headers() or (), timestamp_type, timestamp_ms)
        records[place].add(message.offset(), digest)
    elif error.code() == KafkaError._PARTITION_EOF:
        unfinished.discard(place)
    else:
        raise KafkaException(error)


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
    nothing = History.of(())
    for place in sorted(source.keys() | _in_source_names(target, topics)):
        ours, theirs = source.get(place, nothing), target.get(TopicPartition(topics[place.topic], place.partition), nothing)
        compared = compare_histories(place, ours, theirs)
        if any(one.kind in _FOREIGN for one in compared.differences):
            compared = compare_histories(place, ours, theirs, aborted.of(place))
        differences += compared.differences
        if translate is not None:
            differences += mistranslated(place, compared.pairs, translate)
            translated += len(compared.pairs)
    return Comparison(
        source_records=_count(source, {topic: topic for topic in topics}),
        target_records=_count(target, {there: topic for topic, there in topics.items()}),
        translated_offsets=translated,
        differences=tuple(differences),
    )


class _AbortedDigests:
    """Read only when the target holds records that the source does not show."""

    def __init__(self, bootstrap: str, committed: Mapping[TopicPartition, History]) -> None:
        self._bootstrap, self._committed = bootstrap, committed
        self._all: dict[str, dict[TopicPartition, History]] = {}

    def of(self, place: TopicPartition) -> frozenset[bytes]:
        if place.topic not in self._all:
            self._all[place.topic] = read_histories(self._bootstrap, [place.topic], IsolationLevel.READ_UNCOMMITTED, _ignore)
        everything = self._all[place.topic].get(place)
        if everything is None:
            return frozenset()
        visible = {digest.tobytes() for digest in self._committed[place].digests}
        return frozenset(digest.tobytes() for digest in everything.digests) - visible


def _still_open(bootstrap: str, topics: Mapping[str, str]) -> Iterable[Difference]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for place in open_partitions(admin, partitions_of(admin, topics.values())):
        yield Difference(
            kind=DifferenceKind.OPEN_TXN, topic_partition=place, detail="on the target: its high watermark is above its LSO"
        )


def _in_source_names(target: Mapping[TopicPartition, History], topics: Mapping[str, str]) -> set[TopicPartition]:
    names = {there: topic for topic, there in topics.items()}
    return {TopicPartition(names[place.topic], place.partition) for place in target}


def _count(histories: Mapping[TopicPartition, History], names: Mapping[str, str]) -> dict[str, int]:
    counted = dict.fromkeys(names.values(), 0)
    for place, history in histories.items():
        counted[names[place.topic]] += len(history)
    return counted

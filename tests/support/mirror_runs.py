"""Mirrors that run inside the test process, on one Spark session, and what tests write to and read from their clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from tests.support.one_batch import one_batch_producer

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import ArchiveConfig, MirrorConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.streaming.runs import Archive, Mirror

ANY_PARTITION = -1
"""The producer chooses."""
PATIENCE_S = 120.0
"""Bound of every wait; nothing is asserted about how long it took."""

NO_TIME = -1

MICRO_BATCHES = "TEST_MICRO_BATCHES"
"""The variable of the setting `micro_batches` of every mirror and archive: with `loop`, they run without Structured Streaming."""


def document(source: str, target: str, include: Sequence[str], /, **groups: Any) -> dict[str, Any]:
    """Return a mirror file. `groups` are merged into it, one level deep. Other topics or tables make another mirror."""
    mirror = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([list(include), str(groups.get("tables"))]))
    made: dict[str, Any] = {
        "mirror": f"m-{mirror}",
        "source": {"alias": "east", "client": {"bootstrap.servers": source}},
        "target": {"alias": "west", "client": {"bootstrap.servers": target}},
        "topics": {"include": list(include), "discovery": "0 seconds"},
        "write": {"transaction_timeout_ms": 60_000},
        "tables": "tables",
        "trigger": "0 seconds",
    }
    set_micro_batches(made)
    for name, value in groups.items():
        made[name] = made.get(name, {}) | value if isinstance(value, dict) else value
    return made


def set_micro_batches(document: dict[str, Any]) -> None:
    """Leave out `auto`, the default: a release that is upgraded does not know the setting."""
    if (micro_batches := os.environ.get(MICRO_BATCHES, "auto")) != "auto":
        document["micro_batches"] = micro_batches


def config(folder: Path, source: str, target: str, include: Sequence[str], /, **groups: Any) -> MirrorConfig:
    return MirrorConfig.from_document(document(source, target, include, **groups), folder=folder)


def conf_file(folder: Path, source: str, target: str, include: Sequence[str], /, **groups: Any) -> Path:
    path = folder / "mirror.yaml"
    path.write_text(yaml.safe_dump(document(source, target, include, **groups)), encoding="utf-8")
    return path


def catch_up(settings: MirrorConfig, spark: Any, observer: Observer = observe_nothing) -> None:
    Mirror(settings, observer=observer).run(spark, available_now=True)


def own_spark_environment() -> dict[str, str]:
    """Return the environment for a process that starts a JVM of its own."""
    return {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}


@contextmanager
def command(folder: Path, conf: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`shallow-mirror run`; its standard error is in `stderr.txt` of `folder`. Whatever is left of its group is killed."""
    log = folder / "stderr.txt"
    with log.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "shallow_mirror.cli", "run", str(conf), *options],
            cwd=folder,
            env=own_spark_environment(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    with killed_at_last(process):
        yield process


@contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has a session of its own; whatever is left of its group is killed."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def log_text(folder: Path) -> str:
    """Return standard error of the last `command` in `folder`."""
    return (folder / "stderr.txt").read_text(encoding="utf-8")


def wait_for_run(process: subprocess.Popen[Any], what: str, condition: Callable[[], Any]) -> None:
    def is_so() -> bool:
        assert process.poll() is None, f"the mirror ended with {process.returncode} before {what}"
        return bool(condition())

    wait_for(what, is_so)


class Running:
    """A mirror or an archive that runs on until the block ends, in a thread; its error is raised there."""

    def __init__(self, settings: MirrorConfig | ArchiveConfig, spark: Any, observer: Observer = observe_nothing) -> None:
        self._mirror: Mirror | Archive
        if isinstance(settings, ArchiveConfig):
            self._mirror = Archive(settings, observer=observer)
        else:
            self._mirror = Mirror(settings, observer=observer)
        self._spark = spark
        self._thread = threading.Thread(target=self._run, name="mirror")
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._mirror.run(self._spark)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._mirror.stop()
        self.join()
        if self.error is not None and error is None:
            raise self.error

    def wait_for_error(self) -> None:
        """Until it ends by itself; raises why, which is not raised a second time."""
        self.join()
        error, self.error = self.error, None
        assert error is not None, "the mirror ended without an error"
        raise error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the mirror did not end"

    def wait_for(self, what: str, condition: Callable[[], Any]) -> None:
        def is_so() -> bool:
            if self.error is not None:
                raise self.error
            assert self._thread.is_alive(), f"the mirror ended before {what}"
            return bool(condition())

        wait_for(what, is_so)


def wait_for(what: str, condition: Callable[[], Any]) -> None:
    """Poll until the condition is true; fail when it never is."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"never came: {what}"
        time.sleep(0.1)


def admin(bootstrap: str) -> AdminClient:
    """To be kept in a variable until its futures are done: they end with it."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
    """Until the brokers lead it: they are told of a topic later than whoever made it."""
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, partitions, 1, config=dict(settings or {}))])[topic].result(30)
    wait_for(f"topic {topic}", lambda: topic in topics_of(bootstrap))
    latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    wait_for(f"leaders of {topic}", lambda: not any(future.exception(30) for future in client.list_offsets(latest).values()))


def delete_topic(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    client.delete_topics([topic])[topic].result(30)
    wait_for(f"the end of topic {topic}", lambda: topic not in topics_of(bootstrap))


def delete_topics_ending(bootstrap: str, endings: Iterable[str]) -> None:
    for topic in sorted(topics_of(bootstrap)):
        if topic.endswith(tuple(endings)):
            delete_topic(bootstrap, topic)


def set_topic(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    client, resource = admin(bootstrap), ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    client.incremental_alter_configs([resource])[resource].result(30)


def topic_settings(bootstrap: str, topic: str) -> dict[str, str]:
    client, resource = admin(bootstrap), ConfigResource(ConfigResource.Type.TOPIC, topic)
    return {name: record.value for name, record in client.describe_configs([resource])[resource].result(30).items()}


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    client = admin(bootstrap)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    client, topic_partition = admin(bootstrap), TopicPartition(topic, partition, before)
    client.delete_records([topic_partition])[topic_partition].result(30)


def last_stable_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    return _latest(bootstrap, topic, partition, IsolationLevel.READ_COMMITTED)


def high_watermark(bootstrap: str, topic: str, partition: int = 0) -> int:
    return _latest(bootstrap, topic, partition, IsolationLevel.READ_UNCOMMITTED)


def _latest(bootstrap: str, topic: str, partition: int, isolation: IsolationLevel) -> int:
    client, topic_partition = admin(bootstrap), TopicPartition(topic, partition)
    listed = client.list_offsets({topic_partition: OffsetSpec.latest()}, isolation_level=isolation)
    return int(listed[topic_partition].result(30).offset)


def wait_for_markers(bootstrap: str, topic: str) -> None:
    """Wait for the markers, which come after the response to the commit: what is read before them ends in front of it."""
    every = range(topics_of(bootstrap)[topic])
    wait_for(
        f"the markers of {topic}",
        lambda: all(
            last_stable_offset(bootstrap, topic, partition) == high_watermark(bootstrap, topic, partition) for partition in every
        ),
    )


def topics_of(bootstrap: str) -> dict[str, int]:
    listed = admin(bootstrap).list_topics(timeout=20)
    return {name: len(topic.partitions) for name, topic in listed.topics.items()}


def write(bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> None:
    """One record batch, while it is small."""
    write_stamped(bootstrap, topic, [(value, 0) for value in values], partition)


def write_stamped(
    bootstrap: str, topic: str, records: Sequence[tuple[str, int]], partition: int = 0, *, is_idempotent: bool = False
) -> None:
    """One record batch of (value, timestamp in ms); 0 is now. `is_idempotent`: with a producer id, another one each time."""
    settings = {"message.max.bytes": 10_000_000, "enable.idempotence": is_idempotent}
    producer = one_batch_producer(bootstrap, topic, **settings)
    for value, at_ms in records:
        producer.produce(topic, value, partition=partition, timestamp=at_ms)
    assert producer.flush(60) == 0


@contextmanager
def open_transaction(bootstrap: str, topic: str, values: Sequence[str], partition: int = ANY_PARTITION) -> Iterator[None]:
    """Write records of a transaction that is committed at the end of the block."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writer-of-{topic}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0
    yield
    producer.commit_transaction(30)


class ReadRecord(NamedTuple):
    """What a consumer is told of a record. Without a time it has NO_TIME; else the kind of its timestamp is left out."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_partitions(bootstrap: str, topic_partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[ReadRecord]]:
    """Everything a read_committed consumer sees of these partitions, each in order."""
    records: dict[tuple[str, int], list[ReadRecord]] = {topic_partition: [] for topic_partition in topic_partitions}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # at the end of a log, which is reported when a fetch has waited so long
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(*topic_partition, 0) for topic_partition in records])
        unread = set(records)
        while unread:
            message = consumer.poll(30)
            assert message is not None, f"no answer about {unread}"
            topic_partition = (message.topic(), message.partition())
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                unread.discard(topic_partition)
                continue
            kind, timestamp_ms = message.timestamp()
            timestamp_ms = NO_TIME if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
            headers = list(message.headers() or ())
            records[topic_partition].append(ReadRecord(message.offset(), timestamp_ms, message.key(), message.value(), headers))
        return records
    finally:
        consumer.close()


def read_values(bootstrap: str, topic: str, partition: int = 0) -> list[str]:
    """Of every record that a read_committed consumer sees, in order, without tombstones."""
    records = read_partitions(bootstrap, [(topic, partition)])[topic, partition]
    return [record.value.decode() for record in records if record.value is not None]


class CrashError(MirrorError):
    """The end of a mirror at a point of the contract, as far as clusters and tables can tell."""


class CrashAt:
    """Observer. Nothing is ended, decided or settled behind `point`."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __call__(self, point: str) -> None:
        if point == self._point:
            raise CrashError(point)


class KillWorkerOnce:
    """Observer. The first Python worker that passes `point` is gone without a word."""

    def __init__(self, point: str, mark: Path) -> None:
        self._point, self._mark = point, mark

    def __call__(self, point: str) -> None:
        if point == self._point and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def is_settled(settings: MirrorConfig) -> bool:
    recorded = OffsetMap.open(settings.tables).recorded()
    return recorded is not None and recorded.version % 2 == 1


def positions(settings: MirrorConfig) -> dict[tuple[str, int], int]:
    """Settled ones; none before the first run has made the map."""
    if not Path(settings.tables, "offset_map", "_delta_log", "00000000000000000000.json").exists():
        return {}
    positions = OffsetMap.open(settings.tables).positions()
    return {(source.topic, source.partition): position.offset for source, position in positions.items()}

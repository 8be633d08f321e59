"""Driver: the writer of a rehearsal: record batches of the real topics, written to the scratch topics again and again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from shallow_mirror.broker.clients import BatchConsumer, BatchProducer, FetchedBatch, LogAppendTimePolicy
from shallow_mirror.config import ClusterSettings
from shallow_mirror.errors import BatchRefusedError, ConfigError, RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.migration.observations import LogEnds
from shallow_mirror.types import EARLIEST_TIMESTAMP, TopicPartition

SAMPLE_OFFSETS = 2_000
"""So many of the last offsets of each partition are the sample."""
SAMPLE_BYTES = 4 << 20
SAMPLE_S = 10.0
FILL_S = 30.0
PAUSE_S = 0.1
"""Between two batches of each partition that has any."""

Sample = Mapping[TopicPartition, Sequence[FetchedBatch]]


def read_sample(cluster: ClusterSettings, ends: LogEnds, starts: Mapping[TopicPartition, int]) -> Sample:
    """Return the last batches of each partition. `starts`: of the logs. Raises RetriableError, DataLossError."""
    from_offsets = {name: max(starts.get(name, 0), log.stable - SAMPLE_OFFSETS) for name, log in ends.items()}
    wanted = {name: offset for name, offset in from_offsets.items() if offset < ends[name].stable}
    sample: defaultdict[TopicPartition, list[FetchedBatch]] = defaultdict(list)
    if not wanted:
        return sample
    give_up_at, size_bytes = time.monotonic() + SAMPLE_S, 0
    with BatchConsumer(cluster.client) as consumer:
        consumer.assign(wanted)
        while any(consumer.position(name) < ends[name].stable for name in wanted):
            for batch in consumer.poll_batches(max_bytes=1 << 20, timeout_ms=500):
                sample[batch.topic_partition].append(batch.copy())
                size_bytes += batch.size_bytes
            if time.monotonic() > give_up_at or size_bytes > SAMPLE_BYTES:
                break
    return sample


class ScratchWriter:
    """Writes the sample once to the source with `fill`, and goes through it again in a thread between `start` and `stop`.

    Batches that brokers refuse are left out of it: a mirror rebuilds those with holes of compaction, and a topic may hold records
    from before its settings were changed.
    """

    def __init__(self, sample: Sample) -> None:
        self._batches = {name: [batch for batch in batches if batch.record_count] for name, batches in sample.items()}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def fill(self, cluster: ClusterSettings, topic_of: Callable[[str], str]) -> None:
        """Write the sample. Raises ConfigError if nothing of it can be written, RetriableError.

        `topic_of` returns the topic to write to, of a topic of the sample.
        """
        give_up_at = time.monotonic() + FILL_S
        while True:
            try:
                with _producer(cluster) as producer:
                    for number in range(max((len(batches) for batches in self._batches.values()), default=0)):
                        self._send_each(producer, topic_of, number)
                break
            except BatchRefusedError as refused:
                self._leave_out(refused)
            except RetriableError:  # a partition that was just created may have no leader yet
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.5)
        if not any(self._batches.values()):
            raise ConfigError("nothing to rehearse with: the topics of this wave hold no record batch that can be written again")

    def start(self, cluster: ClusterSettings, topic_of: Callable[[str], str]) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(cluster, topic_of), name="scratch-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; raise the error that ended it before."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self, cluster: ClusterSettings, topic_of: Callable[[str], str]) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                try:
                    with _producer(cluster) as producer:
                        while not self._stop.wait(PAUSE_S):
                            self._send_each(producer, topic_of, number)
                            number += 1
                except BatchRefusedError as refused:
                    self._leave_out(refused)
                except RetriableError:  # as any writer does: again, with another producer id
                    self._stop.wait(PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self._failure = error

    def _send_each(self, producer: BatchProducer, topic_of: Callable[[str], str], number: int) -> None:
        """Write a batch to every partition that has any in the sample, and wait until they are acknowledged."""
        for name, batches in self._batches.items():
            if batches:
                producer.send_batch(TopicPartition(topic_of(name.topic), name.partition), batches[number % len(batches)])
        producer.flush()

    def _leave_out(self, refused: BatchRefusedError) -> None:
        """Leave out the batch of the sample that was refused."""
        name = refused.topic_partition
        self._batches[name] = [batch for batch in self._batches[name] if batch.base_offset != refused.base_offset]


def _producer(cluster: ClusterSettings) -> BatchProducer:
    return BatchProducer(cluster.client, log_append_time=LogAppendTimePolicy.PRODUCER)


def log_starts(cluster: ClusterSettings, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset of each log."""
    with closing(GroupClient(cluster.client, cluster.alias)) as client:
        return client.offsets(names, EARLIEST_TIMESTAMP)

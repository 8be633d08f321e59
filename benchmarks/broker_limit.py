"""What a broker takes of small batches at the most: raw producers without Spark, source and map, over several connections.

    python -m benchmarks.broker_limit --corpora lz4-small --gb 0.6 --producers 1,2,4 --connections 1,2

A producer is a process with a transaction of its own and its share of the partitions, as a slot is. It sends batches that lie
ready in its memory, as the slot of a mirror sends them, over so many connections at once, each with a share of its partitions.
MB/s and CPU are of the time in which they send; the broker's CPU is that of its whole process. On the same cores no mirror is
faster than these producers.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.comparison import running_clusters
from benchmarks.copying import Clusters
from benchmarks.corpora import PARTITIONS, Corpus, chosen_corpora, make_batches
from benchmarks.hot_path import IN_FLIGHT_BYTES, IN_FLIGHT_REQUESTS
from benchmarks.resource_check import require_room
from benchmarks.slot_source import TIMEOUT_MS
from benchmarks.topics import create_topic, delete_topic
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.broker.produce.txn import add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.types import SlotTxn, TopicPartition
from shallow_mirror.wire.batches import index_batches, restamp

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What one process sends: `size_bytes` in all, over `connections`."""

    bootstrap: str
    corpus: Corpus
    partitions: Sequence[TopicPartition]
    size_bytes: float
    connections: int


@dataclass(frozen=True, slots=True)
class Limit:
    """One run of all producers."""

    seconds: float
    size_bytes: int
    producer_cpu_s: float
    broker_cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / self.seconds / 1e6


def produce(production: Production, begin: Barrier, results: Any) -> None:
    """Put what `_produced` returns, or its error."""
    try:
        results.put(_produced(production, begin))
    except MirrorError as error:
        begin.abort()
        results.put(error)


def _produced(production: Production, begin: Barrier) -> tuple[int, float, float, float]:
    """Prepare, wait for the other producers, send; return bytes, CPU seconds, and when it began and ended."""
    deadline = Deadline.after_ms(TIMEOUT_MS, time.monotonic)
    config = ClientConfig.from_properties({"bootstrap.servers": production.bootstrap})
    cluster = Cluster(config)
    name = f"broker-limit-{uuid.uuid4().hex}"
    txn = init_producer_id(cluster, name, TIMEOUT_MS, deadline)
    add_partitions(cluster, txn, list(production.partitions), deadline)
    queues = {place: _queue(production, txn) for place in production.partitions}
    shares = [
        {place: queues[place] for place in production.partitions[first :: production.connections]}
        for first in range(min(production.connections, len(production.partitions)))
    ]
    # A cluster is for one thread, and has one connection per broker and purpose.
    pipelines = [
        ProducePipeline(
            Cluster(config),
            name,
            in_flight_requests=IN_FLIGHT_REQUESTS,
            in_flight_bytes=IN_FLIGHT_BYTES // len(shares),
            deadline=deadline,
        )
        for _ in shares
    ]
    with ThreadPoolExecutor(len(shares)) as pool:
        begin.wait(_START_TIMEOUT_S)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        list(pool.map(ProducePipeline.produce_all, pipelines, shares))
        after, ended = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    end_txn(cluster, txn, commit=True, deadline=deadline)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return sum(map(len, itertools.chain(*queues.values()))), cpu_s, began, ended


def _queue(production: Production, txn: SlotTxn) -> list[memoryview]:
    """Return the batches of one partition, with their sequences."""
    distinct = b"".join(made.records for made in make_batches(production.corpus))
    repeated = max(1, round(production.size_bytes / len(production.partitions) / len(distinct)))
    records = memoryview(bytearray(distinct * repeated))
    index = index_batches(records)
    chosen = np.arange(len(index))
    restamp(records, index, chosen, producer_id=txn.producer_id, producer_epoch=txn.producer_epoch, first_sequence=0)
    ends = np.cumsum(index.size_bytes).tolist()
    return [records[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def one_run(clusters: Clusters, corpus: Corpus, size_bytes: float, producers: int, connections: int) -> Limit:
    """Raise MirrorError where the broker refuses a producer."""
    topic = f"limit-{uuid.uuid4().hex[:8]}"
    create_topic(clusters.target.bootstrap, topic, PARTITIONS, {})
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    context = multiprocessing.get_context("spawn")
    begin, results = context.Barrier(producers + 1), context.SimpleQueue()
    broker = psutil.Process(clusters.target.pid)
    productions = [
        Production(
            bootstrap=clusters.target.bootstrap,
            corpus=corpus,
            partitions=places[number::producers],
            size_bytes=size_bytes / producers,
            connections=connections,
        )
        for number in range(producers)
    ]
    processes = [context.Process(target=produce, args=(production, begin, results)) for production in productions]
    for process in processes:
        process.start()
    begin.wait(_START_TIMEOUT_S)
    broker_before = _cpu_s(broker)
    outcomes = [results.get() for _ in processes]
    broker_after = _cpu_s(broker)
    for process in processes:
        process.join()
    errors = [outcome for outcome in outcomes if isinstance(outcome, MirrorError)]
    if errors:
        raise errors[0]
    delete_topic(clusters.target.bootstrap, topic)
    sizes, cpu, begins, ends = zip(*outcomes, strict=True)
    return Limit(max(ends) - min(begins), sum(sizes), sum(cpu), broker_after - broker_before)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def line(what: str, limits: Sequence[Limit]) -> str:
    size_gb = limits[0].size_bytes / 1e9
    broker_s_per_gb = median(limit.broker_cpu_s for limit in limits) / size_gb
    columns = [
        f"{median(limit.mb_per_s for limit in limits):8.0f}",
        f"{max(limit.mb_per_s for limit in limits):8.0f}",
        f"{broker_s_per_gb:14.1f}",
        f"{median(limit.broker_cpu_s / limit.seconds for limit in limits):13.2f}",
        f"{median(limit.producer_cpu_s for limit in limits) / size_gb:14.1f}",
    ]
    return f"{what:<44}{''.join(columns)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.broker_limit", description=__doc__.partition("\n")[0])
    parser.add_argument("--corpora", default="lz4-small")
    parser.add_argument("--gb", type=float, default=0.6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--producers", default="1,2,4", help="numbers of processes")
    parser.add_argument("--connections", default="1,2", help="numbers of connections of each process")
    options = parser.parse_args()
    counts = itertools.product(map(int, options.producers.split(",")), map(int, options.connections.split(",")))
    shapes = [(producers, connections) for producers, connections in counts if producers * connections <= PARTITIONS]
    print(f"{'':<44}{'MB/s':>8}{'best':>8}{'broker s/GB':>14}{'broker cores':>13}{'producers s/GB':>14}")
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
        require_room(options.gb, Path(folder))
        with running_clusters(Path(folder, "kafka")) as clusters:
            for corpus in chosen_corpora(options.corpora.split(",")):
                one_run(clusters, corpus, options.gb * 1e9, 1, 1)  # the broker's code is compiled now
                limits: dict[tuple[int, int], list[Limit]] = {shape: [] for shape in shapes}
                # In turn: the machine may become slower or faster meanwhile.
                for _, shape in itertools.product(range(options.runs), shapes):
                    limits[shape].append(one_run(clusters, corpus, options.gb * 1e9, *shape))
                for (producers, connections), of_shape in limits.items():
                    print(line(f"{corpus.name}: {producers} producers, {connections} connections each", of_shape), flush=True)


if __name__ == "__main__":
    main()

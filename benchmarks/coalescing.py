"""What combining small batches costs and saves: CPU of a slot and of the target's broker, with and without, by batch size.

    python -m benchmarks.coalescing --codecs none,lz4,zstd --records-bytes 1000,2000,4000,8000,16000 --gb 0.1 --runs 3

Each log has batches of one codec whose records take about so many bytes before compression. It is copied by one slot without
Spark, batch by batch and with `write.coalesce_bytes`, in turn. CPU is in seconds per 10^9 bytes of the source's log: of this
process, of the target's broker, and of both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.baselines import measured
from benchmarks.comparison import running_clusters
from benchmarks.copying import Clusters
from benchmarks.corpora import Corpus
from benchmarks.corpus_writer import write_corpus
from benchmarks.hot_path import OneSlot
from benchmarks.resource_check import require_room
from benchmarks.topics import delete_topic
from shallow_mirror.errors import RetriableError
from shallow_mirror.wire import Codec

COALESCE_BYTES = 1 << 20
_AGAIN_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy of a log. CPU seconds of the slot and of the broker."""

    seconds: float
    size_bytes: int
    batches: int
    slot_cpu_s: float
    broker_cpu_s: float

    @property
    def cpu_s_per_gb(self) -> tuple[float, float, float]:
        slot, broker = (cpu_s / self.size_bytes * 1e9 for cpu_s in (self.slot_cpu_s, self.broker_cpu_s))
        return slot, broker, slot + broker


def write(clusters: Clusters, corpus: Corpus, size_bytes: float) -> None:
    """Write a corpus; once more where a broker did not yet know that it leads a partition of the new topic."""
    try:
        write_corpus(clusters.source.bootstrap, corpus.name, corpus, size_bytes)
    except RetriableError:
        delete_topic(clusters.source.bootstrap, corpus.name)
        time.sleep(_AGAIN_AFTER_S)
        write_corpus(clusters.source.bootstrap, corpus.name, corpus, size_bytes)


def copied(clusters: Clusters, topic: str, coalesce_bytes: int | None) -> Copied:
    slot = OneSlot(clusters, topic, coalesce_bytes=coalesce_bytes)
    broker = psutil.Process(clusters.target.pid)
    before = broker.cpu_times()
    cost = measured(slot.copy)
    after = broker.cpu_times()
    slot.remove()
    broker_cpu_s = after.user - before.user + after.system - before.system
    return Copied(cost.seconds, cost.size_bytes, cost.batches, cost.user_s + cost.system_s, broker_cpu_s)


def line(what: str, copies: Sequence[Copied]) -> str:
    columns = [median(copy.size_bytes / copy.seconds / 1e6 for copy in copies)]
    columns += [median(copy.cpu_s_per_gb[i] for copy in copies) for i in range(3)]
    batch_bytes = copies[0].size_bytes / copies[0].batches
    return f"{what:<36}{batch_bytes:>12,.0f}" + "".join(f"{column:>10.1f}" for column in columns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.coalescing", description=__doc__.partition("\n")[0])
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--records-bytes", default="1000,2000,4000,8000,16000")
    parser.add_argument("--gb", type=float, default=0.1)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<36}{'batch bytes':>12}{'MB/s':>10}{'slot':>10}{'broker':>10}{'both':>10}")
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
        require_room(options.gb, Path(folder))
        with running_clusters(Path(folder, "kafka")) as clusters:
            for codec in (Codec[name.upper()] for name in options.codecs.split(",")):
                for size in map(int, options.records_bytes.split(",")):
                    corpus = Corpus(f"{codec.name.lower()}-{size}", codec, (size * 95 // 100, size * 105 // 100), 400, (0, 0))
                    write(clusters, corpus, options.gb * 1e9)
                    copied(clusters, corpus.name, None)  # brokers compile, and the log is in the page cache
                    limits = (None, COALESCE_BYTES) * options.runs
                    copies = [(limit, copied(clusters, corpus.name, limit)) for limit in limits]
                    for limit in (None, COALESCE_BYTES):
                        what = f"{corpus.name}, {'as they are' if limit is None else 'combined'}"
                        print(line(what, [copy for of, copy in copies if of == limit]), flush=True)
                    delete_topic(clusters.source.bootstrap, corpus.name)


if __name__ == "__main__":
    main()

"""Memory of a mirror that runs for long under steady traffic: by role of its processes, and whether it grows.

    python -m benchmarks.memory --minutes 60 --mb-per-s 5

Default configuration; both topics keep their last GB. PSS (shared pages in proportion) of every process of the tree, every 10 s.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.comparison import running_clusters
from benchmarks.corpora import CORPORA, Corpus
from benchmarks.corpus_writer import endless_batches
from benchmarks.interrupts import end_on_sigterm
from benchmarks.meter import pss_bytes
from benchmarks.roles import WORKERS, processes_by_role
from benchmarks.running_mirror import running_mirror, write_mirror_file
from benchmarks.topics import create_topic
from shallow_mirror.broker.clients.batch_producer import BatchProducer
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.errors import MirrorError

TOPIC = "memory"
EVERY_S = 10.0
WARM_UP_S = 60.0
_SHARES = 6
_KEPT = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20)}

Look = Mapping[str, float]
"""MB by role; `largest worker` is one process of `workers`."""


class Traffic(threading.Thread):
    """So many bytes each second until told to stop; an error of a broker ends it and is raised by `stop`."""

    def __init__(self, bootstrap: str, corpus: Corpus, mb_per_s: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._servers, self._corpus, self._bytes_per_s = bootstrap, corpus, mb_per_s * 1e6
        self._over = threading.Event()
        self._error: MirrorError | None = None
        self.bytes = 0

    def run(self) -> None:
        try:
            with BatchProducer({"bootstrap.servers": self._servers}) as producer:
                self._write(producer)
        except MirrorError as error:
            self._error = error

    def _write(self, producer: BatchProducer) -> None:
        began = time.monotonic()
        for place, batch in endless_batches(TOPIC, self._corpus):
            producer.send_batch(place, batch)
            self.bytes += batch.size_bytes
            ahead_s = self.bytes / self._bytes_per_s - (time.monotonic() - began)
            if ahead_s > 1:
                producer.flush()
                if self._over.wait(ahead_s):
                    return

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error


def look(pid: int) -> Look:
    sample: defaultdict[str, float] = defaultdict(float)
    for name, process in processes_by_role(pid):
        try:
            size = pss_bytes(process) / 1e6
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        sample[name] += size
        sample["all"] += size
        if name == WORKERS:
            sample["largest worker"] = max(sample["largest worker"], size)
    return sample


def table(looks: Sequence[Look]) -> list[str]:
    """Return a line for each role: medians over each sixth of the time."""
    length = max(1, len(looks) // _SHARES)
    parts = [looks[at : at + length] for at in range(0, length * _SHARES, length)]
    names = sorted({name for sample in looks for name in sample}, key=lambda name: (name == "all", name))
    return [
        f"{name:<16}" + "".join(f"{statistics.median(sample.get(name, 0.0) for sample in part):8.0f}" for part in parts if part)
        for name in names
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--mb-per-s", type=float, default=5.0)
    parser.add_argument("--corpus", choices=sorted(CORPORA), default="zstd-16k")
    options = parser.parse_args()
    end_on_sigterm()
    corpus = CORPORA[options.corpus]
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = Path(name)
        with running_clusters(folder / "kafka") as clusters:
            create_topic(clusters.source.bootstrap, TOPIC, corpus.partitions, _KEPT)
            traffic = Traffic(clusters.source.bootstrap, corpus, options.mb_per_s)
            traffic.start()
            with running_mirror(write_mirror_file(folder, clusters, TOPIC, {})) as pid:
                time.sleep(WARM_UP_S)
                looks = []
                end = time.monotonic() + options.minutes * 60
                while time.monotonic() < end:
                    looks.append(look(pid))
                    time.sleep(EVERY_S)
            traffic.stop()
        copied = sum(position.offset for position in OffsetMap.open(str(folder / "tables")).positions().values())
    print(f"{traffic.bytes / 1e9:.1f} GB were written in {options.minutes:g} minutes, {copied:,} records copied")
    print("MB, medians of each sixth of the time:")
    print("\n".join(table(looks)))


if __name__ == "__main__":
    main()

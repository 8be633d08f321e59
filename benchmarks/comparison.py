"""The whole comparison: corpora one after the other; for each, the peers take turns, run by run, in alternating order."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaException

from benchmarks.copying import Clusters, Source, run_peer
from benchmarks.corpora import Corpus
from benchmarks.corpus_writer import batch_sizes, sizes_sentence, write_corpus
from benchmarks.equality import topic_digest
from benchmarks.link import PLAIN, SIDES, Link
from benchmarks.peer_listeners import peer_listeners
from benchmarks.peers.peer import Peer
from benchmarks.results import Failed, Result
from benchmarks.topics import delete_topic, log_bytes, log_end_offsets
from benchmarks.window import NoWindowError
from shallow_mirror.errors import MirrorError
from shallow_mirror.local_kafka import start_clusters, stop_clusters

JVM_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx1g")
"""Brokers as they run in earnest: both compilers, and a heap that does not bind."""

PROPERTIES = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "message.max.bytes": "10485760",
    "replica.fetch.max.bytes": "10485760",
}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    corpora: Sequence[Corpus]
    peers: Sequence[Peer]
    gb: float
    runs: int
    links: Sequence[Link]

    def results(self, scratch: Path, say: Say) -> Iterator[Result]:
        """As they come. `scratch`: an empty folder for brokers and peers."""
        with running_clusters(scratch / "kafka", *self.links) as clusters:
            for corpus in self.corpora:
                yield from self._of_corpus(corpus, clusters, scratch, say)

    def _of_corpus(self, corpus: Corpus, clusters: Clusters, scratch: Path, say: Say) -> Iterator[Result]:
        source = written_source(corpus, self.gb, clusters, say)
        for run in range(1, self.runs + 1):
            # In turn forwards and backwards: what one run leaves behind, such as data to be written to disk, is in the next one.
            turns = list(itertools.product(self.peers, self.links))
            for peer, link in turns if run % 2 else reversed(turns):
                begin = f"{', '.join(part for part in (corpus.name, str(link)) if part)}, run {run} of {self.runs}"
                say(f"{begin}: {peer.name}")
                result = _result(peer, source, run, clusters.over(link), scratch)
                say(f"{begin}: {_sentence(result)}")
                yield result
        delete_topic(clusters.source.bootstrap, source.topic)


@contextmanager
def running_clusters(folder: Path, *links: Link) -> Iterator[Clusters]:
    """Yield two clusters that peers reach over the first of `links`, or near; `over` gives the others."""
    links = links or (PLAIN,)
    with peer_listeners(links, folder / "certificates") as listeners:
        nodes = start_clusters(
            folder, 2, properties=PROPERTIES, java_options=JVM_OPTIONS, listeners=[listeners.of(side) for side in SIDES]
        )
        source, target = nodes
        try:
            listeners.connect(source, target)
            listeners.set_distance(links[0])
            yield Clusters(source, target, listeners, links[0])
        finally:
            stop_clusters(nodes)


def written_source(corpus: Corpus, gb: float, clusters: Clusters, say: Say) -> Source:
    """Write a corpus into the source, and return it as it lies there."""
    bootstrap, topic = clusters.source.bootstrap, corpus.name
    say(f"{corpus.name}: writing {gb:g} GB")
    write_corpus(bootstrap, topic, corpus, gb * 1e9)
    say(f"{corpus.name}: {sizes_sentence(corpus, batch_sizes(bootstrap, topic))}")
    ends = log_end_offsets(bootstrap, topic, is_committed=True)
    return Source(
        corpus=corpus,
        topic=topic,
        ends={place.partition: end for place, end in ends.items()},
        log_bytes=log_bytes(clusters.source.folder / "data", topic),
        digest=topic_digest(bootstrap, topic, corpus.partitions),
    )


def _result(peer: Peer, source: Source, run: int, clusters: Clusters, scratch: Path) -> Result:
    """Return what a peer does wrong as its result; raise what the brokers or this program do wrong, which ends the comparison."""
    try:
        return run_peer(peer, source, run, clusters, scratch)
    except (MirrorError, NoWindowError, TimeoutError, KafkaException, psutil.Error, subprocess.SubprocessError) as error:
        reason = f"{type(error).__name__}: {error}"
        return Failed(peer=peer.name, corpus=source.corpus.name, run=run, link=clusters.link, failed=reason)


def _sentence(result: Result) -> str:
    if isinstance(result, Failed):
        return f"{result.peer} FAILED: {result.failed.splitlines()[0]}"
    equal = "equal" if result.equal else f"NOT EQUAL: {result.difference}"
    notes = "".join(f"; {note}" for note in result.notes)
    return (
        f"{result.peer}: {result.mb_per_s:.1f} MB/s, {result.cpu_s_per_gb:.2f} CPU s/GB, peak {result.peak_mb:.0f} MB, "
        f"start-up {result.startup_s:.1f} s, {equal}{notes}"
    )

"""One run of one peer: started, watched until the target holds all, ended, compared."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.corpora import Corpus
from benchmarks.equality import PartitionDigest, difference, topic_digest
from benchmarks.link import Link
from benchmarks.meter import Meter
from benchmarks.peer_listeners import Access, PeerListeners
from benchmarks.peers.peer import Job, Peer, PeerFailedError, log_tail
from benchmarks.results import Measured
from benchmarks.topics import create_topic, delete_topic, log_bytes, log_end_offsets
from benchmarks.window import MicroBatchEnd, Sample, Window, spent_in, steady_window
from shallow_mirror.local_kafka.node import LocalKafka

_POLL_S = 0.1
_QUIET_S = 4.0
"""A peer that does not end by itself is done when the target holds as many offsets as the source has records, and this long
nothing more came. Twice the interval of the longest transactions that any peer makes."""

_STALLED_S = 120.0
_STOP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus as it lies in the source's log."""

    corpus: Corpus
    topic: str
    ends: Mapping[int, int]
    log_bytes: int
    digest: Mapping[int, PartitionDigest]

    @property
    def records(self) -> int:
        return sum(digest.records for digest in self.digest.values())


@dataclass(frozen=True, slots=True)
class Clusters:
    """`link`: how far peers are away now, and whether their connections are encrypted."""

    source: LocalKafka
    target: LocalKafka
    listeners: PeerListeners
    link: Link

    @property
    def access(self) -> Access:
        """Return where peers connect to."""
        return self.listeners.access(self.link, self.source, self.target)

    def over(self, link: Link) -> Clusters:
        """Return the same clusters, for peers that reach them over another link, and not over this one any more."""
        self.listeners.set_distance(link)
        return replace(self, link=link)

    def target_bytes(self, topic: str) -> int:
        return log_bytes(self.target.folder / "data", topic)


def run_peer(peer: Peer, source: Source, run: int, clusters: Clusters, scratch: Path) -> Measured:
    """Copy into a fresh topic, which is deleted at the end. Raises PeerMissingError, PeerFailedError, NoWindowError, ..."""
    peer.prepare()
    link = clusters.link
    # Another mirror for each link.
    name = "-".join([peer.name, source.corpus.name, str(run), *(f"{side}-{link.rtt_ms:g}" for side in link.far_sides)])
    folder = scratch / name
    folder.mkdir()
    job = Job(
        corpus=source.corpus,
        access=clusters.access,
        source_topic=source.topic,
        alias=name,
        ends=source.ends,
        folder=folder,
    )
    target = clusters.target.bootstrap
    create_topic(target, job.target_topic, source.corpus.partitions, peer.target_settings)
    try:
        samples = _copy(peer, job, source, clusters)
        unequal = difference(source.digest, topic_digest(target, job.target_topic, source.corpus.partitions))
        ratio = clusters.target_bytes(job.target_topic) / source.log_bytes
        return _measured(peer, source, run, link, samples, job, unequal, ratio)
    finally:
        delete_topic(target, job.target_topic)
        shutil.rmtree(folder)


def _copy(peer: Peer, job: Job, source: Source, clusters: Clusters) -> list[Sample]:
    with _ended_at_last(peer.launch(job)) as process:
        with Meter(
            process.pid, clusters.source.pid, clusters.target.pid, lambda: clusters.target_bytes(job.target_topic)
        ) as meter:
            peer.set_going(job, process)
            _wait_until_done(peer, job, source.records, clusters.target.bootstrap, process, meter)
        return meter.samples


@contextmanager
def _ended_at_last(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """SIGTERM, and SIGKILL for whatever of the tree is left."""
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            tree = psutil.Process(process.pid).children(recursive=True)
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_WITHIN_S)
            for child in tree:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_done(peer: Peer, job: Job, records: int, target: str, process: subprocess.Popen[bytes], meter: Meter) -> None:
    size, grew_at = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(_POLL_S)
        if meter.last.target_bytes != size:
            size, grew_at = meter.last.target_bytes, time.monotonic()
        quiet_s = time.monotonic() - grew_at
        if not peer.ends_itself and quiet_s > _QUIET_S and _offsets(target, job.target_topic) >= records:
            return
        if quiet_s > _STALLED_S:
            raise PeerFailedError(f"{peer.name}: nothing was copied for {_STALLED_S:.0f} s. The end of its log:\n{log_tail(job)}")
    if process.returncode != 0 or not peer.ends_itself:
        raise PeerFailedError(f"{peer.name}: it ended with {process.returncode}. The end of its log:\n{log_tail(job)}")


def _offsets(target: str, topic: str) -> int:
    return sum(log_end_offsets(target, topic).values())


def _measured(
    peer: Peer,
    source: Source,
    run: int,
    link: Link,
    samples: list[Sample],
    job: Job,
    unequal: str,
    log_size_ratio: float,
) -> Measured:
    micro_batches = peer.micro_batches(job)
    window = steady_window(samples, micro_batches)
    copied_bytes = window.share * source.log_bytes
    first = next(sample for sample in samples if sample.target_bytes)
    last = next(sample for sample in samples if sample.target_bytes == samples[-1].target_bytes)
    return Measured(
        peer=peer.name,
        corpus=source.corpus.name,
        run=run,
        link=link,
        mb_per_s=copied_bytes / 1e6 / window.seconds,
        cpu_s_per_gb=spent_in(window, samples, lambda sample: sample.copier_cpu_s) / (copied_bytes / 1e9),
        peak_mb=max(sample.pss_bytes for sample in samples) / 1e6,
        equal=not unequal,
        difference=unequal,
        startup_s=first.at - samples[0].at,
        startup_cpu_s=first.copier_cpu_s,
        seconds=last.at - first.at,
        window_s=window.seconds,
        window_share=window.share,
        micro_batches=_inside(window, micro_batches),
        source_broker_cpu_s_per_gb=spent_in(window, samples, lambda sample: sample.source_broker_cpu_s) / (copied_bytes / 1e9),
        target_broker_cpu_s_per_gb=spent_in(window, samples, lambda sample: sample.target_broker_cpu_s) / (copied_bytes / 1e9),
        log_size_ratio=log_size_ratio,
        notes=[*([window.note] if window.note else []), *peer.remarks(job)],
    )


def _inside(window: Window, micro_batches: list[MicroBatchEnd] | None) -> int | None:
    if micro_batches is None:
        return None
    return sum(window.begin < micro_batch.at <= window.end for micro_batch in micro_batches)

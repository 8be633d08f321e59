"""The hot path alone: one slot task in this process, without Spark, beside the least that moving its bytes can cost.

    python -m benchmarks.hot_path --corpora zstd-big,lz4-small --gb 1 --runs 3 [--slots mirror,preserved] [--profile] [--tls]

Each corpus is copied as by the slot of a mirror (with `--tls` within TLS on both sides as well), as by one with preserved
offsets, as by that of an archive into a folder, and as by that of a restore out of it: `--slots` chooses among them.
kfault: thousand pages that were new to the process. CPU is that of this process, without what it took to import and to connect;
MB and GB are of the source's log.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import pstats
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.archive_slot import ArchiveSlot
from benchmarks.baselines import Cost, checksum_floor, copy_floor, file_floor, measured, socket_floor
from benchmarks.comparison import running_clusters
from benchmarks.copying import Clusters
from benchmarks.corpora import PARTITIONS, chosen_corpora
from benchmarks.corpus_writer import write_corpus
from benchmarks.link import Link
from benchmarks.names import known_names
from benchmarks.peer_listeners import Access
from benchmarks.peers.shallow_mirror import PRESERVED_SETTINGS
from benchmarks.resource_check import require_room
from benchmarks.running_mirror import client_properties
from benchmarks.slot_source import FETCH_BYTES, TIMEOUT_MS, SlotSource, copied
from benchmarks.topics import create_topic, delete_topic
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce.txn import end_txn, new_producer_id
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob, KafkaSlotTarget
from shallow_mirror.sinks.slots import fill_slot
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy

IN_FLIGHT_BYTES, IN_FLIGHT_REQUESTS = 32 << 20, 1000
"""The defaults of the mirror file."""

MOST_MESSAGE_BYTES = 1 << 20
_SHOWN = 25

SLOTS = ("mirror", "preserved", "archive", "restore")

_GUARD_TIMES = GuardTimes(expiration_ms=24 * 3_600_000, quiet_ms=TIMEOUT_MS + 600_000)
"""Those of brokers with their defaults."""


class OneSlot:
    """Copies a topic into a fresh one as the task of a slot does, in one transaction. `archived`: out of this archive of it.

    `is_preserved`: with preserved offsets, and without a transaction.
    """

    def __init__(
        self,
        clusters: Clusters,
        topic: str,
        access: Access | None = None,
        archived: ArchiveSlot | None = None,
        coalesce_bytes: int | None = None,
        *,
        is_preserved: bool = False,
    ) -> None:
        """`access`: where the slot reaches the clusters; None: at their plain listeners."""
        self._coalesce_bytes = coalesce_bytes
        self._is_preserved = is_preserved
        self._name = f"{topic}-{uuid.uuid4().hex[:6]}"
        source_config, self._target_config = (
            ClientConfig.from_properties(client_properties(bootstrap, ca_file))
            for bootstrap, ca_file in (
                [(node.bootstrap, None) for node in (clusters.source, clusters.target)]
                if access is None
                else [(access.source, access.ca_file), (access.target, access.ca_file)]
            )
        )
        self._source = SlotSource(clusters.source.bootstrap, topic, source_config)
        self._archived = archived
        self._target = Cluster(self._target_config)
        create_topic(clusters.target.bootstrap, self._name, PARTITIONS, PRESERVED_SETTINGS if is_preserved else {})
        self._target_id = self._target.metadata([self._name], self._source.deadline).topics[self._name].topic_id
        self._bootstrap = clusters.target.bootstrap
        self._producer_id = new_producer_id(self._target, self._source.deadline).producer_id if is_preserved else None

    def copy(self) -> tuple[int, int]:
        deadline, job = self._source.deadline, self._job()
        read = self._source.slot_input(job) if self._archived is None else self._archived.slot_input()
        done = fill_slot(job, read, KafkaSlotTarget(job, 0, self._target, deadline), deadline)
        if done.txn is not None:
            end_txn(self._target, done.txn, commit=True, deadline=deadline)
        return copied(done)

    def remove(self) -> None:
        delete_topic(self._bootstrap, self._name)

    def _job(self) -> KafkaSlotJob:
        limits = BatchLimits(
            max_message_bytes=MOST_MESSAGE_BYTES,
            isolation_level=IsolationLevel.READ_COMMITTED,
            log_append_time=LogAppendTimePolicy.KEEP,
            coalesce_bytes=self._coalesce_bytes,
        )
        return KafkaSlotJob(
            mirror=self._name,
            map_id="none",
            run_id="hot-path",
            decision=1,
            source=self._source.config,
            target=self._target_config,
            routes={
                self._source.topic: RoutedTopic(
                    target_topic=self._name, target_topic_id=self._target_id, limits=limits, is_preserved=self._is_preserved
                )
            },
            positions=self._source.positions,
            epoch_ends={},
            target_ends={},
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=FETCH_BYTES,
            in_flight_requests=IN_FLIGHT_REQUESTS,
            in_flight_bytes=IN_FLIGHT_BYTES,
            max_segments=200_000,
            commit_interval_ms=TIMEOUT_MS,
            transaction_timeout_ms=TIMEOUT_MS,
            time_left_ms=TIMEOUT_MS,
            shared_producers={} if self._producer_id is None else dict.fromkeys(self._source.positions, self._producer_id),
            guard_times=_GUARD_TIMES,
        )


def line(name: str, costs: Sequence[Cost]) -> str:
    def median(of: Callable[[Cost], float]) -> float:
        return statistics.median(map(of, costs))

    size_gb, batches = costs[0].size_bytes / 1e9, costs[0].batches
    columns = [
        f"{median(lambda batch: batch.size_bytes / batch.seconds / 1e6):8.0f}",
        f"{median(lambda result: result.cpu_s_per_gb):10.2f}",
        f"{median(lambda result: result.user_s) / size_gb:8.2f}",
        f"{median(lambda result: result.system_s) / size_gb:8.2f}",
        f"{median(lambda result: result.faults) / size_gb / 1e3:10.0f}",
        f"{median(lambda result: result.user_s + result.system_s) / batches * 1e6:9.1f}" if batches > 1 else "",
    ]
    return f"{name:<40}{''.join(columns)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.hot_path", description=__doc__.partition("\n")[0])
    parser.add_argument("--corpora", default="zstd-big,lz4-big,uncompressed,zstd-16k,lz4-small")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slots", default=",".join(SLOTS), help="of %(default)s, which is the default")
    parser.add_argument("--tls", action="store_true", help="each corpus within TLS as well")
    parser.add_argument("--profile", action="store_true", help="where Python spends it, instead of costs")
    options = parser.parse_args()
    chosen = known_names("slot", options.slots.split(","), SLOTS)
    print(f"{'':<40}{'MB/s':>8}{'CPU s/GB':>10}{'user':>8}{'system':>8}{'kfault/GB':>10}{'µs/batch':>9}")
    if not options.profile:
        for name, floor in (
            ("loopback: receive, send", socket_floor),
            ("CRC-32C", checksum_floor),
            ("copy in memory", copy_floor),
        ):
            print(line(name, [floor() for _ in range(options.runs)]), flush=True)
        with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
            print(line("write and sync a file", [file_floor(Path(folder)) for _ in range(options.runs)]), flush=True)
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
        require_room(options.gb, Path(folder))
        with running_clusters(Path(folder, "kafka"), Link(tls=options.tls)) as clusters:
            for corpus in chosen_corpora(options.corpora.split(",")):
                write_corpus(clusters.source.bootstrap, corpus.name, corpus, options.gb * 1e9)
                for what, new_slot in _slots(clusters, corpus.name, Path(folder, "archive"), chosen, is_tls=options.tls):
                    _of_slot(what, new_slot, options.runs, is_profiled=options.profile)
                delete_topic(clusters.source.bootstrap, corpus.name)


class Slot(Protocol):
    """What is measured: `copy` returns bytes and batches."""

    def copy(self) -> tuple[int, int]: ...

    def remove(self) -> None: ...


def _slots(
    clusters: Clusters, name: str, objects: Path, chosen: Collection[str], *, is_tls: bool
) -> Iterator[tuple[str, Callable[[], Slot]]]:
    """Yield what is measured of a corpus: what it is, and how each run begins."""
    if "mirror" in chosen:
        yield name, functools.partial(OneSlot, clusters, name)
        if is_tls:
            yield f"{name} within TLS", functools.partial(OneSlot, clusters, name, clusters.access)
    if "preserved" in chosen:
        yield f"{name} with preserved offsets", functools.partial(OneSlot, clusters, name, is_preserved=True)
    to_folder = functools.partial(ArchiveSlot, clusters, name, objects)
    if "archive" in chosen:
        yield f"{name} to an archive", to_folder
    if "restore" in chosen:
        archived = to_folder()
        archived.copy()
        yield f"{name} out of an archive", functools.partial(OneSlot, clusters, name, archived=archived)
        archived.remove()


def _of_slot(what: str, new_slot: Callable[[], Slot], runs: int, *, is_profiled: bool) -> None:
    costs = []
    for _ in range(runs):
        slot = new_slot()
        if is_profiled:
            profile = cProfile.Profile()
            profile.runcall(slot.copy)
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(_SHOWN)
        else:
            costs.append(measured(slot.copy))
        slot.remove()
    if costs:
        print(line(f"one slot, {what}", costs), flush=True)


if __name__ == "__main__":
    main()

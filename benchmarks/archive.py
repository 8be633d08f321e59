"""PYTHONPATH=. python -m benchmarks.archive: what capture and restore of an archive cost, beside the mirror on the same corpus.

    python -m benchmarks.archive --gb 1 --corpora zstd-big,lz4-small

Each as a user starts it, with default settings: `archive run --available-now` into a folder and into an S3 server, `restore`
out of both, `run --available-now`; and Spark's Kafka source into a Delta table in a folder, which keeps records, not batches.
The server has TLS, as those of users have; `--http` is without it, and uploads are then signed with a hash of their bytes.
CPU is that of the whole process tree, the JVM included. `cpu_s_per_gb`: from 5 % to 95 % of the bytes at the target, as
`make bench` measures copies; `copy_cpu_s_per_gb`: from the first bytes to the last ones; `total_cpu_s`: of the whole run, with
the start of Spark. The server is that of the tests (versitygw on a folder of this machine); its own CPU is not counted. One
JSON object a line; exit code 1 where a copy is not equal to the source.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.object_store.servers import BUCKET, SECRET_KEY, StoreServer, options_for
from tests.object_store.store_proxy import HOST
from tests.security.certificates import Authority

from benchmarks.comparison import running_clusters, written_source
from benchmarks.copying import Clusters, Source
from benchmarks.corpora import chosen_corpora
from benchmarks.equality import difference, topic_digest
from benchmarks.interrupts import end_on_sigterm
from benchmarks.meter import Meter
from benchmarks.peers.peer import PeerFailedError
from benchmarks.peers.spark_kafka import PROGRAM as SPARK_PROGRAM
from benchmarks.resource_check import require_room
from benchmarks.topics import create_topic, delete_topic
from benchmarks.window import NoWindowError, Sample, Window, spent_in, steady_window
from shallow_mirror.demo.mirror_process import command
from shallow_mirror.errors import MirrorError
from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.local_kafka.jars import SPARK_KAFKA_JAR_SET, jars_of

_POLL_S = 0.1
_TAIL = 3000
COPIES = 6
"""Of a corpus at the same time on the disk: source, three archives, and twice a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`load`: the load average of the machine when it ended. `difference`: empty where a target is equal, or there is none."""

    what: str
    corpus: str
    gb: float
    mb_per_s: float
    cpu_s_per_gb: float
    copy_cpu_s_per_gb: float
    total_cpu_s: float
    peak_mb: float
    seconds: float
    load: float
    difference: str = ""

    def line(self) -> str:
        return json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the program that choose what is measured."""

    is_short: bool
    is_without_table: bool


@dataclass(frozen=True, slots=True)
class RunningStore:
    """`options`: `storage.options` of what uses it."""

    server: StoreServer
    options: Mapping[str, str]


class Run:
    """One command at a time, each in a folder of its own."""

    def __init__(self, clusters: Clusters, source: Source, folder: Path) -> None:
        self._clusters, self._source, self._folder = clusters, source, folder

    def capture(self, what: str, objects: str, size_of: Callable[[], int], more: Mapping[str, Any]) -> Cost:
        document = {
            "archive": "benchmark",
            "source": {"alias": "source", "client": {"bootstrap.servers": self._clusters.source.bootstrap}},
            "topics": {"include": [self._source.topic]},
            "objects": objects,
            "tables": "tables",
            **more,
        }
        return self._measured(what, self._written(what, document), ["archive", "run"], ["--available-now"], size_of)

    def restore(self, what: str, archive: str, objects: str, more: Mapping[str, Any]) -> Cost:
        topic = f"{what.replace(' ', '-')}.{self._source.topic}"
        document = {
            "restore": topic,
            "archive": {"tables": f"../{_name(archive)}/tables", "objects": objects},
            "target": {"alias": "target", "client": {"bootstrap.servers": self._clusters.target.bootstrap}},
            "topics": {"target_name": topic.replace(self._source.topic, "{topic}")},
            "tables": "tables",
            **more,
        }
        return self._copied(what, topic, self._written(what, document), ["restore"], [])

    def mirror(self, what: str) -> Cost:
        topic = f"mirror.{self._source.topic}"
        document = {
            "mirror": topic,
            "source": {"alias": "mirror", "client": {"bootstrap.servers": self._clusters.source.bootstrap}},
            "target": {"alias": "target", "client": {"bootstrap.servers": self._clusters.target.bootstrap}},
            "topics": {"include": [self._source.topic], "target_name": "{source}.{topic}"},
            "tables": "tables",
        }
        return self._copied(what, topic, self._written(what, document), ["run"], ["--available-now"])

    def _copied(self, what: str, topic: str, conf: Path, before: Sequence[str], after: Sequence[str]) -> Cost:
        target, partitions = self._clusters.target.bootstrap, self._source.corpus.partitions
        create_topic(target, topic, partitions, {})
        try:
            cost = self._measured(what, conf, before, after, lambda: self._clusters.target_bytes(topic))
            unequal = difference(self._source.digest, topic_digest(target, topic, partitions))
        finally:
            delete_topic(target, topic)
        return Cost(**{**asdict(cost), "difference": unequal})

    def table(self, what: str) -> Cost:
        """Copy the records with Spark's Kafka source into a Delta table, in a folder."""
        folder = self._folder / _name(what)
        folder.mkdir()
        job = {
            "source": self._clusters.source.bootstrap,
            "source_topic": self._source.topic,
            "codec": self._source.corpus.codec_name,
            "jars": ",".join(str(jar) for jar in (*jars_of(SPARK_KAFKA_JAR_SET), *delta_jars())),
            "folder": str(folder),
            "table": str(folder / "table"),
        }
        arguments = [sys.executable, str(SPARK_PROGRAM), json.dumps(job)]
        return self._watched(what, arguments, folder / "log.txt", lambda: _size_of(folder / "table"))

    def _written(self, what: str, document: Mapping[str, Any]) -> Path:
        conf = self._folder / _name(what) / "conf.yaml"
        conf.parent.mkdir()
        conf.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
        return conf

    def _measured(self, what: str, conf: Path, before: Sequence[str], after: Sequence[str], size_of: Callable[[], int]) -> Cost:
        return self._watched(what, [*command(), *before, str(conf), *after], conf.with_name("log.txt"), size_of)

    def _watched(self, what: str, arguments: Sequence[str], log_file: Path, size_of: Callable[[], int]) -> Cost:
        before_bytes = size_of()
        with log_file.open("wb") as log:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            source_pid, target_pid = self._clusters.source.pid, self._clusters.target.pid
            with Meter(process.pid, source_pid, target_pid, lambda: size_of() - before_bytes) as meter:
                while process.poll() is None:
                    time.sleep(_POLL_S)
        finally:
            process.terminate()
            process.wait()
        if process.returncode != 0:
            raise PeerFailedError(f"{what} ended with {process.returncode}: {log_file.read_text(errors='replace')[-_TAIL:]}")
        return self._cost(what, meter.samples)

    def _cost(self, what: str, samples: Sequence[Sample]) -> Cost:
        begin = next(sample.at for sample in samples if sample.target_bytes)
        end = next(sample.at for sample in samples if sample.target_bytes == samples[-1].target_bytes)
        gb, steady = self._source.log_bytes / 1e9, steady_window(samples, None)
        whole = Window(begin, end, 1.0)
        return Cost(
            what=what,
            corpus=self._source.corpus.name,
            gb=gb,
            mb_per_s=gb * 1000 / (end - begin),
            cpu_s_per_gb=spent_in(steady, samples, _cpu_s_of) / (steady.share * gb),
            copy_cpu_s_per_gb=spent_in(whole, samples, _cpu_s_of) / gb,
            total_cpu_s=samples[-1].copier_cpu_s,
            peak_mb=max(sample.pss_bytes for sample in samples) / 1e6,
            seconds=end - begin,
            load=os.getloadavg()[0],
        )


def costs(source: Source, clusters: Clusters, store: RunningStore, folder: Path, options: Options) -> Iterator[Cost]:
    """Measure one corpus; `folder` is empty."""
    run, server = Run(clusters, source, folder), store.server
    bucket, objects = f"s3://{BUCKET}/{source.topic}", folder / "objects"
    on_server = {"storage": {"options": store.options}}
    yield run.capture("capture to a folder", str(objects), lambda: _size_of(objects), {})
    yield run.capture("capture to S3", bucket, lambda: _size_of(server.folder), on_server)
    yield run.mirror("mirror")
    yield run.restore("restore from a folder", "capture to a folder", str(objects), {})
    if not options.is_short:
        yield run.restore("restore from S3", "capture to S3", bucket, on_server)
    if not options.is_short and not options.is_without_table:
        yield run.table("Kafka source of Spark to a Delta table")


def _cpu_s_of(sample: Sample) -> float:
    return sample.copier_cpu_s


def _name(what: str) -> str:
    return what.replace(",", "").replace(" ", "-").lower()


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def running_store(folder: Path, *, has_tls: bool) -> Iterator[RunningStore]:
    """Yield an S3 server in a new folder, with a certificate that its options trust where it has TLS."""
    os.environ["STORE_SECRET_KEY"] = SECRET_KEY
    folder.mkdir()
    if has_tls:
        authority = Authority(folder, "ca")
        identity = authority.signed("store", (HOST,))
        server = StoreServer(folder / "objects", certificate=identity.certificate_file, key=identity.key_file)
        trusted = {"root_certificate": authority.identity.certificate_pem}
    else:
        server, trusted = StoreServer(folder / "objects"), {}
    server.start()
    try:
        yield RunningStore(server, options_for(server.endpoint, **trusted))
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0, help="of each corpus in the source's log")
    parser.add_argument("--corpora", default="zstd-big,lz4-small")
    parser.add_argument("--short", action="store_true", help="without the restore from S3 and without the Delta table")
    parser.add_argument("--http", action="store_true", help="reach the S3 server without TLS")
    parser.add_argument("--json", type=Path, help="append the lines to this file too")
    parser.add_argument("--without-table", action="store_true", help="without the Delta table")
    chosen = parser.parse_args()
    options = Options(is_short=chosen.short, is_without_table=chosen.without_table)
    end_on_sigterm()
    is_equal = True
    try:
        corpora = chosen_corpora(chosen.corpora.split(","))
        with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
            scratch = Path(name)
            require_room(COPIES * chosen.gb, scratch)
            stored = running_store(scratch / "store", has_tls=not chosen.http)
            with running_clusters(scratch / "kafka") as clusters, stored as store:
                for corpus in corpora:
                    source = written_source(corpus, chosen.gb, clusters, lambda message: print(message, file=sys.stderr))
                    (scratch / corpus.name).mkdir()
                    for cost in costs(source, clusters, store, scratch / corpus.name, options):
                        print(cost.line(), flush=True)
                        is_equal &= not cost.difference
                        if chosen.json is not None:
                            with chosen.json.open("a", encoding="utf-8") as file:
                                file.write(f"{cost.line()}\n")
                    delete_topic(clusters.source.bootstrap, source.topic)
    except (MirrorError, NoWindowError) as error:
        print(f"benchmarks.archive: {error}", file=sys.stderr)
        return 2
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())

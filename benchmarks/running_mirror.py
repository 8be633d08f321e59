"""A mirror that runs until the block ends, in a process of its own, and the mirror file of one topic between two clusters."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import yaml

from shallow_mirror.demo.mirror_process import command


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Clusters(Protocol):
    @property
    def source(self) -> Cluster: ...

    @property
    def target(self) -> Cluster: ...


def client_properties(bootstrap: str, ca_file: Path | None) -> dict[str, str]:
    """Return `client` of a cluster in a mirror file. `ca_file`: for TLS; None: without."""
    tls = {} if ca_file is None else {"security.protocol": "ssl", "ssl.ca.location": str(ca_file)}
    return {"bootstrap.servers": bootstrap, **tls}


def write_mirror_file(folder: Path, clusters: Clusters, topic: str, settings: Mapping[str, object]) -> Path:
    """Tables in `folder / "tables"`."""
    document = {
        "mirror": topic,
        "source": {"alias": "source", "client": {"bootstrap.servers": clusters.source.bootstrap}},
        "target": {"alias": "target", "client": {"bootstrap.servers": clusters.target.bootstrap}},
        "topics": {"include": [topic]},
        "tables": "tables",
        **settings,
    }
    conf = folder / "mirror.yaml"
    conf.write_text(yaml.safe_dump(document), encoding="utf-8")
    return conf


def add_kinds_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--micro-batches",
        type=lambda text: text.split(","),
        default=["auto"],
        help="kinds to measure in turn, such as stream,loop (default: auto)",
    )


@contextmanager
def running_mirror(conf: Path, *others: Path, is_without_spark: bool = False) -> Iterator[int]:
    """Yield its process id. `others`: mirrors in the same process. Its log is `mirror.log` beside the first mirror file."""
    run = [sys.executable, "-m", "benchmarks.without_spark"] if is_without_spark else [*command(), "run"]
    with conf.with_name("mirror.log").open("w") as log:
        mirror = subprocess.Popen([*run, str(conf), *map(str, others)], stdout=log, stderr=log)
        try:
            yield mirror.pid
        finally:
            mirror.send_signal(signal.SIGTERM)
            mirror.wait()

"""A mirror that runs until the block ends, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.copying import Clusters
from shallow_mirror.demo.mirror_process import command


@contextmanager
def running_mirror(folder: Path, clusters: Clusters, topic: str, settings: Mapping[str, object]) -> Iterator[int]:
    """Its process id. Tables in `folder / "tables"`, its log in `folder / "mirror.log"`."""
    document = {
        "mirror": topic,
        "source": {"alias": "source", "client": {"bootstrap.servers": clusters.source.bootstrap}},
        "target": {"alias": "target", "client": {"bootstrap.servers": clusters.target.bootstrap}},
        "topics": {"include": [topic]},
        "tables": "tables",
        **settings,
    }
    (folder / "mirror.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with (folder / "mirror.log").open("w") as log:
        mirror = subprocess.Popen([*command(), "run", str(folder / "mirror.yaml")], stdout=log, stderr=log)
        try:
            yield mirror.pid
        finally:
            mirror.send_signal(signal.SIGTERM)
            mirror.wait()

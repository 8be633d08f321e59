"""shallow-mirror as a user starts it: `shallow-mirror run --available-now`, default configuration."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import yaml
from deltalake import DeltaTable

from benchmarks.peers.peer import Job, Peer, started
from benchmarks.running_mirror import client_properties
from benchmarks.window import MicroBatchEnd
from shallow_mirror.checkpoints.logs.runs import MICRO_BATCHES_TABLE
from shallow_mirror.demo.mirror_process import command
from shallow_mirror.local_kafka import delta_jars

PRESERVED_SETTINGS = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""Of the target topic of a mirror with preserved offsets."""

_SHOWN_MS = 10.0
"""Steps of a micro-batch that took less are not shown."""


class ShallowMirror(Peer):
    """`settings` are added to a mirror file that names only the clusters, the topic and the folder.

    `target_settings`: of the target topic, which is there before the mirror starts.
    """

    def __init__(
        self,
        name: str = "shallow-mirror",
        settings: dict[str, Any] | None = None,
        target_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.target_settings = target_settings or {}
        self._settings = settings or {}

    def prepare(self) -> None:
        delta_jars()

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        conf = job.folder / "mirror.yaml"
        conf.write_text(yaml.safe_dump(self._document(job)), encoding="utf-8")
        return started(job, [*command(), "run", str(conf), "--available-now"])

    def _document(self, job: Job) -> dict[str, Any]:
        return {
            "mirror": job.alias,
            "source": {"alias": job.alias, "client": client_properties(job.access.source, job.access.ca_file)},
            "target": {"alias": "target", "client": client_properties(job.access.target, job.access.ca_file)},
            "tables": "tables",
            **self._settings,
            "topics": {"include": [job.source_topic], "target_name": "{source}.{topic}", **self._settings.get("topics", {})},
        }

    def micro_batches(self, job: Job) -> list[MicroBatchEnd]:
        ends: list[MicroBatchEnd] = []
        copied = 0
        for row in self._rows(job):
            if row["size_bytes"]:
                copied += row["size_bytes"]
                ends.append(MicroBatchEnd(row["settled_at"].timestamp(), copied))
        return ends

    def remarks(self, job: Job) -> list[str]:
        """Report the bytes read in vain, beyond the ends of ranges, where nothing is dropped, and the time without slots."""
        rows = self._rows(job)
        fetched, copied = (sum(row[name] for row in rows) for name in ("fetched_bytes", "size_bytes"))
        in_vain = [] if job.corpus.is_messy else [f"read {fetched / copied - 1:.2%} more than it copied"]
        return [*in_vain, _sizes(rows), _largest_steps(max(rows, key=lambda row: int(row["size_bytes"])))]

    def _rows(self, job: Job) -> list[dict[str, Any]]:
        table = DeltaTable(str(job.folder / "tables" / MICRO_BATCHES_TABLE)).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: int(row["micro_batch"]))


def _sizes(rows: list[dict[str, Any]]) -> str:
    """Say how large micro-batches were and how long they took: the planner makes them as large as the rate before allows."""
    taken = [
        f"{row['size_bytes'] / 1e6:.0f} MB in {json.loads(row['duration_ms'])['Total']:.0f} ms"
        for row in rows
        if row["size_bytes"]
    ]
    return f"micro-batches: {', '.join(taken)}"


def _largest_steps(row: dict[str, Any]) -> str:
    """Say what the steps of a micro-batch took."""
    steps = [f"{step} {ms:.0f}" for step, ms in json.loads(row["duration_ms"]).items() if ms >= _SHOWN_MS]
    return f"largest micro-batch ({row['size_bytes'] / 1e6:.0f} MB): {', '.join(steps)} ms"

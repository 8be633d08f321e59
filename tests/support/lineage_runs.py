"""Archives of one topic, and restores of them, in processes of their own; what a consumer sees to compare with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.faults.gate import Gate
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess
from tests.faults.steps import Step
from tests.support import archive_runs, restore_runs
from tests.support.mirror_runs import read_values, wait_for

from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError

PATIENCE_S = 120.0

Values = dict[int, list[str]]
"""Values of records by partition, in the order of offsets."""
Ends = Mapping[int, tuple[int, int]]
"""Lineage and position by partition."""


def consumed(bootstrap: str, topic: str, partitions: int) -> Values:
    """Return what a consumer of another library sees now."""
    return {partition: read_values(bootstrap, topic, partition) for partition in range(partitions)}


class LineageRuns:
    """Of one topic and archive below `folder`. `engine`: of archives; restores run without Spark."""

    def __init__(self, folder: Path, gate: Gate, source: str, topic: str, engine: str = WITHOUT_SPARK) -> None:
        self.topic = topic
        self._engine = engine
        self._folder, self._gate = folder, gate
        self._document = archive_runs.document(source, [topic])
        self.config = ArchiveConfig.from_document(self._document, folder=folder)

    @contextmanager
    def running(self, on_data_loss: str = "continue") -> Iterator[MirrorProcess]:
        """Run the archive for the block, and kill what is left of it."""
        conf = self._folder / "archive.yaml"
        conf.write_text(yaml.safe_dump(self._document | {"read": {"on_data_loss": on_data_loss}}), encoding="utf-8")
        process = self._process(conf, "archive", self._engine)
        try:
            yield process
        finally:
            process.kill()

    def _process(self, conf: Path, name: str, engine: str = WITHOUT_SPARK) -> MirrorProcess:
        return MirrorProcess(conf, self._gate.address, self._folder / f"{name}.log", self._folder / "scratch", engine, {})

    def archive_up_to(self, ends: Ends) -> str:
        """Run the archive until it is there, stop it, and return its log."""
        with self.running() as process:
            wait_for(f"the archive up to {dict(ends)}", lambda: process.exit_code is not None or self.ends() == ends)
            assert self.ends() == ends, process.log()[-4000:]
            assert process.stop() == 0, process.log()[-4000:]
            return process.log()

    def kill_at(self, point: str) -> None:
        """Run the archive until it passes a point, and kill it there."""
        self._gate.await_step(Step(name=point, point=point))
        with self.running() as process:
            paused = self._gate.await_paused(PATIENCE_S)
            assert paused is not None, process.log()[-4000:]
        self._gate.forget()

    def ends(self) -> dict[int, tuple[int, int]]:
        try:
            positions = ArchiveTable.open(self.config.tables).positions()
        except ConfigError:
            return {}
        return {source.partition: (position.lineage, position.offset) for source, position in positions.items()}

    def archived(self, partitions: int, lineage: int | None = None) -> Values:
        """Return the records of the log of a lineage by the library's reader."""
        reader = ArchiveReader.open(self.config.tables, self.config.objects)
        return {
            partition: [(record.value or b"").decode() for record in reader.read_records(self.topic, partition, lineage=lineage)]
            for partition in range(partitions)
        }

    def restored(self, target: str, name: str, partitions: int, **until: Any) -> Values:
        """Restore into a topic of its own, and return what a consumer sees of it."""
        restore = f"{name}-{uuid.uuid4().hex[:8]}"  # the target is shared with other tests
        groups = {"topics": {"target_name": f"{name}.{{topic}}"}, "until": until, "tables": restore, "restore": restore}
        conf = self._folder / f"{name}.yaml"
        conf.write_text(yaml.safe_dump(restore_runs.document(self.config, target, **groups)), encoding="utf-8")
        process = self._process(conf, name)
        try:
            assert process.wait(PATIENCE_S) == 0, process.log()[-4000:]
        finally:
            process.kill()
        return consumed(target, f"{name}.{self.topic}", partitions)

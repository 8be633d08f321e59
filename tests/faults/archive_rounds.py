"""Rounds of an archive: scenes whose process is `archive run` instead of a mirror."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults import archive_steps
from tests.faults.archive_check import ArchiveChecker, ArchivedRow, load_archived_rows
from tests.faults.check import Checked
from tests.faults.gate import PausedProcess
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess, survivors
from tests.faults.rounds import PATIENCE_S, Finish, RoundFailedError, Scene
from tests.faults.steps import SLOTS, Step

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.demo.checker import end_offsets, partitions_of
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.types import IsolationLevel, TopicPartition

KEEP_BYTES = 200_000
"""Of the topic whose segments expire while the archive is harmed."""

LEAST_OBJECT_BYTES = 1 << 20
_GONE_WITHIN_S = 30.0


@dataclass(slots=True)
class ArchiveScene(Scene):
    """One cluster, writers, one archive. `source_node` is the only broker of the source.

    `objects` is the folder in which objects are files; `location` what the archive file calls it, where that is another name.
    """

    source_node: LocalKafka | None = None
    location: str = ""
    objects_folder: Path | None = None
    expires: bool = True
    _archive_checker: ArchiveChecker = field(init=False)
    _harmed: list[psutil.Process] = field(init=False, default_factory=list)
    _new_topics: int = field(init=False, default=0)

    def __enter__(self) -> Self:
        Scene.__enter__(self)
        assert self.source_node is not None
        self._archive_checker = ArchiveChecker(
            self.source_node.folder / "data", self.tables, self.objects, self.keep_bytes, self._writers.take
        )
        return self

    @property
    def conf(self) -> Path:
        return self.folder / "archive.yaml"

    @property
    def objects(self) -> Path:
        return self.objects_folder or self.folder / "objects"

    @property
    def keep_bytes(self) -> Mapping[str, int]:
        return {f"{self.name}.orders": KEEP_BYTES} if self.expires else {}

    @property
    def between(self) -> Step:
        return archive_steps.BETWEEN

    def reach(self, step: Step) -> PausedProcess:
        """Let the archive run until it stands at `step`; create the topic that it has to find for a step of registration."""
        if step in archive_steps.IN_REGISTRATION:
            self.running()
            self._gate.forget()
            self._gate.await_step(step)
            self._create_another_topic()
            paused = self._wait_for(step, self.running())
        else:
            paused = Scene.reach(self, step)
        self._harmed = self.running().everything()
        return paused

    def _create_another_topic(self) -> None:
        self._new_topics += 1
        topic = f"{self.name}.new{self._new_topics}"
        admin = AdminClient({"bootstrap.servers": self.source, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])[topic].result(30)
        producer = Producer({"bootstrap.servers": self.source, "log_level": 0})
        for number in range(10):
            producer.produce(topic, f"new {number}", partition=0)
        assert producer.flush(30) == 0

    def _check(self) -> Future[Checked]:
        """Clean, then compare everything. Tasks of a dead driver may still write objects: they are waited for."""
        if self.running_or_ended().pid not in {process.pid for process in self._harmed}:
            survivors(self._harmed, _GONE_WITHIN_S)
        epochs = re.findall(r"run epoch (\d+) took over", self.running_or_ended().log())
        checked = self._checks.submit(self._cleaned_and_checked, int(epochs[-1]))
        wait([checked])
        return checked

    def _cleaned_and_checked(self, run_epoch: int | None) -> Checked:
        cleaned = clean(ArchiveConfig.load(self.conf), older_than_s=0)
        return self._archive_checker.check(run_epoch, kept=cleaned.kept)

    def finish(self) -> Finish:
        """Writers end, the archive catches up and is stopped; all of it is compared, and verified by its own command."""
        began = time.monotonic()
        self._writers.stop()
        self._gate.forget()
        archive = self.running()
        self._wait_until_archived(archive)
        processes = archive.everything()
        code = archive.stop()
        left = [f"process {process.pid}" for process in survivors(processes, _GONE_WITHIN_S)]
        left += [f"file {path.name}" for path in (self.folder / "scratch").iterdir()]
        checked = self._cleaned_and_checked(None)
        differences = [*checked.differences]
        verified = verify_archive(ArchiveConfig.load(self.conf), is_deep=True)
        if not verified.is_equal:
            differences.append(f"archive verify: {verified.sentences()}")
        if code != 0:
            differences.append(f"the archive's exit code is {code}:\n{archive.log()[-2000:]}")
        return Finish(
            records=self._archive_checker.records,
            differences=tuple(differences),
            left_behind=tuple(left),
            seconds=time.monotonic() - began,
        )

    def _wait_until_archived(self, archive: MirrorProcess) -> None:
        admin = AdminClient({"bootstrap.servers": self.source, "log_level": 0})
        ends = end_offsets(admin, partitions_of(admin, self.topics), IsolationLevel.READ_COMMITTED)
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            reached = ends_of(load_archived_rows(self.tables))
            if all(reached.get(topic_partition, 0) >= end for topic_partition, end in ends.items()):
                return
            if archive.exit_code is not None or time.monotonic() > give_up_at:
                raise RoundFailedError(f"the archive did not catch up: {reached}, not {ends}:\n{archive.log()[-4000:]}")
            time.sleep(0.3)

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "archive": self.name,
            "source": {"alias": "east", "client": {"bootstrap.servers": self.source, **self.client.get("source", {})}},
            "topics": {"include": [re.escape(self.name) + r"\..*"], "discovery": "0 seconds"},
            "read": {"slots": SLOTS},
            "objects": self.location or str(self.objects),
            "object_bytes": LEAST_OBJECT_BYTES,
            "retention": {re.escape(topic): {"keep_bytes": size} for topic, size in self.keep_bytes.items()},
            "tables": str(self.tables),
            "checkpoint": str(self.checkpoint),
            "trigger": "0 seconds",
        }
        for group, settings in self.groups.items():
            document[group] = document.get(group, {}) | settings if isinstance(settings, dict) else settings
        return document


def ends_of(rows: list[ArchivedRow]) -> dict[TopicPartition, int]:
    """Return the ends of the newest lineages. `rows` as they are loaded."""
    return {row.topic_partition: row.end for row in rows}


@dataclass(frozen=True, slots=True)
class PlainArchiveScene:
    """One cluster that is never harmed, objects in a folder."""

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        nodes = start_clusters(folder / "clusters", 1)
        try:
            with ArchiveScene(
                folder / "archive",
                nodes[0].bootstrap,
                "",
                name=name,
                engine=WITHOUT_SPARK,
                seed=seed,
                source_node=nodes[0],
            ) as scene:
                yield scene
        finally:
            stop_clusters(nodes)

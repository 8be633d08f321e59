"""Rounds of an archive, and of restores of one: scenes whose process is `archive run` or `restore` in the place of a mirror."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults import archive_steps
from tests.faults.archive_check import ArchiveChecker, ArchivedRow, load_archived_rows
from tests.faults.check import Checked, Piece, differences_of
from tests.faults.gate import Gate, PausedProcess
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess, survivors
from tests.faults.rounds import PATIENCE_S, Finish, RoundFailedError, Scene
from tests.faults.steps import SLOTS, Step
from tests.faults.writers import WriteLoad, Writers

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.demo.checker import end_offsets, open_partitions, partitions_of, read_histories
from shallow_mirror.demo.history import History
from shallow_mirror.demo.map_rows import load_rows
from shallow_mirror.local_kafka.node import LocalKafka, start_clusters, stop_clusters
from shallow_mirror.operations.archive_clean import clean
from shallow_mirror.operations.archive_verify import verify_archive
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
        clean(ArchiveConfig.load(self.conf))
        return self._archive_checker.check(run_epoch)

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
            if all(reached.get(place, 0) >= end for place, end in ends.items()):
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
    return {row.place: row.end for row in rows}


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


RESTORED_BYTES = 6_000_000
"""Of keys and values that are archived before anything is restored: enough for several micro-batches of a restore."""

HEAVY = WriteLoad(bytes_per_s=3_000_000, random_bytes=300, repeats=3)
_RESTORE_MICRO_BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class RestoreScene(Scene):
    """An archive that has ended, and a restore of it in every round: into new topics, up to the end or to some decision."""

    source_node: LocalKafka | None = None
    archived_bytes: int = RESTORED_BYTES
    archive: ArchiveScene = field(init=False)
    number: int = field(init=False, default=0)
    _rng: random.Random = field(init=False)
    _ends: dict[TopicPartition, int] = field(init=False, default_factory=dict)
    _histories: Mapping[TopicPartition, History] = field(init=False, default_factory=dict)
    _decisions: list[tuple[int, dict[TopicPartition, int]]] = field(init=False, default_factory=list)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rng = random.Random(self.seed)
        self._make_archive()
        self._gate = Gate(self.folder).__enter__()
        self._writers = Writers(self.source, [], seed=self.seed)  # never started: a round has no writers
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.mirror is not None:
            self.mirror.kill()
        self._gate.__exit__(kind, error, trace)

    def _make_archive(self) -> None:
        self.archive = ArchiveScene(
            self.folder / "archive",
            self.source,
            "",
            name=self.name,
            engine=self.engine,
            load=HEAVY,
            seed=self.seed,
            source_node=self.source_node,
            expires=False,
        )
        with self.archive as archive:
            archive.running()
            give_up_at = time.monotonic() + PATIENCE_S
            while archive.written_bytes < self.archived_bytes and time.monotonic() < give_up_at:
                time.sleep(0.2)
            end = archive.finish()
        if end.differences:
            raise RoundFailedError(f"the archive to restore is not equal to its source: {end.differences}")
        self._histories = read_histories(self.source, list(self.archive.topics), IsolationLevel.READ_COMMITTED, _ignore)
        ends: dict[TopicPartition, int] = {}
        for decision, rows in decisions_of(self.archive.tables):
            ends = {**ends, **ends_of(rows)}
            self._decisions.append((decision, ends))

    @property
    def conf(self) -> Path:
        return self.folder / f"restore{self.number}.yaml"

    @property
    def tables(self) -> Path:
        return self.folder / f"tables{self.number}"

    def reach(self, step: Step) -> PausedProcess:
        """Begin another restore, and let it run until it stands at `step`."""
        self._begin_restore()
        return Scene.reach(self, step)

    def _begin_restore(self) -> None:
        if self.mirror is not None:
            self.mirror.kill()
            self.mirror = None
        self.number += 1
        decision, self._ends = self._decisions[-1]
        until: dict[str, Any] = {}
        if self._rng.random() < 0.5:
            decision, self._ends = self._rng.choice(self._decisions[len(self._decisions) // 2 :])
            until = {"decision": decision}
        self.conf.write_text(yaml.safe_dump(self._restore_document(until)), encoding="utf-8")

    def _ending_after_recovery(self, harmed: MirrorProcess) -> str:
        """Return how the harmed restore ended; it, or its successor, has restored everything on return."""
        self._gate.forget()
        code = harmed.wait(PATIENCE_S)
        if code == 0:
            return "went on"
        if code is None or self.running().wait(PATIENCE_S) != 0:
            raise RoundFailedError(
                f"the restore ended with {code}, then with {self.running_or_ended().exit_code}:\n"
                f"{self.running_or_ended().log()[-4000:]}"
            )
        return "killed, started again" if code == -9 else f"ended with exit code {code}, started again"

    def _check(self) -> Future[Checked]:
        checked: Future[Checked] = Future()
        checked.set_result(self._checked())
        return checked

    def _checked(self) -> Checked:
        """Compare the target with what a read_committed consumer finds at the source up to the cut."""
        of_target = {self._target_name(topic): topic for topic in self.archive.topics}
        admin = AdminClient({"bootstrap.servers": self.target, "log_level": 0})
        places = partitions_of(admin, of_target)
        differences = [f"open transaction: {place}" for place in open_partitions(admin, places)]
        histories = read_histories(self.target, list(of_target), IsolationLevel.READ_COMMITTED, _ignore)
        restored = {TopicPartition(of_target[place.topic], place.partition): records for place, records in histories.items()}
        rows = load_rows(self.tables)
        for place, end in sorted(self._ends.items()):
            differences += differences_of(
                Piece(
                    place=place,
                    start=0,
                    end=end,
                    source=_up_to(end, self._histories[place]),
                    target=restored.get(place, History.of(())),
                    rows=[row for row in rows if (row.source_topic, row.source_partition) == place],
                    written=(),
                )
            )
        return Checked(
            records=sum(len(records) for records in restored.values()), acknowledged=0, unknown=0, differences=tuple(differences)
        )

    def finish(self) -> Finish:
        """One restore that nothing harms."""
        began = time.monotonic()
        self._begin_restore()
        self._gate.forget()
        restore = self.running()
        code = restore.wait(PATIENCE_S)
        checked = self._checked()
        differences = [*checked.differences]
        if code != 0:
            differences.append(f"the restore's exit code is {code}:\n{restore.log()[-2000:]}")
        left = [f"file {path.name}" for path in (self.folder / "scratch").iterdir()]
        return Finish(
            records=checked.records,
            differences=tuple(differences),
            left_behind=tuple(left),
            seconds=time.monotonic() - began,
        )

    def _target_name(self, topic: str) -> str:
        return f"restored{self.number}.{topic}"

    def _restore_document(self, until: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "restore": f"{self.name}-{self.number}",
            "archive": {"tables": str(self.archive.tables), "objects": str(self.archive.objects), "alias": "east"},
            "target": {"alias": "west", "client": {"bootstrap.servers": self.target}},
            "topics": {"target_name": self._target_name("{topic}")},
            "until": dict(until),
            "read": {"micro_batch_bytes": _RESTORE_MICRO_BATCH_BYTES},
            "write": {"slots": SLOTS, "slot_bytes": 1024, "request_bytes": 1, "transaction_timeout_ms": 60_000},
            "tables": str(self.tables),
        }


def decisions_of(tables: Path) -> list[tuple[int, list[ArchivedRow]]]:
    """Return the rows of every decision of an archive that stored something, in their order."""
    by_decision: dict[int, list[ArchivedRow]] = {}
    for row in load_archived_rows(tables):
        by_decision.setdefault(row.micro_batch, []).append(row)
    return sorted(by_decision.items(), key=lambda of_decision: of_decision[0])


def _up_to(end: int, history: History) -> History:
    before = history.offsets < end
    return History(history.offsets[before], history.digests[before])


def _ignore(_records: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class PlainRestoreScene:
    """Two clusters that are never harmed, and an archive in a folder."""

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        nodes = start_clusters(folder / "clusters", 2)
        try:
            with RestoreScene(
                folder / "restore",
                nodes[0].bootstrap,
                nodes[1].bootstrap,
                name=name,
                engine=WITHOUT_SPARK,
                seed=seed,
                source_node=nodes[0],
            ) as scene:
                yield scene
        finally:
            stop_clusters(nodes)

"""Rounds of restores of one archive: scenes whose process is `restore` instead of a mirror."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from confluent_kafka.admin import AdminClient
from tests.faults.archive_check import ArchivedRow, load_archived_rows
from tests.faults.archive_rounds import ArchiveScene, ends_of
from tests.faults.check import Checked, Piece, differences_of
from tests.faults.gate import Gate, PausedProcess
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess
from tests.faults.rounds import PATIENCE_S, Finish, RoundFailedError, Scene
from tests.faults.steps import SLOTS, Step
from tests.faults.writers import WriteLoad, Writers

from shallow_mirror.demo.checker import end_offsets, open_partitions, partitions_of, read_histories
from shallow_mirror.demo.history import History
from shallow_mirror.demo.map_rows import load_rows
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.types import IsolationLevel, TopicPartition

RESTORED_BYTES = 6_000_000
"""Of keys and values that are archived before anything is restored: enough for several micro-batches of a restore."""

HEAVY = WriteLoad(bytes_per_s=3_000_000, random_bytes=300, repeats=3)
_RESTORE_MICRO_BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class RestoreScene(Scene):
    """An archive that has ended, and a restore of it in every round: into new topics, up to the end or to some decision.

    With `keeps_offsets` also up to some offsets: then consumers of both isolation levels have to find every record at its own
    offset, and each log has to end where the restore does.
    """

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
        if self.keeps_offsets and self._rng.random() < 0.5:
            ends = self._decisions[-1][1]
            whole = self._rng.choice(sorted(ends))  # so that there are several micro-batches, as some steps need
            self._ends = {
                topic_partition: end if topic_partition == whole else self._rng.randint(0, end)
                for topic_partition, end in ends.items()
            }
            until = {"offsets": {topic_partition.topic: {} for topic_partition in self._ends}}
            for topic_partition, end in self._ends.items():
                until["offsets"][topic_partition.topic][topic_partition.partition] = end
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
        topic_partitions = partitions_of(admin, of_target)
        differences = [f"open transaction: {topic_partition}" for topic_partition in open_partitions(admin, topic_partitions)]
        differences += self._log_differences(admin, of_target) if self.keeps_offsets else []
        levels = [IsolationLevel.READ_COMMITTED, *([IsolationLevel.READ_UNCOMMITTED] if self.keeps_offsets else [])]
        restored: dict[TopicPartition, History] = {}
        for level in levels:
            histories = read_histories(self.target, list(of_target), level, _ignore)
            restored = {
                TopicPartition(of_target[topic_partition.topic], topic_partition.partition): found
                for topic_partition, found in histories.items()
            }
            differences += self._differences_of(restored)
        return Checked(
            records=sum(len(records) for records in restored.values()), acknowledged=0, unknown=0, differences=tuple(differences)
        )

    def _differences_of(self, restored: Mapping[TopicPartition, History]) -> list[str]:
        differences: list[str] = []
        rows = load_rows(self.tables)
        for topic_partition, end in sorted(self._ends.items()):
            differences += differences_of(
                Piece(
                    topic_partition=topic_partition,
                    start=0,
                    end=end,
                    source=_up_to(end, self._histories[topic_partition]),
                    target=restored.get(topic_partition, History.of(())),
                    rows=[row for row in rows if (row.source_topic, row.source_partition) == topic_partition],
                    written=(),
                    keeps_offsets=self.keeps_offsets,
                )
            )
        return differences

    def _log_differences(self, admin: AdminClient, of_target: Mapping[str, str]) -> list[str]:
        """Return where logs of the target do not end at the cut."""
        ends = end_offsets(admin, partitions_of(admin, of_target), IsolationLevel.READ_UNCOMMITTED)
        of_source = {
            TopicPartition(of_target[topic_partition.topic], topic_partition.partition): end
            for topic_partition, end in ends.items()
        }
        return [
            f"end: {topic_partition}: the log ends at {of_source[topic_partition]}, the restore at {end}"
            for topic_partition, end in sorted(self._ends.items())
            if of_source[topic_partition] != end
        ]

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
            "topics": {
                "target_name": self._target_name("{topic}"),
                "offsets": {".*": "preserved"} if self.keeps_offsets else {},
            },
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

    keeps_offsets: bool = False

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
                keeps_offsets=self.keeps_offsets,
            ) as scene:
                yield scene
        finally:
            stop_clusters(nodes)

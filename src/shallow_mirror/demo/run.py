"""Driver: the demo: two clusters, mixed traffic, the mirror killed in the middle of a transaction, and the check of the copy.

Then a topic is archived, its copy is deleted, and restored up to a time.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from shallow_mirror.demo import checker, restored_topic, summary
from shallow_mirror.demo.map_rows import RowTranslation, load_rows, totals
from shallow_mirror.demo.mirror_process import MirrorProcess, recovery_decisions
from shallow_mirror.demo.traffic import TOPICS, TrafficReport, write_traffic
from shallow_mirror.errors import MirrorError
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.types import IsolationLevel, TopicPartition

SEED = 20_240_501
MICRO_BATCH_BYTES = 2 << 20
KILL_SHARE = 0.25
"""The mirror is killed once this share of the records is visible on the target, so that recovery has history."""

INTERRUPTED = 130
_FILE_WIDTH = 120
_POLL_S = 0.02
_WATCH_TIMEOUT_S = 300.0


class DemoError(MirrorError):
    """A step of the demo failed. The clusters and the mirror are stopped."""


def run_demo(keep: bool, records: int = 200_000, folder: Path | None = None, *, with_restore: bool = True) -> int:
    """Run the demo. `with_restore`: archive a topic as well, and restore it.

    Return 0: nothing differs; 1: something does, or a step failed; 130: interrupted.

    Everything lies in a new folder inside `folder` (None: the system's temporary folder), which is deleted at the end unless
    `keep` or the exit code is 1. Nothing is left running.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="shallow-mirror-demo-", dir=folder)).absolute()
    progress_console = Console(stderr=True)
    exit_code = 1
    try:
        with _sigterm_interrupts():
            exit_code = _Demo(work, records, keep, progress_console, with_restore).run()
    except KeyboardInterrupt:
        progress_console.print("interrupted: clusters and mirror are stopped")
        exit_code = INTERRUPTED
    except (MirrorError, KafkaException) as error:
        progress_console.print(Text(f"the demo failed: {error}", style="red"), soft_wrap=True)
    finally:
        if keep or exit_code == 1:
            progress_console.print(Text(f"kept: {work}"), soft_wrap=True)
        else:
            shutil.rmtree(work)
    return exit_code


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM end the demo as Ctrl-C does; only the main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def mirror_file(source_bootstrap: str, target_bootstrap: str, tables: Path) -> str:
    """Return the YAML of the demo's mirror, with micro-batches small enough that there are many, of several slots. Pure."""
    settings = {
        "mirror": "shallow-mirror-demo",
        "source": {"alias": "east", "client": {"bootstrap.servers": source_bootstrap}},
        "target": {"alias": "west", "client": {"bootstrap.servers": target_bootstrap}},
        "topics": {"include": ["orders\\..*"]},
        "read": {"micro_batch_bytes": MICRO_BATCH_BYTES},
        "write": {"slot_bytes": MICRO_BATCH_BYTES // 4, "request_bytes": 1},
        "tables": str(tables),
        "checkpoint": str(tables / "_spark"),
    }
    return yaml.safe_dump(settings, sort_keys=False)


class _Demo:
    """The steps in their order; each announces itself."""

    def __init__(self, work: Path, records: int, keep: bool, progress_console: Console, with_restore: bool) -> None:
        self.work, self.records, self.keep, self.with_restore = work, records, keep, with_restore
        self.conf, self.tables = work / "mirror.yaml", work / "tables"
        self.started = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=progress_console
        )

    def run(self) -> int:
        with self.progress:
            starting = self._begin("start two Kafka clusters", total=2)
            nodes = start_clusters(self.work / "clusters", 2)
            try:
                self.progress.update(starting, completed=2)
                result = self._mirror_and_compare(nodes[0].bootstrap, nodes[1].bootstrap)
                if self.with_restore:
                    restored = self._archive_and_restore(nodes[0].bootstrap, nodes[1].bootstrap)
                    seconds = time.monotonic() - self.started
                    result = replace(
                        result, restored=restored, surprises=(*result.surprises, *restored.problems), seconds=seconds
                    )
            finally:
                stop_clusters(nodes)
        is_kept = self.keep or not result.is_equal
        console = Console()
        if not console.is_terminal:
            # A file or a pipe has no width: tables need not be cut to a terminal's.
            console.width = max(console.width, _FILE_WIDTH)
        summary.show(console, result, conf=self.conf, tables=self.tables, is_kept=is_kept)
        return 0 if result.is_equal else 1

    def _begin(self, description: str, total: int) -> TaskID:
        """Show a step: as a bar on a terminal, elsewhere as a line when it begins."""
        if not self.progress.console.is_terminal:
            self.progress.console.print(description)
        return self.progress.add_task(description, total=total)

    def _mirror_and_compare(self, source: str, target: str) -> summary.DemoResult:
        traffic = self._write(source)
        self.conf.write_text(mirror_file(source, target, self.tables), encoding="utf-8")
        watch = _TargetWatch(target, traffic)
        mirrored = self._begin("mirror, until it is killed", total=traffic.visible_records)
        kill = self._run_and_kill(watch, mirrored)
        recovery: tuple[tuple[str, str], ...] = (("", "not needed"),)
        if kill is not None:
            self.progress.update(mirrored, description="mirror, killed and started again")
            recovery = self._run_again(watch, mirrored)
        self.progress.update(mirrored, completed=traffic.visible_records)
        return self._compare(source, target, traffic, kill, recovery)

    def _archive_and_restore(self, source: str, target: str) -> restored_topic.RestoredTopic:
        """Archive a topic of the source, delete its copy at the target, restore it there up to a time, and compare."""
        conf = self.work / "archive.yaml"
        conf.write_text(restored_topic.archive_file(source, self.work), encoding="utf-8")
        archiving = self._begin(f"archive {restored_topic.TOPIC}", total=1)
        self._run_to_end(MirrorProcess(conf, self.work / "archive.log", ("archive", "run", "{}", "--available-now")))
        self.progress.update(archiving, completed=1)
        cut = restored_topic.middle_time(source)
        restoring = self._begin(f"delete its copy, and restore it up to {cut.isoformat()}", total=2)
        restored_topic.delete_copy(target)
        self.progress.update(restoring, completed=1)
        conf = self.work / "restore.yaml"
        conf.write_text(restored_topic.restore_file(target, self.work, cut), encoding="utf-8")
        self._run_to_end(MirrorProcess(conf, self.work / "restore.log", ("restore", "{}")))
        self.progress.update(restoring, completed=2)
        return restored_topic.compare(source, target, self.work, cut, lambda _read: None)

    def _run_to_end(self, process: MirrorProcess) -> None:
        began = time.monotonic()
        try:
            while process.exit_code is None:
                self._give_up_when_late(began, process)
                time.sleep(0.2)
        finally:
            process.stop()
        _require_success(process)

    def _write(self, source: str) -> TrafficReport:
        writing = self._begin("write traffic to the source", total=self.records)
        report = write_traffic(
            source, records=self.records, seed=SEED, on_progress=lambda written: self.progress.update(writing, completed=written)
        )
        self.progress.update(writing, total=report.written_records, completed=report.written_records)
        return report

    def _run_and_kill(self, watch: _TargetWatch, task: TaskID) -> summary.Kill | None:
        """Return when the mirror was killed; None when the run ended before an open transaction was observed."""
        began = time.monotonic()
        mirror = MirrorProcess(self.conf, self.work / "run-1.log")
        try:
            while mirror.exit_code is None:
                visible, open_on = watch.observe()
                self.progress.update(task, completed=visible)
                if open_on and visible >= KILL_SHARE * watch.expected_records:
                    mirror.kill()
                    return summary.Kill(after_s=time.monotonic() - began, visible_offsets=visible, open_on=open_on)
                self._give_up_when_late(began, mirror)
                time.sleep(_POLL_S)
        finally:
            mirror.kill()
        _require_success(mirror)
        return None

    def _run_again(self, watch: _TargetWatch, task: TaskID) -> tuple[tuple[str, str], ...]:
        began = time.monotonic()
        mirror = MirrorProcess(self.conf, self.work / "run-2.log")
        try:
            while mirror.exit_code is None:
                self.progress.update(task, completed=watch.observe()[0])
                self._give_up_when_late(began, mirror)
                time.sleep(0.2)
        finally:
            mirror.stop()
        _require_success(mirror)
        return recovery_decisions(mirror.log_lines())

    def _give_up_when_late(self, began: float, mirror: MirrorProcess) -> None:
        if time.monotonic() - began > _WATCH_TIMEOUT_S:
            raise DemoError(f"no progress within {_WATCH_TIMEOUT_S:.0f} s. The end of its log:\n{mirror.log_tail()}")

    def _compare(
        self,
        source: str,
        target: str,
        traffic: TrafficReport,
        kill: summary.Kill | None,
        recovery: tuple[tuple[str, str], ...],
    ) -> summary.DemoResult:
        comparing = self._begin("compare record by record", total=2 * traffic.visible_records)
        rows = load_rows(self.tables)
        translation = RowTranslation(rows)
        comparison = checker.compare(
            source,
            target,
            {topic: topic for topic in TOPICS},
            translation,
            on_progress=lambda read: self.progress.advance(comparing, read),
        )
        self.progress.update(comparing, completed=2 * traffic.visible_records)
        return summary.DemoResult(
            traffic=traffic,
            totals=totals(rows),
            kill=kill,
            recovery=recovery,
            comparison=comparison,
            surprises=(*_unexpected_sources(traffic, comparison), *translation.overlaps()),
            seconds=time.monotonic() - self.started,
        )


def _unexpected_sources(traffic: TrafficReport, comparison: checker.Comparison) -> Iterator[str]:
    """Check that the source shows all that the producers wrote: a comparison of two empty clusters would prove nothing."""
    for topic in traffic.topics:
        read = comparison.source_records[topic.topic]
        if read != topic.visible_records:
            yield f"{topic.topic}: producers committed {topic.visible_records} records, {read} were read from the source"


def _require_success(mirror: MirrorProcess) -> None:
    if mirror.exit_code != 0:
        raise DemoError(f"it ended with {mirror.exit_code}. The end of {mirror.log_file}:\n{mirror.log_tail()}")


class _TargetWatch:
    """Progress of the target, and the partitions with an open transaction. Momentary refusals of brokers are ignored."""

    def __init__(self, bootstrap: str, traffic: TrafficReport) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        self._expected_partitions = sum(topic.partitions for topic in traffic.topics)
        self._topic_partitions: Sequence[TopicPartition] = ()
        self._visible = 0
        self.expected_records = traffic.visible_records

    def observe(self) -> tuple[int, tuple[TopicPartition, ...]]:
        """Return (offsets visible to read_committed consumers, at most those expected; partitions with an open transaction)."""
        try:
            if len(self._topic_partitions) < self._expected_partitions:
                self._topic_partitions = checker.partitions_of(self._admin, TOPICS)
            open_on = tuple(checker.open_partitions(self._admin, self._topic_partitions))
            stable = checker.end_offsets(self._admin, self._topic_partitions, IsolationLevel.READ_COMMITTED)
        except KafkaException:
            return self._visible, ()
        self._visible = min(sum(stable.values()), self.expected_records)
        return self._visible, open_on

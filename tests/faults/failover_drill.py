"""A drill: the source cluster is killed under transactional load, groups continue at the target, and everything comes back.

`python -m tests.faults.failover_drill --groups 10 --seconds 30` starts two brokers, runs it and prints its table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import KafkaException, Producer
from tests.faults import launch
from tests.faults.gate import Gate
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess
from tests.support import mirror_runs as runs

from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import Options
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.failover import FailoverState, Step, Way, fail_back, fail_over
from shallow_mirror.migration.failover.effects import FailoverEffects
from shallow_mirror.migration.mirror_process import StartedMirror

PATIENCE_S = 30.0
JOIN_S = 3.0
"""So long a reader may take until its first record; a group without records left to read has none."""
LAST_TRY_S = 2.0
"""So long a client tries to end what it began at a cluster that is dead."""


class Writer:
    """Writes unique values in transactions. `written`: committed; `unknown`: their commit was not answered."""

    def __init__(self, name: str, topic: str, partitions: int, pause_s: float) -> None:
        self._name, self._topic, self._partitions, self._pause_s = name, topic, partitions, pause_s
        self._number, self._stop, self._thread = 0, threading.Event(), threading.Thread()
        self.written: list[str] = []
        self.unknown: list[str] = []

    def start(self, bootstrap: str) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), f"writer {self._name} did not end"

    def _run(self, bootstrap: str) -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{self._topic}-{self._name}", "linger.ms": 2, "log_level": 0}
        )
        producer.init_transactions(PATIENCE_S)
        while not self._stop.wait(self._pause_s):
            values = [f"{self._name}-{self._number + at}" for at in range(5)]
            self._number += 5
            try:
                producer.begin_transaction()
                for at, value in enumerate(values):
                    producer.produce(self._topic, value, partition=(self._number + at) % self._partitions)
                if self._number % 20 == 0:
                    producer.flush(LAST_TRY_S)
                    producer.abort_transaction(LAST_TRY_S)
                    continue
                producer.commit_transaction(LAST_TRY_S)
            except KafkaException:
                self.unknown += values
                producer.purge()
                return
            self.written += values


class Readers:
    """Groups of one member each, in a process of their own that can be killed with its cluster."""

    def __init__(self, groups: Sequence[str], topic: str, folder: Path) -> None:
        self.groups, self._topic, self._folder = groups, topic, folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def start(self, bootstrap: str) -> None:
        arguments = [bootstrap, self._topic, str(self._folder), *self.groups]
        self._process = subprocess.Popen([sys.executable, "-m", "tests.faults.failover_readers", *arguments])

    def stop(self) -> None:
        """Let them commit what they have read."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def read(self, group: str) -> list[tuple[float, str]]:
        """Return what a group has read so far, with the times on the monotonic clock. A line that is not whole is left out."""
        path = self._folder / group
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [(float(at), value) for at, value in (line.split() for line in lines)]

    def values(self, group: str) -> Counter[str]:
        return Counter(value for _, value in self.read(group))

    @property
    def read_count(self) -> int:
        return sum(len(self.read(group)) for group in self.groups)


@dataclass(slots=True)
class GroupResult:
    """Records of one group over the fail-over. `repeated_at_most`, `missing_at_least`: what the state says."""

    first_record_s: float | None
    """After the SIGKILL; None: nothing was left to read."""
    repeated: int
    lost: int
    repeated_at_most: int
    missing_at_least: int | None


@dataclass(slots=True)
class DrillResult:
    """`readers_s`: from the SIGKILL of the source until the groups were committed at the target, of which `command_s` the
    command took."""

    written: int
    readers_s: float
    command_s: float
    groups: dict[str, GroupResult]
    steps_s: dict[str, float]
    kept: int = 0
    """Records that only the old source had."""
    back_s: float = 0.0
    lost_after_back: dict[str, list[str]] = field(default_factory=dict)
    repeated_after_back: dict[str, list[str]] = field(default_factory=dict)
    """Beyond those of the fail-over."""

    def table(self) -> str:
        lines = [
            "| group | first record after | repeated | at most, as reported | lost | seen to be missing |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for name, group in sorted(self.groups.items()):
            seen = "unknown" if group.missing_at_least is None else f"{group.missing_at_least:,}"
            first = "nothing left to read" if group.first_record_s is None else f"{group.first_record_s:.1f} s"
            lines.append(
                f"| {name.rpartition('.')[2]} | {first} | {group.repeated:,} | "
                f"{group.repeated_at_most:,} | {group.lost:,} | {seen} |"
            )
        return "\n".join(lines)


class Drill:
    """Context manager over two running brokers; `folder` is empty."""

    def __init__(
        self,
        folder: Path,
        source: LocalKafka,
        target: LocalKafka,
        topic: str,
        *,
        partitions: int,
        groups: int,
        pause_s: float = 0.02,
        back_start: str = "conductor",
    ) -> None:
        self.folder, self.source, self.target, self.topic, self.partitions = folder, source, target, topic, partitions
        self.writers = [Writer(f"writer-{number}", topic, partitions, pause_s) for number in range(2)]
        self.readers = Readers([f"{topic}.group-{number}" for number in range(groups)], topic, folder / "read")
        self.mirrors: list[MirrorProcess] = []
        self.lines: list[str] = []
        self.steps_s: dict[str, float] = {}
        self.moved_at_s: float | None = None
        self._stack = ExitStack()
        self._back_start = back_start
        self._has_clients = self._are_stopped = False

    def __enter__(self) -> Drill:
        self._gate = self._stack.enter_context(Gate(self.folder))
        runs.create_topic(self.source.bootstrap, self.topic, self.partitions)
        self._write_files()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.stop()
        self.readers.kill()
        for mirror in self.mirrors:
            mirror.kill()
        self._stack.close()

    def _write_files(self) -> None:
        source, target, include = self.source.bootstrap, self.target.bootstrap, [self.topic]
        forward = runs.document(source, target, include, tables="forward", groups={"sync": "1 second"})
        back = runs.document(target, source, include, tables="back", topics={"offsets": {".*": "preserved"}})
        back["source"]["alias"], back["target"]["alias"] = "west", "east"
        failover = {
            "failover": "drill",
            "mirror": "forward.yaml",
            "groups": {"include": [f"{self.topic}\\..*"]},
            "back": {"mirror": "back.yaml", "start": self._back_start},
            "writers": {"quiet": "1 second"},
            "tables": "failover",
        }
        for document in (forward, back):
            document["write"]["slots"] = 2
        for name, document in (("forward", forward), ("back", back), ("failover", failover)):
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    @property
    def file(self) -> Path:
        return self.folder / "failover.yaml"

    def files(self) -> FailoverFiles:
        return FailoverFiles(FailoverConfig.load(self.file))

    def start_mirror(self, conf: Path) -> MirrorProcess:
        scratch = self.folder / f"scratch-{conf.stem}"
        mirror = MirrorProcess(conf, self._gate.address, self.folder / f"{conf.stem}.log", scratch, WITHOUT_SPARK, {})
        self.mirrors.append(mirror)
        return mirror

    def launch(self, file: str, log: Path, options: Sequence[str]) -> StartedMirror:
        return StartedMirror(self.start_mirror(Path(file)).pid, log)

    def run_load(self, seconds: float) -> None:
        """Start everything, and let it run for `seconds` once each group has read at both ends."""
        self._has_clients = True
        self._start_clients(self.source.bootstrap)
        self.start_mirror(self.folder / "forward.yaml")
        runs.wait_for("records for all groups", lambda: all(map(self.readers.read, self.readers.groups)))
        runs.wait_for("recorded offsets of all groups", lambda: len(self.recorded_groups()) == len(self.readers.groups))
        mirror = self.files().mirror
        runs.wait_for("copies", lambda: sum(runs.positions(mirror).values()) > 0)
        time.sleep(seconds)

    def recorded_groups(self) -> list[str]:
        """Return the groups whose offsets the mirror has recorded."""
        return FailoverEffects(self.files(), self, Options()).recorded_groups()

    def fail_over(self) -> DrillResult:
        """Kill the source, fail over, and read at the target until nothing more comes."""
        killed_at_s = time.monotonic()
        self.source.kill()
        self.readers.kill()
        began_s = time.monotonic()
        state = fail_over(self.files(), self, Options())
        assert self.moved_at_s is not None
        command_s = time.monotonic() - began_s
        readers_s = self.moved_at_s - killed_at_s
        started_s = time.monotonic()
        self.readers.start(self.target.bootstrap)
        for writer in self.writers:
            writer.stop()
        self._await_rest(started_s)
        written = self.written()
        groups = {group: self._result(group, written, state, started_s, readers_s) for group in self.readers.groups}
        steps_s = {step.value: detail["seconds"] for step, detail in state.done.items()}
        return DrillResult(sum(written.values()), readers_s, command_s, groups, steps_s)

    def _start_clients(self, bootstrap: str) -> None:
        for writer in self.writers:
            writer.start(bootstrap)
        self.readers.start(bootstrap)

    def _stop_clients(self) -> None:
        for writer in self.writers:
            writer.stop()
        self.readers.stop()

    def _await_rest(self, started_s: float) -> None:
        """Until the readers, started then, have joined their groups and have read nothing new for a moment."""
        give_up_at_s, quiet_since_s, before = time.monotonic() + PATIENCE_S, started_s + JOIN_S, -1
        while time.monotonic() < give_up_at_s:
            now = self.readers.read_count
            if now != before:
                before, quiet_since_s = now, max(time.monotonic(), quiet_since_s)
            elif time.monotonic() - quiet_since_s > 1.0:
                return
            time.sleep(0.05)

    def _result(self, group: str, written: Counter[str], state: FailoverState, started_s: float, readers_s: float) -> GroupResult:
        read = self.readers.values(group)
        losses = state.done[Step.REPORT]["groups"][group]
        missing = [loss["missing_offsets"] for loss in losses]
        first_at_s = next((at_s for at_s, _ in self.readers.read(group) if at_s > started_s), None)
        return GroupResult(
            first_record_s=None if first_at_s is None else readers_s + first_at_s - started_s,
            repeated=sum(count - 1 for count in read.values()),
            lost=sum((written - read).values()),
            repeated_at_most=sum(loss["repeated_records"] or 0 for loss in losses),
            missing_at_least=None if None in missing else sum(missing),
        )

    def fail_back(self, result: DrillResult) -> FailoverState:
        """Write at the target, start the old source, and come back. Groups read every record that was written meanwhile once."""
        groups, read_of = self.readers.groups, self.readers.values
        lost = {group: self.written() - read_of(group) for group in groups}
        repeated = {group: _repeated(read_of(group)) for group in groups}
        for writer in self.writers:
            writer.start(self.target.bootstrap)
        self.source.start()
        began_s = time.monotonic()
        state = fail_back(self.files(), self, Options(launch=self.launch))
        result.back_s = time.monotonic() - began_s
        result.kept = sum(kept["record_count"] or 0 for kept in state.done[Step.KEEP]["kept"])
        time.sleep(1)
        for writer in self.writers:
            writer.stop()
        self._await_rest(time.monotonic() - 1)
        for group in groups:
            if more_lost := self.written() - read_of(group) - lost[group]:
                result.lost_after_back[group] = sorted(more_lost)[:5]
            if more_repeated := _repeated(read_of(group)) - repeated[group]:
                result.repeated_after_back[group] = sorted(more_repeated)[:5]
        return state

    def written(self) -> Counter[str]:
        return Counter(value for writer in self.writers for value in writer.written)

    def kept_values(self) -> list[str]:
        """Return the records in the topic of kept records."""
        kept = f"__diverged.{self.topic}"
        if kept not in runs.topics_of(self.target.bootstrap):
            return []
        return [
            value for partition in range(self.partitions) for value in runs.read_values(self.target.bootstrap, kept, partition)
        ]

    # `Reports`: the operator of the drill, who does what is said.

    def begun(self, wave: str, step: object) -> None: ...
    def done(self, wave: str, step: object, detail: Mapping[str, Any]) -> None: ...
    def step_begun(self, way: Way, step: Step) -> None: ...

    def step_done(self, way: Way, step: Step, detail: Mapping[str, Any]) -> None:
        self.steps_s[step.value] = detail["seconds"]
        if step is Step.MOVE_GROUPS:
            self.moved_at_s = time.monotonic()

    def waits(self, outside: Outside) -> None:
        self.lines.append(f"{outside.request} ({outside.seen})")
        if outside.step.value in ("stop writers", "stop groups") and self._has_clients and not self._are_stopped:
            self._are_stopped = True
            self._stop_clients()

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)
        if "NOW: point the writers" in sentence and self._are_stopped:
            self._are_stopped = False
            self._start_clients(self.source.bootstrap)


def _repeated(read: Counter[str]) -> Counter[str]:
    return read - Counter(dict.fromkeys(read, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the source under load, fail over, and fail back.")
    parser.add_argument("--groups", type=int, default=10, help="consumer groups")
    parser.add_argument("--partitions", type=int, default=12, help="partitions of the topic")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load runs before the source is killed")
    parser.add_argument("--pause", type=float, default=0.02, help="pause between two transactions of a writer, in seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nodes = start_clusters(Path(folder) / "kafka", 2)
        (Path(folder) / "drill").mkdir()
        try:
            drill = Drill(
                Path(folder) / "drill",
                nodes[0],
                nodes[1],
                "orders",
                partitions=options.partitions,
                groups=options.groups,
                pause_s=options.pause,
            )
            with drill:
                drill.run_load(options.seconds)
                result = drill.fail_over()
                print(f"{result.written:,} records were committed; groups were moved {result.readers_s:.1f} s after the SIGKILL")
                print(f"steps: {result.steps_s}\n\n{result.table()}\n")
                drill.fail_back(result)
                print(f"fail-back: {result.back_s:.1f} s; records kept: {result.kept:,}")
                print(f"lost by it: {result.lost_after_back}; repeated by it: {result.repeated_after_back}")
        finally:
            launch.stop_fork_server()
            stop_clusters(nodes)


if __name__ == "__main__":
    main()

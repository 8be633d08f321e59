"""A migration between two real clusters: its files, its mirrors without Spark, and an operator who does what is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.faults.gate import Gate
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess
from tests.migration.application import Application
from tests.support import mirror_runs as runs

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.steps import Step


@dataclass(slots=True)
class Scene:
    """Files of a migration in `folder`, and the mirrors that were started."""

    folder: Path
    source: str
    target: str
    topics: Sequence[str]
    groups: Sequence[str]
    gate: Gate
    include: Sequence[str] = ()
    """Patterns of the mirror beside the topics that move."""
    offsets: str = "translated"
    mirrors: list[MirrorProcess] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "migration.yaml"

    @property
    def mirror_file(self) -> Path:
        return self.folder / "mirror.yaml"

    @property
    def reverse_file(self) -> Path:
        return self.folder / "reverse.yaml"

    def files(self) -> MigrationFiles:
        return MigrationFiles(MigrationConfig.load(self.file))

    def write(self, **changes: Any) -> None:
        """Write all files; `changes` are merged into the migration file."""
        forward = runs.document(self.source, self.target, [*self.topics, *self.include], tables="forward")
        backward = runs.document(self.target, self.source, self.topics, tables="backward")
        for document, (source, target) in ((forward, ("east", "west")), (backward, ("west", "east"))):
            document["source"]["alias"], document["target"]["alias"] = source, target
            document["write"]["slots"] = 2
        forward["topics"]["offsets"] = {".*": self.offsets}
        wave = {"name": "all", "topics": list(self.topics), "groups": list(self.groups), "reverse": "reverse.yaml"}
        migration: dict[str, Any] = {
            "migration": "drill",
            "mirror": "mirror.yaml",
            "waves": [wave],
            "writers": {"quiet": "1 second"},
            "tables": "migration",
            **changes,
        }
        for path, document in ((self.mirror_file, forward), (self.reverse_file, backward), (self.file, migration)):
            path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def start_mirror(self, conf: Path) -> MirrorProcess:
        mirror = MirrorProcess(
            conf,
            self.gate.address,
            self.folder / f"{conf.stem}.log",
            self.folder / f"scratch-{conf.stem}",
            WITHOUT_SPARK,
            {},
        )
        self.mirrors.append(mirror)
        return mirror

    def launch(self, file: str, log: Path, options: Sequence[str]) -> StartedMirror:
        """Start a mirror for a conductor or a rehearsal."""
        return StartedMirror(self.start_mirror(Path(file)).pid, log)

    def start_forward(self) -> None:
        """Start the mirror and wait until it has copied something."""
        self.start_mirror(self.mirror_file)
        settings = self.files().mirror
        runs.wait_for("the first positions", lambda: len(runs.positions(settings)) > 0)


@contextmanager
def scene(
    folder: Path,
    clusters: Any,
    topics: Sequence[str],
    groups: Sequence[str],
    include: Sequence[str] = (),
    offsets: str = "translated",
    **changes: Any,
) -> Iterator[Scene]:
    source, target = clusters.source.bootstrap, clusters.target.bootstrap
    with Gate(folder) as gate:
        made = Scene(folder, source, target, topics, groups, gate, include, offsets)
        made.write(**changes)
        try:
            yield made
        finally:
            for mirror in made.mirrors:
                mirror.kill()


class Operator:
    """`Reports`: stops and starts the application when the conductor says so."""

    def __init__(self, application: Application, addresses: Mapping[str, str]) -> None:
        """Take the bootstrap servers by alias."""
        self._application = application
        self._addresses = addresses
        self.lines: list[str] = []
        self.steps: list[Step] = []
        self.details: dict[Step, Mapping[str, Any]] = {}
        self._are_writers_stopped = self._are_groups_stopped = False
        self._lock = threading.Lock()

    def begun(self, wave: str, step: Step) -> None:
        self.steps.append(step)

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self.details[step] = detail

    def waits(self, outside: Outside) -> None:
        self.lines.append(outside.request)
        with self._lock:
            if outside.step is Step.STOP_WRITERS and not self._are_writers_stopped:
                self._are_writers_stopped = True
                self._application.stop_writers()
            if outside.step in (Step.STOP_WRITERS, Step.STOP_GROUPS) and not self._are_groups_stopped:
                self._are_groups_stopped = True
                self._application.stop_groups()

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)
        with self._lock:
            if "NOW: point the writers" in sentence and self._are_writers_stopped:
                self._are_writers_stopped = self._are_groups_stopped = False
                self._application.start(self._addresses[sentence.rsplit(" ", 1)[1]])
                self._application.await_writes()


@contextmanager
def running_application(
    folder: Path, clusters: Any, topic: str, partitions: int, **changes: Any
) -> Iterator[tuple[Scene, Application, Operator]]:
    """Yield a migration with three writers and three groups at the source, them, and who moves them when the conductor says so."""
    source, target = clusters.source.bootstrap, clusters.target.bootstrap
    groups = [f"{topic}.{number}" for number in range(3)]
    folder.mkdir(exist_ok=True)
    runs.create_topic(source, topic, partitions)
    with scene(folder, clusters, [topic], groups, **changes) as made, Application(topic, partitions, groups) as application:
        application.start(source)
        made.start_forward()
        runs.wait_for("a record for each group", lambda: all(group.read for group in application.groups))
        application.stop_groups()  # commits offsets
        for group in application.groups:
            group.start(source)
        yield made, application, Operator(application, {"east": source, "west": target})


def left_of_rehearsals(bootstrap: str) -> list[str]:
    """Return the topics and groups of rehearsals."""
    client = ClientConfig.from_properties({"bootstrap.servers": bootstrap})
    with closing(GroupClient(client, "cluster")) as groups:
        names = [*groups.listed(), *runs.admin(bootstrap).list_topics(timeout=20).topics]
    return [name for name in names if name.startswith("migrate-rehearsal-")]

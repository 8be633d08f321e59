"""Two clusters, a mirror in each direction that runs as a service, a migration, and commands of its operator."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from tests.operators.direct_transport import Network
from tests.operators.fake_cluster import FakeCluster
from tests.operators.lives import Life, Lives
from tests.operators.memory_tables import TableFolders, TableStore, Versions
from tests.operators.moves.application import PRINCIPAL, Application, Site
from tests.operators.moves.checker import Late, Place, Seen, check
from tests.operators.moves.processes import Process, Processes, SteppedClock
from tests.operators.world import FindingError
from tests.support import mirror_runs
from tests.support.inline_streams import Checkpoint, InlineStreams

from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.errors import MirrorError, OlderTablesError
from shallow_mirror.migration import Choice, MigrationState, read_state
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.late_settling import QUARANTINE_PREFIX, choice_of
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.operations.noted_controls import add_noted
from shallow_mirror.streaming.runs import Mirror

_getpid, _kill = os.getpid, os.kill

SIDES = ("east", "west")
FORWARD = "mirror.yaml"
MIGRATION = "migration.yaml"
LONGEST_STEP_S = 300.0
"""A step that takes longer never ends: whoever is asked acts within seconds."""
SUSPENDED_S = 200.0
"""How long a conductor is suspended while another one goes on."""
_REQUEST_S = 0.001
_TRIGGER_S = 2.0
_RESTART_S = 5.0
_BACKUP_S = 7.0
_COPIES = 12
_LONGEST_PAUSE_S = 3.0


@dataclass(frozen=True)
class Setting:
    """What differs between migrations. `waves`: the first letters of the topics of each. `pauses`: how often a process is suspended
    at a request, while others go on, in hundredths.
    """

    waves: tuple[str, ...] = ("ab",)
    has_plain_names: bool = False
    """The waves name their topics; without, by a pattern that matches later ones as well."""
    is_denied: bool = False
    is_started_by_conductor: bool = False
    isolation: str = "read_committed"
    quiet: str = "auto"
    pauses: int = 0
    seed: int = 0


@dataclass(eq=False)
class Service:
    """A mirror that is started again whenever it ends, unless somebody has to act first. `failure`: what has ended it."""

    file: str
    config: MirrorConfig
    is_wanted: bool = False
    process: Process | None = None
    failure: MirrorError | None = None
    copies: list[TablesCopy] = field(default_factory=list)
    newest: TablesCopy | None = None
    """What was in the place of older tables that were put back."""
    exchanged_under: Process | None = None
    """What ran when that was done, and was not stopped."""
    exchanged_at: tuple[int, int] = (0, 0)
    is_given_up: bool = False
    """Its last error says that it may not run any more."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.process.is_over


@dataclass(frozen=True, slots=True)
class TablesCopy:
    tables: dict[str, Versions]
    checkpoint: Checkpoint | None


class MovingWorld:
    def __init__(self, folder: Path, setting: Setting) -> None:
        self.folder, self.setting = folder, setting
        self.chance = random.Random(setting.seed)
        self.lives, self.clock = Lives(), SteppedClock()
        self.network = Network(self.lives)
        self.network.observe = self._on_request
        self.network.on_empty_fetch = self._await_records
        self.processes = Processes(self.clock, self.lives, self._on_switch)
        self.table_folders = TableFolders(self.lives)
        self.checkpoints: dict[str, Checkpoint] = {}
        self.clusters = {side: FakeCluster(side, self.clock.now_ms) for side in SIDES}
        for cluster in self.clusters.values():
            self.network.add(cluster.name, cluster.state)
            if setting.is_denied:
                cluster.state.acls = {}
        sites = [Site(wave, wave, tuple(f"g{letter}" for letter in wave)) for wave in setting.waves]
        self.application = Application(self.clusters, tuple(sites), self.chance)
        self.events: list[str] = []
        self.on_request: Callable[[Process], None] = lambda _: None
        self.waits: list[str] = []
        """What conductors have waited for."""
        self.lost: set[str] = set()
        """Values of topics that somebody has deleted."""
        self.deleted: set[str] = set()
        self.recreated: set[str] = set()
        self.left: set[str] = set()
        """Topics that a rollback has left where they are."""
        self.given_up: set[str] = set()
        """Topics that move with no wave any more."""
        self.runs = self.kills = self.remedies = 0
        self.migration_copies: list[dict[str, Versions]] = []
        """The table of the migration before each command."""
        self.newest_migration: dict[str, Versions] | None = None
        """What was in its place before an older one was put back."""
        self._progress_at_s = self._put_back_at_s = 0.0
        self.has_diverged = False
        """Rows were added to older tables before a check could find that these are older."""
        self.conductor: Process | None = None
        """The last one that was started."""
        self.after_abort: list[Callable[[], None]] = []
        """What is to be done once the wave that is under way is aborted: its conductor was ended for that."""
        folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        self.files = MigrationFiles(MigrationConfig.load(folder / MIGRATION))
        self.services = {FORWARD: Service(FORWARD, self.files.mirror)}
        for site in sites:
            reverse = self.files.wave(site.wave).reverse
            assert reverse is not None
            self.services[Path(reverse).name] = Service(Path(reverse).name, self.files.reverses[site.wave])

    # --- files ---

    def _write_files(self) -> None:
        letters = "".join(self.setting.waves)
        self._write(FORWARD, self._mirror("forward", letters, *SIDES))
        waves = []
        for wave in self.setting.waves:
            reverse = f"back-{wave}.yaml"
            self._write(reverse, self._mirror(f"back-{wave}", wave, *reversed(SIDES)))
            groups = [f"g{letter}" for letter in wave]
            waves.append({"name": wave, "topics": self.patterns(wave), "groups": groups, "reverse": reverse})
        writers: dict[str, Any] = {"quiet": self.setting.quiet}
        if self.setting.is_denied:
            writers |= {"stop": "deny", "principals": [PRINCIPAL]}
        self._write(
            MIGRATION,
            {
                "migration": "m",
                "mirror": FORWARD,
                "waves": waves,
                "writers": writers,
                "reverse": {"start": "conductor" if self.setting.is_started_by_conductor else "operator"},
                "tables": "migration",
            },
        )

    def patterns(self, wave: str) -> list[str]:
        return list(wave) if self.setting.has_plain_names else [f"[{wave}].*"]

    def _mirror(self, name: str, letters: str, source: str, target: str) -> dict[str, Any]:
        document = mirror_runs.document(
            f"{source}:9092",
            f"{target}:9092",
            [f"[{letters}].*"],
            mirror=name,
            tables=name,
            read={"isolation_level": self.setting.isolation},
            write={"slots": 2, "transaction_timeout_ms": 60_000},
        )
        document["source"]["alias"], document["target"]["alias"] = source, target
        return document

    def exclude(self, mirror: str, topics: Sequence[str]) -> None:
        """Exclude topics in the file of a mirror, which is started again with it."""
        document = yaml.safe_load((self.folder / self._service(mirror).file).read_text(encoding="utf-8"))
        self.change(mirror, "topics", exclude=[*document["topics"].get("exclude", []), *topics])

    def change(self, mirror: str, group: str, **settings: Any) -> None:
        """Change settings of a group in the file of a mirror, which is started again with it."""
        service = self._service(mirror)
        document = yaml.safe_load((self.folder / service.file).read_text(encoding="utf-8"))
        document[group] = {**document[group], **settings}
        self._write(service.file, document)
        self.files = MigrationFiles(MigrationConfig.load(self.folder / MIGRATION))
        service.config = MirrorConfig.load(self.folder / service.file)
        self.kill(service)

    def _service(self, mirror: str) -> Service:
        (service,) = (service for service in self.services.values() if service.config.mirror == mirror)
        return service

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")

    # --- processes ---

    @property
    def wall_clock(self) -> Clock:
        return Clock(monotonic=self.clock.monotonic, sleep=self.clock.sleep, now_ms=self.clock.now_ms)

    def _on_switch(self, process: Process | None) -> None:
        worker_clients._clusters = {} if process is None else process.clusters

    def _on_request(self, _host: str, _api: str) -> None:
        self.clock.advance(_REQUEST_S)
        process = self.processes.current
        if process is None:
            return
        process.requests += 1
        self.on_request(process)
        if self.setting.pauses and self.chance.randrange(100) < self.setting.pauses:
            self.processes.sleep(self.chance.uniform(0, _LONGEST_PAUSE_S))

    def _await_records(self, seconds: float) -> None:
        """Let the time of a long poll go by; where requests pause, others go on meanwhile."""
        if self.setting.pauses:
            self.processes.sleep(seconds)
        else:
            self.clock.advance(seconds)

    def getpid(self) -> int:
        process = self.processes.current
        return _getpid() if process is None else process.pid

    def kill_signal(self, pid: int, signal: int) -> None:
        """`os.kill`, which tells whether a process is alive."""
        process = self.processes.known.get(pid)
        if process is None:
            _kill(pid, signal)
        elif process.is_over:
            raise ProcessLookupError(pid)

    def begin(self) -> None:
        """Create the topics, start the mirror, and let time go by: a second of the application, backups of the tables."""
        for site in self.application.sites:
            for number, letter in enumerate(site.letters):
                self.clusters["east"].create_topic(letter, 2 - number % 2)
            self.application.start_consumers(site, "east")
        self.services[FORWARD].is_wanted = True
        self.start(self.services[FORWARD])
        self._tick()
        self._back_up()

    def _tick(self) -> None:
        self.application.tick()
        self.processes.at(1.0, self._tick)

    def _back_up(self) -> None:
        for service in self.services.values():
            service.copies.append(self.copied_tables(service))
            del service.copies[:-_COPIES]
        self.processes.at(_BACKUP_S, self._back_up)

    def let(self, seconds: float) -> None:
        """Let so much time go by."""
        until = self.clock.now_s + seconds
        self.processes.at(seconds, lambda: None)
        self.processes.run_until(lambda: self.clock.now_s >= until)

    def come_to_rest(self) -> None:
        """Let writers stop, all transactions end, and mirrors copy what is left."""
        for site in self.application.sites:
            self.application.stop_writers(site)
        for txn in list(self.application.open_txns):
            self.application.end(txn, is_commit=True)
        self.let(30)

    # --- mirrors ---

    def start(self, service: Service, life: Life | None = None) -> None:
        if not service.is_running:
            self.runs += 1
            service.failure, service.is_given_up = None, False
            service.process = self.processes.start(service.config.mirror, lambda: self._mirror_process(service), life)

    def kill(self, service: Service) -> None:
        """SIGKILL, if it runs."""
        if service.process is not None and service.is_running:
            self.kills += 1
            self.processes.kill(service.process)

    def _mirror_process(self, service: Service) -> None:
        process, mirror = self.processes.current, Mirror(service.config)
        assert process is not None

        def on_idle() -> None:
            self.clock.sleep(_TRIGGER_S)
            if not service.is_wanted:
                mirror.stop()

        try:
            mirror.run(InlineStreams(self.checkpoints, on_idle))
        except MirrorError as error:
            service.failure = error
        finally:
            self.processes.at(_RESTART_S, lambda: self._supervise(service, process))

    def _supervise(self, service: Service, ended: Process) -> None:
        """Do what systemd does, and an operator who reads the log."""
        if service.process is not ended or not service.is_wanted:
            return
        if service.failure is not None:
            error, service.failure = service.failure, None
            self.events.append(f"{service.config.mirror}: {type(error).__name__}: {error}")
            self.mend(service, error)
        if not service.is_given_up:
            self.start(service)

    def mend(self, service: Service, error: MirrorError) -> None:
        """Take the remedy that the error of a mirror names. Raise FindingError if none is known."""
        from tests.operators.moves.remedies import mend_mirror

        mend_mirror(self, service, error)

    def launch(self, file: str, log: Path, _options: Sequence[str] = ()) -> StartedMirror:
        """Start a reverse mirror for a conductor."""
        service = self.services[Path(file).name]
        service.is_wanted = True
        self.start(service)
        assert service.process is not None
        return StartedMirror(service.process.pid, log)

    def controls(self, service: Service) -> Controls:
        return Controls.open(TableStorage.to_write(service.config.table_location, service.config.tables_writer))

    def add_control(self, service: Service, action: ControlAction, topics: Sequence[str]) -> None:
        """`shallow-mirror pause` or `resume`, which may be refused: once with older tables, in whose place the newest ones come."""
        try:
            add_noted(service.config, action, topics)
        except MirrorError as refused:
            self.events.append(f"{action} {topics}: {type(refused).__name__}: {refused}")
            if isinstance(refused, OlderTablesError) and service.newest is not None:
                self.put_newest_back(service.config.mirror)
                self.add_control(service, action, topics)

    def copying_service(self, site: Site) -> Service:
        """Return the mirror that copies from where the wave is."""
        if site.side == "east":
            return self.services[FORWARD]
        return self.reverse_service(site)

    def reverse_service(self, site: Site) -> Service:
        return self.services[f"back-{site.wave}.yaml"]

    # --- tables ---

    def copied_tables(self, service: Service) -> TablesCopy:
        checkpoint = self.checkpoints.get(service.config.checkpoint)
        return TablesCopy(self.table_folders.at(service.config.tables).copy(), None if checkpoint is None else checkpoint.copy())

    @property
    def migration_table(self) -> TableStore:
        return self.table_folders.at(str(self.files.config.tables))

    @property
    def had_older_tables(self) -> bool:
        """Return whether a mirror has had older tables lately: what was seen of it then says nothing."""
        return self.clock.now_s - self._put_back_at_s < LONGEST_STEP_S

    def put_back(self, service: Service, copy: TablesCopy) -> None:
        self._put_back_at_s = self.clock.now_s
        self.table_folders.at(service.config.tables).put_back(copy.tables)
        if copy.checkpoint is not None:
            self.checkpoints[service.config.checkpoint] = copy.checkpoint.copy()

    def put_newest_back(self, mirror: str) -> None:
        """Put the newest tables of a mirror in their place, unless they are there."""
        service = self._service(mirror)
        if (
            service.newest is not None
            and service.exchanged_under is None
            and not _lacks(self.copied_tables(service), service.newest)
        ):
            service.newest = None  # the copy that was put back had everything, and the mirror has continued from it
        if service.newest is not None:
            self._note_divergence(service)
            self.put_back(service, service.newest)
            service.newest = None
            self.events.append(f"{mirror}: put the newest tables back")

    def keep_newest(self, service: Service) -> None:
        """Keep a copy of the tables, unless those in place are older ones."""
        self._note_divergence(service)
        if service.newest is None or self._is_newest(service, service.newest):
            service.newest = self.copied_tables(service)

    def _is_newest(self, service: Service, kept: TablesCopy) -> bool:
        """Return whether the tables in place have everything of the ones that were kept. Note where neither has."""
        current = self.copied_tables(service)
        is_newest = not _lacks(current, kept)
        self.has_diverged = self.has_diverged or (not is_newest and _lacks(kept, current))
        return is_newest

    def _note_divergence(self, service: Service) -> None:
        if service.exchanged_under is not None and self._written(service) != service.exchanged_at:
            self.has_diverged = True

    def exchange(self, service: Service, copy: TablesCopy) -> None:
        """Put older tables in the place of those of a mirror that runs."""
        self.put_back(service, replace(copy, checkpoint=None))
        service.exchanged_under, service.exchanged_at = service.process, self._written(service)

    def _written(self, service: Service) -> tuple[int, int]:
        """Return how many rows two tables have: who adds some to an older copy that is in place for a moment takes it for the
        newest, and there is none any more that has all.
        """
        tables = self.table_folders.at(service.config.tables).tables
        return _count(tables, "offset_map"), _count(tables, "controls")

    # --- commands ---

    def command(self, name: str, perform: Callable[[], None], life: Life | None = None) -> MirrorError | None:
        """Perform a command in a process of its own, while everything else goes on. Return the error that ended it.

        Raise FindingError where it waits for ever, or ends with an error that is none of the package.
        """
        process = self.conductor = self.processes.start(name, perform, life)
        self.await_progress(lambda: process.is_over)
        if process.life.is_over:
            self.kills += 1
            self.events.append(f"{name}: killed")
            return None
        if process.error is None or isinstance(process.error, MirrorError):
            return process.error
        raise process.error

    def await_progress(self, is_done: Callable[[], bool]) -> None:
        """Let everything go on until conductors have done something. Raise FindingError where a step of one never ends."""
        self.waits.clear()
        self.note_progress()
        self.processes.run_until(lambda: is_done() or self.clock.now_s > self._progress_at_s + LONGEST_STEP_S)
        if not is_done():
            raise FindingError(f"a conductor waits for ever; it waited last for: {self.waits[-1] if self.waits else 'nothing'}")

    def note_progress(self) -> None:
        """Note that a command goes on: a step has begun."""
        self._progress_at_s = self.clock.now_s

    def state(self) -> MigrationState:
        return read_state(self.files)

    # --- the observer ---

    def check(self) -> list[str]:
        """Return what differs once everything is copied and read."""
        self.application.read_everything()
        differences = list(self.application.misread)
        state = self.state()
        for site in self.application.sites:
            settled = state.waves[site.wave].late_writes
            differences += check(self._seen(site, settled))
            left = replace(site, groups=(), side="west")
            differences += check(self._seen(left, settled, are_left=True))
        return differences

    def _seen(self, site: Site, settled: Sequence[Any], *, are_left: bool = False) -> Seen:
        """`are_left`: of what was written to topics that a rollback has left where they are, else of all others."""
        written = [record for record in self.application.written if site.has(record.topic)]
        topics = {record.topic for record in written if record.topic in self.left or not are_left}
        # Also a topic of the other cluster may have the name of one that was left.
        elsewhere = {record.value for record in written if (record.topic in self.left and record.side == "west") is not are_left}
        return Seen(
            site=site,
            written=written,
            visible={side: self._visible(topics, side) for side in SIDES},
            quarantine={side: self._quarantined(topics, side) for side in SIDES},
            read={group: self.application.read[group] for group in site.groups},
            late=Late(self._late(site, settled, Choice.CARRY), self._late(site, settled, Choice.QUARANTINE)),
            lost=frozenset(self.lost | elsewhere | {record.value for record in written if record.topic in self.given_up}),
            is_uncommitted=self.setting.isolation == "read_uncommitted",
        )

    def _visible(self, topics: Set[str], side: str) -> dict[Place, list[str]]:
        cluster = self.clusters[side]
        return {
            (topic, partition): [value for _, value in sorted(cluster.read(topic, partition).items())]
            for topic in sorted(topics & cluster.topic_ids().keys())
            for partition in range(cluster.partitions(topic))
        }

    def _quarantined(self, topics: Set[str], side: str) -> list[str]:
        cluster = self.clusters[side]
        names = [name for name in cluster.topic_ids() if name.startswith(QUARANTINE_PREFIX)]
        wanted = [name for name in names if name.removeprefix(QUARANTINE_PREFIX) in topics]
        return [
            value
            for topic in wanted
            for partition in range(cluster.partitions(topic))
            for value in cluster.read(topic, partition).values()
        ]

    def _late(self, site: Site, settled: Sequence[Any], choice: Choice) -> frozenset[str]:
        found = set()
        for each in settled:
            side = "east" if each["direction"] == "move" else "west"
            for write in each["writes"]:
                if choice_of(each, LateWrite.of(write)) is not choice:
                    continue
                found |= {
                    record.value
                    for record in self.application.written
                    if record.side == side
                    and (record.topic, record.partition) == (write["topic"], write["partition"])
                    and record.topic_id == write.get("topic_id", record.topic_id)
                    and write["start"] <= record.offset < write["end"]
                }
        return frozenset(found)


def _lacks(copy: TablesCopy, newest: TablesCopy) -> bool:
    return any(_count(copy.tables, name) < _count(newest.tables, name) for name in ("offset_map", "controls"))


def _count(tables: Mapping[str, Versions], name: str) -> int:
    """Return the rows of a table, -1 if there is none: a start with older tables adds a version, but no row."""
    return tables[name][-1].rows.num_rows if tables.get(name) else -1

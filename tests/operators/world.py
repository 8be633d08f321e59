"""Two strict clusters, a mirror between them that is run, killed and reconfigured, and what an observer knows of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.operators.checker import GroupCommit, Observation, check, position_of, rows_of, shortened
from tests.operators.direct_transport import Network
from tests.operators.fake_cluster import FakeCluster, WriterTxn
from tests.operators.history import LogKey, Outcome, Produced, SourceLog, SourceTxn, TargetLog
from tests.operators.inline_streams import Checkpoint, InlineStreams
from tests.operators.lives import KilledError, Life, Lives
from tests.operators.memory_tables import TablePlaces, Versions, settled_rows
from tests.operators.virtual_clock import VirtualClock
from tests.support import mirror_runs

from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.checkpoints.logs.controls import Controls
from shallow_mirror.checkpoints.tables.storage import MirrorStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.streaming.runs.mirror import Mirror
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor

GROUPS = ("g1", "g2")
_IDLE_S = 20.0
MOST_WAITS = 12
"""So often a run may try again. Nothing here recovers by itself, so that more would be for ever."""


class FindingError(Exception):
    """What no operator should see: records lost or twice, or a stop without a way on."""


class WaitsForeverError(BaseException):
    """A run tries the same again and again. Not an `Exception`: the supervisor would retry it."""


@dataclass
class Settings:
    """What the generator changes in the mirror file. `number`: of the mirror; another one has another id, tables and checkpoint."""

    isolation: str = "read_committed"
    on_data_loss: str = "stop"
    offsets: str = "translated"
    excluded: set[str] = field(default_factory=set)
    target_name: str = "{topic}"
    number: int = 0

    def key(self) -> tuple[Any, ...]:
        excluded = tuple(sorted(self.excluded))
        return self.isolation, self.on_data_loss, self.offsets, excluded, self.target_name, self.number


@dataclass(frozen=True, slots=True)
class TablesCopy:
    """What an operator has copied of the folder of tables, with or without the Spark checkpoint in it."""

    number: int
    tables: dict[str, Versions]
    checkpoint: Checkpoint | None


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lives = Lives()
        self.clock = VirtualClock()
        self.network = Network(self.lives)
        self.places = TablePlaces(self.lives)
        self.checkpoints: dict[str, Checkpoint] = {}
        self.source, self.target = (FakeCluster(name, self.clock.now_ms) for name in ("east", "west"))
        for cluster in (self.source, self.target):
            self.network.add(cluster.name, cluster.state)
        self.settings = Settings()
        self.logs: dict[LogKey, SourceLog] = {}
        self.former_targets: dict[LogKey, TargetLog] = {}
        """Logs of target topics that were deleted."""
        self.foreign: set[str] = set()
        self.group_commits: dict[tuple[str, LogKey], GroupCommit] = {}
        self.open_txns: list[tuple[WriterTxn, SourceTxn]] = []
        self.copies: list[TablesCopy] = []
        self.newest: TablesCopy | None = None
        """What was in the place of older tables that were put back; None where the newest tables are in their place."""
        self.waits: list[str] = []
        self.patience_s = 0.0
        """How long the next run goes on; 0: up to the log ends of its start."""
        self.older_rows: list[dict[str, Any]] = []
        """Of the tables that were put back last."""
        self.may_write_foreign = True
        self.monitor: TopicMonitor | None = None
        self.events: list[str] = []
        """What happened, for the script of a finding."""
        self.runs = self.kills = self.remedies = self.records = 0
        self._configs: dict[tuple[Any, ...], MirrorConfig] = {}
        self._values = 0

    # --- the mirror file, its tables and its runs ---

    @property
    def config(self) -> MirrorConfig:
        key = self.settings.key()
        if key not in self._configs:
            chosen = self.settings
            topics: dict[str, Any] = {"include": ["[a-z]"], "exclude": sorted(chosen.excluded), "target_name": chosen.target_name}
            if chosen.offsets != "translated":
                topics["offsets"] = {".*": chosen.offsets}
            self._configs[key] = mirror_runs.config(
                self.folder,
                self.source.bootstrap,
                self.target.bootstrap,
                topics["include"],
                mirror=f"m{chosen.number}",
                tables=f"tables{chosen.number}",
                topics=topics,
                read={"isolation_level": chosen.isolation, "on_data_loss": chosen.on_data_loss},
                write={"slots": 2, "transaction_timeout_ms": 60_000},
            )
        return self._configs[key]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return settled_rows(self.places.at(self.config.tables).tables.get("offset_map", []))

    def run(self, life: Life, during: dict[int, Callable[[], None]] | None = None) -> MirrorError | None:
        """Run the mirror up to the log ends; return the error that ended it. `during`: called before the request of a number.

        Raises KilledError where its life ends before.
        """
        self.runs += 1
        self.waits = []
        before = {key: position_of(rows_of(self.rows, key)) or 0 for key in self.logs}
        kept_back = self.not_copied() if self.has_tables() else frozenset[str]()
        visible = self._visible() if kept_back else Counter[str]()
        requests = 0

        def observe(_host: str, _api: str) -> None:
            nonlocal requests
            requests += 1
            event = (during or {}).get(requests)
            if event is not None:
                with self.other_process():
                    event()

        self.lives.current, self.network.observe = life, observe
        mirror = Mirror(self.config)
        patience_s, self.patience_s = self.patience_s, 0.0
        ends_at = self.clock.monotonic() + patience_s

        def on_idle() -> None:
            self.clock.sleep(_IDLE_S)
            with self.other_process():
                assert self.monitor is not None
                self.monitor._read_controls()  # as its thread does every three seconds
            if self.clock.monotonic() > ends_at:
                mirror.stop()

        try:
            mirror.run(InlineStreams(self.checkpoints, on_idle), available_now=not patience_s)
        except MirrorError as error:
            return error
        except WaitsForeverError as waiting:
            raise FindingError(f"the run waits for ever: {waiting}") from waiting
        finally:
            self.network.observe = lambda *_: None
            self.lives.current = Life()
            if life.is_over:
                self.kills += 1
                worker_clients._clusters.clear()
            self._note_positions(before)
        if life.is_over:
            raise KilledError
        self.newest = None  # the tables that are in their place now are the newest ones
        if not during:
            self._require_kept_back(kept_back, before, visible)
        self.copies.append(self.copied_tables(with_checkpoint=self.runs % 2 == 0))  # as a backup every night
        return None

    def _require_kept_back(self, topics: frozenset[str], before: dict[LogKey, int], visible: Counter[str]) -> None:
        """Require that nothing was copied of topics that were paused or handed over when the run began.

        A run that ends preservation adds rows of records that the target had before: these are `visible`.
        """
        copied = self._visible() - visible if topics else Counter[str]()
        for key, log in self.logs.items():
            position = position_of(rows_of(self.rows, key)) or 0
            is_copied = any(record.value in copied for record in log.records if before[key] <= record.offset < position)
            if key.topic in topics and position > before[key] > 0 and is_copied:
                raise FindingError(f"{key.topic}-{key.partition} is paused or handed over, and was copied up to {position}")

    @contextmanager
    def other_process(self) -> Iterator[None]:
        """Perform the block in a process that is not killed."""
        former, self.lives.current = self.lives.current, Life()
        try:
            yield
        finally:
            self.lives.current = former

    def _note_positions(self, before: dict[LogKey, int]) -> None:
        for key, log in self.logs.items():
            if self.settings.isolation == "read_uncommitted":
                position = position_of(rows_of(self.rows, key)) or 0
                start, end = before.get(key, 0), max(position, 0 if log.is_gone else self._preserved_end(key))
                if start < end:
                    log.uncommitted.append((start, end))

    def _preserved_end(self, key: LogKey) -> int:
        """Return the log end of a target with preserved offsets: what a killed run wrote there is visible without a decision."""
        name = self.settings.target_name.format(topic=key.topic)
        is_preserved = self.settings.offsets != "translated" and name in self.target.topic_ids()
        if not is_preserved or key.partition >= self.target.partitions(name):
            return 0
        return self.target.bounds(name, key.partition)[1]

    def controls(self) -> Controls:
        return Controls.open(MirrorStorage.to_write(self.config.table_location, self.config.tables_writer))

    def not_copied(self) -> frozenset[str]:
        return self.controls().read().not_copied

    def has_tables(self) -> bool:
        return bool(self.places.at(self.config.tables).tables.get("offset_map"))

    def copied_tables(self, *, with_checkpoint: bool) -> TablesCopy:
        checkpoint = self.checkpoints.get(self.config.checkpoint)
        kept = checkpoint.copy() if checkpoint is not None and with_checkpoint else None
        return TablesCopy(self.settings.number, self.places.at(self.config.tables).copy(), kept)

    def put_back(self, copy: TablesCopy) -> None:
        self.places.at(self.config.tables).put_back(copy.tables)
        if copy.checkpoint is not None:
            self.checkpoints[self.config.checkpoint] = copy.checkpoint.copy()

    def put_back_older(self, copy: TablesCopy) -> None:
        """Put tables back that may be older than those in their place, which are kept."""
        current = self.copied_tables(with_checkpoint=True)
        self.copies.append(current)
        if self.newest is None or self.rows != self.older_rows:  # nothing is decided with tables that are not the newest
            self.newest = current
        self.put_back(copy)
        self.older_rows = self.rows

    def continue_from_older(self) -> None:
        """Note that what only the newest tables have is copied again."""
        assert self.newest is not None
        newer = settled_rows(self.newest.tables["offset_map"])
        for key, log in self.logs.items():
            start, end = position_of(rows_of(self.rows, key)) or 0, position_of(rows_of(newer, key)) or 0
            if start < end:
                log.repeats.append((start, end))
        self.newest = None

    def begin_another_mirror(self) -> None:
        """Note that everything is copied again by a mirror with another id, tables and checkpoint."""
        self.leave_copies()
        self.group_commits.clear()
        self.settings.number += 1
        self.newest = None

    def leave_copies(self) -> None:
        """Note that what is at the target stays there beside further copies."""
        visible = self._visible()
        for log in self.logs.values():
            log.repeats += [(record.offset, record.offset + 1) for record in log.records if record.value in visible]

    def _visible(self) -> Counter[str]:
        """Return how often each value is at the target."""
        topics = [topic for topic in self.target.topic_ids() if not topic.startswith("__")]
        places = [(topic, partition) for topic in topics for partition in range(self.target.partitions(topic))]
        return Counter(value for place in places for value in self.target.read(*place).values())

    # --- what happens at the source ---

    def key_of(self, topic: str, partition: int) -> LogKey:
        return LogKey(topic, self.source.topic_ids()[topic], partition)

    def create_source_topic(self, topic: str, partitions: int) -> None:
        self.source.create_topic(topic, partitions)
        for partition in range(partitions):
            self.logs[self.key_of(topic, partition)] = SourceLog()

    def produce(self, topic: str, partition: int, count: int, txn: tuple[WriterTxn, SourceTxn] | None = None) -> None:
        values = [f"{topic}{partition}:{self._values + number}" for number in range(count)]
        self._values += count
        self.records += count
        first = self.source.produce(topic, partition, values, None if txn is None else txn[0])
        log = self.logs[self.key_of(topic, partition)]
        log.records += [Produced(first + delta, value, txn and txn[1]) for delta, value in enumerate(values)]
        log.end = first + count

    def end_txn(self, txn: tuple[WriterTxn, SourceTxn], *, is_commit: bool) -> None:
        writer, known = txn
        self.open_txns.remove(txn)
        existing = [place for place in writer.sequences if place[0] in self.source.topic_ids()]
        self.source.end(writer, is_commit=is_commit)
        known.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        for topic, partition in existing:
            key = self.key_of(topic, partition)
            self.logs[key].end = self.source.bounds(topic, partition)[1]

    def delete_source_topic(self, topic: str) -> None:
        for key, log in self.logs.items():
            if key.topic == topic and key.topic_id == self.source.topic_ids()[topic]:
                log.is_gone = True
        for txn in [txn for txn in self.open_txns if any(place[0] == topic for place in txn[0].sequences)]:
            self.end_txn(txn, is_commit=False)
        self.source.delete_topic(topic)

    def delete_target_topic(self, topic: str) -> None:
        topic_id = self.target.topic_ids()[topic]
        for partition in range(self.target.partitions(topic)):
            self.former_targets[LogKey(topic, topic_id, partition)] = TargetLog(self.target.read(topic, partition), is_gone=True)
        self.target.delete_topic(topic)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self.source.delete_records(topic, partition, before)
        self.logs[self.key_of(topic, partition)].deleted_before = before

    def grow_source_topic(self, topic: str) -> None:
        count = self.source.partitions(topic)
        self.source.add_partitions(topic, count + 1)
        self.logs[self.key_of(topic, count)] = SourceLog()

    def sync_groups(self) -> None:
        """Let the mirror commit the positions of groups at the target, and note what it committed."""
        before = {group: self.target.group_offsets(group) for group in GROUPS}
        sync_groups(self.config, is_applied=True)
        source_ids, target_ids = self.source.topic_ids(), self.target.topic_ids()
        for group in GROUPS:
            for (name, partition), offset in self.target.group_offsets(group).items():
                topic = name.partition(".")[0]
                if before[group].get((name, partition)) == offset or topic not in source_ids or name not in target_ids:
                    continue
                source, target = LogKey(topic, source_ids[topic], partition), LogKey(name, target_ids[name], partition)
                own = self.source.group_offsets(group).get((topic, partition))
                if own is None:
                    raise FindingError(f"group {group} was given an offset of {name}-{partition}, of which it has none")
                self.group_commits[group, source] = GroupCommit(
                    group, source, own, target, offset, self.target.bounds(name, partition)[1]
                )

    def foreign_write(self, topic: str, partition: int) -> None:
        self._values += 1
        value = f"foreign:{self._values}"
        self.foreign.add(value)
        self.target.produce(topic, partition, [value])

    # --- the observer ---

    def observe(self, *, is_final: bool) -> Observation:
        target = dict(self.former_targets)
        ids = self.target.topic_ids()
        for topic, topic_id in ids.items():
            if topic.startswith("__"):
                continue
            for partition in range(self.target.partitions(topic)):
                key = LogKey(topic, topic_id, partition)
                target[key] = TargetLog(self.target.read(topic, partition), self.target.bounds(topic, partition)[0])
        left_out = self.not_copied() | self.settings.excluded if self.has_tables() else self.settings.excluded
        complete = {key for key, log in self.logs.items() if not log.is_gone and key.topic not in left_out}
        return Observation(
            source=self.logs,
            target=target,
            rows=self.rows,
            foreign=frozenset(self.foreign),
            groups=list(self.group_commits.values()),
            complete=frozenset(complete) if is_final else frozenset(),
            read_uncommitted=self.settings.isolation == "read_uncommitted",
        )

    def check(self, *, is_final: bool = True) -> None:
        """Raise FindingError where something differs. `is_final`: a run has ended, so everything is copied."""
        differences = check(self.observe(is_final=is_final))
        if differences:
            raise FindingError(shortened(differences))

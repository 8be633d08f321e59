"""Two clusters, a mirror between them that is run, killed and reconfigured, and what an observer knows of all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tests.operators.checker import GroupCommit, Observation, Row, check, position_of, rows_of, shortened
from tests.operators.history import LogKey, Outcome, Produced, SourceLog, SourceTxn, TargetLog
from tests.operators.lives import KilledError, Life
from tests.support import mirror_runs

from shallow_mirror.checkpoints.logs import Quarantine
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.groups.sync import GroupSyncer
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.operations.forget import forget
from shallow_mirror.operations.quarantine import Selection
from shallow_mirror.operations.quarantine_retry import retry
from shallow_mirror.operations.redo import RedoRequest, redo, redo_config
from shallow_mirror.sinks.kafka import ReleaseResult
from shallow_mirror.types import SourcePartition, TopicPartition

TOPICS = ("a", "b")
REDO_PREFIX = "redo"
GROUPS = ("g1", "g2")
During = Mapping[int, Callable[[], None]]
"""What happens meanwhile, by the number of the request it happens at."""


class FindingError(Exception):
    """What no operator should see: records lost or twice, or a stop without a way on."""


@dataclass
class Settings:
    """What the generator changes in the mirror file. `number`: of the mirror; another one has another id, tables and checkpoint."""

    isolation: str = "read_committed"
    on_data_loss: str = "stop"
    offsets: str = "translated"
    excluded: set[str] = field(default_factory=set)
    target_name: str = "{topic}"
    number: int = 0
    on_refused: str = "stop"
    coalesce_bytes: int | str | None = None

    def key(self) -> tuple[Any, ...]:
        values = {**vars(self), "excluded": tuple(sorted(self.excluded))}
        return tuple(values.values())


@dataclass(frozen=True, slots=True)
class TablesCopy:
    """What an operator has copied of the folder of tables, with or without the Spark checkpoint in it."""

    number: int
    tables: Any
    checkpoint: Any
    """None: without it."""


@dataclass(frozen=True, slots=True)
class Redone:
    """Offsets [start, end) of a source log that `redo` has copied to a topic of their own."""

    source: LogKey
    start: int
    end: int
    topic: str
    is_uncommitted: bool
    """Whether records of aborted and open transactions may be in the copy."""


class WriterTxn(Protocol):
    """An open transaction of a writer."""

    @property
    def sequences(self) -> Mapping[tuple[str, int], int]:
        """How many records it wrote, by partition."""


class ObservedCluster(Protocol):
    """A cluster as its clients and its operator use it: writers, transactions, topics, groups, and a reader of their records."""

    @property
    def bootstrap(self) -> str: ...

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def add_partitions(self, topic: str, partitions: int) -> None: ...

    def set_config(self, topic: str, name: str, value: str) -> None: ...

    def topic_ids(self) -> dict[str, str]: ...

    def partitions(self, topic: str) -> int: ...

    def begin(self) -> Any: ...

    def produce(self, topic: str, partition: int, values: list[str], txn: Any = None) -> int:
        """Write one batch; return the offset of its first record."""

    def end(self, txn: Any, *, is_commit: bool) -> None: ...

    def delete_records(self, topic: str, partition: int, before: int) -> None: ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]: ...

    def read(self, topic: str, partition: int) -> dict[int, str]:
        """Return what a read_committed consumer sees, without tombstones: values by offset."""

    def commit_group(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]: ...


class World(ABC):
    """`suffix`: of the names of topics, groups and mirrors, where several worlds share their clusters."""

    source: ObservedCluster
    target: ObservedCluster

    def __init__(self, folder: Path, suffix: str = "") -> None:
        self.folder, self.suffix = folder, suffix
        self.topics, self.groups = ([f"{name}{suffix}" for name in names] for names in (TOPICS, GROUPS))
        self.settings = Settings()
        self.logs: dict[LogKey, SourceLog] = {}
        self.former_targets: dict[LogKey, TargetLog] = {}
        """Logs of target topics that were deleted."""
        self.foreign: set[str] = set()
        self.group_commits: dict[tuple[str, LogKey], GroupCommit] = {}
        self.open_txns: list[tuple[WriterTxn, SourceTxn]] = []
        self.redone: list[Redone] = []
        self.copies: list[TablesCopy] = []
        self.newest: TablesCopy | None = None
        """What was in the place of older tables that were put back; None where the newest tables are in their place."""
        self.waits: list[str] = []
        self.patience_s = 0.0
        """How long the next run lasts; 0: up to the log ends of its start."""
        self.older_rows: Sequence[Row] = ()
        """Of the tables that were put back last."""
        self.may_write_foreign = True
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
            self._configs[key] = MirrorConfig.from_document(self.document, folder=self.folder)
        return self._configs[key]

    @property
    def document(self) -> dict[str, Any]:
        """The mirror file."""
        chosen = self.settings
        topics: dict[str, Any] = {
            "include": [f"[a-z]{self.suffix}"],
            "exclude": sorted(chosen.excluded),
            "target_name": chosen.target_name,
        }
        if chosen.offsets != "translated":
            topics["offsets"] = {".*": chosen.offsets}
        written: dict[str, Any] = {} if chosen.on_refused == "stop" else {"on_refused": chosen.on_refused}
        if chosen.coalesce_bytes is not None:
            written["coalesce_bytes"] = chosen.coalesce_bytes
        return mirror_runs.document(
            self.source.bootstrap,
            self.target.bootstrap,
            topics["include"],
            mirror=f"m{chosen.number}{self.suffix}",
            tables=f"tables{chosen.number}",
            topics=topics,
            read={"isolation_level": chosen.isolation, "on_data_loss": chosen.on_data_loss},
            write={"slots": 2, "transaction_timeout_ms": 60_000, **written},
        )

    @property
    def rows(self) -> Sequence[Row]:
        """All of the offset map of the mirror; none before its first run."""
        return self.rows_in(self.config.tables)

    @abstractmethod
    def rows_in(self, tables: Any) -> Sequence[Row]:
        """Return all rows of the offset map in these tables, or in a copy of them."""

    @abstractmethod
    def ended_by(self, life: Life, during: During, patience_s: float) -> MirrorError | None:
        """Run the mirror, up to the log ends or so long; return the error that ended it. `life` is over where it was killed.

        Raises FindingError where it tries the same for ever.
        """

    def run_beside(self) -> MirrorError | None:
        """Run the same mirror in another process, from within a run of this one; return the error that ended it."""
        raise NotImplementedError("only clusters in memory let a run stand still between two requests")

    @abstractmethod
    def has_tables(self) -> bool: ...

    @abstractmethod
    def copied_tables(self, *, with_checkpoint: bool) -> TablesCopy: ...

    @abstractmethod
    def put_back(self, copy: TablesCopy) -> None: ...

    @abstractmethod
    def lose_checkpoint(self) -> None: ...

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Let so much time go by."""

    def run(self, life: Life, during: During | None = None) -> MirrorError | None:
        """Run the mirror up to the log ends; return the error that ended it. `during`: called before the request of a number.

        Raises KilledError where its life ends before.
        """
        self.runs += 1
        before = self._positions()
        kept_back = self.not_copied() if self.has_tables() else frozenset[str]()
        visible = self._visible() if kept_back else Counter[str]()
        patience_s, self.patience_s = self.patience_s, 0.0
        try:
            error = self.ended_by(life, during or {}, patience_s)
        finally:
            self.kills += life.is_over
            self._note_positions(before)
        if error is not None:
            return error
        if life.is_over:
            raise KilledError
        self.newest = None  # the tables that are in their place now are the newest ones
        if not during:
            self._require_kept_back(kept_back, before, visible)
        self.copies.append(self.copied_tables(with_checkpoint=self.runs % 2 == 0))  # as a backup every night
        return None

    def _positions(self) -> dict[LogKey, int]:
        rows = self.rows
        return {key: position_of(rows_of(rows, key)) or 0 for key in self.logs}

    def _require_kept_back(self, topics: frozenset[str], before: dict[LogKey, int], visible: Counter[str]) -> None:
        """Require that nothing was copied of topics that were paused or handed over when the run began.

        A run that ends preservation adds rows of records that the target had before: these are `visible`.
        """
        copied = self._visible() - visible if topics else Counter[str]()
        positions = self._positions()
        for key, log in self.logs.items():
            position = positions[key]
            is_copied = any(record.value in copied for record in log.records if before[key] <= record.offset < position)
            if key.topic in topics and position > before[key] > 0 and is_copied:
                raise FindingError(f"{key.topic}-{key.partition} is paused or handed over, and was copied up to {position}")

    def _note_positions(self, before: dict[LogKey, int]) -> None:
        positions = self._positions()
        for key, log in self.logs.items():
            if self.settings.isolation == "read_uncommitted":
                start, end = before.get(key, 0), max(positions[key], 0 if log.is_gone else self._preserved_end(key))
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
        return Controls.open(TableStorage.to_write(self.config.table_location, self.config.tables_writer))

    def forget(self, topic: str) -> None:
        """`shallow-mirror forget CONF TOPIC --apply`. Raises ConfigError where it is not gone."""
        storage = TableStorage.to_write(self.config.table_location, self.config.tables_writer)
        forget(self.config, storage, [topic], is_applied=True)

    def forgotten_ids(self) -> frozenset[str]:
        return self.controls().read().forgotten.topic_ids if self.has_tables() else frozenset()

    def not_copied(self) -> frozenset[str]:
        return self.controls().read().not_copied

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
        newer, older = self.rows_in(self.newest.tables), self.rows
        for key, log in self.logs.items():
            start, end = position_of(rows_of(older, key)) or 0, position_of(rows_of(newer, key)) or 0
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

    def target_topics(self) -> list[str]:
        """Return the topics that the mirror writes to, or wrote to."""
        return [topic for topic in self.target.topic_ids() if not topic.startswith(("__", REDO_PREFIX))]

    def _visible(self) -> Counter[str]:
        """Return how often each value is at the target."""
        topics = self.target_topics()
        topic_partitions = [(topic, partition) for topic in topics for partition in range(self.target.partitions(topic))]
        return Counter(value for topic_partition in topic_partitions for value in self.target.read(*topic_partition).values())

    # --- what happens at the source ---

    def key_of(self, topic: str, partition: int) -> LogKey:
        return LogKey(topic, self.source.topic_ids()[topic], partition)

    def create_source_topic(self, topic: str, partitions: int) -> None:
        self.source.create_topic(topic, partitions)
        for partition in range(partitions):
            self.logs[self.key_of(topic, partition)] = SourceLog()

    def produce(
        self,
        topic: str,
        partition: int,
        count: int,
        txn: tuple[WriterTxn, SourceTxn] | None = None,
        *,
        padding: int = 0,
    ) -> None:
        """Write a batch of `count` records, each with so many bytes more."""
        values = [f"{topic}{partition}:{self._values + number}" + "x" * padding for number in range(count)]
        self._values += count
        self.records += count
        first = self.source.produce(topic, partition, values, None if txn is None else txn[0])
        log = self.logs[self.key_of(topic, partition)]
        log.records += [Produced(first + delta, value, txn and txn[1]) for delta, value in enumerate(values)]
        log.end = first + count

    def end_txn(self, txn: tuple[WriterTxn, SourceTxn], *, is_commit: bool) -> None:
        writer, known = txn
        self.open_txns.remove(txn)
        existing = [topic_partition for topic_partition in writer.sequences if topic_partition[0] in self.source.topic_ids()]
        self.source.end(writer, is_commit=is_commit)
        known.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        for topic, partition in existing:
            key = self.key_of(topic, partition)
            self.logs[key].end = self.source.bounds(topic, partition)[1]

    def delete_source_topic(self, topic: str) -> None:
        for key, log in self.logs.items():
            if key.topic == topic and key.topic_id == self.source.topic_ids()[topic]:
                log.is_gone = True
        for txn in [txn for txn in self.open_txns if any(topic_partition[0] == topic for topic_partition in txn[0].sequences)]:
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
        """`shallow-mirror groups sync`: as `_synced`."""
        self._synced(lambda: sync_groups(self.config, is_applied=True), keeps=frozenset())

    def sync_groups_beside(self) -> None:
        """Let a running mirror with `groups.sync` do one pass: as `_synced`. Groups of topics that are handed over are left."""
        storage = TableStorage.to_write(self.config.table_location, self.config.tables_writer)
        with closing(GroupSyncer(self.config, storage, storage.best_effort_tables())) as syncer:
            self._synced(lambda: syncer.run_pass(datetime(2026, 1, 1, tzinfo=UTC)), keeps=self.controls().read().moving)

    def _synced(self, sync: Callable[[], object], *, keeps: Collection[str]) -> None:
        """Let the mirror commit the positions of groups at the target, and note what it committed.

        Raise FindingError where it moved a group back, or one of a source topic of `keeps` at all: an operator may have reset it.
        """
        before = {group: self.target.group_offsets(group) for group in self.groups}
        sync()
        source_ids, target_ids = self.source.topic_ids(), self.target.topic_ids()
        for group in self.groups:
            for (name, partition), offset in self.target.group_offsets(group).items():
                topic = name.partition(".")[0]
                if before[group].get((name, partition)) == offset or topic not in source_ids or name not in target_ids:
                    continue
                former = before[group].get((name, partition))
                if topic in keeps or (former is not None and offset < former):
                    raise FindingError(f"the sync moved group {group} in {name}-{partition} from {former} to {offset}")
                source, target = LogKey(topic, source_ids[topic], partition), LogKey(name, target_ids[name], partition)
                own = self.source.group_offsets(group).get((topic, partition))
                if own is None:
                    raise FindingError(f"group {group} was given an offset of {name}-{partition}, of which it has none")
                begins_at = max(own, self.source.bounds(topic, partition)[0])  # what is deleted there it cannot read
                self.group_commits[group, source] = GroupCommit(
                    group, source, begins_at, target, offset, self.target.bounds(name, partition)[1]
                )

    def command(self, life: Life, perform: Callable[[], None]) -> None:
        """Perform a command of an operator. Raise KilledError where its life ends before."""
        del life  # commands on real brokers run to their ends
        perform()

    def redo(self, topic: str, partition: int, start: int, end: int, life: Life) -> None:
        """`shallow-mirror redo`, into a topic of its own. Raises as `redo`, KilledError where its life ends before."""
        request = RedoRequest(TopicPartition(topic, partition), start, end, f"{REDO_PREFIX}{len(self.redone)}{self.suffix}")
        key, is_uncommitted = self.key_of(topic, partition), self.settings.isolation == "read_uncommitted"

        def perform() -> None:
            redo(redo_config(self.config, request), request)

        try:
            self.command(life, perform)
        except KilledError:
            self.events.append("killed; the same command again")
            self.command(Life(), perform)
        self.redone.append(Redone(key, start, end, request.target_topic, is_uncommitted))

    def retry_quarantine(self, topic: str | None, life: Life) -> ReleaseResult:
        """`shallow-mirror quarantine retry`. Raises as it, KilledError where its life ends before."""
        results: list[ReleaseResult] = []
        self.command(life, lambda: results.append(retry(self.config, Selection(topic=topic), takes_over=True)))
        return results[0]

    def list_quarantine(self) -> None:
        """`shallow-mirror quarantine list`. Raise FindingError where it shows something else than the rows of the map."""
        storage = TableStorage(self.config.table_location)
        entries = Selection().entries(Quarantine.open(storage, mirror=self.config.mirror))
        listed = {(entry.segment.source, entry.segment.source_start, entry.is_released) for entry in entries}
        released = {(row["source_topic_id"], row["source_partition"], row["source_start"]) for row in self.rows_of("released")}
        known = {
            (
                SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]),
                row["source_start"],
                (row["source_topic_id"], row["source_partition"], row["source_start"]) in released,
            )
            for row in self.rows_of("quarantined")
        }
        if listed != known:
            raise FindingError(f"quarantine lists {sorted(listed)}, the map has {sorted(known)}")

    def rows_of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]

    def _redo_differences(self) -> list[str]:
        """Return differences of what `redo` has copied: each record of the range once, and others only of its first and last batch."""
        differences = []
        for redone in self.redone:
            if redone.topic not in self.target.topic_ids():
                continue
            log = self.logs[redone.source]
            values = list(self.target.read(redone.topic, redone.source.partition).values())
            offsets = {record.value: record.offset for record in log.records}
            wanted = [
                record.value for record in log.records if redone.start <= record.offset < redone.end and log.is_committed(record)
            ]
            if any(count > 1 for count in Counter(values).values()):
                differences.append(f"{redone}: twice: {values}")
            if lost := [value for value in wanted if value not in values]:
                differences.append(f"{redone}: lost: {lost}")
            if not set(values) <= offsets.keys() or values != sorted(values, key=offsets.__getitem__):
                differences.append(f"{redone}: reordered, or of another log: {values}")
            if not redone.is_uncommitted and any(log.is_aborted(record) for record in log.records if record.value in values):
                differences.append(f"{redone}: records of aborted transactions are visible: {values}")
        return differences

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
            if topic not in self.target_topics():
                continue
            for partition in range(self.target.partitions(topic)):
                key = LogKey(topic, topic_id, partition)
                target[key] = TargetLog(self.target.read(topic, partition), self.target.bounds(topic, partition)[0])
        left_out = self.not_copied() | self.settings.excluded if self.has_tables() else self.settings.excluded
        forgotten = self.forgotten_ids()
        complete = {
            key
            for key, log in self.logs.items()
            if not log.is_gone and key.topic not in left_out and key.topic_id not in forgotten
        }
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
        self.check_redone()

    def check_redone(self) -> None:
        """Raise FindingError where a copy that `redo` has made differs from its range."""
        differences = self._redo_differences()
        if differences:
            raise FindingError(shortened(differences))

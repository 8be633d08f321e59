"""What operators, writers and retention do. An action names topics and partitions by number, so that it fits any world."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tests.operators.history import SourceTxn
from tests.operators.lives import KilledError, Life
from tests.operators.remedies import take_remedy
from tests.operators.world import FindingError, World

from shallow_mirror.checkpoints.logs.topics import ControlAction
from shallow_mirror.errors import ConfigError, MirrorError

MOST_REMEDIES = 8
MOST_PARTITIONS = 3
_STAY_S = 100.0


class Action(Protocol):
    def perform(self, world: World) -> None: ...


def _partition_key(world: World, topic: int, partition: int) -> tuple[str, int] | None:
    """Return an existing partition of the source; None where no topic is left."""
    names = sorted(set(world.topics) & world.source.topic_ids().keys())
    if not names:
        return None
    name = names[topic % len(names)]
    return name, partition % world.source.partitions(name)


@dataclass(frozen=True)
class Write:
    topic: int
    partition: int
    count: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is not None:
            world.produce(*key, self.count)


@dataclass(frozen=True)
class Begin:
    """Begin a transaction that writes to a partition."""

    topic: int
    partition: int
    count: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is not None:
            txn = world.source.begin(), SourceTxn()
            world.open_txns.append(txn)
            world.produce(*key, self.count, txn)


@dataclass(frozen=True)
class End:
    """End the oldest open transaction."""

    is_commit: bool

    def perform(self, world: World) -> None:
        if world.open_txns:
            world.end_txn(world.open_txns[0], is_commit=self.is_commit)


@dataclass(frozen=True)
class Run:
    """Run the mirror up to the log ends. `kill_at`: the effect at which it is killed; 0: it is not. `choice`: of remedies."""

    kill_at: int = 0
    is_behind: bool = False
    during_at: int = 0
    during: Action | None = None
    choice: int = 0
    stays: bool = False
    """Whether it goes on for minutes, and reads commands meanwhile."""

    def perform(self, world: World) -> None:
        world.patience_s = _STAY_S if self.stays else 0.0
        if self.kill_at:
            self._killed(world)
        else:
            run_until_done(world, self.choice, self._during(world), is_final=not self.stays)

    def _killed(self, world: World) -> None:
        try:
            error = world.run(Life(self.kill_at, self.is_behind), self._during(world))
        except KilledError:
            world.events.append("killed")
            return
        if error is None:
            world.check(is_final=self.during is None and not self.stays)
        else:
            world.events.append(f"{type(error).__name__}: {error}")

    def _during(self, world: World) -> dict[int, Callable[[], None]]:
        during = self.during
        return {} if during is None else {self.during_at: lambda: during.perform(world)}


def run_until_done(
    world: World, choice: int, during: dict[int, Callable[[], None]] | None = None, *, is_final: bool = True
) -> None:
    """Run, take the remedy that an error names, and run again. Raise FindingError where there is none, or none helps.

    `is_final`: everything is copied then. A run of a few minutes may end while a partition is left out.
    """
    chance = random.Random(choice)
    for _ in range(MOST_REMEDIES):
        error = world.run(Life(), during)
        if error is None or _is_nothing_left(world, error):
            world.check(is_final=is_final and not during)
            return
        during = None
        remedy = take_remedy(world, error, chance)
        if remedy is None:
            raise FindingError(f"no remedy is known for {type(error).__name__}: {error}") from error
        world.remedies += 1
        world.events.append(f"{remedy} <- {type(error).__name__}: {error}")
    raise FindingError(f"no remedy helps: {world.events[-1]}")


def _is_nothing_left(world: World, error: MirrorError) -> bool:
    """Return whether the run ended because no topic matches, and none does: all are deleted or excluded."""
    return "no topic of the source matches" in str(error) and world.source.topic_ids().keys() <= world.settings.excluded


@dataclass(frozen=True)
class _Control:
    """A row of the table `controls` for one topic."""

    action: ClassVar[ControlAction]
    topic: int

    def perform(self, world: World) -> None:
        if world.has_tables():
            world.controls().add(self.action, [world.topics[self.topic % len(world.topics)]])


class Pause(_Control):
    action = "pause"


class Resume(_Control):
    action = "resume"


class HandOver(_Control):
    """A migration asks the mirror to hand a topic over: from its confirmation on the other direction may write to it."""

    action = "hand-over"


class TakeBack(_Control):
    """A migration that was rolled back gives a topic back to the mirror."""

    action = "take-back"


@dataclass(frozen=True)
class CopyTables:
    with_checkpoint: bool

    def perform(self, world: World) -> None:
        if world.has_tables():
            world.copies.append(world.copied_tables(with_checkpoint=self.with_checkpoint))


@dataclass(frozen=True)
class PutBackTables:
    """Put an older copy of the tables in their place, as from a backup, counted from the newest on.

    What was there is kept, for the remedy.
    """

    copy: int

    def perform(self, world: World) -> None:
        copies = [copy for copy in world.copies if copy.number == world.settings.number]
        if copies:
            world.put_back_older(copies[-1 - self.copy % len(copies)])


@dataclass(frozen=True)
class LoseCheckpoint:
    """Delete the folder of Spark's checkpoint."""

    def perform(self, world: World) -> None:
        world.lose_checkpoint()


@dataclass(frozen=True)
class Idle:
    """Nothing happens for hours."""

    hours: int

    def perform(self, world: World) -> None:
        world.idle(self.hours * 3600.0)


@dataclass(frozen=True)
class SetIsolation:
    isolation: str

    def perform(self, world: World) -> None:
        world.settings.isolation = self.isolation


@dataclass(frozen=True)
class SetDataLoss:
    on_data_loss: str

    def perform(self, world: World) -> None:
        world.settings.on_data_loss = self.on_data_loss


@dataclass(frozen=True)
class SetOffsets:
    """Let the mirror translate or preserve offsets from its next run on."""

    offsets: str

    def perform(self, world: World) -> None:
        world.settings.offsets = self.offsets
        if self.offsets != "translated":
            world.settings.on_refused = "stop"  # the mirror file is refused otherwise


@dataclass(frozen=True)
class DeleteRecords:
    """DeleteRecords, or retention, at the source: up to a share of the log, in hundredths."""

    topic: int
    partition: int
    share: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is not None:
            start, _ = world.source.bounds(*key)
            end = world.logs[world.key_of(*key)].stable_end
            world.delete_records(*key, max(start, start + (end - start) * self.share // 100))


@dataclass(frozen=True)
class DeleteTopic:
    """Delete a topic of the source."""

    topic: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, 0)
        if key is not None:
            world.delete_source_topic(key[0])


@dataclass(frozen=True)
class CreateTopic:
    """Create a topic of the source that does not exist: again, where it was deleted."""

    topic: int
    partitions: int

    def perform(self, world: World) -> None:
        name = world.topics[self.topic % len(world.topics)]
        if name not in world.source.topic_ids():
            world.create_source_topic(name, self.partitions)


@dataclass(frozen=True)
class GrowTopic:
    """Add a partition to a topic of the source."""

    topic: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, 0)
        if key is not None and world.source.partitions(key[0]) < MOST_PARTITIONS:
            world.grow_source_topic(key[0])


def _target_partition(world: World, topic: int, partition: int) -> tuple[str, int] | None:
    names = sorted(world.target_topics())
    if not names:
        return None
    name = names[topic % len(names)]
    return name, partition % world.target.partitions(name)


@dataclass(frozen=True)
class GrowTargetTopic:
    topic: int

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, 0)
        if key is not None and world.target.partitions(key[0]) < MOST_PARTITIONS:
            world.target.add_partitions(key[0], world.target.partitions(key[0]) + 1)


@dataclass(frozen=True)
class DeleteTargetTopic:
    topic: int

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, 0)
        if key is not None:
            world.delete_target_topic(key[0])


@dataclass(frozen=True)
class DeleteTargetRecords:
    """Retention at the target: up to a share of the log, in hundredths."""

    topic: int
    partition: int
    share: int

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, self.partition)
        if key is not None:
            start, end = world.target.bounds(*key)
            world.target.delete_records(*key, start + (end - start) * self.share // 100)


@dataclass(frozen=True)
class ForeignWrite:
    """Somebody else writes a record to a target topic."""

    topic: int
    partition: int

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, self.partition)
        if key is not None and world.may_write_foreign:
            world.foreign_write(*key)


@dataclass(frozen=True)
class CommitGroup:
    """A group commits an offset at the source, or is reset: to a share of the log, in hundredths."""

    group: int
    topic: int
    partition: int
    share: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is not None:
            start, end = world.source.bounds(*key)
            world.source.commit_group(
                world.groups[self.group % len(world.groups)], *key, start + (end - start) * self.share // 100
            )


@dataclass(frozen=True)
class SyncGroups:
    """`shallow-mirror groups sync`."""

    def perform(self, world: World) -> None:
        if world.has_tables():
            try:
                world.sync_groups()
            except MirrorError as error:
                world.events.append(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class SyncGroupsBeside:
    """A pass of `groups.sync` of a running mirror."""

    def perform(self, world: World) -> None:
        if world.has_tables():
            try:
                world.sync_groups_beside()
            except MirrorError as error:
                world.events.append(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class ResetTargetGroup:
    """An operator resets a group at the target: to a share of the log, in hundredths."""

    group: int
    topic: int
    partition: int
    share: int

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, self.partition)
        if key is not None:
            start, end = world.target.bounds(*key)
            group = world.groups[self.group % len(world.groups)]
            world.target.commit_group(group, *key, start + (end - start) * self.share // 100)


@dataclass(frozen=True)
class ForgetTopic:
    """`shallow-mirror forget`, which is refused unless the topic is gone on either cluster."""

    topic: int

    def perform(self, world: World) -> None:
        if world.has_tables():
            try:
                world.forget(world.topics[self.topic % len(world.topics)])
            except ConfigError as error:
                world.events.append(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class RunBeside:
    """The same mirror is started elsewhere while it runs here, and copies all there is. The first one is fenced."""

    def perform(self, world: World) -> None:
        error = world.run_beside()
        if error is not None:
            world.events.append(f"beside: {type(error).__name__}: {error}")


SMALL_BYTES, LARGE_BYTES = 1_000, 2_000
"""A limit of batches at the target, and what a record that it refuses has in addition."""
_LIMIT, _NO_LIMIT = "max.message.bytes", "1048588"


@dataclass(frozen=True)
class WriteLarge:
    """Write a record that a target topic with a small limit of batches refuses."""

    topic: int
    partition: int

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is not None:
            world.produce(*key, 1, padding=LARGE_BYTES)


@dataclass(frozen=True)
class LimitTarget:
    """Lower the limit of batches of a target topic, or raise it again."""

    topic: int
    is_small: bool

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, 0)
        if key is not None:
            world.target.set_config(key[0], _LIMIT, str(SMALL_BYTES) if self.is_small else _NO_LIMIT)


@dataclass(frozen=True)
class SetRefused:
    """Quarantine refused batches from the next run on, or stop at them. The mirror file allows it with translated offsets only."""

    on_refused: str

    def perform(self, world: World) -> None:
        if world.settings.offsets == "translated":
            world.settings.on_refused = self.on_refused


@dataclass(frozen=True)
class ListQuarantine:
    """`shallow-mirror quarantine list`."""

    def perform(self, world: World) -> None:
        if world.has_tables():
            world.list_quarantine()


@dataclass(frozen=True)
class RetryQuarantine:
    """`shallow-mirror quarantine retry`, of one topic or of all, and again where it is killed."""

    topic: int | None
    raises_limit: bool
    kill_at: int = 0
    is_behind: bool = False

    def perform(self, world: World) -> None:
        if not world.has_tables():
            return
        if self.raises_limit:
            for name in world.target_topics():
                world.target.set_config(name, _LIMIT, _NO_LIMIT)
        topic = None if self.topic is None else world.topics[self.topic % len(world.topics)]
        try:
            try:
                released = world.retry_quarantine(topic, Life(self.kill_at or None, self.is_behind))
            except KilledError:
                world.events.append("killed; the same command again")
                released = world.retry_quarantine(topic, Life())
            world.events.append(f"{released.batch_count} released, {len(released.refused)} refused again")
        except MirrorError as error:
            world.events.append(f"{type(error).__name__}: {error}")
            return
        if released.batch_count or released.refused:  # else nothing was taken over, and a killed run is not resolved yet
            world.check(is_final=False)
        world.list_quarantine()


@dataclass(frozen=True)
class Redo:
    """`shallow-mirror redo` of a part of a log, in hundredths, into a topic of its own, and again where it is killed."""

    topic: int
    partition: int
    start: int
    share: int
    kill_at: int = 0
    is_behind: bool = False

    def perform(self, world: World) -> None:
        key = _partition_key(world, self.topic, self.partition)
        if key is None or not world.has_tables():
            return
        first, _ = world.source.bounds(*key)
        end = world.logs[world.key_of(*key)].stable_end
        start = first + (end - first) * self.start // 100
        stop = min(end, start + max(1, (end - first) * self.share // 100))
        if start >= stop:
            return
        try:
            world.redo(*key, start, stop, Life(self.kill_at or None, self.is_behind))
        except MirrorError as error:
            world.events.append(f"{type(error).__name__}: {error}")
            return
        world.check_redone()


@dataclass(frozen=True)
class SetCoalesce:
    """Let the mirror combine small batches from its next run on, or not."""

    coalesce_bytes: int | str | None

    def perform(self, world: World) -> None:
        world.settings.coalesce_bytes = self.coalesce_bytes


@dataclass(frozen=True)
class SetTargetCompression:
    """Somebody sets the compression of a target topic."""

    topic: int
    compression: str

    def perform(self, world: World) -> None:
        key = _target_partition(world, self.topic, 0)
        if key is not None:
            world.target.set_config(key[0], "compression.type", self.compression)

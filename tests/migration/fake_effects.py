"""Two clusters and two mirrors in memory, strict about what a migration may do and when, and a conductor that can be killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shallow_mirror.broker import ProducerState
from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.checkpoints.logs.topics import TopicControls
from shallow_mirror.checkpoints.rows import TAKEN_OVER, MigrationRow
from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step as GroupStep
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.late_writes import LateWrite, Passed
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.observations import Compared, LogEnd, MappedEnd, MirrorRun
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.types import TopicPartition

PARTITION = TopicPartition("orders", 0)
ADDED = TopicPartition("orders", 1)
DENY = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:shop", AclOperation.WRITE, AclEffect.DENY)


ENDED_PID = (1 << 22) + 1
"""Above the highest one of Linux."""


class KilledError(BaseException):
    """The end of the conductor's process."""


@dataclass(slots=True)
class Kill:
    """Ends the conductor before its effect number `at`; None: never. `count`: effects so far."""

    at: int | None = None
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        if self.at is not None and self.count > self.at:
            raise KilledError


@dataclass
class FakeWorld:
    """`logs`: how many records each log has, by side. `writers`, `is_reading`: where they write and read; "": nowhere."""

    logs: dict[str, int] = field(default_factory=lambda: {"east": 100, "west": 90})
    writers: str = "east"
    is_reading: str = "east"
    group: dict[str, int] = field(default_factory=lambda: {"east": 40})
    denied: dict[str, set[Acl]] = field(default_factory=lambda: {"east": set(), "west": set()})
    handed: dict[str, str] = field(default_factory=dict)
    """By the cluster that the mirror reads: `requested` or `handed over`."""
    reverse_start: int | None = None
    is_reverse_running: bool = False
    can_reverse_start: bool = True
    """A reverse mirror that is started does not end at once."""
    foreign: dict[str, int] = field(default_factory=lambda: {"east": 0, "west": 0})
    """Records of `logs` that neither the mirror of that side nor the writers wrote."""
    settled: dict[str, list[int]] = field(default_factory=lambda: {"east": [], "west": []})
    """Those of `foreign` that were settled."""
    topics: list[str] = field(default_factory=lambda: ["orders"])
    paused: set[str] = field(default_factory=set)
    open_from: dict[str, int] = field(default_factory=dict)
    """Where a transaction of somebody else begins that is open, by side."""
    is_mirror_running: bool = True
    grown: set[str] = field(default_factory=set)
    """Sides whose topic has a second partition, which is empty."""
    is_growth_registered: bool = True
    """The mirrors have seen the partitions of `grown`."""
    has_producer_ids: bool = True
    """The writers are idempotent or transactional."""
    pause_s: float = 0.0
    """The longest pause of the writers so far."""
    is_hand_over_answered: bool = True
    lost: frozenset[str] = frozenset()
    """Topics whose copies somebody has deleted."""
    read_only: set[str] = field(default_factory=set)
    """Sides to which only the mirror may write."""
    copied_before_move: int = 0
    """Where the log of east ended when the reverse mirror got its positions."""
    prepared: dict[str, int] = field(default_factory=dict)
    """Offsets of the group in a transaction that is open, by side."""
    now_s: float = 0.0

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        if self.writers and not self.denied[self.writers]:
            self.logs[self.writers] += 1
        if self.handed.get("east") != "handed over" and self.reverse_start is None and not self.paused:
            copied, readable = self.logs["west"] - self.foreign["west"], self.open_from.get("east", self.logs["east"])
            if "west" not in self.open_from:  # what is written behind it is not visible, and the mirror waits until it is
                self.logs["west"] = min(readable, copied + 10) + self.foreign["west"]
        if self.is_reverse_running and self.handed.get("west") != "handed over":
            self.logs["east"] = self.logs["west"] + self.foreign["east"]
        for side, state in list(self.handed.items()):
            if state == "requested" and self.is_hand_over_answered:
                self.handed[side] = "handed over"


class FakeEffects:
    """Effects of one direction on a world, each of which may be the last."""

    def __init__(self, world: FakeWorld, direction: Direction, kill: Kill, *, is_denied: bool = False) -> None:
        self._world, self._kill, self._is_denied = world, kill, is_denied
        sides = ("east", "west") if direction is Direction.MOVE else ("west", "east")
        self.origin_alias, self.other_alias = sides
        self._direction = direction
        self.reverse_file = "reverse.yaml" if direction is Direction.MOVE else None
        self.mirror_id = "m"
        self.mirror_file = "mirror.yaml"
        self.micro_batch_s = 0.0
        self._topics: tuple[str, ...] = ("orders",)

    def topics(self) -> tuple[str, ...]:
        return self._topics

    def listed_topics(self) -> tuple[str, ...]:
        return tuple(self._world.topics)

    def target_topic(self, topic: str) -> str:
        return topic

    def use_topics(self, names: Sequence[str]) -> None:
        self._topics = tuple(names)

    def problems(self) -> list[str]:
        handed = self._world.handed.get(self.origin_alias)
        problems = [f"topics were handed over before ({handed})"] if handed else []
        problems += [f"{name} was deleted" for name in sorted(self._world.lost)]
        if self._direction is Direction.MOVE and self._world.grown == {"west"}:
            problems.append("reverse: target topic orders: has fewer partitions (1) than source topic orders (2)")
        return problems

    def run(self) -> MirrorRun | None:
        is_running = self._world.is_mirror_running
        return MirrorRun(description="run 1", is_alive=is_running, is_over=not is_running)

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        return self._ends(self.origin_alias)

    def longest_pause_s(self) -> float:
        return self._world.pause_s

    def producers(
        self, partitions: Sequence[TopicPartition], *, at_origin: bool = True
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        side = self.origin_alias if at_origin else self.other_alias
        state = ProducerState(7, 0, -1, 1_000 * self._world.logs[side], coordinator_epoch=0, last_sequence=self._world.logs[side])
        is_open = side in self._world.open_from
        states = (state, *([ProducerState(8, 0, 90, -1)] if is_open else []))
        return dict.fromkeys(partitions, states if self._world.has_producer_ids else ())

    def transactional_ids(self, producer_ids: Collection[int], *, at_origin: bool = True) -> dict[int, str]:
        return {producer_id: "shop" for producer_id in producer_ids if producer_id == 7}

    def other_log_ends(self) -> dict[TopicPartition, LogEnd]:
        return self._ends(self.other_alias)

    def _ends(self, side: str) -> dict[TopicPartition, LogEnd]:
        end = self._world.logs[side]
        added = {ADDED: LogEnd(0, 0)} if side in self._world.grown else {}
        return {PARTITION: LogEnd(end, self._world.open_from.get(side, end)), **added}

    def mapped_ends(self) -> dict[TopicPartition, MappedEnd]:
        end = self._world.logs[self.other_alias] - self._world.foreign[self.other_alias]
        has_copied = self._direction is Direction.MOVE or end > self._world.copied_before_move
        is_added = self.origin_alias in self._world.grown and self._world.is_growth_registered
        added = {ADDED: MappedEnd(0, 0)} if is_added else {}
        return {PARTITION: MappedEnd(end, end if has_copied else 0), **added}

    def topic_ids(self) -> dict[str, str]:
        return {"orders": "id of orders"}

    def left_topics(self) -> frozenset[str]:
        return frozenset()

    def older_tables(self) -> str | None:
        return None

    def lost_topics(self, names: Collection[str]) -> frozenset[str]:
        return self._world.lost.intersection(names)

    def replaced_topics(self) -> Sequence[str]:
        return ()

    def compare(self, after: Mapping[TopicPartition, MappedEnd]) -> Compared:
        self._kill()
        if self._direction is Direction.ROLLBACK:
            before = after[PARTITION].target_end
            assert before >= self._world.copied_before_move, "records from before the move are in no row of the reverse mirror"
        foreign = self._world.foreign[self.other_alias] - len(self._world.settled[self.other_alias])
        sentences = (f"{foreign} records are not in the map",) if foreign else ()
        return Compared(is_equal=not foreign, sentences=sentences, seconds=0.0, size_bytes=0, record_count=1)

    def active_groups(self) -> dict[str, tuple[str, ...]]:
        return {"billing": ()} if self._world.is_reading == self.origin_alias else {}

    def move_groups(self, *, is_applied: bool) -> GroupsReport | None:
        self._kill()
        offset = self._world.group[self.origin_alias]
        step = GroupStep.IN_PLACE if self._world.group.get(self.other_alias) == offset else GroupStep.TO_COMMIT
        if is_applied and step is GroupStep.TO_COMMIT:
            assert self._world.is_reading == "", "offsets of a running group were committed"
            self._world.prepared[self.other_alias] = offset
            self._kill()
            self._world.group.update(self._world.prepared)
            self._world.prepared.clear()
            step = GroupStep.COMMITTED
        self._kill()
        partition = GroupPartition(
            group="billing",
            topic_partition=PARTITION,
            offset=offset,
            metadata="",
            outcome=Outcome.TRANSLATED,
            step=step,
        )
        group = Group(name="billing", partitions=(partition,), state="empty")
        return GroupsReport(mirror="m", origin=self.origin_alias, other=self.other_alias, groups=(group,))

    def end_commits(self) -> None:
        self._kill()
        self._world.prepared.clear()

    def missing_denies(self) -> Sequence[Acl]:
        return [] if DENY in self._world.denied[self.origin_alias] else [DENY]

    def create_denies(self, acls: Sequence[Acl]) -> None:
        self._kill()
        self._world.denied[self.origin_alias] |= set(acls)
        self._kill()

    def delete_denies(self, acls: Sequence[Acl], *, at_origin: bool = True) -> None:
        self._kill()
        self._world.denied[self.origin_alias if at_origin else self.other_alias] -= set(acls)
        self._kill()

    def open_topics(self) -> int:
        self._kill()
        assert self._world.handed[self.origin_alias] == "handed over", "the mirror still copies: it would deny others again"
        opened = self.other_alias in self._world.read_only
        self._world.read_only.discard(self.other_alias)
        self._kill()
        return int(opened)

    def controls(self) -> TopicControls:
        state = self._world.handed.get(self.origin_alias)
        return TopicControls(
            paused=dict.fromkeys(self._world.paused, 1),
            requested=dict.fromkeys(self._topics, 1) if state == "requested" else {},
            handed_over=dict.fromkeys(self._topics, 1) if state == "handed over" else {},
            received=frozenset(),
        )

    def hand_over(self) -> None:
        self._kill()
        self._world.handed.setdefault(self.origin_alias, "requested")
        self._kill()

    def resume(self) -> None:
        self._kill()
        self._world.handed.pop(self.origin_alias, None)
        self._kill()

    def late_writes(self, wave: WaveState) -> list[LateWrite]:
        passed = Passed.of(wave)
        if passed is None:
            return []
        side = "east" if passed.direction is Direction.MOVE else "west"
        end = passed.ends[PARTITION]
        late = self._world.foreign[side] - len(self._world.settled[side])
        return [LateWrite(topic_partition=PARTITION, start=end, end=end + late, record_count=late)] if late else []

    def prepare_reverse(self, starts: Mapping[TopicPartition, int]) -> frozenset[str]:
        self._kill()
        assert self._world.handed["east"] == "handed over", "the reverse mirror may write while the mirror still copies"
        start = starts[PARTITION]
        assert self._world.reverse_start in (None, start), "the reverse mirror has other positions"
        self._world.reverse_start = start
        self._world.copied_before_move = self._world.logs["east"]
        self._kill()
        return frozenset()

    def reverse_run(self) -> MirrorRun | None:
        return MirrorRun(description="run 1", is_alive=True, is_over=False) if self._world.is_reverse_running else None

    def start_reverse(self) -> StartedMirror:
        self._kill()
        assert self._world.reverse_start is not None, "the reverse mirror has no positions"
        self._world.is_reverse_running = self._world.can_reverse_start
        self._kill()
        return StartedMirror(os.getpid() if self._world.is_reverse_running else ENDED_PID, Path("reverse.log"))


@dataclass(slots=True)
class FakeOwner:
    """Rows in memory; a conductor may be killed before and after each commit."""

    rows_so_far: list[MigrationRow]
    kill: Kill
    now_ms: Callable[[], int]

    def rows(self) -> tuple[MigrationRow, ...]:
        return tuple(self.rows_so_far)

    def append(self, *, event: str, wave: str = "", step: str = "", detail: Mapping[str, Any] | None = None) -> None:
        self.kill()
        row = MigrationRow(
            sequence=len(self.rows_so_far) + 1,
            conductor_epoch=1,
            wave=wave,
            event=event,
            step=step,
            detail=dict(detail or {}),
            fingerprint="f",
            host="h",
            pid=1,
            run_id="r",
            at=datetime.fromtimestamp(self.now_ms() / 1000, UTC),
        )
        self.rows_so_far.append(row)
        if event != TAKEN_OVER:
            self.kill()


class FakeOperator:
    """Does what the conductor says, at once."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self.stopped_at: list[Step] = []
        self.requests: list[str] = []
        self.sentences: list[str] = []

    def begun(self, wave: str, step: Step) -> None: ...

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None: ...

    def waits(self, outside: Outside) -> None:
        self.stopped_at.append(Step(outside.step))
        self.requests.append(outside.request)
        if outside.step is Step.STOP_WRITERS:
            self._world.writers = ""
        elif outside.step is Step.STOP_GROUPS:
            self._world.is_reading = ""

    def says(self, sentence: str) -> None:
        self.sentences.append(sentence)
        if "NOW: point the writers" in sentence:
            self._world.writers = sentence.rsplit(" ", 1)[1]
            assert self._world.writers not in self._world.read_only, "the writers would be refused"
        elif "NOW: start the consumers" in sentence:
            cluster = sentence.split(" at ")[1].split(",")[0]
            self._world.is_reading = cluster

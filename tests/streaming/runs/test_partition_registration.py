"""Partitions that appear while the mirror runs: planner, notes, registrar and offset map, ended at every step between them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.checkpoints.map_rows import Faulty, run_of

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.sinks.kafka.targets import first_rows
from shallow_mirror.streaming.planning import LogEnds, PlannerConfig, SourceOffsets
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.planning.planner_state import RegistrationFiles
from shallow_mirror.streaming.planning.source_offsets import FirstBatch
from shallow_mirror.streaming.runs.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition, TopicPartition

BASE, GROWN, LATE = SourcePartition("base", "idB", 0), SourcePartition("base", "idB", 1), SourcePartition("late", "idL", 0)
_runs = itertools.count()


class KilledError(BaseException):
    """The end of the process: nothing catches it."""


class Source:
    """A cluster whose logs begin at `starts` and end at `ends`."""

    def __init__(self) -> None:
        self.logs: dict[SourcePartition, tuple[int, int]] = {BASE: (0, 5)}

    def metadata(self, names: Any, _deadline: Deadline) -> Any:
        topics: dict[str, Any] = {}
        for partition in sorted(self.logs):
            made = SimpleNamespace(
                name=partition.topic, topic_id=partition.topic_id, is_internal=False, error_code=0, partitions={}
            )
            topic = topics.setdefault(partition.topic, made)
            topic.partitions[partition.partition] = SimpleNamespace(partition=partition.partition, leader=1, leader_epoch=0)
        gone = SimpleNamespace(topic_id="", error_code=3, partitions={})
        return SimpleNamespace(topics={name: topics.get(name, gone) for name in (topics if names is None else names)})

    def latest_offsets(
        self, topic_partitions: Any, _isolation: object, _deadline: Deadline
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]]:
        ends = {partition.topic_partition: end for partition, (_, end) in self.logs.items()}
        return {topic_partition: ends[topic_partition] for topic_partition in topic_partitions}, {}

    def list_offsets(self, wanted: Any, _isolation: object, _deadline: Deadline) -> Any:
        starts = {partition.topic_partition: start for partition, (start, _) in self.logs.items()}
        return {topic_partition: SimpleNamespace(offset=starts[topic_partition]) for topic_partition in wanted}


class Unsampled(SourceOffsets):
    def first_batches(self, starts: Any, listing: LogEnds, deadline: Deadline) -> Any:
        empty: dict[SourcePartition, FirstBatch] = {}
        return iter(empty.items())


class Targets:
    """Creates what it is asked for, or refuses with `refusal`."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.routes: dict[str, Any] = {}

    def prepare(self, topics: Mapping[str, int], _deadline: Deadline) -> None:
        if self.refusal is not None:
            raise self.refusal
        for name in topics:
            self.routes[name] = SimpleNamespace(
                target_of=lambda partition: TargetPartition(partition.topic, f"t-{partition.topic}", partition.partition)
            )


@dataclass
class Mirror:
    """What outlives a process: the source, the map in `folder`, and the end of Spark's last plan."""

    folder: Path
    source: Source = field(default_factory=Source)
    checkpoint: dict[SourcePartition, int] | None = None
    steps: int = 0

    def take_over(self, fault: Callable[[str], None] = lambda _step: None) -> LedgerOwner:
        writer = Faulty(DeltalakeWriter(table_uri(str(self.folder))), fault)
        owner = LedgerOwner.take_over(
            str(self.folder), name="m", source_cluster_id="S", target_cluster_id="T", run=run_of(f"{next(_runs)}"),
            now_ms=lambda: 1, writer=writer,
        )  # fmt: skip
        owner.settle()
        return owner

    def settings(self, exchange: RegistrationFiles) -> PlannerConfig:
        return PlannerConfig(
            include=("base", "late"),
            start_rules=(("late", -1),),
            start_timestamp_ms=-1,
            micro_batch_bytes=1 << 20,
            slots=1,
            request_timeout_ms=1000,
            registration=exchange,
        )

    def run(self, *, kill_at: int | None = None, appears: Callable[[], None] = lambda: None) -> None:
        """One start: first rows of what is there, then plans and micro-batches, as Spark orders them; and `appears` after the
        first look. Raises Killed at step `kill_at`, counted from then on."""
        has_begun = False

        def step(name: str) -> None:
            if has_begun:
                self.steps += 1
                if self.steps == kill_at:
                    raise KilledError(name)

        self.steps = 0
        owner = self.take_over(step)
        targets = Targets()
        exchange = RegistrationFiles.of_query(self.folder, f"query-{next(_runs)}")
        settings = self.settings(exchange)
        planner = Unsampled(settings, self.source)  # type: ignore[arg-type]
        starts = planner.start_offsets(owner.positions(), _deadline(), is_start=True)
        rows = first_rows(targets, self.source, starts, _deadline())  # type: ignore[arg-type]
        if rows:
            decide_first_rows(owner, rows)
        recorded = {source: position.offset for source, position in owner.positions().items()}
        micro_batches = MicroBatchPlanner(settings, planner, parallelism=1, recorded=recorded, clock=lambda: 0.0)
        registrar = PartitionRegistrar(
            exchange,
            owner,
            self.source,  # type: ignore[arg-type]
            functools.partial(first_rows, targets, self.source),  # type: ignore[arg-type]
            deadline=_deadline,
            observer=step,
        )
        start: dict[SourcePartition, int] = dict(self.checkpoint or recorded)
        for turn in range(6):
            if turn == 1:
                appears()
                has_begun = True
            end = dict(micro_batches.latest(start))
            step("planned")
            registrar.register()
            if end == start:
                continue
            self.checkpoint = end
            step("Spark has logged the plan")
            assert self.checkpoint.keys() <= owner.positions().keys()
            self._copy(owner, micro_batches.ranges(start, end))
            step("copied")
            start = end
        owner.settle()

    def _copy(self, owner: LedgerOwner, ranges: Any) -> None:
        """Do the part of a micro-batch that matters here: rows from the position to the planned end."""
        positions, rows = owner.positions(), []
        for planned in ranges:
            position = positions[planned.source]
            if planned.end > position.offset:
                rows.append(_gap(planned.source, position.offset, planned.end, position.target))
        if rows:
            owner.next_decision()
            owner.decide(rows, -1)
            owner.settle()

    def first_offset(self, source: SourcePartition) -> int | None:
        """Where its rows begin; None where there is none."""
        starts = [row["source_start"] for row in self._rows() if (row["source_topic"], row["source_partition"]) == source[::2]]
        return min(starts, default=None)

    def _rows(self) -> list[dict[str, Any]]:
        snapshot = DeltalakeWriter(table_uri(str(self.folder))).snapshot()
        assert snapshot is not None
        return list(snapshot.read().to_pylist())


def _gap(source: SourcePartition, start: int, end: int, target: TargetPartition) -> DecidedSegment:
    return DecidedSegment(Segment(source=source, source_start=start, source_end=end, kind=SegmentKind.GAP, target=target), None)


def _deadline() -> Deadline:
    return Deadline.after_ms(1000, lambda: 0.0)


def _appearing(mirror: Mirror) -> Callable[[], None]:
    return lambda: mirror.source.logs.update({LATE: (0, 3), GROWN: (2, 4)})


@pytest.mark.thorough
def test_wherever_the_mirror_ends_what_is_in_a_plan_is_in_the_map_and_what_is_in_the_map_begins_at_its_first_offset(
    tmp_path: Path,
) -> None:
    """A topic that the map does not know yet is there at the next start: `latest` holds of it, as of one created meanwhile."""
    for kill_at in itertools.count(1):
        mirror = Mirror(tmp_path / f"{kill_at}")
        was_killed = False
        try:
            mirror.run(kill_at=kill_at, appears=_appearing(mirror))
        except KilledError:
            was_killed = True
        is_registered = mirror.first_offset(LATE) is not None
        mirror.source.logs |= {LATE: (0, 4), GROWN: (2, 5)}
        mirror.run()
        assert mirror.first_offset(LATE) == (0 if is_registered else 4), kill_at
        assert mirror.first_offset(GROWN) == 2, "partitions of known topics begin at their first offset in any case"
        positions = mirror.take_over().positions()
        assert {source: at.offset for source, at in positions.items()} == {BASE: 5, LATE: 4, GROWN: 5}
        if not was_killed:
            assert is_registered
            break
    assert kill_at > 8


class Exchange:
    """A planner and a registrar of one query over one map."""

    def __init__(self, folder: Path, *, recorded: Mapping[SourcePartition, int] | None = None, **settings: Any) -> None:
        self.mirror = Mirror(folder)
        self.owner = self.mirror.take_over()
        self.targets = Targets()
        decide_first_rows(self.owner, [_gap(BASE, 5, 5, TargetPartition("base", "t-base", 0))])
        self.notes = RegistrationFiles.of_query(folder, "this")
        plan = self.mirror.settings(self.notes)
        planner = Unsampled(plan, self.mirror.source)  # type: ignore[arg-type]
        self.planner = MicroBatchPlanner(
            plan, planner, parallelism=1, recorded={BASE: 5} if recorded is None else recorded, clock=lambda: 0.0,
            sleep=lambda _seconds: None,
        )  # fmt: skip
        self.registrar = PartitionRegistrar(
            self.notes,
            self.owner,
            self.mirror.source,  # type: ignore[arg-type]
            functools.partial(first_rows, self.targets, self.mirror.source),  # type: ignore[arg-type]
            deadline=_deadline,
        )


def test_what_appears_is_planned_only_once_it_is_registered(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (1, 3)}
    for _ in range(3):
        assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    assert exchange.notes.read_seen() == {LATE: 1}
    exchange.registrar.register()
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5, LATE: 1}
    assert exchange.planner.ranges({BASE: 5}, {BASE: 5, LATE: 1}) == ()
    assert exchange.planner.latest({BASE: 5, LATE: 1}) == {BASE: 5, LATE: 3}
    assert exchange.notes.read_seen() == {}


def test_a_partition_that_the_map_knows_already_is_registered_where_it_stands(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, recorded={})
    assert exchange.planner.latest({}) == {}
    before = exchange.owner.recorded()
    exchange.registrar.register()
    assert exchange.owner.recorded() == before
    assert exchange.planner.latest({}) == {BASE: 5}


def test_a_note_that_is_lost_is_written_again_and_one_of_another_query_is_not_believed(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    other = RegistrationFiles(
        seen_path=exchange.notes.seen_path, registered_path=exchange.notes.registered_path, query_id="other"
    )
    other.write_registered({LATE: 3})
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    other.write_seen({LATE: 2})
    exchange.registrar.register()
    assert exchange.owner.positions().keys() == {BASE}
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    exchange.registrar.register()
    for content in ("", "[]", '{"query_id": "this"}', '{"query_id": "this", "offsets": {"version": 1}}'):
        exchange.notes.registered_path.write_text(content, encoding="utf-8")
        assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    exchange.registrar.register()
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5, LATE: 0}
    exchange.notes.discard()
    assert list(tmp_path.glob("*.json")) == []


def test_available_now_leaves_out_what_appeared_after_the_drivers_start(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    exchange.planner.prepare_available_now()
    assert exchange.planner.latest({BASE: 0}) == {BASE: 5}
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    assert exchange.notes.read_seen() == {}


def test_a_target_that_refuses_the_topic_ends_the_run_and_nothing_is_registered(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    exchange.planner.latest({BASE: 5})
    exchange.targets.refusal = ConfigError("target topic late does not exist")
    with pytest.raises(ConfigError, match="target topic late"):
        exchange.registrar.register()
    assert exchange.owner.positions().keys() == {BASE}
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5}


def test_a_topic_that_was_created_again_or_deleted_since_it_was_seen_is_not_registered(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    exchange.planner.latest({BASE: 5})
    recreated = LATE._replace(topic_id="idAgain")
    del exchange.mirror.source.logs[LATE]
    exchange.registrar.register()
    assert exchange.owner.positions().keys() == {BASE}
    exchange.mirror.source.logs |= {recreated: (0, 1)}
    exchange.registrar.register()
    assert exchange.owner.positions().keys() == {BASE}
    exchange.planner.latest({BASE: 5})
    exchange.registrar.register()
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5, recreated: 0}


def test_what_an_older_plan_names_and_the_map_does_not_is_left_out_until_it_is_registered(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    start: dict[SourcePartition, int] = {BASE: 5, LATE: 1}
    assert exchange.planner.ranges(start, {BASE: 5, LATE: 3}) == ()
    assert exchange.planner.latest({BASE: 5, LATE: 3}) == {BASE: 5, LATE: 3}
    exchange.registrar.register()
    assert exchange.planner.latest({BASE: 5, LATE: 3}) == {BASE: 5, LATE: 0}, "it is led back to its first row"
    assert exchange.planner.latest({BASE: 5, LATE: 0}) == {BASE: 5, LATE: 3}
    assert [
        (planned.source, planned.start, planned.end)
        for planned in exchange.planner.ranges({BASE: 5, LATE: 0}, {BASE: 5, LATE: 3})
    ] == [(LATE, 0, 3)]


def test_a_disk_that_refuses_the_note_is_an_error_that_is_waited_out(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    exchange.planner.latest({BASE: 5})
    exchange.notes.registered_path.mkdir()
    with pytest.raises(RetriableError, match="new partitions cannot be reported to the planner"):
        exchange.registrar.register()


def test_a_planner_that_cannot_ask_or_gets_no_response_ends_the_query_so_that_a_start_registers(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.mirror.source.logs |= {LATE: (0, 3)}
    exchange.planner.latest({BASE: 5})
    exchange.planner._clock = lambda: 119.0
    assert exchange.planner.latest({BASE: 5}) == {BASE: 5}
    exchange.planner._clock = lambda: 121.0
    with pytest.raises(RetriableError, match="the driver does not register late-0"):
        exchange.planner.latest({BASE: 5})
    exchange.planner._clock = lambda: 0.0
    exchange.notes.seen_path.unlink()
    exchange.notes.seen_path.mkdir()
    with pytest.raises(RetriableError, match="new partitions cannot be registered"):
        exchange.planner.latest({BASE: 5})

"""An archive records where groups are; a restore commits what was recorded at the cut, inside of what it restored."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.broker import CommittedOffset, ListedGroup
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap
from shallow_mirror.checkpoints.ledger import ArchiveTable, LedgerOwner, RestoreRanges, RunIdentity
from shallow_mirror.checkpoints.logs import GroupPosition, positions_as_of
from shallow_mirror.checkpoints.tables import BestEffortTables, TableStorage
from shallow_mirror.checkpoints.tables.best_effort_tables import TableRows, append_in_order
from shallow_mirror.config.restore_config import Cut
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups import archived_groups
from shallow_mirror.groups.archived_groups import GroupNotes, GroupNoting
from shallow_mirror.groups.report import Step
from shallow_mirror.groups.restored_groups import clamped, noted_positions, planned_groups, report_groups, restore_groups
from shallow_mirror.streaming.planning.restore_planner import time_of_cut
from shallow_mirror.types import OffsetRange, Segment, SegmentKind, TargetPartition, TopicPartition

T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)
TARGET = TargetPartition("east.orders", "tgttgttgttgttgttgttgtA", 0)


class Groups:
    """A cluster with groups, as `GroupClient` shows it."""

    def __init__(self, topic_ids: dict[str, str], end: int = 0) -> None:
        self.offsets_of: dict[str, tuple[CommittedOffset, ...]] = {}
        self.members: set[str] = set()
        self.ids, self.end = topic_ids, end
        self.is_down = False

    def have(self, group: str, *offsets: tuple[str, int, int | None]) -> None:
        self.offsets_of[group] = tuple(
            CommittedOffset(TopicPartition(topic, partition), offset, "note") for topic, partition, offset in offsets
        )

    def listed(self) -> dict[str, ListedGroup]:
        if self.is_down:
            raise RetriableError("DOWN", "no broker answers")
        return {name: ListedGroup(name, "Stable" if name in self.members else "Empty") for name in self.offsets_of}

    reported = listed

    def committed(self, groups: Iterable[str]) -> dict[str, tuple[CommittedOffset, ...]]:
        return {group: self.offsets_of.get(group, ()) for group in groups}

    def begin_committed(self, groups: Iterable[str]) -> dict[str, str]:
        return {group: group for group in groups}

    def finish_committed(self, group: str, begun: str) -> tuple[CommittedOffset, ...]:
        assert begun == group
        return self.offsets_of.get(group, ())

    def commit(self, group: str, offsets: dict[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, str]:
        self.have(group, *((*topic_partition, offset) for topic_partition, (offset, _) in offsets.items()))
        return {}

    def commit_together(self, offsets: dict[str, dict[TopicPartition, tuple[int, str]]]) -> dict[str, dict[TopicPartition, str]]:
        return {group: self.commit(group, of_group) for group, of_group in offsets.items()}

    def finish_commits(self) -> None: ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def offsets(self, topic_partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, 0 if timestamp == -2 else self.end)

    def clients(self, _group: str) -> tuple[str, ...]:
        return ("a consumer",)

    def may_hide_groups(self) -> bool:
        return False

    def close(self) -> None:
        return


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups({"orders": ORDERS.topic_id, "others": "othothothothothothothA"})
    monkeypatch.setattr(archived_groups, "GroupClient", lambda *_: groups)
    return groups


@pytest.fixture
def tables(tmp_path: Path) -> BestEffortTables:
    return TableStorage(str(tmp_path / "tables")).best_effort_tables()


def recorded(tables: BestEffortTables, minutes: float) -> dict[str, int | None]:
    return {position.group: position.offset for position in positions_as_of(tables, T0 + timedelta(minutes=minutes)).positions}


def test_positions_are_noted_when_they_change_and_found_again_by_time(
    source: Groups, tables: BestEffortTables, tmp_path: Path
) -> None:
    config = archive_config(tmp_path, topics={"include": ["orders"]}, groups={"exclude": ["tmp-.*"]})
    notes = GroupNotes(config, tables)
    source.have("billing", ("orders", 0, 5), ("others", 0, 77))
    source.have("tmp-1", ("orders", 0, 5))
    source.have("leaving", ("orders", 0, 1))
    assert notes.run_pass(T0) == 2
    assert notes.run_pass(T0 + timedelta(minutes=1)) == 2
    source.have("billing", ("orders", 0, 9))
    source.have("leaving", ("orders", 0, None))
    notes.run_pass(T0 + timedelta(minutes=2))
    del source.offsets_of["leaving"]
    notes.run_pass(T0 + timedelta(minutes=3))
    assert recorded(tables, 1.5) == {"billing": 5, "leaving": 1}
    assert recorded(tables, 2.5) == {"billing": 9, "leaving": 1}
    assert recorded(tables, 4) == {"billing": 9}
    assert len(tables.read("group_syncs", ())) == 3


def test_positions_stay_where_a_broker_that_has_just_started_does_not_list_their_topic_yet(
    source: Groups, tables: BestEffortTables, tmp_path: Path
) -> None:
    notes = GroupNotes(archive_config(tmp_path, topics={"include": ["orders"]}), tables)
    source.have("billing", ("orders", 0, 5))
    notes.run_pass(T0)
    topic_id = source.ids.pop("orders")
    notes.run_pass(T0 + timedelta(minutes=1))
    assert recorded(tables, 1.5) == {"billing": 5}
    source.ids["orders"] = topic_id
    source.have("billing", ("orders", 0, 9))
    notes.run_pass(T0 + timedelta(minutes=2))
    assert recorded(tables, 2.5) == {"billing": 9}


class LosingTables:
    """Tables that take no rows for a time: their store is unreachable, or refuses them."""

    def __init__(self, tables: BestEffortTables, *, is_reached: bool) -> None:
        self._tables, self._is_reached = tables, is_reached
        self.is_losing, self._lost = False, 0

    def append(self, table: str, rows: pa.Table) -> bool:
        if self.is_losing:
            self._lost += rows.num_rows if self._is_reached else 0
            return self._is_reached
        return self._tables.append(table, rows)

    def append_in_order(self, pieces: Sequence[TableRows]) -> bool:
        return append_in_order(self, pieces)

    def lost_rows(self, _table: str) -> int:
        return self._lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


class UnreachableOnce:
    """Tables whose store does not take the next rows of one table."""

    def __init__(self, tables: BestEffortTables) -> None:
        self._tables = tables
        self.refused: str | None = None

    def append(self, table: str, rows: pa.Table) -> bool:
        if table == self.refused:
            self.refused = None
            return False
        return self._tables.append(table, rows)

    def append_in_order(self, pieces: Sequence[TableRows]) -> bool:
        return append_in_order(self, pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


@pytest.mark.parametrize("is_reached", [False, True])
def test_positions_that_were_lost_are_noted_again_although_they_do_not_change(
    source: Groups, tables: BestEffortTables, tmp_path: Path, *, is_reached: bool
) -> None:
    losing = LosingTables(tables, is_reached=is_reached)
    notes = GroupNotes(archive_config(tmp_path, topics={"include": ["orders"]}), losing)
    source.have("billing", ("orders", 0, 5))
    notes.run_pass(T0)
    source.have("billing", ("orders", 0, 9))
    losing.is_losing = True
    notes.run_pass(T0 + timedelta(minutes=1))
    losing.is_losing = False
    notes.run_pass(T0 + timedelta(minutes=2))
    notes.run_pass(T0 + timedelta(minutes=3))
    assert recorded(tables, 4) == {"billing": 9}
    assert len(tables.read("group_syncs", ())) == 2, "nothing has changed since"


@pytest.mark.parametrize("refused", ["group_offsets", "group_syncs"])
def test_a_pass_that_the_store_did_not_take_is_noted_with_the_next_one(
    source: Groups, tables: BestEffortTables, tmp_path: Path, refused: str
) -> None:
    unreachable = UnreachableOnce(tables)
    notes = GroupNotes(archive_config(tmp_path), unreachable)
    source.have("billing", ("orders", 0, 5))
    source.have("leaving", ("orders", 0, 1))
    unreachable.refused = refused  # of the complete pass, which readers begin with
    notes.run_pass(T0)
    notes.run_pass(T0 + timedelta(minutes=1))
    assert recorded(tables, 1) == {"billing": 5, "leaving": 1}
    unreachable.refused = refused
    source.have("billing", ("orders", 0, 9))
    del source.offsets_of["leaving"]
    notes.run_pass(T0 + timedelta(minutes=2))
    notes.run_pass(T0 + timedelta(minutes=3))
    assert recorded(tables, 3) == {"billing": 9}


def test_a_source_that_does_not_answer_is_reported_once_and_noted_again_later(
    source: Groups, tables: BestEffortTables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.is_down = True
    times = [T0]
    asked = threading.Event()

    def now() -> datetime:
        if len(times) == 3:
            source.is_down = False
        if len(times) == 5:
            asked.set()
        times.append(times[-1] + timedelta(seconds=1))
        return times[-1]

    source.have("billing", ("orders", 0, 5))
    with caplog.at_level("INFO"), GroupNoting(archive_config(tmp_path), 0.001, tables, now=now) as noting:
        assert asked.wait(20)
        noting.is_last_wanted = True
    lines = [
        record.message for record in caplog.records if record.levelname in ("WARNING", "INFO") and "groups" in record.message
    ]
    assert lines[:2] == [
        "groups: their offsets could not be recorded, this is retried: RetriableError: DOWN: no broker answers",
        "groups: their offsets are recorded again",
    ]
    assert recorded(tables, 60) == {"billing": 5}


def restored_map(folder: Path, target_start: int = 0, shared_producer_id: int | None = None) -> OffsetMap:
    """Return a settled map: offsets 100 to 200 of ORDERS are the 100 from `target_start` on of the target; 30 hold nothing."""
    owner = LedgerOwner.take_over(
        str(folder / "restore"),
        name="r",
        source_cluster_id="source-cluster",
        target_cluster_id="west-id",
        run=RunIdentity.of_this_process(),
        now_ms=lambda: NOW_MS,
    )
    segment = Segment(
        source=ORDERS, source_start=100, source_end=200, kind=SegmentKind.DATA, target=TARGET, target_start=target_start,
        target_end=target_start + 100,
        record_count=100, batch_count=1, size_bytes=1,
    )  # fmt: skip
    hole = Segment(source=ORDERS, source_start=200, source_end=230, kind=SegmentKind.GAP, target=TARGET)
    owner.settle()
    owner.next_decision()
    owner.decide([DecidedSegment(row, None, shared_producer_id=shared_producer_id) for row in (segment, hole)], highest_slot=-1)
    owner.settle()
    return OffsetMap.open(str(folder / "restore"))


def test_offsets_are_clamped_to_the_range_translated_and_committed_for_groups_without_members(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    config = restore_runs.config(tmp_path, archive.config, "127.0.0.1:1", groups={"exclude": ["left-out"]})
    target = Groups({"east.orders": TARGET.topic_id}, end=100)
    target.have("further", ("east.orders", 0, 90))
    target.have("active", ("east.orders", 0, 1))
    target.members = {"active"}
    offsets = {"inside": 150, "before": 7, "behind": 250, "further": 150, "active": 150, "left-out": 150}
    positions = [GroupPosition(group=group, source=ORDERS, offset=offset) for group, offset in offsets.items()]
    positions.append(GroupPosition(group="other", source=ORDERS._replace(partition=9), offset=4))
    ranges = {ORDERS: OffsetRange(100, 200)}
    for _ in range(2):  # a second start commits nothing again
        client: Any = target
        groups = {group.name: group for group in restore_groups(config, positions, ranges, restored_map_of(tmp_path), client)}
    assert {name: group.partitions[0].step for name, group in groups.items()} == {
        "inside": Step.IN_PLACE,
        "before": Step.IN_PLACE,
        "behind": Step.IN_PLACE,
        "further": Step.FURTHER,
        "active": Step.ACTIVE,
    }
    reached = {name: [offset.offset for offset in of_group] for name, of_group in target.offsets_of.items()}
    assert reached == {"inside": [50], "before": [0], "behind": [100], "further": [90], "active": [1]}
    with caplog.at_level("INFO"):
        (left_out,) = report_groups(groups.values())
    assert "group active: orders-0 was not committed: the group is active there" in caplog.text
    assert left_out.startswith("the offset of group active in orders-0: the group is active there")
    planned = planned_groups(config, positions, ranges, client)
    assert {each.group: each.is_free for each in planned if not each.is_free} == {"active": False}
    assert "is left out while it has members there" in planned[0].sentence()


def test_with_preserved_offsets_groups_keep_their_numbers_also_where_no_record_follows(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    topics = {"offsets": {".*": "preserved"}}
    config = restore_runs.config(tmp_path, archive.config, "127.0.0.1:1", topics=topics)
    target = Groups({"east.orders": TARGET.topic_id}, end=230)
    offsets = {"inside": 150, "before": 7, "in a hole": 220, "behind the cut": 250}
    positions = [GroupPosition(group=group, source=ORDERS, offset=offset) for group, offset in offsets.items()]
    client: Any = target
    owner_map = restored_map(tmp_path, target_start=100, shared_producer_id=7)
    ranges = {ORDERS: OffsetRange(100, 230)}
    groups = restore_groups(config, positions, ranges, owner_map, client)
    assert all(group.partitions[0].step is Step.COMMITTED for group in groups)
    reached = {name: [offset.offset for offset in of_group] for name, of_group in target.offsets_of.items()}
    assert reached == {"inside": [150], "before": [100], "in a hole": [220], "behind the cut": [230]}


def restored_map_of(folder: Path) -> OffsetMap:
    return OffsetMap.open(str(folder / "restore")) if (folder / "restore").exists() else restored_map(folder)


def test_a_position_is_clamped_to_what_was_restored() -> None:
    offsets = OffsetRange(10, 20)
    clamps = {offset: clamped(GroupPosition(group="g", source=ORDERS, offset=offset), offsets) for offset in (3, 10, 15, 20, 99)}
    assert clamps == {3: 10, 10: 10, 15: 15, 20: 20, 99: 20}


def test_an_archive_without_notes_is_a_warning(tables: BestEffortTables, caplog: pytest.LogCaptureFixture) -> None:
    assert noted_positions(tables, {"orders": T0}) == ()
    assert "the archive has recorded no offsets of groups at or before 2026-05-01T14:00:00+00:00" in caplog.text


def test_groups_are_taken_at_the_time_of_the_cut(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    decisions = []
    for number in range(2):
        archive.now_ms = NOW_MS + number * 60_000
        archive.archive({ORDERS: [batch(number, 1)]})
        decisions.append(archive.owner.micro_batch)
    table = ArchiveTable.open(archive.config.table_location)
    times = [datetime.fromtimestamp((NOW_MS + number * 60_000) / 1000, UTC) for number in range(2)]
    first, last = (RestoreRanges(archive_id="a", until="", last_decision=number, ranges={}, lineages={}) for number in decisions)
    assert time_of_cut(table, first, Cut(decision=decisions[0]), T0) == times[0]
    assert time_of_cut(table, last, Cut(offsets={"orders": {0: 1}}), T0) == times[1]
    assert time_of_cut(table, last, Cut(time="2026-05-01T12:00:00Z"), T0) == datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert time_of_cut(table, last, Cut(), T0) == T0
    assert time_of_cut(table, first, Cut(), T0) == times[1]

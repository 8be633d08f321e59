"""A restore that preserves offsets, into a cluster that is as strict as brokers: killed anywhere, every record is at its offset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, OTHER, ArchiveOfTest, archive_config
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import CrashAt, CrashError
from tests.support.own_worker_clients import own_worker_clients
from tests.support.record_batches import batch, marker

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position
from shallow_mirror.checkpoints.ledger import ArchivedTopics, TopicDescription
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, PreservedLogDamagedError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS, TIMESTAMP_LIMITS
from shallow_mirror.streaming.runs import preserved_restore, restore as restore_run
from shallow_mirror.streaming.runs.preserved_restore import PreservedRestore, changed_offsets_problems, plan_log_ends
from shallow_mirror.streaming.runs.target_logs import recorded_ends
from shallow_mirror.types import OffsetRange, Segment, SegmentKind, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.wire.records import parse_record
from shallow_mirror.wire.records.fillers import FILLER_OFFSET_DELTA

pytestmark = pytest.mark.thorough

TIMES = GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000)
FILLER_LEAST = FILLER_OFFSET_DELTA // 2


class Archived:
    """An archive of two partitions of `orders`, and the cluster to restore into, whose topic exists."""

    def __init__(self, folder: Path, target: StrictCluster) -> None:
        self.folder, self.target, self.times = folder, target, TIMES
        self.archive = ArchiveOfTest(archive_config(folder))
        settings: dict[str, Any] = {**dict.fromkeys(TIMESTAMP_LIMITS, str(NO_LIMIT_MS)), "retention.ms": "-1"}
        target.create_topic("orders", 2, **settings)
        topics = ArchivedTopics.of(TableStorage(self.archive.config.table_location))
        description = TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=2, configs={})
        topics.record([description], run_epoch=1, micro_batch=1, at_ms=NOW_MS)

    def gap(self, source: SourcePartition, start: int, end: int, kind: SegmentKind = SegmentKind.GAP) -> None:
        segment = Segment(source=source, source_start=start, source_end=end, kind=kind, target=TargetPartition(*source))
        self.archive.decide(DecidedSegment(segment, None))

    def config(self, **settings: Any) -> RestoreConfig:
        groups: dict[str, Any] = {
            "restore": "back",
            "topics": {"target_name": "{topic}", "offsets": {".*": "preserved"}},
            "groups": {"commit": "off"},
            "read": {"micro_batch_bytes": 1 << 20},
        }
        groups = {**groups, **settings}
        return restore_runs.config(self.folder, self.archive.config, self.target.bootstrap, **groups)

    def restore(self, *crashes: str, **settings: Any) -> None:
        """Restore, killed once at each of these points before."""
        for point in crashes:
            with pytest.raises(CrashError):
                restore_runs.restore(self.config(**settings), InlineSession(), observer=CrashAt(point))
        restore_runs.restore(self.config(**settings), InlineSession())

    def end(self, partition: int = 0) -> int:
        return self.target.log("orders", partition).end_offset

    def start(self, partition: int = 0) -> int:
        return self.target.log("orders", partition).log_start_offset

    def records(self, partition: int = 0) -> list[int]:
        """Return the offsets of the records that a consumer returns. All batches have to be of one producer."""
        log = self.target.log("orders", partition)
        producers = {(each.header.producer_id, each.header.producer_epoch) for each in log.batches}
        assert len(producers) <= 1
        offsets = []
        for each in log.batches:
            pos, base = 0, each.header.base_offset
            assert each.header.base_sequence == base
            for _ in range(each.header.records_count):
                pos, (_, delta, _, _, _) = parse_record(memoryview(each.data)[61:], pos)
                if delta > FILLER_LEAST:
                    offsets.append(base + delta)
        return offsets


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archived]:
    def prepare(preserved: PreservedRestore, _deadline: object) -> None:
        preserved.guard_times = restored.times

    monkeypatch.setattr(PreservedRestore, "prepare", prepare)
    monkeypatch.setattr(restore_run, "refuse_ids_of_another", lambda *_: None)
    with StrictCluster(cluster_id="west-id") as target, own_worker_clients():
        restored = Archived(tmp_path, target)
        yield restored


def mixed() -> Sequence[bytes]:
    """Return records 0 to 1, an aborted transaction, records 6 and 8 with a hole between, a committed transaction, a hole."""
    return (
        batch(0, 2),
        batch(2, 3, attributes=0x10, producer_id=9, producer_epoch=0),
        marker(5, 0, 9),
        batch(6, deltas=[0, 2], last_offset_delta=3),
        batch(10, 2, attributes=0x10, producer_id=9, producer_epoch=0),
        marker(12, 1, 9),
    )


POINTS = ("TakeDecision", "task.produced", "RunSlots", "Decide", "Settle")


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_every_record_is_at_its_offset_once(archived: Archived, point: str) -> None:
    archived.archive.archive({ORDERS: mixed(), OTHER: [batch(0, 3)]}, aborted={ORDERS: [(9, 2)]})
    archived.archive.archive({ORDERS: [batch(15, 2)]})
    archived.restore(point)
    assert archived.records() == [0, 1, 6, 8, 10, 11, 15, 16]
    assert (archived.end(0), archived.records(1), archived.end(1)) == (17, [0, 1, 2], 3)
    rows = OffsetMap.open(archived.config().table_location).settled_rows().to_pylist()
    data = [row for row in rows if row["kind"] == "data"]
    assert all(row["target_start"] == row["source_start"] for row in data)
    assert len({row["target_producer_id"] for row in rows}) == 1
    before = archived.target.asked("Produce")
    archived.restore()
    assert archived.target.asked("Produce") == before


@pytest.mark.parametrize(
    ("cut", "records"),
    [(0, []), (1, [0]), (4, [0, 1]), (8, [0, 1, 6]), (9, [0, 1, 6, 8]), (10, [0, 1, 6, 8]), (13, [0, 1, 6, 8, 10, 11])],
)
def test_the_log_ends_at_the_cut_also_inside_a_batch_a_hole_or_aborted_data(
    archived: Archived, cut: int, records: list[int]
) -> None:
    archived.archive.archive({ORDERS: mixed()}, aborted={ORDERS: [(9, 2)]})
    crashes = ("RunSlots",) if cut else ()
    archived.restore(*crashes, until={"offsets": {"orders": {0: cut}}})
    assert (archived.records(), archived.end()) == (records, cut)


def test_offsets_without_batches_at_the_end_and_between_rows_are_filled(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 2)]})
    archived.gap(ORDERS, 2, 9, SegmentKind.EXPIRED)
    archived.archive.archive({ORDERS: [batch(9, 1)]})
    archived.gap(ORDERS, 10, 20)
    archived.restore()
    assert (archived.records(), archived.end()) == ([0, 1, 9], 20)


@pytest.mark.parametrize("kind", [SegmentKind.GAP, SegmentKind.EXPIRED])
def test_a_log_begins_at_the_first_archived_offset_also_without_records(archived: Archived, kind: SegmentKind) -> None:
    first = SegmentKind.EXPIRED
    archived.archive.archive({OTHER: [batch(0, 1)]})
    archived.gap(ORDERS, 0, 7, first)
    archived.gap(ORDERS, 7, 9, kind)
    archived.restore("TakeDecision")
    assert (archived.records(), archived.end()) == ([], 9)
    assert archived.start() == (7 if kind is SegmentKind.GAP else 9)


def test_a_log_begins_where_the_archive_does_whatever_the_first_micro_batch_holds(archived: Archived) -> None:
    """An aborted transaction, then records: the position is behind the first one when the first record is written."""
    transaction = batch(3, 4, attributes=0x10, producer_id=9, producer_epoch=0)
    archived.archive.archive({ORDERS: [transaction], OTHER: [batch(0, 1)]}, positions={ORDERS: 3}, aborted={ORDERS: [(9, 3)]})
    archived.archive.archive({ORDERS: [marker(7, 0, 9), batch(8, 5)]}, aborted={ORDERS: [(9, 3)]})
    config = archived.config()
    config = config.model_copy(update={"read": config.read.model_copy(update={"micro_batch_bytes": 1})})
    restore_runs.restore(config, InlineSession())
    assert (archived.start(), archived.records(), archived.end()) == (3, [8, 9, 10, 11, 12], 13)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_fillers_of_compacted_topics_are_left_to_compaction(
    archived: Archived, monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    """Brokers refuse to delete records of them (POLICY_VIOLATION)."""
    archived.archive.archive({ORDERS: [batch(40, 2)]}, positions={ORDERS: 40})
    archived.restore()
    deleted: list[object] = []
    monkeypatch.setattr(preserved_restore, "delete_records", lambda _target, starts, _deadline: deleted.append(starts))
    config = archived.config()
    positions = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror).positions()
    with closing(Cluster(config.target.client)) as target:
        preserved = PreservedRestore(config, target)
        deadline = Deadline.after_ms(10_000, time.monotonic)
        preserved.delete_leading_fillers({ORDERS: OffsetRange(41, 42)}, positions, lambda _: is_compacted, deadline)
    assert deleted == ([] if is_compacted else [{ORDERS.topic_partition: 41}])


def test_a_log_is_brought_to_its_first_offset_before_anything_is_copied(archived: Archived) -> None:
    """The last filler stays until a record is there: brokers may forget the producer of an empty log."""
    archived.archive.archive({ORDERS: [batch(40, 2)]}, positions={ORDERS: 40})
    with pytest.raises(CrashError):
        restore_runs.restore(archived.config(), InlineSession(), observer=CrashAt("TakeDecision"))
    assert (archived.start(), archived.records(), archived.end()) == (39, [], 40)
    archived.restore()
    assert (archived.start(), archived.records(), archived.end()) == (40, [40, 41], 42)


def test_the_newest_lineage_is_restored_from_where_it_begins_inside_of_a_batch(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 5), batch(5, 5)]})
    archived.archive.begin_lineage(ORDERS, 7, 3)
    archived.archive.archive({ORDERS: [batch(7, 2)]})
    archived.restore("task.produced")
    assert (archived.records(), archived.end()) == (list(range(9)), 9)


def test_a_foreign_record_during_the_restore_stops_it_with_its_offset(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 5)]})

    def write(point: str) -> None:
        if point == "RunSlots":
            archived.target.seed(("orders", 0), batch(archived.end(), 1, producer_id=5, producer_epoch=0, base_sequence=0))

    with pytest.raises(PreservedLogDamagedError, match=r"target orders-0: offsets from 5 on .*the log ends at 6") as raised:
        restore_runs.restore(archived.config(), InlineSession(), observer=write)
    assert raised.value.topic_partition == TopicPartition("orders", 0)


def test_a_foreign_record_in_a_new_log_is_named_without_a_wait(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 5)]})

    def write(point: str) -> None:
        if point == "TakeDecision":
            archived.target.seed(("orders", 0), batch(0, 1, producer_id=5, producer_epoch=0, base_sequence=0))

    with pytest.raises(PreservedLogDamagedError, match=r"offsets from 0 on .*a batch of producer id 5"):
        restore_runs.restore(archived.config(), InlineSession(), observer=write)


def test_a_log_whose_producer_is_forgotten_is_waited_for(archived: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_run, "_LEFT_OUT_PAUSE_S", 0.2)
    archived.times = GuardTimes(expiration_ms=86_400_000, quiet_ms=1_500)
    archived.archive.archive({ORDERS: [batch(0, 2)], OTHER: [batch(0, 1)]})
    archived.archive.archive({ORDERS: [batch(2, 2)], OTHER: [batch(1, 1)]})

    with pytest.raises(CrashError):
        restore_runs.restore(archived.config(), InlineSession(), observer=CrashAt("RunSlots"))
    log = archived.target.log("orders", 0)
    log.truncate(2)
    log.producers.clear()
    began = time.monotonic()
    archived.restore()
    assert time.monotonic() - began > 1.5
    assert (archived.records(0), archived.records(1)) == ([0, 1, 2, 3], [0, 1])


def test_a_topic_that_is_not_new_is_refused_before_anything_is_written(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 5)]})
    archived.target.seed(("orders", 1), batch(0, 2))
    with pytest.raises(ConfigError, match=r"target partition orders-1 is not new \(its log has offsets 0 to 2\)"):
        archived.restore()
    assert OffsetMap.open(archived.config().table_location).positions() == {}


def test_rows_that_retention_of_the_archive_deleted_since_stop_the_restore(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 1)]})
    archived.archive.archive({ORDERS: [batch(1, 1)]})
    with pytest.raises(CrashError):
        restore_runs.restore(archived.config(), InlineSession(), observer=CrashAt("TakeDecision"))
    from deltalake import DeltaTable

    DeltaTable(f"{archived.archive.config.tables}/archive_segments").delete("source_start = 0 AND source_end = 1")
    with pytest.raises(MirrorError, match="orders-0: the archive no longer has offsets 0 to 0: its retention deleted them"):
        archived.restore()
    assert archived.end() == 0


def test_translated_and_preserved_offsets_cannot_replace_each_other(archived: Archived) -> None:
    archived.archive.archive({ORDERS: [batch(0, 5)]})
    archived.restore()
    with pytest.raises(
        ConfigError, match="this restore began with preserved offsets of orders, the file has translated: set it back"
    ):
        archived.restore(topics={"target_name": "{topic}"})


def test_a_translated_restore_whose_target_has_lost_records_is_not_done(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_ends, "LOSS_PATIENCE_MS", 0)
    archived.archive.archive({ORDERS: [batch(0, 5)]})
    translated = {"topics": {"target_name": "{topic}"}}
    archived.restore(**translated)
    archived.target.log("orders").truncate(0)
    with pytest.raises(TargetDataLossError, match=r"orders-0: its log ended at offset 0, .* reach offset 5: "):
        archived.restore(**translated)


def test_offsets_of_the_positions_and_of_the_file_are_compared() -> None:
    target = TargetPartition("orders", "id", 0)
    preserved, translated = Position(5, target, shared_producer_id=7), Position(5, target)
    assert changed_offsets_problems({ORDERS: preserved}, lambda _topic: True) == []
    assert changed_offsets_problems({ORDERS: translated}, lambda _topic: False) == []
    (problem,) = changed_offsets_problems({ORDERS: translated}, lambda _topic: True)
    assert "the restore of orders was begun with translated offsets" in problem


def test_logs_to_fill_are_spread_over_the_slots() -> None:
    ends = {ORDERS._replace(partition=number): 10 + number for number in range(5)}
    slots = plan_log_ends(ends, 2)
    assert [[planned.source.partition for planned in slot] for slot in slots] == [[0, 2, 4], [1, 3]]
    assert all(planned.start == planned.end == ends[planned.source] for slot in slots for planned in slot)
    assert {planned.slot for planned in slots[1]} == {1}
    assert plan_log_ends({}, 2) == ()

"""Behind a source log that was cut the mirror continues at its position, once, and reports what it leaves behind."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.map_rows import SOURCE, TARGET, run_of
from tests.sinks.micro_batches import micro_batch_sink, planned_frame
from tests.sinks.two_strict_clusters import Clusters

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.runs import ProblemKind
from shallow_mirror.errors import LogTruncatedError, MirrorError, RetriableError, TopicRecreatedError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchReport
from shallow_mirror.streaming.watch.micro_batch_summary import problems_of
from shallow_mirror.types import EpochEnd, Segment, SegmentKind

PARTITION = SOURCE.topic_partition


def copied(start: int, end: int, leader_epoch: int) -> Segment:
    return Segment(
        source=SOURCE, source_start=start, source_end=end, kind=SegmentKind.DATA, target=TARGET, target_start=start,
        target_end=end, record_count=end - start, batch_count=1, source_leader_epoch=leader_epoch,
    )  # fmt: skip


def cut(expected_offset: int = 10, divergent_offset: int | None = 6, log_end: int | None = None) -> LogTruncatedError:
    return LogTruncatedError(
        PARTITION, expected_offset, "cut", log_end=log_end, divergent_offset=divergent_offset, topic_id=SOURCE.topic_id
    )


class Driver:
    """A sink that has copied offsets 0 to 9 of leader epoch 1; what slots answer is given, round by round."""

    def __init__(self, tables: str, clusters: Clusters, *, continues: bool = True, **settings: Any) -> None:
        self.owner = LedgerOwner.take_over(
            tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of("r"), now_ms=lambda: 1
        )
        self.owner.settle()
        self.owner.next_decision()
        self.owner.decide([DecidedSegment(copied(0, 10, 1), None)], highest_slot=0)
        self.owner.settle()
        self.availability = TargetAvailability()
        self.jobs: list[KafkaSlotJob] = []
        self.reports: list[MicroBatchReport] = []
        self.sink = micro_batch_sink(
            self.owner, self, clusters.job({}), report=self.reports.append, continues_after_data_loss=continues, **settings
        )

    def perform(self, action: actions.Action, _deadline: object) -> Any:
        return self.owner.next_decision() if isinstance(action, actions.TakeDecision) else None

    def copy(self, *rounds: Sequence[SlotResult | MirrorError]) -> None:
        self.sink(planned_frame(iter(rounds), self.jobs), 0)
        self.owner.settle()

    def known_epochs(self) -> list[EpochEnd | None]:
        """Return what the slots of each round were given for the partition."""
        return [dict(pickle.loads(pickle.dumps(job.epoch_ends))).get(SOURCE) for job in self.jobs]


@pytest.fixture
def driver(tmp_path: Path, clusters: Clusters) -> Driver:
    return Driver(str(tmp_path), clusters)


def slot(start: int, end: int, leader_epoch: int = 2) -> SlotResult:
    return SlotResult(0, None, (copied(start, end, leader_epoch),))


@pytest.mark.parametrize(
    ("divergent_offset", "message"),
    [
        (6, "the source holds other records at offsets 6 to 9 than were copied"),
        (None, "the source may have other records below offset 10 than were copied: the first such offset is not known"),
    ],
)
def test_the_next_round_continues_at_the_position_and_what_lies_below_it_is_reported(
    driver: Driver, divergent_offset: int | None, message: str
) -> None:
    driver.copy([cut(divergent_offset=divergent_offset)], [slot(10, 15)])
    assert driver.known_epochs() == [EpochEnd(1, 10), None]
    assert driver.owner.positions()[SOURCE].offset == 15
    (report,) = driver.reports
    (problem,) = problems_of(report, [row.segment for row in report.rows])
    assert (problem.kind, problem.place, problem.error_name) == (ProblemKind.TRUNCATED, PARTITION, "LogTruncatedError")
    assert problem.text.startswith(message)
    assert problem.text.endswith("the mirror continues at offset 10")


@pytest.mark.slow
def test_it_is_reported_once_and_later_leader_epochs_are_compared_again(driver: Driver) -> None:
    driver.copy([cut()], [slot(10, 15)])
    driver.copy([slot(15, 20)])
    assert [len(report.truncated) for report in driver.reports] == [1, 0]
    assert driver.known_epochs() == [EpochEnd(1, 10), None, EpochEnd(2, 15)]
    driver.copy([cut(20, 18)], [slot(20, 22, 3)])
    assert [len(report.truncated) for report in driver.reports] == [1, 0, 1]


def test_it_is_reported_with_the_micro_batch_that_continues(driver: Driver) -> None:
    """One without rows decides nothing; the next does not compare epochs again."""
    driver.copy([cut()], [SlotResult(0, None, ())])
    assert driver.reports == []
    driver.copy([slot(10, 12)])
    assert [len(report.truncated) for report in driver.reports] == [1]


def test_without_leave_to_continue_it_ends_the_micro_batch(tmp_path: Path, clusters: Clusters) -> None:
    driver = Driver(str(tmp_path), clusters, continues=False)
    with pytest.raises(LogTruncatedError):
        driver.copy([cut()])
    assert driver.owner.positions()[SOURCE].offset == 10


@pytest.mark.parametrize(
    "rounds",
    [
        [[cut(log_end=8)]],
        [[cut(expected_offset=12)]],
        [[cut()], [cut()]],
    ],
    ids=["the log ends below the position", "more was read than is decided", "again"],
)
def test_what_can_only_be_found_out_by_reading_again_is_tried_again(driver: Driver, rounds: Any) -> None:
    with pytest.raises(RetriableError, match="SOURCE_LOG_TRUNCATED"):
        driver.copy(*rounds)
    assert driver.owner.positions()[SOURCE].offset == 10


@pytest.mark.slow
def test_an_archive_begins_the_next_lineage_instead_and_the_next_round_compares_epochs_again(
    tmp_path: Path, clusters: Clusters
) -> None:
    begun: list[LogTruncatedError] = []

    def begin(loss: LogTruncatedError) -> bool:
        begun.append(loss)
        return len(begun) == 1

    driver = Driver(str(tmp_path), clusters, begin_lineages=begin)
    driver.copy([cut()], [cut()], [slot(10, 15)])
    assert driver.known_epochs() == [EpochEnd(1, 10), EpochEnd(1, 10), None]
    assert [len(report.truncated) for report in driver.reports] == [1]  # the second one has no next lineage
    stopping = Driver(str(tmp_path / "stopping"), clusters, continues=False, begin_lineages=begin)
    with pytest.raises(LogTruncatedError):
        stopping.copy([cut()])
    assert len(begun) == 2


def test_a_topic_that_was_created_again_is_no_cut(driver: Driver) -> None:
    with pytest.raises(TopicRecreatedError):
        driver.copy([TopicRecreatedError(PARTITION, 10, "old", "new")])


def test_a_round_keeps_the_epochs_of_the_other_partitions(driver: Driver) -> None:
    other = SOURCE._replace(partition=5)
    driver.owner.next_decision()
    of_other = replace(copied(0, 3, 1), source=other, target=TARGET._replace(partition=5))
    driver.owner.decide([DecidedSegment(of_other, None)], highest_slot=0)
    driver.owner.settle()
    driver.copy([cut()], [slot(10, 15)])
    assert dict(pickle.loads(pickle.dumps(driver.jobs[-1].epoch_ends)))[other] == EpochEnd(1, 3)

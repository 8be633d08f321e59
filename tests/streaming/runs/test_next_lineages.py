"""A truncated log of a strict broker begins the next lineage of an archive, or nothing where that would be a guess."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.archives import ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, LogTruncatedError
from shallow_mirror.sinks.micro_batches.expired_offsets import expired_rows
from shallow_mirror.streaming.runs.next_lineages import NextLineages
from shallow_mirror.types import EpochEnd, SourcePartition, TargetPartition

TOPIC_ID = uuid.UUID(int=77)
A, B = (SourcePartition("orders", "AAAAAAAAAAAAAAAAAAAATQ", number) for number in range(2))


class Archived:
    """Both partitions are archived up to their log ends: ten batches of leader epoch 0."""

    def __init__(self, folder: Path, source: StrictCluster) -> None:
        self.source = source
        source.create_topic("orders", 2, topic_id=TOPIC_ID)
        self.archive = ArchiveOfTest(archive_config(folder))
        for partition in (A, B):
            source.seed(("orders", partition.partition), *records(0, 10, 0))
        self.archive.archive({A: records(0, 10, 0), B: records(0, 10, 0)})
        self.problems: list[Problem] = []
        self.points: list[str] = []
        self.cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": source.bootstrap}))
        self.lineages = NextLineages(
            self.archive.owner,
            lambda: ArchiveTable.open(self.archive.config.tables),
            self.cluster,
            is_included=lambda topic: topic == "orders",
            deadline=lambda: Deadline.after_ms(5_000, time.monotonic),
            report=self.problems.append,
            observer=self.points.append,
        )

    def truncate(self, source: SourcePartition, offset: int, new: int = 0) -> None:
        """Cut a log, and let the next leader write records."""
        log = self.source.log("orders", source.partition)
        log.truncate(offset)
        self.source.seed(("orders", source.partition), *records(offset, offset + new, log.leader_epoch))

    def begin(self, source: SourcePartition, log_end: int | None = None) -> bool:
        loss = LogTruncatedError(source.topic_partition, self.positions()[source].offset, "cut", log_end, None, source.topic_id)
        return self.lineages.begin(loss)

    def positions(self) -> dict[SourcePartition, Position]:
        return self.archive.owner.positions()


def records(start: int, end: int, leader_epoch: int) -> list[bytes]:
    return [batch(offset, leader_epoch=leader_epoch) for offset in range(start, end)]


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Archived]:
    with StrictCluster(cluster_id="source-cluster") as source:
        archived = Archived(tmp_path, source)
        yield archived
        archived.cluster.close()


def at(offset: int, lineage: int, epoch_end: EpochEnd | None, source: SourcePartition = A) -> Position:
    """Return the position where a lineage begins."""
    return Position(offset, TargetPartition(*source), epoch_end, None, 0, lineage, start=offset)


@pytest.mark.slow
@pytest.mark.parametrize("new", [0, 2, 20], ids=["ends there", "ends below the position", "has grown beyond it"])
def test_the_next_lineage_begins_where_the_log_was_cut_and_is_reported(archived: Archived, new: int) -> None:
    archived.truncate(A, 6, new)
    assert archived.begin(A)
    assert archived.positions()[A] == at(6, 1, EpochEnd(0, 6))
    assert archived.positions()[B].lineage == 0
    assert archived.points == ["lineage.found", "first_rows.decided", "first_rows.settled"]
    (problem,) = archived.problems
    assert (problem.kind, problem.place) == (ProblemKind.TRUNCATED, A.topic_partition)
    assert problem.text.startswith("the source holds other records from offset 6 on than were archived up to 10")
    assert problem.remedy == "none needed; `until.lineage: 0` in a restore file restores what the source has lost"


@pytest.mark.slow
def test_all_truncated_logs_are_found_at_once_and_begin_in_one_decision(archived: Archived) -> None:
    archived.truncate(A, 6, 9)
    archived.truncate(B, 3, 9)
    before = archived.archive.owner.micro_batch
    assert archived.begin(A)
    assert {source: position.offset for source, position in archived.positions().items()} == {A: 6, B: 3}
    assert archived.archive.owner.micro_batch == before + 1
    assert len(archived.problems) == 2


@pytest.mark.slow
def test_truncations_in_a_row_begin_one_lineage_each_also_below_the_start_of_the_last_one(archived: Archived) -> None:
    archived.truncate(A, 6, 4)
    assert archived.begin(A)
    archived.archive.archive({A: records(6, 10, 1)})
    archived.truncate(A, 8, 4)
    assert archived.begin(A)
    assert archived.positions()[A] == at(8, 2, EpochEnd(1, 8))
    archived.truncate(A, 4, 1)
    assert archived.begin(A)
    assert archived.positions()[A] == at(4, 3, EpochEnd(0, 4))
    archived.truncate(A, 0, 12)
    assert archived.begin(A)
    assert archived.positions()[A] == at(0, 4, None)


def test_a_log_that_is_the_same_begins_nothing(archived: Archived) -> None:
    archived.source.log("orders", 0).move(archived.source.log("orders", 0).leader)
    archived.source.seed(("orders", 0), *records(10, 12, 1))
    assert not archived.begin(A)
    assert (archived.problems, archived.points) == ([], [])


@pytest.mark.slow
def test_where_no_epoch_was_archived_nothing_is_guessed(tmp_path: Path, archived: Archived) -> None:
    older = SourcePartition("orders", A.topic_id, 1)
    archived.archive.begin_lineage(older, 0)
    archived.archive.archive({older: records(0, 10, -1)})
    archived.truncate(B, 6)
    assert not archived.begin(B, log_end=6)
    assert archived.positions()[B].offset == 10
    (problem,) = archived.problems
    assert "from which offset on it differs cannot be found out: no archived batch has a leader epoch" in problem.text
    assert not archived.begin(B, log_end=6)
    assert len(archived.problems) == 1


@pytest.mark.slow
def test_a_partition_whose_log_ends_below_the_position_without_a_difference_waits(archived: Archived) -> None:
    """Its last stable offset may be lower, behind a transaction whose marker was lost."""
    loss = LogTruncatedError(A.topic_partition, 10, "cut", 7, 7, A.topic_id)
    archived.lineages.begin_or_hold(loss)
    assert archived.lineages.held == {A: 10}
    archived.truncate(A, 6)
    archived.lineages.begin_or_hold(loss)
    assert archived.positions()[A].offset == 6


@pytest.mark.slow
def test_what_the_source_has_deleted_of_the_new_log_is_said(archived: Archived) -> None:
    archived.truncate(A, 6, 10)
    archived.source.log("orders", 0).delete_records_before(8)
    assert archived.begin(A)
    (problem,) = archived.problems
    assert "The source has deleted offsets 6 to 7 of the new log already" in problem.text
    positions = archived.positions()
    rows = expired_rows(
        DataLossError(A.topic_partition, 6, 8, "deleted"),
        {source: position.offset for source, position in positions.items()},
        {source: position.target for source, position in positions.items()},
        {source: position.lineage for source, position in positions.items()},
        archived.cluster,
        Deadline.after_ms(5_000, time.monotonic),
    )
    archived.archive.decide(*rows)
    assert (archived.positions()[A].offset, archived.positions()[A].lineage) == (8, 1)


def test_a_recreated_topic_is_none_of_its_partitions(archived: Archived) -> None:
    archived.source.delete_topic("orders")
    archived.source.create_topic("orders", 2, topic_id=uuid.UUID(int=78))
    archived.source.seed(("orders", 0), *records(0, 2, 0))
    assert not archived.begin(A)
    assert archived.positions()[A].offset == 10

"""An archive finds out that a marker behind its position was lost, and that the transaction ended the other way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings, strategies as st
from tests.archive_reading.test_transaction_cuts import scanned
from tests.archive_reading.test_transaction_cuts_model import PARTITIONS, Model
from tests.fakes.strict_broker import StrictCluster
from tests.support.archives import ArchiveOfTest, archive_config
from tests.support.examples import examples
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import DecidedSegment, Position, TxnKey
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import TxnOutcomeChangedError
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks import ArchiveSink, ArchiveSlotJob, SlotResult
from shallow_mirror.sinks.archive.txn_outcomes import TxnOutcomes
from shallow_mirror.streaming.runs.next_lineages import NextLineages
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

A = SourcePartition("orders", "AAAAAAAAAAAAAAAAAAAATQ", 0)
TXN = 0x10
ABORT, COMMIT = 0, 1
Aborted = Mapping[SourcePartition, Sequence[tuple[int, int]]]


def txn_data(offset: int, producer_id: int) -> bytes:
    return batch(offset, 2, attributes=TXN, producer_id=producer_id, producer_epoch=0, base_sequence=0)


class Archived:
    """An archive, and its source: two plain records, two of producer 7 from offset 2 on, and the marker is behind the position."""

    def __init__(self, folder: Path, source: StrictCluster, aborted: Aborted) -> None:
        source.create_topic("orders", 1, topic_id=uuid.UUID(int=77))
        self.archive = ArchiveOfTest(archive_config(folder))
        self.archive.archive({A: [batch(0, 2), txn_data(2, 7)]}, positions={A: 0}, aborted=aborted)
        self.problems: list[Problem] = []
        self.cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": source.bootstrap}))
        source.seed(("orders", 0), batch(0, 2), txn_data(2, 7))
        self.lineages = NextLineages(
            self.archive.owner,
            self.table,
            self.cluster,
            is_included=lambda topic: topic == "orders",
            deadline=lambda: Deadline.after_ms(5_000, time.monotonic),
            report=self.problems.append,
        )
        self.compacted: set[str] = set()
        self.sink = self.new_sink()

    def table(self) -> ArchiveTable:
        return ArchiveTable.open(self.archive.config.tables)

    def new_sink(self) -> ArchiveSink:
        job = ArchiveSlotJob.of_archive(
            self.archive.config, archive_id=self.archive.owner.map_id, source_cluster_id="source", observer=lambda _: None
        )
        return ArchiveSink(
            job=job,
            owner=self.archive.owner,
            observer=lambda _: None,
            read_outcomes=lambda: TxnOutcomes(self.table().unended_aborts(), self.compacted.__contains__),
        )

    def take(self, *batches: bytes, aborted: Sequence[tuple[int, int]] = ()) -> None:
        """Let a slot archive these batches from the position on."""

        def run_slots(_decision: int) -> tuple[SlotResult, ...]:
            rows = self.archive.write({A: batches}, aborted={A: aborted})
            stored = {row.segment.source: row.stored for row in rows if row.stored is not None}
            return (SlotResult(0, None, tuple(row.segment for row in rows), stored=stored),)

        deadline = Deadline.after_ms(5_000, time.monotonic)
        self.sink.run_round((), run_slots, deadline, lambda _step, _ms: None)
        self.archive.owner.settle()

    def offsets(self, lineage: int | None = None) -> list[int]:
        """Return the offsets of the committed records."""
        reader = ArchiveReader.open(self.archive.config.tables, self.archive.config.objects)
        return [record.offset for record in reader.read_records("orders", 0, lineage=lineage)]


@pytest.fixture
def archived_with(tmp_path: Path) -> Iterator[Callable[[Aborted], Archived]]:
    with ExitStack() as stack:

        def archived_with(aborted: Aborted) -> Archived:
            archived = Archived(tmp_path, stack.enter_context(StrictCluster(cluster_id="source-cluster")), aborted)
            stack.callback(archived.cluster.close)
            return archived

        yield archived_with


@pytest.mark.thorough
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("before", ["aborted", "committed"])
def test_a_transaction_that_ended_the_other_way_is_archived_again_as_the_next_lineage(
    archived_with: Callable[[Aborted], Archived], before: str, is_restarted: bool
) -> None:
    was_aborted = before == "aborted"
    archived = archived_with({A: [(7, 2)]} if was_aborted else {})
    if is_restarted:
        archived.sink = archived.new_sink()
    ending = [marker(4, COMMIT if was_aborted else ABORT, 7), batch(5, 2, leader_epoch=4)]
    aborted = [] if was_aborted else [(7, 2)]
    with pytest.raises(TxnOutcomeChangedError, match=f"producer id 7 from offset 2 on was archived as {before}") as caught:
        archived.take(*ending, aborted=aborted)
    assert archived.archive.owner.positions()[A].offset == 4
    assert archived.lineages.begin(caught.value)
    assert (archived.archive.owner.positions()[A].offset, archived.archive.owner.positions()[A].lineage) == (2, 1)
    (problem,) = archived.problems
    assert problem.kind is ProblemKind.TRUNCATED
    assert problem.text.startswith("the transaction of producer id 7 from offset 2 on was archived as")
    archived.take(txn_data(2, 7), *ending, aborted=aborted)
    assert archived.offsets() == ([0, 1, 2, 3, 5, 6] if was_aborted else [0, 1, 5, 6])
    assert archived.offsets(lineage=0) == ([0, 1] if was_aborted else [0, 1, 2, 3])
    assert verify_archive(archived.archive.config, is_deep=True).is_equal


@pytest.mark.slow
def test_a_transaction_at_the_first_offset_of_a_lineage_is_archived_again_once(
    archived_with: Callable[[Aborted], Archived],
) -> None:
    archived = archived_with({A: [(7, 2)]})
    archived.archive.begin_lineage(A, 0, 3)
    archived.take(txn_data(0, 7), aborted=[(7, 0)])
    with pytest.raises(TxnOutcomeChangedError) as caught:
        archived.take(marker(2, COMMIT, 7))
    assert archived.lineages.begin(caught.value)
    archived.take(txn_data(0, 7), marker(2, COMMIT, 7))
    assert archived.offsets() == [0, 1]


@pytest.mark.slow
def test_transactions_that_end_as_they_were_archived_change_nothing(archived_with: Callable[[Aborted], Archived]) -> None:
    archived = archived_with({A: [(7, 2)]})
    archived.take(txn_data(4, 8), aborted=[(7, 2), (8, 4)])
    archived.take(marker(6, ABORT, 7), aborted=[(7, 2), (8, 4)])
    archived.take(marker(7, ABORT, 8), txn_data(8, 9), aborted=[(8, 4)])
    archived.take(marker(10, COMMIT, 9))
    assert archived.archive.owner.positions()[A].lineage == 0
    assert archived.offsets() == [0, 1, 8, 9]


@pytest.mark.slow
def test_compaction_may_remove_an_aborted_transaction_unless_the_leader_changed(
    archived_with: Callable[[Aborted], Archived],
) -> None:
    archived = archived_with({A: [(7, 2)]})
    archived.compacted.add("orders")
    with pytest.raises(TxnOutcomeChangedError):
        archived.take(batch(5, 2, leader_epoch=4))
    archived.take(batch(5, 2))
    assert archived.offsets() == [0, 1, 5, 6]


@pytest.mark.slow
def test_nothing_is_compared_behind_offsets_that_the_archive_does_not_have(archived_with: Callable[[Aborted], Archived]) -> None:
    archived = archived_with({A: [(7, 2)]})
    expired = Segment(source=A, source_start=4, source_end=9, kind=SegmentKind.EXPIRED, target=TargetPartition(*A))
    archived.archive.decide(DecidedSegment(expired, None))
    archived.take(batch(9, 1))
    assert archived.archive.owner.positions()[A].offset == 10


@pytest.mark.slow
def test_only_the_rows_that_end_at_the_positions_say_what_is_unended(archived_with: Callable[[Aborted], Archived]) -> None:
    archived = archived_with({A: [(7, 2)]})
    assert archived.table().unended_aborts() == {A: frozenset({TxnKey(7, 2)})}
    archived.take(batch(4, 1), aborted=[(7, 2)])
    assert archived.table().unended_aborts() == {A: frozenset({TxnKey(7, 2)})}
    archived.take(marker(5, ABORT, 7), aborted=[(7, 2)])
    assert archived.table().unended_aborts() == {}


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.integers(0, (1 << 32) - 1))
def test_rows_of_one_log_never_contradict_each_other(seed: int) -> None:
    model = Model([True, False, True])
    model.run(Random(seed), steps=60)
    outcomes = TxnOutcomes({}, lambda _: False)
    positions: dict[SourcePartition, Position] = {}
    for source in PARTITIONS:
        log = model.logs[source]
        for start, end, aborted in log.rows:
            row = scanned(source, *(data for base, _, data in log.batches if start <= base < end), aborted=aborted, start=start)
            assert isinstance(row.segment, DecidedSegment)
            outcomes.take([row.segment], positions)
            positions[source] = Position(end, TargetPartition(*source), None, None, end)

"""Tables that are older than the target: put back, or a copy that another run continues. Real tables, strict clusters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.sinks.two_strict_clusters import A, Clusters, client_of, planned
from tests.support.deadlines import deadline

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.net import RUN_SUPERSEDED
from shallow_mirror.broker.produce.txn import begin_describe_txn, init_producer_id
from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import OlderTablesError, RetriableError
from shallow_mirror.sinks import SlotResult, observe_nothing
from shallow_mirror.sinks.base import SlotRound
from shallow_mirror.sinks.kafka import KafkaSink, RunGuard
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, recover
from shallow_mirror.types import SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

TIMEOUT_MS = 60_000


class Run:
    """One start of mirror `m`, of partition A, with one slot; `copies` micro-batches without Spark."""

    def __init__(self, clusters: Clusters, folder: Path, run_id: str, target: Cluster, *, accepted_version: int = 0) -> None:
        self._clusters, self._target, self._run_id = clusters, target, run_id
        self.owner = LedgerOwner.take_over(
            str(folder),
            name="m",
            source_cluster_id="S",
            target_cluster_id="T",
            run=RunIdentity(run_id=run_id, host="here", pid=7, started_at_ms=1),
            now_ms=lambda: 1_700_000_000_000,
            slots=2,
            accepted_version=accepted_version,
        )
        self.recover()

    def recover(self) -> None:
        """Begin an attempt."""
        self.performer = TxnPerformer(self.owner, self._target, transaction_timeout_ms=TIMEOUT_MS)
        self.guard = RunGuard(self._target, "m", TIMEOUT_MS)
        recover(self.owner, self.performer, mirror="m", deadline=deadline(), guard=self.guard)
        route = self._clusters.job({}).routes["orders"]
        if A not in self.owner.positions():
            self.owner.next_decision()
            first = first_rows_at({A: 0}, lambda source: TargetPartition("copy", route.target_topic_id, source.partition))
            self.owner.decide([DecidedSegment(row.segment, None) for row in first], highest_slot=-1)
            self.owner.settle()
        job = self._clusters.job({}, map_id=self.owner.map_id, run_id=self._run_id)
        targets: Any = SimpleNamespace(routes=job.routes)
        self.sink = KafkaSink(
            job=job,
            slots=1,
            owner=self.owner,
            performer=self.performer,
            targets=targets,
            observer=observe_nothing,
            guard=self.guard,
        )

    def copy(self, end: int, *, in_between: Callable[[], object] = lambda: None) -> None:
        """Copy up to the source offset `end`. `in_between`: what happens when the slot has ended."""
        position = self.owner.positions()[A].offset
        round_ = SlotRound(
            decision=0,
            positions={A: position},
            epoch_ends={},
            time_left_ms=5_000.0,
            commit_interval_ms=5_000.0,
            left_out=frozenset(),
        )

        def run_slots(decision: int) -> tuple[SlotResult, ...]:
            task: Any = self.sink.task_of(round_)
            job = self._clusters.job(
                {A: position}, map_id=self.owner.map_id, run_id=self._run_id, decision=decision, prepared=task.job.prepared
            )
            result = self._clusters.run(job, replace(planned(A, end, position), slot=0))
            in_between()
            return (result,)

        self.sink.run_round((), run_slots, deadline(), lambda _step, _ms: None)
        assert self.owner.positions()[A].offset == end


class CopiedMirror:
    """A mirror that has copied offsets 0 to 3, and a copy of its tables of that time. `start` starts it with a folder."""

    def __init__(self, clusters: Clusters, root: Path, target: Cluster) -> None:
        self.clusters, self._target = clusters, target
        self.tables, self.older = root / "tables", root / "older"
        clusters.write(A, 3, 4, 2)
        self.first = self.start(self.tables, "first")
        self.first.copy(3)
        shutil.copytree(self.tables, self.older)

    def start(self, folder: Path, run_id: str, **settings: Any) -> Run:
        return Run(self.clusters, folder, run_id, self._target, **settings)

    def copied(self) -> list[int]:
        """Return the sizes of batches that read_committed readers see on the target."""
        log = self.clusters.target.log("copy", 0)
        assert log.last_stable_offset == log.end_offset
        aborted = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in log.aborted]
        return [
            batch.header.records_count
            for batch in log.batches
            if not batch.header.attributes & 0x20
            and not any(
                producer_id == batch.header.producer_id and first <= batch.header.base_offset <= last
                for producer_id, first, last in aborted
            )
        ]


@pytest.fixture
def mirror(clusters: Clusters, tmp_path: Path) -> Iterator[CopiedMirror]:
    with closing(Cluster(client_of(clusters.target))) as target:
        yield CopiedMirror(clusters, tmp_path, target)


def test_tables_that_were_put_back_are_refused_before_anything_is_written_however_often(mirror: CopiedMirror) -> None:
    mirror.first.copy(7)
    mirror.first.performer.next_round.finish(deadline())
    requests = ("Produce", "InitProducerId", "AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit")
    before = {api: mirror.clusters.target.asked(api) for api in requests}
    for attempt in range(2):  # the take-over of the first one does not make the tables newer
        with pytest.raises(OlderTablesError) as raised:
            mirror.start(mirror.older, f"later {attempt}")
        known = r"newest decision is decision 4 of run epoch 1 (2023-11-14T22:13:20+00:00), but consumer group m-0 on the target"
        assert known in str(raised.value)
        assert "receipt of decision 6 of run epoch 1 (20" in str(raised.value)
        assert "of run first. Nothing was written" in str(raised.value)
        assert "recover CONF --accept-repeats" in str(raised.value)
    assert {api: mirror.clusters.target.asked(api) for api in requests} == before


def test_the_newest_tables_continue_after_older_ones_were_refused(mirror: CopiedMirror) -> None:
    mirror.first.copy(7)
    with pytest.raises(OlderTablesError):
        mirror.start(mirror.older, "with older tables")
    mirror.start(mirror.tables, "with the newest tables").copy(9)
    assert mirror.copied() == [3, 4, 2]


def test_the_operator_may_continue_from_older_tables_and_newer_ones_are_older_then(mirror: CopiedMirror) -> None:
    mirror.first.copy(7)
    with pytest.raises(OlderTablesError) as raised:
        mirror.start(mirror.older, "older")
    mirror.start(mirror.older, "accepting", accepted_version=raised.value.version)
    mirror.start(mirror.older, "continuing").copy(9)
    assert mirror.copied() == [3, 4, 4, 2]
    with pytest.raises(OlderTablesError, match=r"decision 6 of run epoch 1 .*, but .* decision 2 of run epoch 4 "):
        mirror.start(mirror.tables, "with the tables of before")


def test_tables_whose_last_decision_was_never_committed_are_refused_where_a_copy_has_replaced_it(
    mirror: CopiedMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = mirror.start(mirror.tables, "killed")

    def die(*_: object) -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(killed.owner, "on_decided", die)
    with pytest.raises(ConnectionAbortedError):
        killed.copy(7)
    mirror.start(mirror.older, "with the copy").copy(7)
    with pytest.raises(OlderTablesError, match=r"decision 2 of run epoch 2 .*of run with the copy"):
        mirror.start(mirror.tables, "with the tables of the killed run")
    assert mirror.copied() == [3, 4]


def _diverge(mirror: CopiedMirror) -> None:
    """Let runs with the first tables reach higher run epochs and a decision without receipt, and one with the copy commit."""
    for run_id in ("second", "third"):
        last = mirror.start(mirror.tables, run_id)
    last.owner.next_decision()
    target = TargetPartition("copy", mirror.clusters.job({}).routes["orders"].target_topic_id, 0)
    first = first_rows_at({SourcePartition(A.topic, A.topic_id, 1): 0}, lambda _: target)
    last.owner.decide([DecidedSegment(row.segment, None) for row in first], highest_slot=-1)
    last.owner.settle()
    mirror.start(mirror.older, "with the copy").copy(7)


def test_tables_with_higher_run_epochs_are_refused_where_a_copy_of_them_has_committed_what_they_do_not_have(
    mirror: CopiedMirror,
) -> None:
    _diverge(mirror)
    for attempt in range(2):
        with pytest.raises(OlderTablesError, match=r"decision 2 of run epoch 3 .* decision 2 of run epoch 2 .*of run with the c"):
            mirror.start(mirror.tables, f"with the first tables {attempt}")
    mirror.start(mirror.older, "with the copy again").copy(9)
    assert mirror.copied() == [3, 4, 2]


def test_the_operator_may_continue_from_tables_with_higher_run_epochs(mirror: CopiedMirror) -> None:
    _diverge(mirror)
    with pytest.raises(OlderTablesError) as raised:
        mirror.start(mirror.tables, "refused")
    mirror.start(mirror.tables, "accepting", accepted_version=raised.value.version)
    mirror.start(mirror.tables, "continuing")
    mirror.start(mirror.tables, "continuing again").copy(9)
    mirror.start(mirror.tables, "and again")
    assert mirror.copied() == [3, 4, 4, 2]


def test_tables_of_an_earlier_release_count_as_they_were_before_the_first_take_over(mirror: CopiedMirror) -> None:
    recorded = mirror.first.owner.recorded()
    metadata = {name: value for name, value in recorded.metadata().items() if name != "decided_version"}
    assert type(recorded).from_metadata(recorded.version, metadata).decided_version == recorded.version


def test_a_copy_that_is_started_while_the_first_run_commits_is_refused_behind_its_fence(
    mirror: CopiedMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run decides when the copy has looked at the receipts already, and before it takes the guard."""
    take, copied = RunGuard.take, list[int]()

    def take_late(guard: RunGuard, until: Deadline) -> None:
        if not copied:
            copied.append(7)
            mirror.first.copy(7)
        take(guard, until)

    monkeypatch.setattr(RunGuard, "take", take_late)
    with pytest.raises(OlderTablesError, match="receipt of decision 6 of run epoch 1"):
        mirror.start(mirror.older, "copy")
    assert mirror.copied() == [3, 4]


def test_of_two_copies_that_run_at_once_the_one_that_decided_nothing_ends(mirror: CopiedMirror) -> None:
    """The first run is idle when the copy starts: nothing on the target says that there are two."""
    copy = mirror.start(mirror.older, "copy")
    with pytest.raises(RetriableError):  # its producer epoch, or the guard
        mirror.first.copy(7)
    copy.copy(7)
    with pytest.raises(OlderTablesError, match="of run copy"):
        mirror.first.recover()
    copy.copy(9)
    assert mirror.copied() == [3, 4, 2]


def test_a_run_takes_its_guard_back_where_the_other_one_decided_nothing(mirror: CopiedMirror) -> None:
    copy = mirror.start(mirror.older, "copy")
    with pytest.raises(RetriableError):
        mirror.first.copy(7)
    mirror.first.recover()
    mirror.first.copy(7)
    with pytest.raises(
        RetriableError, match="this run took epoch 1 of the transactional id m-run, and the target has epoch 2"
    ) as raised:
        copy.copy(7)
    assert raised.value.error_name == RUN_SUPERSEDED
    with pytest.raises(OlderTablesError):
        copy.recover()
    mirror.first.recover()  # ends the transaction that the copy has left open
    mirror.first.copy(9)
    assert mirror.copied() == [3, 4, 2]


def test_nothing_is_decided_where_the_copy_starts_while_a_slot_writes(mirror: CopiedMirror) -> None:
    mirror.first.copy(7)  # the next round has a producer epoch ahead, and asks for the guard before its slot runs
    shutil.rmtree(mirror.older)
    shutil.copytree(mirror.tables, mirror.older)
    copies = list[Run]()
    with pytest.raises(RetriableError):
        mirror.first.copy(9, in_between=lambda: copies.append(mirror.start(mirror.older, "copy")))
    assert mirror.first.owner.positions()[A].offset == 7
    copies[0].copy(9)
    with pytest.raises(OlderTablesError):
        mirror.first.recover()
    assert mirror.copied() == [3, 4, 2]


def test_a_copy_fences_slots_that_its_tables_do_not_know(mirror: CopiedMirror, clusters: Clusters) -> None:
    with closing(Cluster(client_of(clusters.target))) as target:
        guard = RunGuard(target, "m", TIMEOUT_MS)
        assert guard.slot_count(2, deadline()) == 2
        init_producer_id(target, "m-2", TIMEOUT_MS, deadline())
        init_producer_id(target, "m-5", TIMEOUT_MS, deadline())
        assert guard.slot_count(2, deadline()) == 8
        assert guard.slot_count(8, deadline()) == 8
        mirror.start(mirror.older, "copy")
        begun = begin_describe_txn(target, "m-5", deadline())
        assert begun.receive(deadline()).transaction_states[0].producer_epoch == 1


@pytest.mark.parametrize("api", ["DescribeTransactions", "FindCoordinator"])
def test_ids_that_the_user_may_not_describe_are_not_its_own(mirror: CopiedMirror, clusters: Clusters, api: str) -> None:
    """ACLs may name the ids of this run one by one; brokers do not even say then where an id is coordinated."""
    clusters.target.change(api, error(53), error(53))
    with closing(Cluster(client_of(clusters.target))) as target:
        assert RunGuard(target, "m", TIMEOUT_MS).slot_count(2, deadline()) == 2


def test_brokers_that_do_not_describe_transactions_have_no_guard(mirror: CopiedMirror, clusters: Clusters) -> None:
    clusters.target.not_offered = frozenset({"DescribeTransactions"})
    with closing(Cluster(client_of(clusters.target))) as target:
        guard = RunGuard(target, "m", TIMEOUT_MS)
        guard.take(deadline())
        assert guard.slot_count(2, deadline()) == 2
        guard.require(deadline(), is_begun_enough=False)


def test_a_guard_that_the_coordinator_has_forgotten_is_taken_again(mirror: CopiedMirror, clusters: Clusters) -> None:
    clusters.target.forget_txn("m-run")
    with pytest.raises(RetriableError, match="does not know it any more"):
        mirror.first.copy(7)
    mirror.first.recover()
    mirror.first.copy(7)
    assert mirror.copied() == [3, 4]

"""The protocol of the offset map on a real S3 server while requests fail, hang, or are applied without a response."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from tests.object_store.servers import Store
from tests.object_store.store_proxy import Harm, StoreFault

from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Removal
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity, commits
from shallow_mirror.checkpoints.ledger.commit_metadata import is_settled, read_recorded
from shallow_mirror.checkpoints.tables import TableLocation, TableStorage
from shallow_mirror.errors import FencedError, OffsetMapConflictError, OutcomeUnknownError, StoreUnreachableError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
TARGET = TargetPartition("orders", "tgttgttgttgttgttgttgtA", 0)
STEP = 5
GOAL = 10
MOST_ATTEMPTS = 60
COMMITS = r"_delta_log/\d{20}\.json"
NO_RESPONSES = (Harm.ANSWER_500, Harm.ANSWER_503, Harm.CUT, Harm.HANG)


class PatientRun:
    """What a run does with its map, without Kafka: rows of STEP offsets up to GOAL, tried again on every unknown outcome.

    The transaction of the decision at `aborted_at` is not committed the first time: its rows are removed and decided again.
    """

    def __init__(self, storage: TableLocation, name: str, aborted_at: int | None = None) -> None:
        self.storage = storage
        self.identity = RunIdentity(run_id=name, host="host", pid=7, started_at_ms=1_700_000_000_000)
        self.owner: LedgerOwner | None = None
        self.aborted: SlotTxn | None = None
        self.aborted_at = aborted_at
        self.attempts = 0
        self.errors: list[OutcomeUnknownError] = []

    def run(self) -> None:
        while not self._is_done():
            self.attempts += 1
            assert self.attempts <= MOST_ATTEMPTS, self.errors[-1]

    def _is_done(self) -> bool:
        try:
            owner = self._taken_over()
            owner.check_ownership()
            self._resolve(owner)
            while self._position(owner) < GOAL:
                self._decide(owner)
                self._resolve(owner)
                owner.compact_if_due()
        except OutcomeUnknownError as error:
            self.errors.append(error)
            return False
        return True

    def _taken_over(self) -> LedgerOwner:
        if self.owner is None:
            self.owner = LedgerOwner.take_over(
                self.storage, name="m", source_cluster_id="S", target_cluster_id="T", run=self.identity,
                now_ms=lambda: 1_700_000_000_000,
            )  # fmt: skip
        return self.owner

    def _position(self, owner: LedgerOwner) -> int:
        positions = owner.positions()
        return positions[SOURCE].offset if SOURCE in positions else 0

    def _decide(self, owner: LedgerOwner) -> None:
        start = self._position(owner)
        version = owner.next_decision()
        txn = SlotTxn("m-0", 1000, version % 30_000)
        if start == self.aborted_at and self.aborted is None:
            self.aborted = txn
        owner.decide([data(start, txn)], 0)

    def _resolve(self, owner: LedgerOwner) -> None:
        """Settle; what was aborted goes in the same commit, as after a recovery by the evidence of the target."""
        is_there = self.aborted is not None and any(row.txn == self.aborted for row in owner.unsettled())
        owner.settle([Removal(self.aborted)] if is_there and self.aborted is not None else [])


def data(start: int, txn: SlotTxn) -> DecidedSegment:
    return DecidedSegment(
        Segment(
            source=SOURCE, source_start=start, source_end=start + STEP, kind=SegmentKind.DATA, target=TARGET,
            target_start=start + 100, target_end=start + STEP + 100, record_count=STEP, batch_count=1, source_leader_epoch=4,
        ),
        txn,
    )  # fmt: skip


def assert_exactly_once(store: Store) -> None:
    offset_map = OffsetMap.open(store.storage())
    rows = offset_map.settled_rows().sort_by("source_start").to_pylist()
    assert [row["source_start"] for row in rows] == list(range(0, GOAL, STEP))
    recorded = offset_map.recorded()
    assert recorded is not None
    assert is_settled(recorded.version)
    assert recorded.row_count == len(rows)


def is_one_plain_line(text: str) -> bool:
    return not any(mark in text for mark in ("\n", "\x1b", "<", "↳"))


@pytest.fixture(autouse=True)
def frequent_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 2)
    monkeypatch.setattr(commits, "CLEAN_EVERY_DECISIONS", 2)


def at(store: Store, name: object) -> Store:
    """Return a separate folder for one of several maps of a test."""
    return replace(store, location=f"{store.location}/{name}")


def requests_of_a_run(store: Store) -> list[tuple[str, str]]:
    """Return what a run without faults asks the store for."""
    before = len(store.proxy.requests())
    PatientRun(at(store, "counted").storage(), "one", aborted_at=STEP).run()
    return store.proxy.requests()[before:]


def commits_of_a_run(store: Store) -> int:
    return sum(method == "PUT" and re.search(COMMITS, path) is not None for method, path in requests_of_a_run(store))


def run_with(store: Store, fault: StoreFault, **options: str) -> PatientRun:
    """Run to the end on a map of its own while `fault` is active, and check the map."""
    folder = at(store, f"{fault.harm.name}-{fault.skip}")
    run = PatientRun(folder.storage(**options), "one", aborted_at=STEP)
    with store.proxy.faulty(fault):
        run.run()
        assert store.proxy.hits() == fault.count
    assert_exactly_once(folder)
    assert all(is_one_plain_line(str(error)) for error in run.errors), run.errors
    return run


@pytest.mark.parametrize("tries", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_a_commit_that_was_applied_without_a_response_is_recognised(store: Store, tries: str) -> None:
    """Take-over, decision, removal, settling and compaction; with a further try the store itself refuses the second copy."""
    for number in range(int(tries), commits_of_a_run(store), 2):
        run_with(store, StoreFault(harm=Harm.LOSE_RESPONSE, method="PUT", path=COMMITS, skip=number, count=1), max_retries=tries)


@pytest.mark.parametrize("harm", [Harm.HIDE_RESPONSE, Harm.CUT])
def test_commits_of_unknown_outcome_are_made_once(store: Store, harm: Harm) -> None:
    for number in range(0, commits_of_a_run(store), 3):
        run_with(store, StoreFault(harm=harm, method="PUT", path=COMMITS, skip=number, count=1), max_retries="0")


def test_an_outage_at_any_moment_ends_without_loss_or_repetition(store: Store) -> None:
    count = len(requests_of_a_run(store))
    for start in range(0, count - 10, count // 6):
        harm = Harm.ANSWER_500 if start % 2 else Harm.ANSWER_503
        run = run_with(store, StoreFault(harm=harm, skip=start, count=8), max_retries="0")
        assert run.attempts > 0


@pytest.mark.long
def test_a_failure_of_each_single_request_changes_nothing_in_the_map(store: Store) -> None:
    for number in range(len(requests_of_a_run(store)) - 1):
        run_with(store, StoreFault(harm=Harm.ANSWER_503, skip=number, count=1), max_retries="0")


def test_a_store_that_hangs_is_given_up_and_asked_again(store: Store) -> None:
    run = run_with(store, StoreFault(harm=Harm.HANG, method="PUT", path=COMMITS, skip=3, count=1), timeout="1s")
    assert run.attempts > 0, "nobody can tell whether it will still be applied"


def test_a_commit_that_arrives_late_is_kept_out(store: Store) -> None:
    """Nothing of it is there when it is read back; the settling commit takes its place in the log."""
    run = PatientRun(store.storage(max_retries="0"), "one")
    run.run()
    owner = run.owner
    assert owner is not None
    with store.proxy.faulty(StoreFault(harm=Harm.CUT, method="PUT", path=COMMITS, count=1)):
        owner.next_decision()
        with pytest.raises(OutcomeUnknownError, match="may still appear"):
            owner.decide([data(GOAL, SlotTxn("m-0", 1, 1))], 0)
    owner.check_ownership()
    owner.settle()
    assert_exactly_once(store)


def test_the_second_of_two_runs_fences_the_first_on_a_store(store: Store) -> None:
    first, second = PatientRun(store.storage(), "one"), PatientRun(store.storage(), "two")
    first.run()
    second.run()
    assert first.owner is not None
    with pytest.raises(FencedError, match="run two"):
        first.owner.check_ownership()


def recorded_in(storage: TableLocation) -> object:
    return read_recorded(TableStorage(storage).offset_map.snapshot())  # type: ignore[arg-type]


@pytest.mark.parametrize("harm", NO_RESPONSES)
def test_an_unreachable_store_is_no_damaged_table(store: Store, harm: Harm) -> None:
    """Also behind a checkpoint, whose file deltalake reads by another way, with another class of errors."""
    PatientRun(store.storage(), "one").run()
    DeltaTable(store.storage().uri(), storage_options=store.storage().options()).create_checkpoint()
    storage = store.storage(max_retries="0", timeout="500ms")
    kinds = set()
    for path in ("", "list-type", r"\.checkpoint\.parquet", COMMITS):
        with store.proxy.faulty(StoreFault(harm=harm, method="GET", path=path)):
            with pytest.raises(StoreUnreachableError, match=r"offset_map: the store did not .* Remedy: ") as raised:
                recorded_in(storage)
        assert is_one_plain_line(str(raised.value))
        kinds.add(raised.value.operation)
    assert kinds >= {"open the table"}


def test_a_damaged_table_is_no_unreachable_store(store: Store) -> None:
    PatientRun(store.storage(), "one").run()
    folder = store.server.folder / store.location.removeprefix("s3://") / "offset_map" / "_delta_log"
    max(folder.glob("*.json")).write_text("{ no commit")
    with pytest.raises(OffsetMapConflictError, match="is not a readable Delta table") as raised:
        recorded_in(store.storage())
    assert is_one_plain_line(str(raised.value))

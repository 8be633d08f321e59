"""`preflight` while the last decision needs the operator: the same verdict as the start of a run."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import KilledError, Life
from tests.operators.surroundings import opened_world

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import init_producer_id
from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RecoverNeededError
from shallow_mirror.operations.recover import SlotReport, inspect, resolve
from shallow_mirror.preflight import preflight_mirror, start_problems
from shallow_mirror.sinks.kafka.protocol import TxnFate
from shallow_mirror.streaming.runs import ClusterIds, take_over_offset_map

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.slow]


def killed_behind_a_decision(world: FakeWorld) -> SlotReport:
    """Kill a run behind its decision, and return the report of its transaction, which is open."""
    for number in range(1, 100):
        with suppress(KilledError):
            world.run(Life(kill_at=number, is_behind=True))
        if reports := inspect(world.config):
            return reports[0]
    pytest.fail("no kill was behind a decision")


def test_preflight_refuses_a_decision_without_evidence_as_a_start_does(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 5)
        assert world.run(Life()) is None
        world.produce("a", 0, 5)
        decided = killed_behind_a_decision(world).decided
        transactional_id = decided.txn.transactional_id
        assert not preflight_mirror(world.config).stops(), "the next start commits it"
        with closing(Cluster(world.config.target.client)) as target:
            init_producer_id(target, transactional_id, 60_000, Deadline.after_ms(5_000, time.monotonic))
        world.target.delete_records("a", 0, decided.written[0].end)
        receipts = world.target.state.groups.offsets
        for receipt in [key for key in receipts if key[0] == transactional_id]:
            del receipts[receipt]
        refusal = world.run(Life())
        assert isinstance(refusal, RecoverNeededError)
        finding = (
            f"cluster west: the transaction {transactional_id} of the last decision needs the operator: "
            "`shallow-mirror recover CONF` shows what is known and takes the choice"
        )
        assert preflight_mirror(world.config).stops() == [finding]
        assert start_problems(world.config, ()) == [finding]
        resolve(world.config, inspect(world.config), TxnFate.NOT_COMMITTED)
        assert not preflight_mirror(world.config).stops()
        assert world.run(Life()) is None


def test_a_pending_transaction_without_evidence_is_shown_and_takes_the_choice(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 5)
        assert world.run(Life()) is None
        world.produce("a", 0, 5)
        decided = killed_behind_a_decision(world).decided
        transactional_id = decided.txn.transactional_id
        # A run settled it as pending, because the partition had no leader. The broker that came back has none of it.
        storage = TableStorage(world.config.table_location)
        ids = ClusterIds(source=world.source.state.cluster_id, target=world.target.state.cluster_id)
        owner = take_over_offset_map(world.config, storage, ids, RunIdentity.of_this_process())
        owner.settle(pending=[decided.txn])
        with closing(Cluster(world.config.target.client)) as target:
            init_producer_id(target, transactional_id, 60_000, Deadline.after_ms(5_000, time.monotonic))
        world.target.delete_records("a", 0, decided.written[0].end)
        receipts = world.target.state.groups.offsets
        for receipt in [key for key in receipts if key[0] == transactional_id]:
            del receipts[receipt]
        assert isinstance(world.run(Life()), RecoverNeededError)
        assert [report.decided for report in inspect(world.config) if report.needs_choice] == [decided]
        assert len(preflight_mirror(world.config).stops()) == 1
        resolve(world.config, inspect(world.config), TxnFate.NOT_COMMITTED)
        assert inspect(world.config) == ()
        assert not preflight_mirror(world.config).stops()
        assert world.run(Life()) is None

"""Each request of the transaction protocol, against a coordinator that moves, loads, forgets, fences and loses responses."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.changes import (
    AS_IT_SHOULD,
    Change,
    after,
    cut,
    dropped_after,
    dropped_before,
    error,
    garbage,
    held,
    oversized,
    truncated,
    wrong_correlation_id,
)
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.cluster_state import GROUP, TXN
from tests.fakes.coordinators import Committed, TxnState
from tests.fakes.strict_broker import StrictCluster
from tests.support.receipts import write_receipt
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce import MAX_RECEIPT_BYTES, Receipt, begin_receipt, finish_receipt, read_receipt
from shallow_mirror.broker.produce.receipts import PendingReceipt
from shallow_mirror.broker.produce.txn import add_partitions, add_partitions_and_offsets
from shallow_mirror.broker.produce.txn.transactions import EndTxnAnswer, end_txn, init_producer_id
from shallow_mirror.broker.produce.txn.txn_additions import add_offsets
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, ProducerEpochFencedError, RetriableError
from shallow_mirror.types import SlotTxn, TopicPartition

NAME = "mirror-0"
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Slot:
    """The package's calls for one transaction, without their repeated arguments."""

    def __init__(self, client: Cluster, clock: SleepingClock) -> None:
        self.client, self.clock = client, clock
        self.txn = init_producer_id(client, NAME, 60_000, clock.deadline())

    def init(self, ms: float = 20_000) -> SlotTxn:
        return init_producer_id(self.client, NAME, 60_000, self.clock.deadline(ms))

    def add(self, ms: float = 20_000) -> None:
        add_partitions(self.client, self.txn, [A, B], self.clock.deadline(ms))

    def add_offsets(self, ms: float = 20_000) -> None:
        add_offsets(self.client, self.txn, self.clock.deadline(ms))

    def receipt(self, ms: float = 20_000) -> None:
        write_receipt(self.client, self.txn, A, decision=7, map_id="map", run_id="run", deadline=self.clock.deadline(ms))

    def read(self, ms: float = 20_000) -> Receipt | PendingReceipt | None:
        return read_receipt(self.client, NAME, A, self.clock.deadline(ms))

    def end(self, commit: bool = True, ms: float = 20_000) -> EndTxnAnswer:
        return end_txn(self.client, self.txn, commit, self.clock.deadline(ms))


@pytest.fixture
def slot(client: Cluster, clock: SleepingClock) -> Slot:
    return Slot(client, clock)


def state_of(fake: StrictCluster) -> TxnState:
    return fake.transactions.txns[NAME].state


CALLS: dict[str, Callable[[Slot], object]] = {
    "InitProducerId": lambda slot: slot.init(),
    "AddPartitionsToTxn": lambda slot: slot.add(),
    "AddOffsetsToTxn": lambda slot: slot.add_offsets(),
    "TxnOffsetCommit": lambda slot: slot.receipt(),
    "OffsetFetch": lambda slot: slot.read(),
    "EndTxn": lambda slot: slot.end(),
}
RETRIED = [7, 14, 15, 16, 51, 56]
BROKEN = {
    "dropped before": dropped_before(),
    "dropped after": dropped_after(),
    "cut in the length": cut(2),
    "cut in the header": cut(6),
    "cut in the body": cut(11),
    "garbage behind the header": garbage(9),
    "garbage behind the correlation id": garbage(8),
    "content ends early": truncated(3),
    "oversized": oversized(),
    "another correlation id": wrong_correlation_id(),
}


def began(fake: StrictCluster, slot: Slot) -> None:
    """Open a transaction with a receipt in it, so that every call is allowed."""
    slot.add()
    slot.receipt()


@pytest.mark.slow
@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("api", CALLS)
def test_a_retriable_code_is_asked_again_until_there_is_a_response(fake: StrictCluster, slot: Slot, api: str, code: int) -> None:
    began(fake, slot)
    before = fake.asked(api)
    fake.change(api, error(code), error(code))
    CALLS[api](slot)
    assert fake.asked(api) >= before + 3


@pytest.mark.slow
@pytest.mark.parametrize("api", CALLS)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_response_is_asked_for_again_on_another_connection(
    fake: StrictCluster, slot: Slot, api: str, broken: Change
) -> None:
    began(fake, slot)
    before = fake.connections
    fake.change(api, broken)
    CALLS[api](slot)
    if api == "TxnOffsetCommit":  # sent over a connection of its own, and again over the one for everything else
        slot.receipt()
    assert fake.connections > before


def test_partitions_and_offsets_are_added_with_one_write(fake: StrictCluster, slot: Slot) -> None:
    add_partitions_and_offsets(slot.client, slot.txn, [A, B], slot.clock.deadline())
    assert (fake.asked("AddPartitionsToTxn"), fake.asked("AddOffsetsToTxn")) == (1, 1)
    receipt = begin_receipt(slot.client, slot.txn, A, decision=7, map_id="map", run_id="run", deadline=slot.clock.deadline())
    finish_receipt(slot.client, slot.txn, A, receipt, slot.clock.deadline())
    assert slot.end() is EndTxnAnswer.ENDED
    assert isinstance(slot.read(), Receipt)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "AddOffsetsToTxn"])
@pytest.mark.parametrize("broken", [*BROKEN.values(), error(51), error(14)], ids=[*BROKEN, "concurrent", "loading"])
def test_what_fails_of_one_write_is_done_one_by_one(fake: StrictCluster, slot: Slot, api: str, broken: Change) -> None:
    fake.change(api, broken)
    add_partitions_and_offsets(slot.client, slot.txn, [A, B], slot.clock.deadline())
    slot.receipt()
    assert slot.end() is EndTxnAnswer.ENDED
    assert isinstance(slot.read(), Receipt)


def test_a_receipt_whose_response_was_not_received_does_not_confuse_the_next_one(fake: StrictCluster, slot: Slot) -> None:
    slot.add()
    slot.add_offsets()
    for decision in (7, 8):
        last = begin_receipt(
            slot.client, slot.txn, A, decision=decision, map_id="map", run_id="run", deadline=slot.clock.deadline()
        )
    finish_receipt(slot.client, slot.txn, A, last, slot.clock.deadline())
    assert slot.end() is EndTxnAnswer.ENDED
    receipt = slot.read()
    assert isinstance(receipt, Receipt)
    assert receipt.decision == 8


@pytest.mark.parametrize("api", [api for api in CALLS if api != "EndTxn"])
def test_a_retriable_code_that_stays_is_given_up_at_the_deadline_by_its_name(fake: StrictCluster, slot: Slot, api: str) -> None:
    began(fake, slot)
    fake.change_always(api, error(14))
    with pytest.raises(RetriableError, match=f"COORDINATOR_LOAD_IN_PROGRESS: gave up {api} of {NAME}"):
        CALLS[api](slot)


@pytest.mark.parametrize("api", [api for api in CALLS if api not in ("EndTxn", "OffsetFetch")])
@pytest.mark.parametrize("code", [47, 48, 49, 90])
def test_a_fencing_code_is_never_asked_again(fake: StrictCluster, slot: Slot, api: str, code: int) -> None:
    began(fake, slot)
    before = fake.asked(api)
    fake.change(api, error(code))
    with pytest.raises(ProducerEpochFencedError):
        CALLS[api](slot)
    assert fake.asked(api) == before + 1


@pytest.mark.parametrize("api", CALLS)
@pytest.mark.parametrize("code", [29, 30, 53])
def test_a_refused_authorisation_is_for_the_operator_and_never_asked_again(
    fake: StrictCluster, slot: Slot, api: str, code: int
) -> None:
    began(fake, slot)
    before = fake.asked(api)
    fake.change(api, error(code))
    with pytest.raises(ConfigError, match="AUTHORIZATION_FAILED"):
        CALLS[api](slot)
    assert fake.asked(api) == before + 1


@pytest.mark.parametrize("api", CALLS)
def test_a_coordinator_that_moved_is_found_again(fake: StrictCluster, slot: Slot, api: str) -> None:
    began(fake, slot)
    fake.move_coordinator(TXN, 2)
    fake.move_coordinator(GROUP, 2)
    CALLS[api](slot)
    assert fake.received[-1].api == api
    assert fake.received[-1].node_id == 2


@pytest.mark.parametrize("api", CALLS)
def test_a_coordinator_that_died_is_replaced(fake: StrictCluster, slot: Slot, api: str) -> None:
    began(fake, slot)
    fake.stop_node(1)
    fake.move_coordinator(TXN, 2)
    fake.move_coordinator(GROUP, 2)
    CALLS[api](slot)


def test_the_first_request_of_all_finds_and_creates_the_coordinator(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.coordinators_exist = False
    assert init_producer_id(client, NAME, 60_000, clock.deadline()).producer_epoch == 0
    assert fake.asked("FindCoordinator") == 2


def test_a_coordinator_that_may_not_be_asked_for_is_for_the_operator(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.change("FindCoordinator", error(53))
    with pytest.raises(ConfigError, match=f"finding the coordinator of {NAME}.*TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        init_producer_id(client, NAME, 60_000, clock.deadline())


@pytest.mark.slow
def test_a_silent_coordinator_costs_one_request_timeout(fake: StrictCluster, clock: SleepingClock) -> None:
    client = client_of(fake, clock, request_timeout_ms=200)
    slot = Slot(client, clock)
    slot.add()
    fake.change("EndTxn", held(threading.Event()))
    assert slot.end() is EndTxnAnswer.ENDED
    client.close()


# --- InitProducerId ---


def test_initialising_waits_until_the_open_transaction_is_aborted(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.hold_markers()
    states: list[TxnState] = []
    fake.change("InitProducerId", *[after(lambda: states.append(state_of(fake)))] * 2, after(fake.write_markers))
    second_txn = slot.init()
    assert states == [TxnState.ONGOING, TxnState.PREPARE_ABORT]
    assert (second_txn.producer_id, second_txn.producer_epoch) == (slot.txn.producer_id, slot.txn.producer_epoch + 2)
    assert slot.read() is None


def test_initialising_never_names_its_own_epoch(fake: StrictCluster, slot: Slot) -> None:
    slot.init()
    assert [(request.producer_id, request.producer_epoch) for request in fake.bodies("InitProducerId")] == [(-1, -1)] * 2


def test_a_transaction_timeout_above_the_brokers_limit_names_the_setting(client: Cluster, clock: SleepingClock) -> None:
    with pytest.raises(ConfigError, match=r"write.transaction_timeout_ms: 900001 is above transaction.max.timeout.ms"):
        init_producer_id(client, NAME, 900_001, clock.deadline())


# --- AddPartitionsToTxn ---


def test_adding_partitions_waits_while_the_last_transaction_is_written_out(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.hold_markers()
    assert slot.end() is EndTxnAnswer.ENDED
    fake.change("AddPartitionsToTxn", AS_IT_SHOULD, AS_IT_SHOULD, after(fake.write_markers))
    before = fake.asked("AddPartitionsToTxn")
    slot.add()
    assert fake.asked("AddPartitionsToTxn") == before + 3


def test_one_partition_that_is_refused_leaves_all_of_them_out(fake: StrictCluster, slot: Slot) -> None:
    fake.change("AddPartitionsToTxn", error(29, ("t", 1)))
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
        slot.add()
    assert state_of(fake) is TxnState.EMPTY


def test_partitions_that_were_not_attempted_are_not_added(fake: StrictCluster, slot: Slot) -> None:
    fake.change("AddPartitionsToTxn", error(55), error(55, ("t", 0)))
    slot.add()
    assert fake.asked("AddPartitionsToTxn") == 3
    assert state_of(fake) is TxnState.ONGOING


def test_a_partition_that_does_not_exist_yet_is_waited_for(fake: StrictCluster, slot: Slot, clock: SleepingClock) -> None:
    fake.change("AddPartitionsToTxn", AS_IT_SHOULD, after(lambda: fake.create_topic("late")))
    add_partitions(slot.client, slot.txn, [A, TopicPartition("late", 0)], clock.deadline())
    assert fake.asked("AddPartitionsToTxn") == 2


# --- receipts ---


def test_a_receipt_exists_only_when_its_transaction_is_committed_and_written_out(fake: StrictCluster, slot: Slot) -> None:
    assert slot.read() is None
    began(fake, slot)
    assert slot.read() is PendingReceipt.PENDING
    fake.hold_markers()
    assert slot.end() is EndTxnAnswer.ENDED
    assert slot.read() is PendingReceipt.PENDING
    fake.write_markers()
    assert slot.read() == Receipt(slot.txn.producer_id, slot.txn.producer_epoch, 7, "map", "run")
    assert all(request.require_stable for request in fake.bodies("OffsetFetch"))


def test_a_receipt_of_an_aborted_transaction_never_was(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    assert slot.end(commit=False) is EndTxnAnswer.ENDED
    assert slot.read() is None


def test_a_pending_receipt_does_not_hide_behind_the_one_before(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    slot.end()
    began(fake, slot)
    assert slot.read() is PendingReceipt.PENDING


RECEIPT = {"v": 1, "producer_id": 1, "producer_epoch": 2, "decision": 3, "run": "r"}
FOREIGN = {
    "no metadata": None,
    "empty": "",
    "words": "written by hand",
    "another version": json.dumps({**RECEIPT, "v": 2}),
    "a list": "[1]",
    "a number": "7",
    "null": "null",
    "a field is missing": json.dumps({"v": 1, "producer_id": 1}),
    "a field is no number": json.dumps({**RECEIPT, "decision": "x"}),
    "a field is null": json.dumps({**RECEIPT, "producer_id": None}),
    "a field is infinite": json.dumps({**RECEIPT, "producer_id": float("inf")}),
    "nested too deep": "[" * 4096,
}


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=FOREIGN)
def test_an_offset_of_another_application_is_for_the_operator(fake: StrictCluster, slot: Slot, metadata: str | None) -> None:
    fake.groups.offsets[NAME, ("t", 0)] = Committed(7, metadata)
    with pytest.raises(ConfigError, match=f"consumer group {NAME} on the target holds an offset that is not a receipt"):
        slot.read()


def test_a_receipt_is_not_written_outside_its_transaction(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.time_out(NAME)
    with pytest.raises(ProducerEpochFencedError):
        slot.receipt()
    assert slot.read() is None


def test_a_receipt_partition_may_be_refused_for_good(fake: StrictCluster, slot: Slot) -> None:
    fake.change("TxnOffsetCommit", error(12))
    remedy = f"OFFSET_METADATA_TOO_LARGE: .*set offset.metadata.max.bytes to {MAX_RECEIPT_BYTES} or more on all brokers"
    with pytest.raises(ConfigError, match=remedy):
        slot.receipt()


def test_no_receipt_of_a_mirror_is_longer_than_its_bound(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    slot.receipt()
    slot.end(True)
    written = json.loads(fake.groups.offsets[NAME, ("t", 0)].metadata or "")
    longest = {"map": str(uuid.uuid4()), "run": str(uuid.uuid4()), "at_ms": 2**63 - 1, "producer_epoch": 2**15 - 1}
    longest |= {"producer_id": 2**63 - 1, "decision": 2**63 - 1}
    assert written.keys() <= {"v", *longest}
    assert len(json.dumps({"v": written["v"], **longest}, separators=(",", ":"))) == MAX_RECEIPT_BYTES


# --- EndTxn ---


@pytest.mark.parametrize("commit", [True, False])
def test_ending_twice_is_ending_once(fake: StrictCluster, slot: Slot, commit: bool) -> None:
    began(fake, slot)
    assert [slot.end(commit), slot.end(commit)] == [EndTxnAnswer.ENDED] * 2
    assert len(fake.log("t").batches) == 1


def test_a_lost_response_to_the_commit_is_found_out_by_asking_again(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.hold_markers()
    fake.change("EndTxn", dropped_after(), AS_IT_SHOULD, after(fake.write_markers))
    assert slot.end() is EndTxnAnswer.ENDED
    assert fake.asked("EndTxn") == 3
    assert slot.read() == Receipt(slot.txn.producer_id, slot.txn.producer_epoch, 7, "map", "run")


@pytest.mark.parametrize("lost", [dropped_before(), dropped_after(), error(51), error(7, is_performed=True)])
def test_a_commit_without_a_response_until_the_deadline_has_an_unknown_outcome(
    fake: StrictCluster, slot: Slot, lost: Change
) -> None:
    began(fake, slot)
    fake.change_always("EndTxn", lost)
    with pytest.raises(OutcomeUnknownError, match=r"EndTxn of mirror-0 \(producer id \d+, epoch 0\)"):
        slot.end(ms=500)
    fake.change_always("EndTxn", None)
    assert slot.end() is EndTxnAnswer.ENDED


def test_no_coordinator_until_the_deadline_is_an_unknown_outcome_too(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.stop_node(1)
    fake.stop_node(2)
    with pytest.raises(OutcomeUnknownError):
        slot.end(ms=500)


def test_a_transaction_that_timed_out_is_ambiguous(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    fake.time_out(NAME)
    assert slot.end() is EndTxnAnswer.AMBIGUOUS
    assert slot.read() is None


def test_a_transaction_that_was_committed_and_initialised_again_is_ambiguous_and_its_receipt_tells(
    fake: StrictCluster, slot: Slot
) -> None:
    began(fake, slot)
    slot.end()
    slot.init()
    assert slot.end() is EndTxnAnswer.AMBIGUOUS
    assert slot.read() == Receipt(slot.txn.producer_id, slot.txn.producer_epoch, 7, "map", "run")


def test_a_transaction_that_never_began_is_ambiguous(slot: Slot) -> None:
    assert slot.end() is EndTxnAnswer.AMBIGUOUS


def test_an_aborted_transaction_cannot_be_committed(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    slot.end(commit=False)
    assert slot.end(commit=True) is EndTxnAnswer.AMBIGUOUS


def test_after_a_fence_nothing_of_the_old_epoch_is_taken_any_more(fake: StrictCluster, slot: Slot) -> None:
    began(fake, slot)
    made = batch(0, 1, attributes=0x10, producer_id=slot.txn.producer_id, producer_epoch=slot.txn.producer_epoch, base_sequence=0)
    fake.log("t").append(made, 0)
    slot.init()
    calls: list[Any] = [slot.add, slot.add_offsets, slot.receipt]
    for call in calls:
        with pytest.raises(ProducerEpochFencedError):
            call()
    assert slot.end() is EndTxnAnswer.AMBIGUOUS
    assert fake.log("t").aborted

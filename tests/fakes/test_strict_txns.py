"""The transaction protocol, the same requests to the fake and to a real broker: both must answer code by code as written."""

from __future__ import annotations

import struct
import time

import pytest
from tests.fakes.peers import Peer, idempotent, transactional
from tests.fakes.record_rules import split_batches


def test_a_produce_needs_its_partition_in_the_transaction(peer: Peer) -> None:
    peer.create(2)
    txn = peer.client.initialised(peer.txn)
    sent = transactional(0, txn)
    assert peer.produce(sent, txn=peer.txn) == 48
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.produce(sent, txn=peer.txn) == 0
    assert peer.produce(sent, txn=peer.txn, partition=1) == 48
    assert peer.produce(sent, txn=peer.txn) == 0
    assert peer.produce(sent, txn=f"{peer.txn}-unknown") == 0
    assert peer.produce(transactional(1, (txn[0], txn[1] + 1)), txn=peer.txn) == 47
    assert peer.produce(transactional(1, (txn[0] + 999, 0)), txn=peer.txn) == 49
    assert peer.produce(idempotent(1, producer_id=txn[0], epoch=txn[1])) == 48
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.produce(sent, txn=peer.txn) == 48


def test_two_epochs_in_one_request_are_refused_as_a_whole(peer: Peer) -> None:
    peer.create(2)
    txn = peer.begun()
    members = [(peer.topic, 0, transactional(0, txn)), (peer.topic, 1, transactional(0, (txn[0], txn[1] + 1)))]
    responses = peer.client.produce_many(members, txn=peer.txn)
    assert {response.error_code for response in responses.values()} == {49}


def test_add_partitions_is_all_or_nothing_and_idempotent(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.add(peer.txn, *txn, (peer.topic, 0), (f"{peer.topic}-missing", 0)) == [55, 3]
    assert peer.produce(transactional(0, txn), txn=peer.txn) == 48
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.client.added(peer.txn, txn[0], txn[1] + 1, peer.topic) == 90
    assert peer.client.added(peer.txn, txn[0] + 999, txn[1], peer.topic) == 49
    assert peer.client.added(f"{peer.txn}-unknown", *txn, peer.topic) == 49
    assert peer.client.added("", *txn, peer.topic) == 42


def test_end_txn_has_its_rules(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.end(peer.txn, *txn, commit=True) == 48
    assert peer.client.end(peer.txn, *txn, commit=False) == 48
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.produce(transactional(0, txn), txn=peer.txn) == 0
    assert peer.client.end(peer.txn, txn[0] + 999, txn[1], commit=True) == 49
    assert peer.client.end(f"{peer.txn}-unknown", *txn, commit=True) == 49
    assert peer.client.end(peer.txn, txn[0], txn[1] + 1, commit=True) == 90
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.end(peer.txn, *txn, commit=False) == 48
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.client.end(peer.txn, *txn, commit=False) == 0
    assert peer.client.end(peer.txn, *txn, commit=False) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 48
    assert peer.client.end("", *txn, commit=True) == 42


def test_the_coordinator_describes_the_last_transaction_of_an_id(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.settled(lambda: peer.client.describe_txn(f"{peer.txn}-unknown")[0]) == 105
    assert peer.client.describe_txn(peer.txn) == (0, "Empty", *txn)
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.client.describe_txn(peer.txn) == (0, "Ongoing", *txn)
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 0  # once the markers are written
    assert peer.client.describe_txn(peer.txn) == (0, "CompleteCommit", *txn)
    again = peer.client.initialised(peer.txn)
    assert peer.client.describe_txn(peer.txn) == (0, "Empty", *again)


def test_initialising_again_aborts_with_a_marker_of_a_higher_epoch(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    assert peer.produce(transactional(0, txn), txn=peer.txn) == 0
    assert peer.client.init(peer.txn).error_code == 51
    assert peer.client.initialised(peer.txn) == (txn[0], txn[1] + 2)
    assert peer.produce(transactional(1, txn), txn=peer.txn) == 47
    assert peer.client.end(peer.txn, *txn, commit=True) == 90
    assert peer.client.added(peer.txn, *txn, peer.topic) == 90
    _, marker = split_batches(bytes(peer.client.fetch(peer.topic, 0).records))
    assert len(marker) == 78
    assert marker[22] == 0x30
    assert struct.unpack_from(">qhi", marker, 43) == (txn[0], txn[1] + 1, -1)
    assert marker[-10:-8] == b"\x00\x00"
    part = peer.client.fetch(peer.topic, 0, isolation=1)
    assert [
        (aborted_transaction.producer_id, aborted_transaction.first_offset) for aborted_transaction in part.aborted_transactions
    ] == [(txn[0], 0)]


@pytest.mark.parametrize(
    ("transactional_id", "settings", "code"),
    [
        ("", {}, 42),
        ("x", {"timeout_ms": 0}, 50),
        ("x", {"timeout_ms": 900_001}, 50),
        ("x", {"producer_id": 7}, 42),
        ("x", {"epoch": 7}, 42),
        (None, {}, 0),
    ],
)
def test_initialising_has_its_rules(peer: Peer, transactional_id: str | None, settings: dict[str, int], code: int) -> None:
    peer.create()
    peer.client.initialised(peer.txn)
    name = transactional_id and peer.txn
    assert peer.client.init(name, **settings).error_code == code


def test_an_idle_transactional_id_gets_the_next_epoch_and_knows_its_owner(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.initialised(peer.txn) == (txn[0], txn[1] + 1)
    assert peer.client.init(peer.txn, producer_id=txn[0], epoch=txn[1]).error_code == 90
    for _ in range(2):
        assert peer.client.init(peer.txn, producer_id=txn[0], epoch=txn[1] + 1).producer_epoch == txn[1] + 2
    assert peer.client.init(peer.txn, producer_id=txn[0], epoch=txn[1]).error_code == 90
    assert peer.client.init(peer.txn, producer_id=txn[0] + 999, epoch=0).error_code == 90


def test_group_offsets_of_a_transaction_wait_for_its_end(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.group_offset(peer.txn, peer.topic) == (0, -1)
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 5) == 48
    assert peer.client.add_offsets(peer.txn, *txn) == 0
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 5) == 0
    assert peer.client.group_offset(peer.txn, peer.topic) == (88, -1)
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 6, "x" * 4096) == 0
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 6, "x" * 4097) == 12
    assert peer.client.commit_offset(peer.txn, *txn, f"{peer.topic}-missing", 6) == 3
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.initialised(peer.txn) == (txn[0], txn[1] + 1)
    assert peer.client.group_offset(peer.txn, peer.topic) == (0, 6)
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 9) in (47, 90)
    assert peer.client.commit_offset(peer.txn, txn[0] + 999, 0, peer.topic, 9) == 49
    assert peer.client.add_offsets(peer.txn, *txn) == 90
    assert peer.client.add_offsets(peer.txn, txn[0] + 999, 0) == 49


def test_group_offsets_of_an_aborted_transaction_never_were(peer: Peer) -> None:
    peer.create()
    txn = peer.client.initialised(peer.txn)
    assert peer.client.add_offsets(peer.txn, *txn) == 0
    assert peer.client.commit_offset(peer.txn, *txn, peer.topic, 5) == 0
    peer.client.initialised(peer.txn)
    assert peer.client.group_offset(peer.txn, peer.topic) == (0, -1)


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(peer: Peer) -> None:
    peer.create()
    peer.client.initialised(peer.txn)
    txn = peer.client.init(peer.txn, timeout_ms=1_000)
    pair = (txn.producer_id, txn.producer_epoch)
    assert peer.client.added(peer.txn, *pair, peer.topic) == 0
    assert peer.produce(transactional(0, pair), txn=peer.txn) == 0
    assert peer.offset(isolation=1) == 0
    peer.owner.let_time_out(peer.txn)
    while peer.offset(isolation=1) < 2:
        time.sleep(0.05)
    assert peer.produce(transactional(1, pair), txn=peer.txn) == 47
    assert peer.client.added(peer.txn, *pair, peer.topic) == 90
    assert peer.client.end(peer.txn, *pair, commit=True) == 90
    assert peer.client.initialised(peer.txn) == (pair[0], pair[1] + 2)


def test_every_partition_that_was_added_gets_a_marker_with_or_without_data(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    peer.client.initialised(peer.txn)
    (marker,) = split_batches(bytes(peer.client.fetch(peer.topic, 0).records))
    assert marker[22] == 0x30
    assert struct.unpack_from(">qh", marker, 43) == txn
    assert marker[-10:-8] == b"\x00\x01"


def test_sequences_continue_over_transactions_of_one_epoch_and_begin_again_with_the_next(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    assert peer.produce(transactional(0, txn, 2), txn=peer.txn) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    assert peer.produce(transactional(3, txn), txn=peer.txn) == 45
    assert peer.produce(transactional(2, txn), txn=peer.txn) == 0
    later = peer.client.initialised(peer.txn)
    assert peer.client.added(peer.txn, *later, peer.topic) == 0
    assert peer.produce(transactional(3, later), txn=peer.txn) == 45
    assert peer.produce(transactional(0, later), txn=peer.txn) == 0


def test_a_batch_of_the_last_transaction_sent_again_is_a_duplicate_that_spoils_this_one(peer: Peer) -> None:
    """The leader has seen a low sequence while it asked the coordinator, and takes nothing above it any more."""
    peer.create()
    txn = peer.begun()
    assert peer.produce(transactional(0, txn, 2), txn=peer.txn) == 0
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    assert peer.client.added(peer.txn, *txn, peer.topic) == 0
    second = peer.client.produce(peer.topic, transactional(0, txn, 2), txn=peer.txn)
    assert (second.error_code, second.base_offset) == (0, 0)
    assert peer.produce(transactional(2, txn), txn=peer.txn) == 45


def test_a_group_may_be_asked_for_what_does_not_exist(peer: Peer) -> None:
    peer.create()
    peer.client.initialised(peer.txn)
    assert peer.client.group_offset(f"{peer.txn}-unknown", peer.topic) == (0, -1)
    assert peer.client.group_offset(peer.txn, f"{peer.topic}-missing") == (0, -1)


def test_a_marker_from_outside_has_its_rules(peer: Peer) -> None:
    peer.create(2)
    txn = peer.client.initialised(peer.txn)
    producer_id, epoch = peer.begun()
    assert epoch == txn[1] + 1
    assert peer.produce(transactional(0, (producer_id, epoch)), txn=peer.txn) == 0
    assert peer.offset(isolation=1) == 0
    write = peer.client.write_marker
    assert write(peer.topic, producer_id, epoch - 1, coordinator_epoch=0) == 47
    assert write(f"{peer.topic}-missing", producer_id, epoch, coordinator_epoch=0) == 3
    assert write(peer.topic, producer_id, epoch + 1, coordinator_epoch=5) == 0
    assert (peer.offset(), peer.offset(isolation=1)) == (2, 2), "aborted, though its coordinator knows nothing of it"
    assert write(peer.topic, producer_id, epoch + 1, coordinator_epoch=4) == 52
    assert write(peer.topic, producer_id, epoch + 1, coordinator_epoch=5) == 0
    assert peer.offset(isolation=1) == 3, "a marker that ends nothing is written all the same"
    assert peer.produce(transactional(1, (producer_id, epoch)), txn=peer.txn) == 47
    assert write(peer.topic, producer_id + 999, 0, coordinator_epoch=0, partition=1) == 0

"""Everywhere: transactions that are over for their coordinator and still open in the logs of their partitions.

A broker that is killed and started again can end a transaction before it knows its topics; seen with 4.3.0: it takes the
partitions for deleted, writes no marker to them, and calls the transaction complete. Its records then stay open, hold the
last stable offset, and the next marker of the same producer id ends them together with its own: an aborted copy would
become visible behind a committed one. So whoever takes a producer id up again after a failure has to look, and an empty
transaction over the same partitions writes the markers that never came.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.txn import add_offsets, add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition

_log = logging.getLogger(__name__)


def abort_forgotten(
    target: Cluster,
    fenced: Sequence[SlotTxn],
    places: Collection[TopicPartition],
    transaction_timeout_ms: int,
    deadline: Deadline,
) -> None:
    """Abort what is still open at `places` under the producer ids of `fenced`, the answers of InitProducerId a moment ago.

    Because of those answers nothing of theirs can be open rightly. Places that the target does not have are left out.
    """
    found = open_places(target, {txn.producer_id for txn in fenced}, places, deadline)
    for txn in fenced:
        if txn.producer_id in found:
            _log.warning("%s: its abort was forgotten by the target: aborting it again", txn.transactional_id)
            write_markers(target, txn.transactional_id, found[txn.producer_id], False, transaction_timeout_ms, deadline)


def open_places(
    target: Cluster, producer_ids: Collection[int], places: Collection[TopicPartition], deadline: Deadline
) -> dict[int, list[TopicPartition]]:
    """Where these producers have open transactions. Producers are only asked for where something is open at all."""
    if not places:
        return {}
    listed = target.metadata(sorted({place.topic for place in places}), deadline)
    there = [place for place in places if listed.has(place)]
    latest = dict.fromkeys(there, -1)
    stable = target.list_offsets(latest, IsolationLevel.READ_COMMITTED, deadline)
    ends = target.list_offsets(latest, IsolationLevel.READ_UNCOMMITTED, deadline)
    held = sorted(place for place in there if stable[place].offset < ends[place].offset)
    found: dict[int, list[TopicPartition]] = {}
    if held:
        for place, producers in target.describe_producers(held, deadline).items():
            for state in producers:
                if state.producer_id in producer_ids and state.current_txn_start_offset >= 0:
                    found.setdefault(state.producer_id, []).append(place)
    return found


def write_markers(
    target: Cluster,
    transactional_id: str,
    places: Sequence[TopicPartition],
    commit: bool,
    transaction_timeout_ms: int,
    deadline: Deadline,
) -> None:
    """An empty transaction over `places` and the receipt's group."""
    empty = init_producer_id(target, transactional_id, transaction_timeout_ms, deadline)
    add_partitions(target, empty, places, deadline)
    add_offsets(target, empty, deadline)
    end_txn(target, empty, commit, deadline)

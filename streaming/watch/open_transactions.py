"""Driver: open transactions of other applications at the source, for `status` and the metrics.

A mirror that reads committed records waits for each of them, and for a hanging one without limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import listed_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, SourcePartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """`first_offset`: its first record. `wrote_at_ms`: timestamp of its newest batch, None when the broker does not report it."""

    source: SourcePartition
    first_offset: int
    producer_id: int
    producer_epoch: int
    wrote_at_ms: int | None

    def sentence(self, at_ms: int) -> str:
        when = "" if self.wrote_at_ms is None else f", last written {_duration((at_ms - self.wrote_at_ms) / 1000)} ago"
        return f"{self.source.topic_partition} from offset {self.first_offset}: producer id {self.producer_id}{when}"


def list_open_transactions(
    cluster: Cluster, ends: Mapping[SourcePartition, int], deadline: Deadline
) -> tuple[OpenTransaction, ...]:
    """Return those that hold the last stable offset below the high watermark, the longest silent one first.

    `ends`: high watermarks that were listed just before; the last stable offset only rises. Raises RetriableError.
    """
    sources = {source.topic_partition: source for source in ends}
    stable = cluster.list_offsets(dict.fromkeys(sources, -1), IsolationLevel.READ_COMMITTED, deadline) if sources else {}
    held_back = {name: stable[name].offset for name, source in sources.items() if stable[name].offset < ends[source]}
    described = cluster.describe_producers(sorted(held_back), deadline) if held_back else {}
    transactions = [
        OpenTransaction(
            source=sources[name],
            first_offset=max(state.current_txn_start_offset, held_back[name]),
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            wrote_at_ms=state.last_timestamp_ms if state.last_timestamp_ms >= 0 else None,
        )
        for name, states in described.items()
        for state in states
        if state.current_txn_start_offset >= 0
    ]
    return tuple(sorted(transactions, key=lambda txn: (txn.wrote_at_ms or 0, txn.source, txn.first_offset)))


def unread_sentences(
    cluster: Cluster, sources: Iterable[SourcePartition], isolation: IsolationLevel, deadline: Deadline
) -> list[str]:
    """Return a sentence for each open transaction of these partitions whose end a reader waits for.

    Partitions whose leader does not answer are left out. A cluster that does not answer is logged.
    """
    if isolation is not IsolationLevel.READ_COMMITTED:
        return []
    by_name = {source.topic_partition: source for source in sources}
    try:
        names = listed_partitions(cluster, by_name, deadline)
        ends, _ = cluster.latest_offsets(names, IsolationLevel.READ_UNCOMMITTED, deadline, is_patient=False)
        transactions = list_open_transactions(cluster, {by_name[name]: end for name, end in ends.items()}, deadline)
    except RetriableError as error:
        _log.warning("whether transactions are open at the source is not known: %s", error)
        return []
    at_ms = int(time.time() * 1000)
    return [transaction.sentence(at_ms) for transaction in transactions]


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"

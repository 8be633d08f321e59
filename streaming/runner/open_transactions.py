"""Driver, for `status`: transactions of other applications that are open at the source: a mirror that reads committed
records waits for each of them, and a hanging one makes it wait for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ProducerState
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import IsolationLevel, SourcePartition, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """`first_offset`: its first record. `wrote_at_ms`: timestamp of its newest batch, None when the broker does not know."""

    source: SourcePartition
    first_offset: int
    producer_id: int
    producer_epoch: int
    wrote_at_ms: int | None

    def sentence(self, at_ms: int) -> str:
        when = "" if self.wrote_at_ms is None else f", which wrote last {_duration((at_ms - self.wrote_at_ms) / 1000)} ago"
        return f"{self.source.topic_partition} from offset {self.first_offset}: producer id {self.producer_id}{when}"


def list_open_transactions(
    source: Cluster, ends: Mapping[SourcePartition, int], deadline: Deadline
) -> tuple[OpenTransaction, ...]:
    """All that hold the last stable offset below the high watermark, the one that has been silent longest first. `ends`: the
    high watermarks of a moment ago; the last stable offset only rises. Raises RetriableError."""
    names = {one.topic_partition: one for one in ends}
    stable = source.list_offsets(dict.fromkeys(names, -1), IsolationLevel.READ_COMMITTED, deadline) if names else {}
    held = {name: stable[name].offset for name, one in names.items() if stable[name].offset < ends[one]}
    found = [
        OpenTransaction(
            source=names[name],
            first_offset=max(state.current_txn_start_offset, held[name]),
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            wrote_at_ms=state.last_timestamp_ms if state.last_timestamp_ms >= 0 else None,
        )
        for name, states in _producers(source, held, deadline).items()
        for state in states
    ]
    return tuple(sorted(found, key=lambda one: (one.wrote_at_ms or 0, one.source, one.first_offset)))


def _producers(
    source: Cluster, held: Mapping[TopicPartition, int], deadline: Deadline
) -> Mapping[TopicPartition, Collection[ProducerState]]:
    """Those with an open transaction."""
    described = source.describe_producers(sorted(held), deadline) if held else {}
    return {name: [state for state in states if state.current_txn_start_offset >= 0] for name, states in described.items()}


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"

"""Driver and executors: job of one slot, for any sink, as values. `slot_task.py` executes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from shallow_mirror.broker import KnownCluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.slot_values import RoutedTopic
from shallow_mirror.types import EpochEnd, IsolationLevel, QuarantineLimits, SourcePartition

_K = TypeVar("_K", bound=NamedTuple)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJob:
    """Job of a task, without the part of its sink, carried in the closure of one micro-batch.

    `source`: None if no cluster is read. `positions` are source offsets from the table of decisions, `epoch_ends` the offsets
    up to which it knows a leader epoch of the source. `time_left_ms` is the rest of the micro-batch's deadline when the task
    starts (clocks of different machines are never compared). `max_segments` bounds the rows a slot may return: it stops at a
    batch boundary and the rest is read in another round. So it does when `commit_interval_ms` have passed since its first
    batch. `quarantine` bounds the batches that are quarantined; None: a batch that cannot be copied is an error.

    `leaves_out`: partitions that cannot be read or written are left out, so that they do not hold up the others; `isolates`:
    also those that an operator has to fix, except those that the driver records as expired (`continues_after_data_loss`).
    `known_source`: the driver's latest metadata of the source; None: the task asks itself. `left_out`: those that an earlier
    round left out. `lineages`: of an archive, of partitions whose lineage is not 0.

    `follow_ms`: how long after its start a task reads beyond its planned ends, for records that appear meanwhile.
    `responses_in_flight`: so many responses of a reading may be written and not be recorded while the next one is read; each
    has two receive buffers, of which the second is used for small batches of a far source only.
    """

    decision: int
    source: ClientConfig | None
    routes: Mapping[str, RoutedTopic]
    positions: Mapping[SourcePartition, int]
    epoch_ends: Mapping[SourcePartition, EpochEnd]
    isolation: IsolationLevel
    fetch_bytes: int
    max_segments: int
    commit_interval_ms: float
    time_left_ms: float
    quarantine: QuarantineLimits | None = None
    leaves_out: bool = False
    isolates: bool = False
    continues_after_data_loss: bool = False
    left_out: frozenset[SourcePartition] = frozenset()
    lineages: Mapping[SourcePartition, int] = field(default_factory=dict)
    follow_ms: float = 0.0
    known_source: KnownCluster | None = None
    responses_in_flight: int = 0
    observer: Observer = observe_nothing


class CompactDict(dict[_K, _V]):
    """By named tuples, of named tuples or numbers. Pickled as plain ones: without a call for each of them."""

    def __init__(self, items: Mapping[_K, _V] | Iterable[tuple[_K, _V]], key: type[_K], value: type[_V]) -> None:
        super().__init__(items)
        self._key, self._value = key, value

    def __reduce__(self) -> Any:
        values = self.values() if self._value is int else map(tuple, self.values())  # type: ignore[arg-type]
        return _unpickled, (dict(zip(map(tuple, self), values, strict=True)), self._key, self._value)


def _unpickled(plain: Mapping[Any, Any], key: Any, value: Any) -> CompactDict[Any, Any]:
    values = plain.values() if value is int else starmap(value, plain.values())
    return CompactDict(zip(starmap(key, plain), values, strict=True), key, value)

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

FOLLOW_MS = 10_000.0
"""How long the tasks of a micro-batch read beyond what was planned, where all offsets are preserved: so long, a record is
visible a moment after it was written. Rows of the offset map follow when the tasks end."""

_K = TypeVar("_K", bound=NamedTuple)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJob:
    """Job of a task, without the part of its sink, carried in the closure of one micro-batch."""

    decision: int
    source: ClientConfig | None
    """None if no cluster is read."""
    routes: Mapping[str, RoutedTopic]
    positions: Mapping[SourcePartition, int]
    """Source offsets from the table of decisions."""
    epoch_ends: Mapping[SourcePartition, EpochEnd]
    """Offsets up to which the table knows a leader epoch of the source."""
    isolation: IsolationLevel
    fetch_bytes: int
    max_segments: int
    """Bounds the rows: the slot stops at a batch boundary, and the rest is read in another round."""
    commit_interval_ms: float
    """Since its first batch: then it stops in the same way."""
    time_left_ms: float
    """Rest of the micro-batch's deadline when the task starts: clocks of different machines are never compared."""
    quarantine: QuarantineLimits | None = None
    """Bounds the batches that are quarantined. None: a batch that cannot be copied is an error."""
    leaves_out: bool = False
    """Partitions that cannot be read or written are left out, so that they do not hold up the others."""
    isolates: bool = False
    """Also those that an operator has to fix, except those recorded as expired (`continues_after_data_loss`)."""
    continues_after_data_loss: bool = False
    left_out: frozenset[SourcePartition] = frozenset()
    """Partitions that an earlier round left out."""
    lineages: Mapping[SourcePartition, int] = field(default_factory=dict)
    """Of an archive, of partitions whose lineage is not 0."""
    follow_ms: float = 0.0
    """How long after its start a task reads beyond its planned ends, for records that appear meanwhile."""
    known_source: KnownCluster | None = None
    """The driver's latest metadata of the source. None: the task asks itself."""
    responses_in_flight: int = 0
    """So many responses of a reading may be written and not be recorded while the next one is read. Each has two receive
    buffers, of which the second is used for small batches of a far source only."""
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

"""Driver: what a verification found in each partition: ranges, counts and a digest, added up from the ranges that it recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.checkpoints.logs.runs import VerifiedRange
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.differences import Difference
from shallow_mirror.verify.fingerprints import DIGEST_BYTES

_MODULUS = 1 << (8 * DIGEST_BYTES)


def digest_text(total: int) -> str:
    """Return a sum of digests as `VerifiedRange.digest`: modulo 2^256, 64 hexadecimal digits."""
    return f"{total % _MODULUS:0{2 * DIGEST_BYTES}x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What was compared of a partition and its copy. Ranges are half-open; None: no range of it was read."""

    source: SourcePartition
    target: TargetPartition
    source_range: OffsetRange | None
    target_range: OffsetRange | None
    batch_count: int
    opened_batch_count: int
    record_count: int
    source_bytes: int
    target_bytes: int
    unchecked: Mapping[str, int]
    """Source offsets by reason."""
    difference_counts: Mapping[str, int]
    """By kind."""
    digest: str | None
    """Of everything that was found equal. None: a part of it was verified by a release without digests."""

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        place: dict[str, Any] = {}
        for side, partition, offsets in (("source", self.source, self.source_range), ("target", self.target, self.target_range)):
            place |= {f"{side}_{name}": value for name, value in partition._asdict().items()}
            place[f"{side}_start"] = None if offsets is None else offsets.start
            place[f"{side}_end"] = None if offsets is None else offsets.end
        names = (*VerifiedRange.COUNTS, "unchecked", "difference_counts", "digest")
        return {**place, **{name: getattr(self, name) for name in names}}


@dataclass(slots=True)
class _Totals:
    source_range: OffsetRange | None = None
    target_range: OffsetRange | None = None
    counts: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    difference_counts: Counter[str] = field(default_factory=Counter)
    digest: int | None = 0


class PartitionResults:
    """Adds up ranges, also those of an interrupted verification, and differences that belong to none."""

    def __init__(self) -> None:
        self._totals: dict[tuple[SourcePartition, TargetPartition], _Totals] = {}

    def add_range(self, verified: VerifiedRange) -> None:
        totals = self._of((verified.source, verified.target))
        totals.source_range = _hull(totals.source_range, verified.source_range)
        totals.target_range = _hull(totals.target_range, verified.target_range)
        totals.counts.update({name: getattr(verified, name) for name in VerifiedRange.COUNTS})
        totals.unchecked.update(verified.unchecked)
        totals.difference_counts.update(verified.difference_counts)
        is_known = totals.digest is not None and verified.digest is not None
        totals.digest = totals.digest + int(verified.digest, 16) if is_known else None  # type: ignore[operator, arg-type]

    def add(
        self,
        source: SourcePartition,
        target: TargetPartition,
        differences: Iterable[Difference],
        unchecked: Mapping[Unchecked, int],
    ) -> None:
        """Add what belongs to none of the ranges."""
        totals = self._of((source, target))
        totals.difference_counts.update(difference.kind.value for difference in differences)
        totals.unchecked.update({why.value: count for why, count in unchecked.items()})

    def results(self) -> tuple[PartitionResult, ...]:
        """Return the results in order of the partitions."""
        return tuple(
            PartitionResult(
                source=source,
                target=target,
                source_range=totals.source_range,
                target_range=totals.target_range,
                **{name: totals.counts[name] for name in VerifiedRange.COUNTS},
                unchecked=dict(+totals.unchecked),
                difference_counts=dict(+totals.difference_counts),
                digest=None if totals.digest is None else digest_text(totals.digest),
            )
            for (source, target), totals in sorted(self._totals.items())
        )

    def _of(self, pair: tuple[SourcePartition, TargetPartition]) -> _Totals:
        return self._totals.setdefault(pair, _Totals())


def _hull(known: OffsetRange | None, added: OffsetRange) -> OffsetRange:
    return added if known is None else OffsetRange(min(known.start, added.start), max(known.end, added.end))

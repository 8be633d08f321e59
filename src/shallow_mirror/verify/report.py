"""Driver: what an audit found, as fields, as sentences and as JSON; and as it was when it was interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.checkpoints.logs.runs import VerifiedRange
from shallow_mirror.plurals import counted
from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.differences import Difference, DifferenceKind
from shallow_mirror.verify.partition_results import PartitionResult
from shallow_mirror.verify.range_verifier import RangeResult

KEPT_DIFFERENCES = 1_000
"""So many are kept with their places; all are counted."""

SHOWN_DIFFERENCES = 10

_GONE = "cannot be checked any more"
_BEGINNINGS = {Unchecked.QUARANTINED: "not copied"}

RECORDED_SENTENCES = 20
"""Of what was not covered, so many sentences are kept in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Result of a verification. A difference is a range of offsets."""

    mirror: str
    audit_id: str
    topics: tuple[str, ...]
    is_deep: bool
    continues: bool
    """It continued an interrupted verification."""
    seconds: float
    """Of this run alone."""
    partition_count: int
    batch_count: int
    """Whole batches that are the same on both sides, unless a difference says otherwise."""
    opened_batch_count: int
    """Batches that had to be opened and hold the same records, unless a difference says otherwise."""
    record_count: int
    """Equal records of these batches."""
    source_bytes: int
    """Bytes read, as `target_bytes`."""
    target_bytes: int
    unchecked: Mapping[Unchecked, int]
    """Source offsets that cannot be checked any more."""
    difference_counts: Mapping[DifferenceKind, int]
    differences: tuple[Difference, ...]
    preserved_partition_count: int = 0
    """Partitions whose records keep their offsets."""
    filler_count: int = 0
    """Offsets of these that fillers took."""
    uncovered: tuple[str, ...] = ()
    """A sentence for everything that was asked for and could not be compared."""
    behind_offsets: int = 0
    """Offsets of the source that were not copied when the verification began, in `behind_partitions` partitions."""
    behind_partitions: int = 0
    closed: tuple[str, ...] = ()
    """Topics that are gone and that the operator has closed with `forget`: they are not compared."""
    source_cluster_id: str | None = None
    """None: it did not answer. Of a restore: that of the archived cluster."""
    target_cluster_id: str | None = None
    partitions: tuple[PartitionResult, ...] = ()
    stopped_by: str | None = None
    """The error that ended the verification before its end. None: it is complete."""

    @property
    def is_equal(self) -> bool:
        """Return whether both sides hold the same; False as well if something is not covered, or it was stopped."""
        return not self.difference_counts and not self.uncovered and self.stopped_by is None

    def summary(self) -> dict[str, Any]:
        """Return the result for the table `audit`."""
        return {
            "is_equal": self.is_equal,
            "topic_count": len(self.topics),
            "partition_count": self.partition_count,
            "record_count": self.record_count,
            "difference_counts": {kind.value: count for kind, count in self.difference_counts.items()},
            "uncovered_count": len(self.uncovered),
            "uncovered": list(self.uncovered[:RECORDED_SENTENCES]),
            "unchecked_offsets": sum(self.unchecked.values()),
            "behind_offsets": self.behind_offsets,
        }

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **fields,
            "is_equal": self.is_equal,
            "topics": list(self.topics),
            "uncovered": list(self.uncovered),
            "closed": list(self.closed),
            "unchecked": {why.value: count for why, count in self.unchecked.items()},
            "difference_counts": {kind.value: count for kind, count in self.difference_counts.items()},
            "differences": [difference.document() for difference in self.differences],
            "partitions": [partition.document() for partition in self.partitions],
        }

    def _ways(self) -> str:
        """Return how the batches were compared."""
        counts = {"by checksum and header": self.batch_count, "by records": self.opened_batch_count}
        ways = ", ".join(f"{counted(count, 'batch')} {how}" for how, count in counts.items() if count)
        return ways and f": {ways}"

    def sentences(self) -> list[str]:
        """Return the result, its evidence, and the first differences."""
        total = sum(self.difference_counts.values())
        counts_by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(self.difference_counts.items()))
        result = f"{counted(total, 'difference')}: {counts_by_kind}" if total else "no difference"
        if self.uncovered and not total:
            result = "no difference in what could be compared, which is not all that was asked for"
        lines = [result, *(f"  not covered: {sentence}" for sentence in self.uncovered)]
        lines += [f"  closed by `forget`, not compared: {topic}" for topic in self.closed]
        lines.append(
            f"{counted(self.record_count, 'record')} in {counted(self.partition_count, 'partition')} of "
            f"{counted(len(self.topics), 'topic')} found equal{self._ways()}"
        )
        if self.behind_offsets:
            lines.append(
                f"not copied when the verification began: {counted(self.behind_offsets, 'offset')} in "
                f"{counted(self.behind_partitions, 'partition')} (`shallow-mirror status FILE` gives the reasons)"
            )
        if self.preserved_partition_count:
            lines.append(
                f"offsets are preserved in {counted(self.preserved_partition_count, 'partition')}: each record was looked for at "
                f"its source offset; fillers, which no reader may see, took {counted(self.filler_count, 'offset')}"
            )
        megabytes = (self.source_bytes + self.target_bytes) / 1e6
        lines.append(
            f"{megabytes:,.1f} MB read from both sides{' (an interrupted audit was continued)' if self.continues else ''}"
        )
        lines += [f"{_BEGINNINGS.get(why, _GONE)}: {count:,} source offsets {why.value}" for why, count in self.unchecked.items()]
        shown = self.differences[:SHOWN_DIFFERENCES]
        lines += [f"  {difference.sentence}" for difference in shown]
        if total > len(shown):
            lines.append(f"  and {total - len(shown)} more (--json lists up to {KEPT_DIFFERENCES})")
        return lines


@dataclass(slots=True)
class Tally:
    """The result so far; ranges of an interrupted verification are added as they were written."""

    batch_count: int = 0
    opened_batch_count: int = 0
    record_count: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    unchecked: Counter[Unchecked] = field(default_factory=Counter)
    difference_counts: Counter[DifferenceKind] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """Return them by the names that reports and ranges give them."""
        return {name: getattr(self, name) for name in VerifiedRange.COUNTS}

    def add(self, result: RangeResult) -> None:
        self._count(result)
        self.unchecked.update(result.unchecked)
        self.add_differences(result.differences)

    def restore(self, verified: VerifiedRange) -> None:
        """Add a range of an interrupted verification: its differences are counted, and the first of them kept."""
        self._count(verified)
        self.unchecked.update({Unchecked(why): count for why, count in verified.unchecked.items()})
        self.difference_counts.update({DifferenceKind(kind): count for kind, count in verified.difference_counts.items()})
        for difference in verified.differences:
            self._keep(Difference.from_document(difference))

    def add_differences(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            self.difference_counts[difference.kind] += 1
            self._keep(difference)

    def _count(self, part: RangeResult | VerifiedRange) -> None:
        for name in VerifiedRange.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(part, name))

    def _keep(self, difference: Difference) -> None:
        if len(self.differences) < KEPT_DIFFERENCES:
            self.differences.append(difference)

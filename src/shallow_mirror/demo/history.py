"""Pure: the histories of one topic-partition on two clusters, and every way in which they differ.

A record is kept as its offset and a 128-bit digest, 24 bytes.
"""

from __future__ import annotations

import array
import bisect
import enum
import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shallow_mirror.types import TopicPartition

DIGEST_BYTES = 16
_DIGEST = np.dtype(f"V{DIGEST_BYTES}")

Translate = Callable[[str, int, int], tuple[str, bool, int | None]]
"""(source topic, partition, offset) -> (segment kind, exact, target offset)."""


class DifferenceKind(enum.StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    CHANGED = "changed"
    EXTRA = "extra"
    ABORTED_VISIBLE = "aborted but visible"
    MISTRANSLATED = "mistranslated"
    OPEN_TXN = "open transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference. `source_offset` is None for a record that the source lacks, `target_offset` for one that the target lacks."""

    kind: DifferenceKind
    topic_partition: TopicPartition
    source_offset: int | None = None
    target_offset: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        where = f"source offset {self.source_offset}, target offset {self.target_offset}"
        return f"{self.kind}: {self.topic_partition}: {where}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The records of one topic-partition in log order: offsets int64[n] and digests V16[n]."""

    offsets: NDArray[np.int64]
    digests: NDArray[np.void]

    @classmethod
    def of(cls, records: Iterable[tuple[int, bytes]]) -> History:
        """Build a history of (offset, digest of 16 bytes)."""
        builder = HistoryBuilder()
        for offset, digest in records:
            builder.add(offset, digest)
        return builder.build()

    def __len__(self) -> int:
        return len(self.offsets)


class HistoryBuilder:
    """Builds a history of records in log order."""

    def __init__(self) -> None:
        self._offsets = array.array("q")
        self._digests = bytearray()

    def add(self, offset: int, digest: bytes) -> None:
        self._offsets.append(offset)
        self._digests += digest

    def build(self) -> History:
        return History(np.array(self._offsets, np.int64), np.frombuffer(bytes(self._digests), _DIGEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """The result for a partition. `pairs`: int64[k, 2] of (source offset, target offset) of copied records, by source."""

    differences: tuple[Difference, ...]
    pairs: NDArray[np.int64]


def record_digest(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_type: int, timestamp_ms: int
) -> bytes:
    """Return a digest of all fields, each preceded by its length; None is not the empty string."""
    parts: list[bytes] = [struct.pack(">iqi", timestamp_type, timestamp_ms, len(headers))]
    for field in (key, value, *(part for name, content in headers for part in (name.encode(), content))):
        parts.append(struct.pack(">i", -1 if field is None else len(field)))
        if field:
            parts.append(field)
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def compare_histories(
    topic_partition: TopicPartition, source: History, target: History, aborted: Container[bytes] = frozenset()
) -> PartitionComparison:
    """Compare two histories. `aborted`: digests of records which the source holds in aborted transactions only.

    Every difference is reported once: a record at another position is reordered, not lost and extra; a missing record with
    another one at its position is changed.
    """
    if len(source) == len(target) and bool((source.digests == target.digests).all()):
        return PartitionComparison(differences=(), pairs=np.column_stack((source.offsets, target.offsets)))
    return _Alignment(topic_partition, source, target).comparison(aborted)


class _Alignment:
    """The pairing of source and target records if the histories are not simply equal."""

    def __init__(self, topic_partition: TopicPartition, source: History, target: History) -> None:
        self.topic_partition, self.source, self.target = topic_partition, source, target
        self.source_digests = [digest.tobytes() for digest in source.digests]
        self.target_digests = [digest.tobytes() for digest in target.digests]
        self.copies: dict[int, int] = {}
        """Target index of a source index, k-th occurrence of a digest to k-th occurrence."""
        self.duplicated: list[tuple[int, int]] = []
        self.foreign: list[int] = []
        self._match()

    def _match(self) -> None:
        source_indices: defaultdict[bytes, list[int]] = defaultdict(list)
        for source_index, digest in enumerate(self.source_digests):
            source_indices[digest].append(source_index)
        occurrences: Counter[bytes] = Counter()
        for target_index, digest in enumerate(self.target_digests):
            originals = source_indices.get(digest)
            if originals is None:
                self.foreign.append(target_index)
            elif occurrences[digest] < len(originals):
                self.copies[originals[occurrences[digest]]] = target_index
            else:
                self.duplicated.append((originals[-1], target_index))
            occurrences[digest] += 1

    def comparison(self, aborted: Container[bytes]) -> PartitionComparison:
        copied = sorted(self.copies.items())
        anchors = _longest_increasing([target_index for _, target_index in copied])
        in_order = [copied[position] for position in anchors]
        kept = set(in_order)
        differences = [
            *(self._difference(DifferenceKind.DUPLICATED, *pair) for pair in self.duplicated),
            *(self._difference(DifferenceKind.REORDERED, *pair) for pair in copied if pair not in kept),
            *self._missing_and_foreign(in_order, aborted),
        ]
        differences.sort(
            key=lambda difference: (
                difference.source_offset is None,
                difference.source_offset or 0,
                difference.target_offset or 0,
            )
        )
        pairs = [
            (int(self.source.offsets[source_index]), int(self.target.offsets[target_index]))
            for source_index, target_index in copied
        ]
        return PartitionComparison(differences=tuple(differences), pairs=np.array(pairs, np.int64).reshape(-1, 2))

    def _missing_and_foreign(self, in_order: Sequence[tuple[int, int]], aborted: Container[bytes]) -> Iterable[Difference]:
        """Yield the differences between records that are in order: there, a missing and a foreign record are a changed one."""
        missing = [index for index in range(len(self.source)) if index not in self.copies]
        is_aborted = {index: self.target_digests[index] in aborted for index in self.foreign}
        source_anchors, target_anchors = (
            [source_index for source_index, _ in in_order],
            [target_index for _, target_index in in_order],
        )
        gaps: defaultdict[int, list[int]] = defaultdict(list)
        for index in self.foreign:
            if is_aborted[index]:
                yield self._difference(DifferenceKind.ABORTED_VISIBLE, None, index)
            else:
                gaps[bisect.bisect_left(target_anchors, index)].append(index)
        for index in missing:
            gap = gaps[bisect.bisect_left(source_anchors, index)]
            if gap:
                yield self._difference(DifferenceKind.CHANGED, index, gap.pop(0))
            else:
                yield self._difference(DifferenceKind.LOST, index, None)
        for rest in gaps.values():
            for index in rest:
                yield self._difference(DifferenceKind.EXTRA, None, index)

    def _difference(self, kind: DifferenceKind, source_index: int | None, target_index: int | None) -> Difference:
        return Difference(
            kind=kind,
            topic_partition=self.topic_partition,
            source_offset=None if source_index is None else int(self.source.offsets[source_index]),
            target_offset=None if target_index is None else int(self.target.offsets[target_index]),
        )


def _longest_increasing(numbers: Sequence[int]) -> list[int]:
    """Return positions of a longest increasing subsequence of distinct numbers (patience sorting)."""
    tails: list[int] = []
    tail_positions: list[int] = []
    before: list[int] = []
    for position, number in enumerate(numbers):
        pile = bisect.bisect_left(tails, number)
        before.append(tail_positions[pile - 1] if pile else -1)
        tails[pile : pile + 1] = [number]
        tail_positions[pile : pile + 1] = [position]
    chosen: list[int] = []
    position = tail_positions[-1] if tail_positions else -1
    while position >= 0:
        chosen.append(position)
        position = before[position]
    return chosen[::-1]


def mistranslated(topic_partition: TopicPartition, pairs: NDArray[np.int64], translate: Translate) -> tuple[Difference, ...]:
    """Return pairs whose source offset does not translate exactly to the target offset of the record. Pure."""
    differences = []
    for source_offset, target_offset in pairs.tolist():
        translated = translate(topic_partition.topic, topic_partition.partition, source_offset)
        if translated != ("data", True, target_offset):
            differences.append(
                Difference(
                    kind=DifferenceKind.MISTRANSLATED,
                    topic_partition=topic_partition,
                    source_offset=source_offset,
                    target_offset=target_offset,
                    detail=f"the map says kind={translated[0]} exact={translated[1]} target_offset={translated[2]}",
                )
            )
    return tuple(differences)

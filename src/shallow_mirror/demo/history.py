"""Pure: the histories of one topic-partition on two clusters, and every way in which they differ.

What is kept of a record is its offset and a 128-bit digest, 24 bytes.
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
    """`source_offset` is None for a record which the source does not have, `target_offset` for one the target lacks."""

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
        """Of (offset, digest of 16 bytes)."""
        builder = HistoryBuilder()
        for offset, digest in records:
            builder.add(offset, digest)
        return builder.build()

    def __len__(self) -> int:
        return len(self.offsets)


class HistoryBuilder:
    """Takes records in log order."""

    def __init__(self) -> None:
        self._offsets, self._digests = array.array("q"), bytearray()

    def add(self, offset: int, digest: bytes) -> None:
        self._offsets.append(offset)
        self._digests += digest

    def build(self) -> History:
        return History(np.array(self._offsets, np.int64), np.frombuffer(bytes(self._digests), _DIGEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """`pairs`: int64[k, 2] of (source offset, target offset) of records that were found again, in source order."""

    differences: tuple[Difference, ...]
    pairs: NDArray[np.int64]


def record_digest(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_type: int, timestamp_ms: int
) -> bytes:
    """Different for any difference: every field is preceded by its length, and None is not the empty string."""
    parts: list[bytes] = [struct.pack(">iqi", timestamp_type, timestamp_ms, len(headers))]
    for field in (key, value, *(part for name, content in headers for part in (name.encode(), content))):
        parts.append(struct.pack(">i", -1 if field is None else len(field)))
        if field:
            parts.append(field)
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def compare_histories(
    place: TopicPartition, source: History, target: History, aborted: Container[bytes] = frozenset()
) -> PartitionComparison:
    """Pure. `aborted`: digests of records which the source holds in aborted transactions only.

    Every difference is reported once: a record in another place is reordered, not lost and extra; a record that is missing
    where another stands in its place is changed.
    """
    if len(source) == len(target) and bool((source.digests == target.digests).all()):
        return PartitionComparison(differences=(), pairs=np.column_stack((source.offsets, target.offsets)))
    return _Alignment(place, source, target).comparison(aborted)


class _Alignment:
    """Which target record is which source record, where the histories are not simply equal."""

    def __init__(self, place: TopicPartition, source: History, target: History) -> None:
        self.place, self.source, self.target = place, source, target
        self.source_digests = [digest.tobytes() for digest in source.digests]
        self.target_digests = [digest.tobytes() for digest in target.digests]
        self.copies: dict[int, int] = {}
        """Target index of a source index, k-th occurrence of a digest to k-th occurrence."""
        self.duplicated: list[tuple[int, int]] = []
        self.foreign: list[int] = []
        self._match()

    def _match(self) -> None:
        places: defaultdict[bytes, list[int]] = defaultdict(list)
        for source_index, digest in enumerate(self.source_digests):
            places[digest].append(source_index)
        seen: Counter[bytes] = Counter()
        for target_index, digest in enumerate(self.target_digests):
            originals = places.get(digest)
            if originals is None:
                self.foreign.append(target_index)
            elif seen[digest] < len(originals):
                self.copies[originals[seen[digest]]] = target_index
            else:
                self.duplicated.append((originals[-1], target_index))
            seen[digest] += 1

    def comparison(self, aborted: Container[bytes]) -> PartitionComparison:
        found = sorted(self.copies.items())
        anchors = _longest_increasing([target_index for _, target_index in found])
        in_order = [found[position] for position in anchors]
        kept = set(in_order)
        differences = [
            *(self._difference(DifferenceKind.DUPLICATED, *both) for both in self.duplicated),
            *(self._difference(DifferenceKind.REORDERED, *both) for both in found if both not in kept),
            *self._missing_and_foreign(in_order, aborted),
        ]
        differences.sort(key=lambda one: (one.source_offset is None, one.source_offset or 0, one.target_offset or 0))
        pairs = [(int(self.source.offsets[one]), int(self.target.offsets[other])) for one, other in found]
        return PartitionComparison(differences=tuple(differences), pairs=np.array(pairs, np.int64).reshape(-1, 2))

    def _missing_and_foreign(self, in_order: Sequence[tuple[int, int]], aborted: Container[bytes]) -> Iterable[Difference]:
        """Between two records that are in order, a missing and a foreign one are a changed one."""
        missing = [index for index in range(len(self.source)) if index not in self.copies]
        is_aborted = {index: self.target_digests[index] in aborted for index in self.foreign}
        source_anchors, target_anchors = [one for one, _ in in_order], [other for _, other in in_order]
        gaps: defaultdict[int, list[int]] = defaultdict(list)
        for index in self.foreign:
            if is_aborted[index]:
                yield self._difference(DifferenceKind.ABORTED_VISIBLE, None, index)
            else:
                gaps[bisect.bisect_left(target_anchors, index)].append(index)
        for index in missing:
            here = gaps[bisect.bisect_left(source_anchors, index)]
            if here:
                yield self._difference(DifferenceKind.CHANGED, index, here.pop(0))
            else:
                yield self._difference(DifferenceKind.LOST, index, None)
        for rest in gaps.values():
            for index in rest:
                yield self._difference(DifferenceKind.EXTRA, None, index)

    def _difference(self, kind: DifferenceKind, source_index: int | None, target_index: int | None) -> Difference:
        return Difference(
            kind=kind,
            topic_partition=self.place,
            source_offset=None if source_index is None else int(self.source.offsets[source_index]),
            target_offset=None if target_index is None else int(self.target.offsets[target_index]),
        )


def _longest_increasing(numbers: Sequence[int]) -> list[int]:
    """Positions of a longest increasing subsequence of distinct numbers (patience sorting)."""
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


def mistranslated(place: TopicPartition, pairs: NDArray[np.int64], translate: Translate) -> tuple[Difference, ...]:
    """Pure. Pairs whose source offset does not translate exactly to the target offset where the record was found."""
    wrong = []
    for source_offset, target_offset in pairs.tolist():
        answer = translate(place.topic, place.partition, source_offset)
        if answer != ("data", True, target_offset):
            wrong.append(
                Difference(
                    kind=DifferenceKind.MISTRANSLATED,
                    topic_partition=place,
                    source_offset=source_offset,
                    target_offset=target_offset,
                    detail=f"the map says kind={answer[0]} exact={answer[1]} target_offset={answer[2]}",
                )
            )
    return tuple(wrong)

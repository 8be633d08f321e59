"""Pure: which requests read the ranges of an object, and what of each answer belongs to which range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """`start` to `end` of the answer to the request with this number."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """`requests` are (start, size) in the object; `pieces` are those of each range, in order."""

    requests: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[Piece, ...], ...]


def plan_reads(ranges: Sequence[tuple[int, int]], most_bytes: int) -> ReadPlan:
    """Cut ranges so that no request is larger than `most_bytes`; join ranges that follow each other without a hole."""
    requests: list[tuple[int, int]] = []
    pieces: list[tuple[Piece, ...]] = []
    for start, size in ranges:
        of_range: list[Piece] = []
        position, end = start, start + size
        while position < end:
            if not requests or sum(requests[-1]) != position or requests[-1][1] == most_bytes:
                requests.append((position, 0))
            request_start, before = requests[-1]
            after = min(before + end - position, most_bytes)
            requests[-1] = (request_start, after)
            of_range.append(Piece(len(requests) - 1, before, after))
            position += after - before
        pieces.append(tuple(of_range))
    return ReadPlan(tuple(requests), tuple(pieces))

"""Everywhere: what a folder and a store behind a network both do with objects: ranges, requests, memory."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shallow_mirror.errors import StoreUnreachableError

PART_BYTES = 8 << 20
"""Of one part of an upload. S3 allows 10,000 parts: objects of up to 80 GiB."""
PARTS_IN_FLIGHT = 4
"""A writer holds one part more than this: the one that is being filled."""
READ_BYTES = 8 << 20
"""Of one request: larger ranges are read by several, so that each ends within the timeout of a request."""
READS_IN_FLIGHT = 8
"""Of one call, with a thread each."""
LIST_PAGE = 1_000
DELETE_PAGE = 1_000
"""S3's own limits for one request."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as it is listed. `name` is relative to the root of the store, with "/" between its parts."""

    name: str
    size_bytes: int
    last_modified_ms: int
    """By the clock of the store or of the file system."""


class ObjectWriter(abc.ABC):
    """Write one new object. Used as a context manager it is aborted unless it was closed."""

    @abc.abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes; the caller may reuse its buffer at once. Waits while PARTS_IN_FLIGHT parts are under way.

        Raises StoreUnreachableError, ConfigError, ObjectExistsError; only `abort` may follow then.
        """

    @abc.abstractmethod
    def close(self) -> int:
        """Return the object's size when it is complete, durable and visible under its name, and not before.

        The store's word is not enough: its name and size are looked up afterwards. Raises ObjectExistsError (it belongs to
        another writer and was not changed), StoreUnreachableError (it may or may not be there), ConfigError. To try again, write
        under a new name.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Give up the bytes written so far. Raises nothing; has no effect after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.abort()


def not_kept_error(root: str, name: str, found: str) -> StoreUnreachableError:
    """Return the error for an object whose write the store confirmed. `found`: the state under its name."""
    reason = f"it confirmed that the object is complete, and {found}"
    remedy = (
        "check the store and every proxy, gateway and cache in front of it: an object must be there as soon as its write is "
        "confirmed"
    )
    return StoreUnreachableError(f"keep {name}", root, reason, remedy)


class StoreBackend(abc.ABC):
    """The operations of a kind of store. Names were checked by the caller."""

    @abc.abstractmethod
    def writer(self, name: str) -> ObjectWriter: ...

    @abc.abstractmethod
    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]], in_flight: int) -> tuple[bytes, ...]: ...

    @abc.abstractmethod
    def read_into(
        self, name: str, ranges: Sequence[tuple[int, int]], target: memoryview, in_flight: int, *, is_read_once: bool
    ) -> None: ...

    @abc.abstractmethod
    def objects(self, prefix: str) -> Iterator[ObjectInfo]: ...

    @abc.abstractmethod
    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]: ...

    @abc.abstractmethod
    def delete(self, names: Sequence[str]) -> None: ...

    @abc.abstractmethod
    def size(self, name: str) -> int | None: ...


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

"""Everywhere: the objects below one root, whichever kind of store holds them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shallow_mirror.broker.auth import secrets
from shallow_mirror.errors import ConfigError, ObjectMissingError
from shallow_mirror.object_store.base import DELETE_PAGE, READS_IN_FLIGHT, ObjectInfo, ObjectWriter, StoreBackend
from shallow_mirror.object_store.folder_store import FolderStore
from shallow_mirror.object_store.remote_store import RemoteStore
from shallow_mirror.object_store.store_client import SCHEMES

PROBE_FOLDER = "_shallow_mirror"
_PROBE_BYTES = b"shallow-mirror tests whether it can write, read, list and delete here"

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NAME = re.compile(r"[^/\\\x00-\x1f]+(/[^/\\\x00-\x1f]+)*")


class ObjectStore:
    """Objects below `root`: an absolute folder, or a URI: s3://bucket/path, abfss://container@account.../path, gs://bucket/path.

    Holds options as they are written, so it travels to other processes, which open it at the first use. Not to be used in a
    process that a user of it was forked to. For any thread.
    """

    def __init__(self, root: str, backend: StoreBackend, options: Mapping[str, str]) -> None:
        self.root = root
        self._backend = backend
        self._options = options

    @classmethod
    def open(cls, root: str, options: Mapping[str, str] | None = None) -> ObjectStore:
        """Return the store at a root, without a request to it; options are `storage.options`, with references as written.

        Raises ConfigError for a root that no store here has. Wrong options and credentials show at the first use (`probe`).
        """
        root = root.rstrip("/") or "/"
        path = root.removeprefix("file://")
        scheme = _URI.match(path)
        if scheme is None:
            if not path.startswith("/"):
                raise ConfigError(f"{root}: not an absolute folder or a URI ({', '.join(f'{name}://' for name in SCHEMES)})")
            return cls(path, FolderStore(Path(path)), {})
        if scheme[1].lower() not in SCHEMES:
            raise ConfigError(
                f"{root}: objects cannot be kept there: use a folder or {', '.join(f'{name}://' for name in SCHEMES)}"
            )
        written = dict(options or {})
        return cls(root, RemoteStore(root, written), written)

    @property
    def references(self) -> frozenset[str]:
        """Return every `${...}` of the options, as written."""
        return frozenset(reference for value in self._options.values() for reference in secrets.references_in(value))

    def __reduce__(self) -> Any:
        return ObjectStore.open, (self.root, self._options)

    def __repr__(self) -> str:
        return f"ObjectStore({self.root!r})"

    def writer(self, name: str) -> ObjectWriter:
        """Begin a new object. Nothing is visible under its name before `close`. Raises ConfigError, StoreUnreachableError."""
        return self._backend.writer(_checked(name))

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`. Raises as `read_ranges`."""
        return self.read_ranges(name, [(start, size)])[0]

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], max_concurrency: int = READS_IN_FLIGHT
    ) -> tuple[bytes, ...]:
        """Return the bytes of each (start, size), in this order, by at most `max_concurrency` requests at once.

        The memory is that of the ranges and READ_BYTES per request. Raises ObjectMissingError (no such object, or it ends before
        a range does), StoreUnreachableError, ConfigError.
        """
        self._check_ranges(name, ranges)
        return self._backend.read_ranges(_checked(name), ranges, max_concurrency)

    def read_into(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]],
        target: memoryview,
        max_concurrency: int = READS_IN_FLIGHT,
        *,
        is_read_once: bool = False,
    ) -> None:
        """Fill `target` with the bytes of each (start, size), one behind the other. Raises as `read_ranges`.

        With `is_read_once` a folder's page cache does not keep them. After an error the target has any bytes.
        """
        self._check_ranges(name, ranges)
        if len(target) != sum(size for _, size in ranges):
            raise ValueError(f"{self.root}/{name}: the target has {len(target)} bytes, which is not the size of all ranges")
        self._backend.read_into(_checked(name), ranges, target, max_concurrency, is_read_once=is_read_once)

    def _check_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        if any(start < 0 or size < 0 for start, size in ranges):
            raise ValueError(f"{self.root}/{name}: a range has a negative start or size")

    def tail(self, name: str, size: int) -> bytes:
        """Return the last `size` bytes, or the whole object if it is smaller. Raises as `read_ranges`."""
        object_size = self.size(name)
        if object_size is None:
            raise ObjectMissingError(self.root, name, "the object does not exist", "restore it from a copy or a former version")
        start = max(0, object_size - size)
        return self.read(name, start, object_size - start)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder of the store, in any order. Raises StoreUnreachableError, ConfigError."""
        return self._backend.objects(_checked(prefix.rstrip("/")) if prefix else "")

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield files that are being written, or whose writer was killed; `delete` takes their names.

        Only in a folder. Stores behind a network keep unfinished uploads apart: a lifecycle rule of the bucket ends them.
        """
        return self._backend.unfinished(_checked(prefix.rstrip("/")) if prefix else "")

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is no error. Raises StoreUnreachableError (some may be deleted), ConfigError."""
        remaining = iter(names)
        while page := tuple(_checked(name) for name in islice(remaining, DELETE_PAGE)):
            self._backend.delete(page)

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none. Raises StoreUnreachableError, ConfigError."""
        return self._backend.size(_checked(name))

    def probe(self) -> None:
        """Return when an object was written, read, listed and deleted again below PROBE_FOLDER.

        Raises ConfigError with every operation that is refused, StoreUnreachableError.
        """
        name = f"{PROBE_FOLDER}/probe-{uuid.uuid4()}"
        with self.writer(name) as writer:
            writer.write(_PROBE_BYTES)
            writer.close()
        problems: list[str] = []
        try:
            if self.read(name, 0, len(_PROBE_BYTES)) != _PROBE_BYTES:
                problems.append(f"{self.root}/{name}: the store returns other bytes than were written")
        except ConfigError as error:
            problems += error.problems
        try:
            if all(info.name != name for info in self.list(PROBE_FOLDER)):
                problems.append(f"{self.root}: the store does not list an object that was just written")
        except ConfigError as error:
            problems += error.problems
        try:
            self.delete([name])
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} cannot be the name of an object")
    return name

"""Everywhere: objects on S3, Azure or Google Cloud Storage, through obstore; ranges on S3 by direct reads where possible."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any

from shallow_mirror.errors import MirrorError, ObjectExistsError, ObjectMissingError, StoreUnreachableError
from shallow_mirror.object_store.base import (
    LIST_PAGE,
    PART_BYTES,
    PARTS_IN_FLIGHT,
    READ_BYTES,
    Buffer,
    ObjectInfo,
    ObjectWriter,
    StoreBackend,
    not_kept_error,
    plan_reads,
)
from shallow_mirror.object_store.range_reader import ReadRefusedError
from shallow_mirror.object_store.store_client import REMEDY_MISSING, StoreClient
from shallow_mirror.reused_buffers import ReusedBuffers

_log = logging.getLogger(__name__)

DIRECT_READ_BYTES = 64 << 10
"""Smaller reads, of footers and lists, go through obstore: there is nothing to save."""
_SIGNED_FOR = timedelta(minutes=30)
"""By the clock of the store, which may differ by 15 minutes from that of this machine, as with signed headers."""
_NOT_FOUND = 404

_WRITER = "writer"
"""Key of an object's metadata: who wrote it, to tell a lost answer to our own write from another writer's object."""


class RemoteStore(StoreBackend):
    """Objects below a URI."""

    def __init__(self, root: str, written_options: Mapping[str, str]) -> None:
        self.root = root
        self.client = StoreClient(root, written_options)

    def writer(self, name: str) -> ObjectWriter:
        return _UploadWriter(self, name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]], in_flight: int) -> tuple[bytes, ...]:
        plan = plan_reads(ranges, READ_BYTES)
        answers = [memoryview(bytearray(size)) for _, size in plan.requests]
        self._read_all(name, plan.requests, answers, in_flight)
        return tuple(b"".join(answers[piece.request][piece.start : piece.end] for piece in pieces) for pieces in plan.pieces)

    def read_into(
        self, name: str, ranges: Sequence[tuple[int, int]], target: memoryview, in_flight: int, *, is_read_once: bool
    ) -> None:
        requests = plan_reads(ranges, READ_BYTES).requests
        ends = list(accumulate(size for _, size in requests))
        answers = [target[end - size : end] for end, (_, size) in zip(ends, requests, strict=True)]
        self._read_all(name, requests, answers, in_flight)

    def _read_all(self, name: str, requests: Sequence[tuple[int, int]], answers: Sequence[memoryview], in_flight: int) -> None:
        """Fill each answer with the bytes of its request. Raises ObjectMissingError for bytes that are not there."""
        starts = [start for start, _ in requests]
        if len(requests) == 1:
            return self._read(name, starts[0], answers[0])
        with ThreadPoolExecutor(min(in_flight, len(requests) or 1), thread_name_prefix="read-ranges") as threads:
            for _ in threads.map(partial(self._read, name), starts, answers):
                pass
        return None

    def _read(self, name: str, start: int, answer: memoryview) -> None:
        reader = self.client.reader() if len(answer) >= DIRECT_READ_BYTES else None
        if reader is None:
            return self._read_by_library(name, start, answer)
        try:
            return reader.read_into(lambda: self._signed_url(name), start, answer, f"read {name}", self.root)
        except ReadRefusedError as refusal:
            # What is refused to the library as well is its error, with the words that users know from other operations.
            self._read_by_library(name, start, answer)
            if refusal.status != _NOT_FOUND:
                self.client.disable_reader(str(refusal))
            return None

    def _read_by_library(self, name: str, start: int, answer: memoryview) -> None:
        # Not get_ranges: it joins what was cut, ranges that follow each other, to one request of any size.
        with self.client.errors_raised(f"read {name}", name) as (obstore, client):
            data = memoryview(obstore.get_range(client, name, start=start, length=len(answer)))
        if len(data) != len(answer):
            reason = f"the object ends at byte {start + len(data)}, and bytes {start} to {start + len(answer)} were expected"
            raise ObjectMissingError(self.root, name, reason, REMEDY_MISSING)
        answer[:] = data

    def _signed_url(self, name: str) -> str:
        with self.client.errors_raised(f"read {name}", name) as (obstore, client):
            return str(obstore.sign(client, "GET", name, _SIGNED_FOR))

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        with self.client.errors_raised("list objects") as (obstore, client):
            pages = iter(obstore.list(client, prefix or None, chunk_size=LIST_PAGE))
        while True:
            with self.client.errors_raised("list objects"):
                page = next(pages, None)
            if page is None:
                return
            for listed in page:
                yield ObjectInfo(listed["path"], listed["size"], int(listed["last_modified"].timestamp() * 1000))

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, names: Sequence[str]) -> None:
        try:
            with self.client.errors_raised("delete objects", names[0]) as (obstore, client):
                obstore.delete(client, list(names))
        except ObjectMissingError:
            # Azure and Google report a missing object and may not have gone on behind it.
            for name in names:
                with (
                    contextlib.suppress(ObjectMissingError),
                    self.client.errors_raised(f"delete {name}", name) as (obstore, client),
                ):
                    obstore.delete(client, name)

    def size(self, name: str) -> int | None:
        try:
            with self.client.errors_raised(f"look for {name}", name) as (obstore, client):
                return int(obstore.head(client, name)["size"])
        except ObjectMissingError:
            return None

    def writer_of(self, name: str) -> tuple[str, int] | None:
        """Return the writer's token and the size of an object; None if there is none."""
        try:
            with self.client.errors_raised(f"look for {name}", name) as (obstore, client):
                answer = obstore.get(client, name, options={"head": True})
                return str(answer.attributes.get(_WRITER, "")), int(answer.meta["size"])
        except ObjectMissingError:
            return None


class _UploadWriter(ObjectWriter):
    """Up to PART_BYTES are written by one conditional request. More is a multipart upload, which has no condition: it looks for
    the name before it begins and before it completes, and rests on names that no other writer chooses."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        self._store = store
        self._name = name
        self._token = uuid.uuid4().hex
        self._buffers = ReusedBuffers()
        self._part: bytearray | memoryview = bytearray()
        self._part_bytes = 0
        """Filled of the part. The first one grows: most objects of little traffic have no other."""
        self._upload: Any = None
        self._size = 0
        self._is_open = True

    def write(self, data: Buffer) -> None:
        self._require_open()
        view = memoryview(data).cast("B")
        while view:
            if self._part_bytes == PART_BYTES:
                self._send_part()
                self._part = self._buffers.take(PART_BYTES)
            taken = view[: PART_BYTES - self._part_bytes]
            end = self._part_bytes + len(taken)
            self._part[self._part_bytes : end] = taken
            self._part_bytes = end
            self._size += len(taken)
            view = view[len(taken) :]

    def close(self) -> int:
        self._require_open()
        try:
            if self._upload is None:
                self._put()
            else:
                self._complete()
        except (StoreUnreachableError, ObjectMissingError, ObjectExistsError) as error:
            # The answer may be lost and the write applied; a repeated request then finds the object, or no upload.
            written = self._written(error)
            if written == (self._token, self._size):
                return self._size
            if written is not None:
                raise ObjectExistsError(self._store.root, self._name) from error
            if isinstance(error, StoreUnreachableError | ObjectExistsError):
                raise
            operation = f"complete {self._name}"
            remedy = "write it again under a new name"
            raise StoreUnreachableError(operation, self._store.root, "the upload is gone", remedy) from error
        finally:
            self.abort()
        self._require_stored()
        return self._size

    def abort(self) -> None:
        upload, self._upload = self._upload, None
        self._is_open = False
        self._buffers = ReusedBuffers()
        self._part = bytearray()
        self._part_bytes = 0
        if upload is None or upload.closed():
            return
        try:
            with self._store.client.errors_raised(f"abort the upload of {self._name}"):
                upload.__exit__(
                    ValueError, None, None
                )  # with an error the library deletes the parts; it has no other call for it
        except MirrorError as error:
            _log.warning("parts of %s stay until the bucket's lifecycle rule deletes them: %s", self._name, error)

    def _written(self, error: MirrorError) -> tuple[str, int] | None:
        """Return the state under the name after an error of a write; raise that error if this is unknown as well."""
        try:
            return self._store.writer_of(self._name)
        except StoreUnreachableError as unknown:
            raise (error if isinstance(error, StoreUnreachableError) else unknown) from error

    def _require_stored(self) -> None:
        """Ask for the object: a store, or a proxy in front of it, may confirm a write that it did not do or did in part."""
        stored = self._store.writer_of(self._name)
        if stored is None:
            raise not_kept_error(self._store.root, self._name, "there is no such object now")
        token, size = stored
        if size != self._size:
            raise not_kept_error(self._store.root, self._name, f"it has {size:,} of {self._size:,} bytes now")
        # Some gateways keep no metadata of objects: there the size has to be enough.
        if token not in (self._token, ""):
            raise ObjectExistsError(self._store.root, self._name)

    def _put(self) -> None:
        with self._store.client.errors_raised(f"write {self._name}", self._name) as (obstore, client):
            obstore.put(client, self._name, self._part, attributes={_WRITER: self._token}, mode="create", use_multipart=False)

    def _send_part(self) -> None:
        if self._upload is None:
            self._require_absent()
            with self._store.client.errors_raised(f"write {self._name}", self._name) as (obstore, client):
                self._upload = obstore.open_writer(
                    client,
                    self._name,
                    attributes={_WRITER: self._token},
                    buffer_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )
        # The library views what it was given until that is sent: the buffer is not used again before. Memory that is new to the
        # process costs more than a copy.
        part = memoryview(self._part)[: self._part_bytes]
        self._part, self._part_bytes = bytearray(), 0
        with self._store.client.errors_raised(f"write {self._name}", self._name):
            self._upload.write(part)

    def _complete(self) -> None:
        self._send_part()
        self._require_absent()
        with self._store.client.errors_raised(f"write {self._name}", self._name):
            self._upload.close()

    def _require_absent(self) -> None:
        if self._store.size(self._name) is not None:
            raise ObjectExistsError(self._store.root, self._name)

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self._store.root}/{self._name}: the writer is closed")

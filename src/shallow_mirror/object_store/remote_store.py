"""Everywhere: objects on S3, Azure or Google Cloud Storage, through obstore.

obstore starts threads at the first request, and a process that is forked afterwards has none of them: its requests would hang. So
it is imported and opened at the first use in a process, and refuses to work in a process that was forked from a user of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shallow_mirror.errors import ConfigError, MirrorError, ObjectExistsError, ObjectMissingError, StoreUnreachableError
from shallow_mirror.object_store.base import (
    LIST_PAGE,
    PART_BYTES,
    PARTS_IN_FLIGHT,
    READ_BYTES,
    Buffer,
    ObjectInfo,
    ObjectWriter,
    StoreBackend,
)
from shallow_mirror.object_store.read_plan import plan_reads
from shallow_mirror.object_store.store_errors import is_missing, is_past_end, one_line, store_error
from shallow_mirror.object_store.store_options import environment_http_options, library_options, payload_options, resolved_options
from shallow_mirror.reused_buffers import ReusedBuffers

_log = logging.getLogger(__name__)

SCHEMES = {"s3": "aws", "s3a": "aws", "abfss": "azure", "abfs": "azure", "gs": "google"}
"""And how the names of their options begin."""

_WRITER = "writer"
"""Key of an object's metadata: who wrote it, to tell a lost answer to our own write from another writer's object."""
_UNKNOWN_KEY = re.compile(r"Configuration key: '([^']+)'")
_REMEDY_MISSING = "restore it from a copy or a former version"

_users_pid: int | None = None
"""The process whose threads obstore runs in, once there are any."""


class RemoteStore(StoreBackend):
    """Objects below a URI."""

    def __init__(self, root: str, written_options: Mapping[str, str]) -> None:
        self.root = root
        self._written_options = written_options
        self._opened: Any = None
        self._lock = threading.Lock()

    def writer(self, name: str) -> ObjectWriter:
        return _UploadWriter(self, name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]], in_flight: int) -> tuple[bytes, ...]:
        plan = plan_reads(ranges, READ_BYTES)
        answers = list(self._answers(name, plan.requests, in_flight))
        return tuple(b"".join(answers[piece.request][piece.start : piece.end] for piece in pieces) for pieces in plan.pieces)

    def read_into(
        self, name: str, ranges: Sequence[tuple[int, int]], target: memoryview, in_flight: int, *, is_read_once: bool
    ) -> None:
        filled = 0
        for answer in self._answers(name, plan_reads(ranges, READ_BYTES).requests, in_flight):
            target[filled : filled + len(answer)] = answer
            filled += len(answer)

    def _answers(self, name: str, requests: Sequence[tuple[int, int]], in_flight: int) -> Iterator[memoryview]:
        """Yield the answers in order. Raises ObjectMissingError for one that is too short."""
        with ThreadPoolExecutor(min(in_flight, len(requests) or 1), thread_name_prefix="read-ranges") as threads:
            for (start, size), answer in zip(
                requests, threads.map(lambda request: self._read(name, *request), requests), strict=True
            ):
                if len(answer) != size:
                    reason = f"the object ends at byte {start + len(answer)}, and bytes {start} to {start + size} were expected"
                    raise ObjectMissingError(self.root, name, reason, _REMEDY_MISSING)
                yield answer

    def _read(self, name: str, start: int, size: int) -> memoryview:
        # Not get_ranges: it joins what was cut, ranges that follow each other, to one request of any size.
        with self.errors_raised(f"read {name}", name) as (obstore, client):
            return memoryview(obstore.get_range(client, name, start=start, length=size))

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        with self.errors_raised("list objects") as (obstore, client):
            pages = iter(obstore.list(client, prefix or None, chunk_size=LIST_PAGE))
        while True:
            with self.errors_raised("list objects"):
                page = next(pages, None)
            if page is None:
                return
            for listed in page:
                yield ObjectInfo(listed["path"], listed["size"], int(listed["last_modified"].timestamp() * 1000))

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, names: Sequence[str]) -> None:
        try:
            with self.errors_raised("delete objects", names[0]) as (obstore, client):
                obstore.delete(client, list(names))
        except ObjectMissingError:
            # Azure and Google report a missing object and may not have gone on behind it.
            for name in names:
                with contextlib.suppress(ObjectMissingError), self.errors_raised(f"delete {name}", name) as (obstore, client):
                    obstore.delete(client, name)

    def size(self, name: str) -> int | None:
        try:
            with self.errors_raised(f"look for {name}", name) as (obstore, client):
                return int(obstore.head(client, name)["size"])
        except ObjectMissingError:
            return None

    def writer_of(self, name: str) -> tuple[str, int] | None:
        """Return the writer's token and the size of an object; None where there is none."""
        try:
            with self.errors_raised(f"look for {name}", name) as (obstore, client):
                answer = obstore.get(client, name, options={"head": True})
                return str(answer.attributes.get(_WRITER, "")), int(answer.meta["size"])
        except ObjectMissingError:
            return None

    @contextlib.contextmanager
    def errors_raised(self, operation: str, name: str | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield the library and its client, and raise its errors as ours."""
        obstore, client = self._client()
        try:
            yield obstore, client
        except obstore.exceptions.AlreadyExistsError as error:
            raise ObjectExistsError(self.root, name or "") from error
        except (obstore.exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
            cause = self._cause(error, operation, name)
            if isinstance(cause, ConfigError):
                self._opened = None  # credentials may have been renewed where they are referenced
            raise cause from error

    def _cause(self, error: BaseException, operation: str, name: str | None) -> MirrorError:
        if name is not None and is_past_end(error):
            return ObjectMissingError(self.root, name, "the object ends before the bytes that were expected", _REMEDY_MISSING)
        if name is not None and is_missing(error):
            return ObjectMissingError(self.root, name, "the object does not exist", _REMEDY_MISSING)
        cause = store_error(error, operation, self.root)
        if isinstance(cause, StoreUnreachableError) and cause.is_refused:
            return ConfigError(str(cause))
        return cause or StoreUnreachableError(operation, self.root, one_line(error), "look at the state of the store")

    def _client(self) -> tuple[Any, Any]:
        """Return obstore and its client for this store. Raises ConfigError, RuntimeError in a forked process."""
        global _users_pid
        pid = os.getpid()
        with self._lock:
            if _users_pid not in (None, pid):
                raise RuntimeError(
                    f"{self.root}: process {pid} was forked from process {_users_pid}, which had used an object store: start it "
                    "anew (multiprocessing: spawn), or fork before the first use"
                )
            import obstore
            import obstore.exceptions

            if self._opened is None:
                self._opened = self._open()
            _users_pid = pid
            return obstore, self._opened

    def _open(self) -> Any:
        from obstore.exceptions import BaseError, UnknownConfigurationKeyError
        from obstore.store import from_url

        options = library_options(resolved_options(self._written_options))
        scheme = self.root.partition(":")[0].lower()
        client = {**environment_http_options(os.environ, SCHEMES[scheme]), **options.client}
        config = dict(options.config)
        if SCHEMES[scheme] == "aws":
            config |= payload_options(config, client, os.environ)
        while True:
            try:
                return from_url(self.root, config=config, client_options=client, retry_config=options.retry)
            except UnknownConfigurationKeyError as error:
                # Of deltalake alone, or of another kind of store; deltalake ignores them as well.
                unknown = _UNKNOWN_KEY.search(str(error))
                if unknown is None or config.pop(unknown[1], None) is None:
                    raise ConfigError(f"{self.root}: storage.options cannot be used: {one_line(error)}") from error
            except (BaseError, OSError, ValueError) as error:
                raise ConfigError(f"{self.root}: storage.options or the URI cannot be used: {one_line(error)}") from error


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
            with self._store.errors_raised(f"abort the upload of {self._name}"):
                upload.__exit__(
                    ValueError, None, None
                )  # with an error the library deletes the parts; it has no other call for it
        except MirrorError as error:
            _log.warning("parts of %s stay until the bucket's lifecycle rule deletes them: %s", self._name, error)

    def _written(self, error: MirrorError) -> tuple[str, int] | None:
        """Return what there is under the name after an error of a write; raise that error where this is unknown as well."""
        try:
            return self._store.writer_of(self._name)
        except StoreUnreachableError as unknown:
            raise (error if isinstance(error, StoreUnreachableError) else unknown) from error

    def _put(self) -> None:
        with self._store.errors_raised(f"write {self._name}", self._name) as (obstore, client):
            obstore.put(client, self._name, self._part, attributes={_WRITER: self._token}, mode="create", use_multipart=False)

    def _send_part(self) -> None:
        if self._upload is None:
            self._require_absent()
            with self._store.errors_raised(f"write {self._name}", self._name) as (obstore, client):
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
        with self._store.errors_raised(f"write {self._name}", self._name):
            self._upload.write(part)

    def _complete(self) -> None:
        self._send_part()
        self._require_absent()
        with self._store.errors_raised(f"write {self._name}", self._name):
            self._upload.close()

    def _require_absent(self) -> None:
        if self._store.size(self._name) is not None:
            raise ObjectExistsError(self._store.root, self._name)

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self._store.root}/{self._name}: the writer is closed")

"""Everywhere: objects as files of a folder, complete and on the disk before they have their name.

An object is written to a hidden file beside its place, synced, and linked to its name: unlike a rename, a link fails where a file
of that name exists. A process that is killed leaves the hidden file; it is never listed as an object.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from shallow_mirror.errors import ConfigError, ObjectExistsError, ObjectMissingError, StoreRefusedError, StoreUnreachableError
from shallow_mirror.object_store.base import (
    READ_BYTES,
    Buffer,
    ObjectInfo,
    ObjectWriter,
    StoreBackend,
    not_kept_error,
    plan_reads,
)

_log = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
"""Ends the names of files that are being written, or whose writer was killed; they begin with a dot."""

_SYNC_BYTES = 32 << 20
"""A file that is being written is synced each time it has grown by so much, and its pages are given back to the system."""

_DIRECT_BYTES = 2 << 20
"""Past the page cache a file is written in pieces of this size, out of a buffer: smaller ones are slower."""
_DIRECT_READ_BYTES = 1 << 20
"""And read in pieces of this size, several at the same time."""
_BLOCK_BYTES = mmap.PAGESIZE
"""What is written or read past the page cache begins and ends at multiples of this, in the file and in memory."""
_LEAST_DIRECT_BYTES = 256 << 10
"""Of one read: smaller ones share pages with what is read next."""
_O_DIRECT = getattr(os, "O_DIRECT", 0)
"""0 on systems other than Linux."""
_NOT_DIRECT = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_REMEDY_REFUSED = "check the path, the owner and the permissions of the folder"
_REMEDY_FAILED = "see that the file system is mounted, healthy and has free space"
_REMEDY_MISSING = "restore the file from a copy of the folder"


_folders_through_cache: set[Path] = set()
"""Folders of file systems that refused to read or write past the page cache."""
_MOST_SPARE_BUFFERS = 16
"""Of `_DIRECT_BYTES`, kept by a process between objects: memory that is new to a process costs more than a copy."""
_spare_buffers: list[mmap.mmap] = []


class FolderStore(StoreBackend):
    """Objects below one absolute folder, which is created by the first object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def writer(self, name: str) -> ObjectWriter:
        if _is_unfinished(name):
            raise ValueError(f"{name!r} is a name of files that are not objects")
        return _FileWriter(self._folder, name)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]], in_flight: int) -> tuple[bytes, ...]:
        with self._errors_raised(f"read {name}"), self._opened(name) as descriptor:
            return tuple(self._read(descriptor, name, start, size) for start, size in ranges)

    def read_into(
        self, name: str, ranges: Sequence[tuple[int, int]], target: memoryview, in_flight: int, *, is_read_once: bool
    ) -> None:
        with self._errors_raised(f"read {name}"), self._opened(name) as descriptor:
            filled = 0
            for start, size in plan_reads(ranges, _DIRECT_READ_BYTES).requests:
                piece = target[filled : filled + size]
                if not (is_read_once and size >= _LEAST_DIRECT_BYTES and self._read_past_cache(descriptor, name, start, piece)):
                    self._read_through_cache(descriptor, name, start, piece)
                filled += size

    def _read_past_cache(self, descriptor: int, name: str, start: int, target: memoryview) -> bool:
        """Fill the target; return False if that cannot be done, and the page cache is to be used."""
        if not _O_DIRECT or self._folder in _folders_through_cache:
            return False
        begin, end = start - start % _BLOCK_BYTES, start + len(target)
        buffer = _spare_buffer()
        try:
            with memoryview(buffer) as whole:
                _set_direct(descriptor, is_direct=True)
                done = begin
                while done < end:
                    count = os.preadv(descriptor, [whole[done - begin : end - begin + -end % _BLOCK_BYTES]], done)
                    done += count
                    if not count or (done < end and done % _BLOCK_BYTES):
                        return False  # the object seems to end here: the page cache knows
                target[:] = whole[start - begin : end - begin]
            return True
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            _note_refusal(self._folder, error)
            return False
        finally:
            _set_direct(descriptor, is_direct=False)
            _keep_buffer(buffer)

    def _read_through_cache(self, descriptor: int, name: str, start: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:]], start + done)
            if not count:
                raise self._ended(name, start + done, start, len(target))
            done += count

    def _ended(self, name: str, end: int, start: int, size: int) -> ObjectMissingError:
        reason = f"the object ends at byte {end}, and bytes {start} to {start + size} were expected"
        return ObjectMissingError(str(self._folder), name, reason, _REMEDY_MISSING)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            raise ObjectMissingError(str(self._folder), name, "the object does not exist", _REMEDY_MISSING) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in self._files(prefix) if not _is_unfinished(info.name))

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in self._files(prefix) if _is_unfinished(info.name))

    def delete(self, names: Sequence[str]) -> None:
        with self._errors_raised("delete objects"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / name).unlink()

    def size(self, name: str) -> int | None:
        with self._errors_raised(f"look for {name}"):
            try:
                return (self._folder / name).stat().st_size
            except FileNotFoundError:
                return None

    def _read(self, descriptor: int, name: str, start: int, size: int) -> bytes:
        pieces: list[bytes] = []
        done = 0
        while done < size:
            piece = os.pread(descriptor, min(size - done, READ_BYTES), start + done)
            if not piece:
                raise self._ended(name, start + done, start, size)
            pieces.append(piece)
            done += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _files(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors_raised("list objects"):
            for folder, _, files in os.walk(self._folder / prefix, onerror=_raised_unless_missing):
                for file in files:
                    path = Path(folder, file)
                    with contextlib.suppress(FileNotFoundError):  # deleted or completed meanwhile
                        status = path.stat(follow_symlinks=False)
                        name = path.relative_to(self._folder).as_posix()
                        yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _errors_raised(self, operation: str) -> contextlib.AbstractContextManager[None]:
        return _errors_raised(operation, self._folder)


class _FileWriter(ObjectWriter):
    """Writes whole blocks past the page cache if the file system takes that: a page of the cache costs more than a copy into a
    buffer that is used again, and nothing reads an archive soon."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = folder / name
        self._unfinished = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
        self._size = self._written = self._synced = 0
        self._descriptor: int | None = None
        self._buffer: mmap.mmap | None = None
        """Holds the bytes from `_written` to `_size`; None where the page cache is used."""
        with self._errors_raised():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if _O_DIRECT and folder not in _folders_through_cache:
            self._buffer = _spare_buffer()

    def write(self, data: Buffer) -> None:
        descriptor = self._opened()
        view = memoryview(data).cast("B")
        with self._errors_raised():
            while view and self._buffer is not None:
                begin = self._size - self._written
                taken = view[: _DIRECT_BYTES - begin]
                self._buffer[begin : begin + len(taken)] = taken
                self._size += len(taken)
                view = view[len(taken) :]
                if begin + len(taken) == _DIRECT_BYTES:
                    self._write_buffer(descriptor, self._buffer)
            self._size += len(view)
            self._write_through_cache(descriptor, view)

    def _write_buffer(self, descriptor: int, buffer: mmap.mmap) -> None:
        """Write the buffer: whole blocks past the page cache, and the rest through it."""
        with memoryview(buffer) as whole, whole[: self._size - self._written] as held:
            done, blocks, refusal = 0, len(held) - len(held) % _BLOCK_BYTES, None
            try:
                while done < blocks:
                    _set_direct(descriptor, is_direct=True)
                    count = os.write(descriptor, held[done:blocks])
                    done += count
                    self._written += count
            except OSError as error:
                if error.errno not in _NOT_DIRECT:
                    raise
                refusal = error
            if done:
                self._synced = self._written
            _set_direct(descriptor, is_direct=False)
            self._write_through_cache(descriptor, held[done:])
        if refusal is not None:
            # Through the page cache from here on; so do later writers of this process.
            self._give_buffer_back()
            _note_refusal(self._folder, refusal)

    def _write_through_cache(self, descriptor: int, view: memoryview) -> None:
        while view:
            count = os.write(descriptor, view)
            self._written += count
            view = view[count:]
        if self._written - self._synced >= _SYNC_BYTES:
            self._sync_and_drop_pages(descriptor)

    def _sync_and_drop_pages(self, descriptor: int) -> None:
        """Keep an archive out of the page cache: nothing reads it soon, unlike the pages that it displaces (logs of a broker)."""
        os.fsync(descriptor)
        if sys.platform == "linux":
            os.posix_fadvise(descriptor, self._synced, self._written - self._synced, os.POSIX_FADV_DONTNEED)
        self._synced = self._written

    def close(self) -> int:
        descriptor = self._opened()
        try:
            with self._errors_raised():
                if self._buffer is not None:
                    self._write_buffer(descriptor, self._buffer)
                self._sync_and_drop_pages(descriptor)
                self._link()
                self._unfinished.unlink()
                self._sync_folders()
                size = self._path.stat().st_size
        finally:
            self.abort()
        if size != self._size:
            raise not_kept_error(str(self._folder), self._name, f"it has {size:,} of {self._size:,} bytes now")
        return self._size

    def abort(self) -> None:
        self._give_buffer_back()
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        try:
            self._unfinished.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s, which was not completed, was not deleted: %s", self._unfinished, error.strerror)

    def _give_buffer_back(self) -> None:
        if self._buffer is not None:
            _keep_buffer(self._buffer)
            self._buffer = None

    def _link(self) -> None:
        try:
            os.link(self._unfinished, self._path)
        except FileExistsError:
            # NFS repeats a request whose response was lost: then the file of this name is the one that was linked.
            if not self._unfinished.samefile(self._path):
                raise ObjectExistsError(str(self._folder), self._name) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise ConfigError(
                f"{self._folder}: the file system has no hard links ({error.strerror}), without which an object could be "
                "overwritten: use a folder of another file system, or the URI of the object store behind it"
            ) from error

    def _sync_folders(self) -> None:
        """Sync every folder up to the root: another writer may have created one of them and not synced it yet."""
        for folder in (self._path.parent, *self._path.parent.parents):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder == self._folder.parent:
                return

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path}: the writer is closed")
        return self._descriptor

    def _errors_raised(self) -> contextlib.AbstractContextManager[None]:
        return _errors_raised(f"write {self._name}", self._folder)


def _spare_buffer() -> mmap.mmap:
    try:
        return _spare_buffers.pop()
    except IndexError:
        return mmap.mmap(-1, _DIRECT_BYTES, mmap.MAP_PRIVATE)


def _keep_buffer(buffer: mmap.mmap) -> None:
    if len(_spare_buffers) < _MOST_SPARE_BUFFERS:
        _spare_buffers.append(buffer)


def _note_refusal(folder: Path, refusal: OSError) -> None:
    if folder not in _folders_through_cache:
        _folders_through_cache.add(folder)
        _log.info("objects in %s are copied through the page cache; past it: %s", folder, refusal.strerror)


def _set_direct(descriptor: int, *, is_direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags | _O_DIRECT if is_direct else flags & ~_O_DIRECT
    if flags != wanted:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)


def _is_unfinished(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith(".") and last.endswith(UNFINISHED)


def _raised_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextlib.contextmanager
def _errors_raised(operation: str, folder: Path) -> Iterator[None]:
    """Raise StoreRefusedError for errors that an operator must fix, StoreUnreachableError for those that may pass."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _REFUSED:
            raise StoreRefusedError(operation, str(folder), reason, _REMEDY_REFUSED) from error
        raise StoreUnreachableError(operation, str(folder), reason, _REMEDY_FAILED) from error

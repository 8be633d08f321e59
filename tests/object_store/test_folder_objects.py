"""Objects in a folder of this machine: complete and on the disk before they have their name, and written once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shallow_mirror.errors import ConfigError, ObjectExistsError, ObjectMissingError, StoreUnreachableError
from shallow_mirror.object_store import ObjectStore, folder_store

NAME = "a1/00000003/0000000007-0001-00-deadbeef.batches"


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStore:
    return ObjectStore.open(str(tmp_path / "objects"))


def written(store: ObjectStore, name: str, *data: bytes | bytearray | memoryview) -> int:
    with store.writer(name) as writer:
        for part in data:
            writer.write(part)
        return writer.close()


def names(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(info.name for info in store.list(prefix))


def test_what_was_written_is_read_by_ranges(folder: ObjectStore) -> None:
    assert written(folder, NAME, b"0123", bytearray(b"4567"), memoryview(b"89")) == 10
    assert folder.size(NAME) == 10
    assert folder.read(NAME, 2, 3) == b"234"
    assert folder.read_ranges(NAME, [(8, 2), (0, 1), (5, 0)]) == (b"89", b"0", b"")
    assert folder.tail(NAME, 3) == b"789"
    assert folder.tail(NAME, 30) == b"0123456789"
    [info] = folder.list()
    assert (info.name, info.size_bytes) == (NAME, 10)
    assert info.last_modified_ms == (Path(folder.root) / NAME).stat().st_mtime_ns // 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told to drop pages")
def test_a_growing_file_is_synced_in_between_and_every_page_is_dropped_once(
    folder: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_store, "_O_DIRECT", 0)
    monkeypatch.setattr(folder_store, "_SYNC_BYTES", 8)
    steps: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: steps.append(("sync", os.fstat(descriptor).st_size, 0)))
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, size, advice: steps.append(("drop", start, size)))
    assert written(folder, NAME, b"0123", b"45678", b"9", b"ABCDEFGHIJ") == 20
    assert folder.read(NAME, 0, 20) == b"0123456789ABCDEFGHIJ"
    assert steps[:6] == [("sync", 9, 0), ("drop", 0, 9), ("sync", 20, 0), ("drop", 9, 11), ("sync", 20, 0), ("drop", 20, 0)]


needs_direct = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="only Linux writes past the page cache")


@pytest.fixture
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the size of the buffer for writes past the page cache: two blocks."""
    size = 2 * mmap.PAGESIZE
    monkeypatch.setattr(folder_store, "_DIRECT_BYTES", size)
    monkeypatch.setattr(folder_store, "_spare_buffers", [])
    monkeypatch.setattr(folder_store, "_folders_through_cache", set())
    return size


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 100, mmap.PAGESIZE - 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 1 << 20])
def test_content_is_equal_for_all_sizes_around_the_borders_of_blocks(folder: ObjectStore, small_buffer: int, piece: int) -> None:
    for blocks in range(6):
        for size in (blocks * mmap.PAGESIZE + more for more in (-1, 0, 1) if blocks or more >= 0):
            data, name = content(size), f"{size}.batches"
            pieces = [data[at : at + piece] for at in range(0, size, piece)]
            assert written(folder, name, *pieces) == size
            assert (Path(folder.root) / name).read_bytes() == data


def flags_at_writes(monkeypatch: pytest.MonkeyPatch, failing: int = -1, error_number: int = 0) -> list[bool]:
    """Note of each write whether it was past the page cache; the one numbered `failing`, counted among those, fails."""
    recorded: list[bool] = []
    write = os.write

    def noting(descriptor: int, data: memoryview) -> int:
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))
        recorded.append(is_direct)
        if is_direct and recorded.count(True) == failing:
            raise OSError(error_number, os.strerror(error_number))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noting)
    return recorded


@needs_direct
def test_whole_blocks_are_written_past_the_page_cache(
    folder: ObjectStore, small_buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = flags_at_writes(monkeypatch)
    written(folder, NAME, content(2 * small_buffer + mmap.PAGESIZE + 5))
    if folder_store._folders_through_cache:
        pytest.skip("the file system of the test has no O_DIRECT")
    assert recorded == [True, True, True, False]


@needs_direct
@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("error_number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_gets_all_through_the_page_cache_and_that_is_said_once(
    folder: ObjectStore,
    small_buffer: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: int,
    error_number: int,
) -> None:
    caplog.set_level("INFO", folder_store.__name__)
    data = content(3 * small_buffer + 7)
    recorded = flags_at_writes(monkeypatch, failing, error_number)
    assert written(folder, NAME, data[:5], data[5:]) == len(data)
    assert written(folder, "second.batches", data) == len(data)
    assert [(Path(folder.root) / name).read_bytes() == data for name in (NAME, "second.batches")] == [True, True]
    assert recorded.count(True) == failing
    assert [record.getMessage() for record in caplog.records] == [
        f"objects in {folder.root} are copied through the page cache; past it: {os.strerror(error_number)}"
    ]


@needs_direct
def test_a_file_system_that_refuses_the_flag_gets_all_through_the_page_cache(
    folder: ObjectStore, small_buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int, *, is_direct: bool) -> None:
        if is_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(folder_store, "_set_direct", refused)
    data = content(3 * small_buffer + 7)
    written(folder, NAME, data)
    assert (Path(folder.root) / NAME).read_bytes() == data


@needs_direct
def test_a_write_that_ends_inside_of_a_block_loses_nothing(
    folder: ObjectStore, small_buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: max(1, len(data) - 100)]))
    data = content(3 * small_buffer + 7)
    written(folder, NAME, data)
    assert (Path(folder.root) / NAME).read_bytes() == data


@needs_direct
def test_an_error_in_the_middle_is_raised_and_leaves_nothing(
    folder: ObjectStore, small_buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags_at_writes(monkeypatch, 2, errno.ENOSPC)
    with pytest.raises(StoreUnreachableError, match=os.strerror(errno.ENOSPC)):
        written(folder, NAME, content(3 * small_buffer))
    assert [path for path in Path(folder.root).rglob("*") if path.is_file()] == []
    assert len(folder_store._spare_buffers) == 1


@needs_direct
def test_a_buffer_is_used_again_and_never_by_two_writers(folder: ObjectStore, small_buffer: int) -> None:
    datas = [content(small_buffer + number) for number in range(3)]
    for _ in range(2):
        writers = [folder.writer(f"{number}.batches") for number in range(3)]
        for writer, data in zip(writers, datas, strict=True):
            writer.write(data[: mmap.PAGESIZE + 1])
        for number, (writer, data) in enumerate(zip(writers, datas, strict=True)):
            writer.write(data[mmap.PAGESIZE + 1 :])
            writer.close()
            assert (Path(folder.root) / f"{number}.batches").read_bytes() == data
        folder.delete([f"{number}.batches" for number in range(3)])
    assert len(folder_store._spare_buffers) == 3


@pytest.fixture
def direct_reads_of_any_size(monkeypatch: pytest.MonkeyPatch, small_buffer: int) -> None:
    monkeypatch.setattr(folder_store, "_LEAST_DIRECT_BYTES", 1)
    monkeypatch.setattr(folder_store, "_DIRECT_READ_BYTES", mmap.PAGESIZE)


def filled(store: ObjectStore, ranges: list[tuple[int, int]], *, is_read_once: bool = True) -> bytes:
    target = memoryview(bytearray(sum(size for _, size in ranges)))
    store.read_into(NAME, ranges, target, is_read_once=is_read_once)
    return bytes(target)


@pytest.mark.slow
@pytest.mark.usefixtures("direct_reads_of_any_size")
@pytest.mark.parametrize("is_read_once", [False, True])
def test_ranges_anywhere_fill_a_target_one_behind_the_other(folder: ObjectStore, *, is_read_once: bool) -> None:
    page = mmap.PAGESIZE
    data = content(5 * page + 11)
    written(folder, NAME, data)
    chance = random.Random(7)
    borders = [0, 1, page - 1, page, page + 1, 2 * page, 4 * page + 3, 5 * page, len(data) - 1, len(data)]
    for _ in range(300):
        pairs = [sorted(chance.sample(borders, 2)) for _ in range(chance.randint(1, 3))]
        ranges = [(start, end - start) for start, end in pairs]
        assert filled(folder, ranges, is_read_once=is_read_once) == b"".join(data[start:end] for start, end in pairs)
    assert filled(folder, [(3, 0)]) == b""


@pytest.mark.usefixtures("direct_reads_of_any_size")
@pytest.mark.parametrize("is_read_once", [False, True])
@pytest.mark.parametrize(("start", "size"), [(9_990, 11), (10_000, 1), (20_000, 5), (0, 10_001)])
def test_a_target_behind_the_end_of_the_object_is_not_filled(
    folder: ObjectStore, start: int, size: int, *, is_read_once: bool
) -> None:
    written(folder, NAME, content(10_000))
    with pytest.raises(ObjectMissingError, match="the object ends at byte"):
        filled(folder, [(start, size)], is_read_once=is_read_once)


def test_a_target_of_another_size_is_an_error_of_the_caller(folder: ObjectStore) -> None:
    written(folder, NAME, b"0123")
    with pytest.raises(ValueError, match="the target has 3 bytes"):
        folder.read_into(NAME, [(0, 4)], memoryview(bytearray(3)))


@needs_direct
@pytest.mark.usefixtures("direct_reads_of_any_size")
def test_reads_go_through_the_page_cache_where_the_file_system_refuses_others(
    folder: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(3 * mmap.PAGESIZE + 7)
    written(folder, NAME, data)
    folder_store._folders_through_cache.clear()
    preadv = os.preadv
    recorded: list[bool] = []

    def refusing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        recorded.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)))
        if recorded[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", refusing)
    assert filled(folder, [(5, len(data) - 5)]) == data[5:]
    assert filled(folder, [(5, len(data) - 5)]) == data[5:]
    assert recorded.count(True) == 1


@pytest.mark.usefixtures("direct_reads_of_any_size")
def test_threads_that_read_at_the_same_time_do_not_share_a_buffer(folder: ObjectStore) -> None:
    data = content(20 * mmap.PAGESIZE + 7)
    written(folder, NAME, data)
    ranges = [(at, len(data) - 2 * at) for at in range(0, 8_000, 500)]
    with ThreadPoolExecutor(8) as threads:
        for (start, size), got in zip(ranges, threads.map(lambda each: filled(folder, [each]), ranges), strict=True):
            assert got == data[start : start + size]


def test_nothing_is_visible_before_close_and_nothing_is_left_by_abort(folder: ObjectStore) -> None:
    writer = folder.writer(NAME)
    writer.write(b"half")
    assert names(folder) == []
    assert folder.size(NAME) is None
    assert len(list(folder.list_unfinished())) == 1
    writer.abort()
    assert list(folder.list_unfinished()) == []
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write(b"more")


def test_a_writer_that_was_not_closed_is_aborted(folder: ObjectStore) -> None:
    with contextlib.suppress(KeyError), folder.writer(NAME) as writer:
        writer.write(b"half")
        raise KeyError
    assert [path for path in Path(folder.root).rglob("*") if path.is_file()] == []


def test_an_object_is_not_overwritten(folder: ObjectStore) -> None:
    written(folder, NAME, b"first")
    with pytest.raises(ObjectExistsError, match="exists already and was not overwritten"):
        written(folder, NAME, b"second")
    assert folder.read(NAME, 0, 5) == b"first"
    assert list(folder.list_unfinished()) == []


def test_a_link_whose_response_was_lost_is_of_this_writer(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats the request, and the server then finds the file there."""
    link = os.link

    def linked_and_repeated(*paths: Path) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", linked_and_repeated)
    with folder.writer("a/b") as writer:
        writer.write(b"mine")
        assert writer.close() == 4
    assert folder.read("a/b", 0, 4) == b"mine"
    assert not list(folder.list_unfinished())


def test_of_concurrent_writers_of_one_name_one_wins(folder: ObjectStore) -> None:
    barrier = threading.Barrier(8)
    winners: list[int] = []

    def write(number: int) -> None:
        with folder.writer(NAME) as writer:
            writer.write(bytes([number]) * 100_000)
            barrier.wait()
            with contextlib.suppress(ObjectExistsError):
                writer.close()
                winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert folder.read(NAME, 0, 100_000) == bytes(winners) * 100_000
    assert list(folder.list_unfinished()) == []


def test_a_killed_writer_leaves_no_object_and_what_it_leaves_can_be_deleted(folder: ObjectStore) -> None:
    program = (
        "import sys; from shallow_mirror.object_store import ObjectStore\n"
        f"writer = ObjectStore.open({folder.root!r}).writer({NAME!r})\n"
        "writer.write(bytes(5 << 20)); print('written', flush=True)\n"
        "while True: writer.write(bytes(1 << 10))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "written\n"
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert names(folder) == []
    assert folder.size(NAME) is None
    [unfinished] = folder.list_unfinished()
    assert unfinished.size_bytes >= 1 << 20
    folder.delete([unfinished.name])
    assert list(folder.list_unfinished()) == []
    assert written(folder, NAME, b"again") == 5


def test_file_and_folders_are_synced_before_close_returns(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see what is synced")
    monkeypatch.setattr(os, "fsync", recorded)
    written(folder, NAME, b"data")
    root = Path(folder.root)
    assert synced[0].endswith(".unfinished")
    assert synced[1:] == [str(root / "a1/00000003"), str(root / "a1"), str(root), str(root.parent)]


def test_objects_below_a_prefix_are_listed_and_missing_ones_are_deleted_as_well(folder: ObjectStore) -> None:
    for name in ("a/1/x", "a/2/y", "ab/z"):
        written(folder, name, b"1")
    assert names(folder) == ["a/1/x", "a/2/y", "ab/z"]
    assert names(folder, "a") == names(folder, "a/") == ["a/1/x", "a/2/y"]
    assert names(folder, "none") == []
    folder.delete(["a/1/x", "a/none", "ab/z"])
    assert names(folder) == ["a/2/y"]


def test_missing_objects_and_missing_bytes_are_named(folder: ObjectStore) -> None:
    written(folder, NAME, b"0123")
    with pytest.raises(ObjectMissingError, match=r"objects/none: the object does not exist. Remedy: ") as raised:
        folder.read("none", 0, 1)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(ObjectMissingError, match="does not exist"):
        folder.tail("none", 1)
    with pytest.raises(ObjectMissingError, match="the object ends at byte 4, and bytes 2 to 5 were expected"):
        folder.read(NAME, 2, 3)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/../b", "..", "a/", "a\\b", "a\nb"])
def test_names_that_leave_the_folder_are_refused(folder: ObjectStore, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of an object"):
        folder.writer(name)


def test_an_object_cannot_have_the_name_of_an_unfinished_file(folder: ObjectStore) -> None:
    with pytest.raises(ValueError, match="is a name of files that are not objects"):
        folder.writer("a/.x.deadbeef.unfinished")


@pytest.mark.parametrize("root", ["objects", "./objects", "hdfs://host/objects", "dbfs:/objects", "s33://bucket/x"])
def test_a_root_that_no_store_has_is_a_wrong_setting(root: str) -> None:
    with pytest.raises(ConfigError, match=root.replace(".", r"\.")):
        ObjectStore.open(root)


def test_the_probe_keeps_nothing(folder: ObjectStore) -> None:
    folder.probe()
    assert names(folder) == []
    assert list(folder.list_unfinished()) == []


def test_a_folder_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"file/objects: the store refuses to write .*Not a directory. Remedy: check the path"):
        ObjectStore.open(f"file://{tmp_path}/file/objects").probe()


def test_a_file_system_without_links_is_a_wrong_setting(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(ConfigError, match="the file system has no hard links"):
        folder.probe()
    assert list(folder.list_unfinished()) == []


@pytest.mark.parametrize("size", [4, 5 << 20])
def test_a_full_disk_may_pass(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    with monkeypatch.context() as patched:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "write", full)
        with pytest.raises(StoreUnreachableError, match=f"did not write {NAME}: No space left on device. Remedy: see that"):
            written(folder, NAME, bytes(size))
    assert list(folder.list_unfinished()) == []


def test_a_store_travels_to_another_process(folder: ObjectStore) -> None:
    written(folder, NAME, b"data")
    assert pickle.loads(pickle.dumps(folder)).read(NAME, 0, 4) == b"data"

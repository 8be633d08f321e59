"""What moving bytes costs at the least: what the hot path is held against."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shallow_mirror.wire import crc32c

_FLOOR_BYTES = 2 << 30
_FLOOR_PIECE = 1 << 20
_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a run, and what it moved. `faults`: pages that the kernel had to give to the process."""

    seconds: float
    user_s: float
    system_s: float
    size_bytes: int
    batches: int
    faults: int

    @property
    def cpu_s_per_gb(self) -> float:
        return (self.user_s + self.system_s) / self.size_bytes * 1e9


def measured(work: Callable[[], tuple[int, int]]) -> Cost:
    """`work` answers with bytes and batches."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    size_bytes, batches = work()
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    return Cost(
        seconds,
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        size_bytes,
        batches,
        after.ru_minflt - before.ru_minflt,
    )


def socket_floor() -> Cost:
    """Receive the same bytes from one process over loopback and send them to another, without any processing."""
    upstream, downstream = (_other_end(receives=receives) for receives in (False, True))
    buffer = memoryview(bytearray(_FLOOR_PIECE))

    def move() -> tuple[int, int]:
        moved = 0
        while received := upstream.recv_into(buffer):
            downstream.sendall(buffer[:received])
            moved += received
        return moved, 1

    cost = measured(move)
    upstream.close()
    downstream.close()
    for _ in range(2):
        os.wait()
    return cost


def _other_end(*, receives: bool) -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if os.fork() == 0:
            peer, _ = listener.accept()
            data = memoryview(bytearray(_FLOOR_PIECE))
            if receives:
                while peer.recv_into(data):
                    pass
            else:
                for _ in range(_FLOOR_BYTES // _FLOOR_PIECE):
                    peer.sendall(data)
            os._exit(0)
        return socket.create_connection(listener.getsockname())


def checksum_floor() -> Cost:
    data = memoryview(bytearray(_FLOOR_PIECE))
    return measured(lambda: (sum(len(data) for _ in range(1024) if crc32c(data) >= 0), 1))


def copy_floor() -> Cost:
    source, sink = memoryview(bytearray(64 << 20)), memoryview(bytearray(64 << 20))

    def move() -> tuple[int, int]:
        for _ in range(16):
            sink[:] = source
        return 16 * len(source), 1

    return measured(move)


def file_floor(folder: Path) -> Cost:
    """Write a file and sync it, without any processing."""
    data, path = memoryview(bytearray(_FLOOR_PIECE)), folder / "floor"

    def write() -> tuple[int, int]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for _ in range(_FILE_BYTES // _FLOOR_PIECE):
                os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return _FILE_BYTES, 1

    try:
        return measured(write)
    finally:
        path.unlink(missing_ok=True)

"""Buffers that are used again: whatever they are made of, a view of them is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.broker.net import ReceiveBuffer
from shallow_mirror.reused_buffers import MAPPED_FROM_BYTES, is_viewed, new_buffer


@pytest.mark.parametrize("size", [1, MAPPED_FROM_BYTES - 1, MAPPED_FROM_BYTES, 3 * MAPPED_FROM_BYTES + 5])
def test_a_view_or_an_array_of_a_buffer_is_noticed_until_it_is_gone(size: int) -> None:
    buffer = new_buffer(size)
    assert (len(buffer), bytes(buffer[:1])) == (size, b"\0")
    assert not is_viewed(buffer)
    array = np.frombuffer(memoryview(buffer)[size - 1 :], np.uint8)
    assert is_viewed(buffer)
    array[0] = 7
    del array
    assert not is_viewed(buffer)
    assert buffer[size - 1] == 7


def test_an_empty_buffer_has_no_views() -> None:
    assert not is_viewed(new_buffer(0))


def test_kept_buffers_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_clients, "_buffers", list[ReceiveBuffer]())
    (first,) = worker_clients.buffers_of_worker(1, 1 << 24)
    first.view(2 << 20)
    worker_clients.keep_buffers([first], 1 << 24)
    assert worker_clients.buffers_of_worker(1, 1 << 24) == (first,)

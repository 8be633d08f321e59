"""Buffers that are used again when nothing views them, and never before."""

from __future__ import annotations

import numpy as np

from shallow_mirror.reused_buffers import ReusedBuffers


def test_a_buffer_is_used_again_when_no_view_is_left() -> None:
    buffers = ReusedBuffers()
    first = buffers.take(100)
    first[:] = b"1" * 100
    part = np.frombuffer(first[10:20], np.uint8)
    del first
    second = buffers.take(50)
    second[:] = b"2" * 50
    assert bytes(part) == b"1" * 10
    del part
    assert bytes(buffers.take(100)) == b"1" * 100
    assert bytes(second) == b"2" * 50


def test_there_are_as_many_buffers_as_were_in_use_at_once() -> None:
    buffers = ReusedBuffers()
    for size in (10, 20, 5, 40, 30, 40):
        views = [buffers.take(size) for _ in range(3)]
        assert [len(view) for view in views] == [size] * 3
        del views
    assert len(buffers._buffers) == 3


def test_a_view_has_the_size_that_was_asked_for() -> None:
    buffers = ReusedBuffers()
    assert len(buffers.take(0)) == 0
    large = buffers.take(10)
    del large
    assert len(buffers.take(3)) == 3

"""Which buffer a response is received into: never one that is still valid, and as few as possible."""

from __future__ import annotations

import random

import pytest

from shallow_mirror.broker.fetch.response_buffers import ResponseBuffers
from shallow_mirror.broker.net import ReceiveBuffer


def _buffers(count: int) -> list[ReceiveBuffer]:
    return [ReceiveBuffer(0, 1 << 20) for _ in range(count)]


@pytest.mark.parametrize("responses", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_received_into_what_is_still_valid(responses: int, seed: int) -> None:
    dice, buffers = random.Random(seed), ResponseBuffers(_buffers(2 * responses), responses)
    yielded: list[list[ReceiveBuffer]] = []
    for _ in range(50):
        received: list[ReceiveBuffer] = []
        for _ in range(dice.randint(1, 2)):
            buffer = buffers.next()
            assert buffer is buffers.next(), "the same one until it is taken"
            assert all(buffer is not valid for response in yielded[len(yielded) - responses + 1 :] for valid in response)
            assert all(buffer is not taken for taken in received)
            buffers.take()
            received.append(buffer)
        yielded.append(received)
        buffers.resumed()


def test_responses_of_one_buffer_each_use_as_many_buffers_as_are_valid() -> None:
    given = _buffers(6)
    buffers, used = ResponseBuffers(given, 3), list[int]()
    for _ in range(9):
        used.append(given.index(buffers.next()))
        buffers.take()
        buffers.resumed()
    assert used == [0, 1, 2] * 3


@pytest.mark.parametrize(("count", "responses", "can_join"), [(1, 1, False), (2, 1, True), (3, 2, False), (4, 2, True)])
def test_responses_are_joined_only_where_each_has_two_buffers(count: int, responses: int, can_join: bool) -> None:
    assert ResponseBuffers(_buffers(count), responses).can_join == can_join

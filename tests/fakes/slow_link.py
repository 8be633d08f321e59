"""A link that takes its time on a clock that only sleeping moves."""

from __future__ import annotations

import math

import pytest
from tests.fakes.clients import SleepingClock

from shallow_mirror.broker.net import Transport
from shallow_mirror.deadline import Deadline

_PART_BYTES = 4_096


class SlowLink:
    """What the package receives from `bootstrap`, or from all brokers, comes at `bytes_per_s`."""

    def __init__(self, patch: pytest.MonkeyPatch, clock: SleepingClock, bootstrap: str | None = None) -> None:
        self.bytes_per_s = math.inf
        receive = Transport._recv_some

        def slowly(transport: Transport, view: memoryview, expected: int, deadline: Deadline) -> int:
            if self.bytes_per_s == math.inf or bootstrap not in (None, transport.peer):
                return receive(transport, view, expected, deadline)
            received = receive(transport, view[:_PART_BYTES], expected, deadline)
            clock.sleep(received / self.bytes_per_s)
            deadline.require("the rest of an answer")
            return received

        patch.setattr(Transport, "_recv_some", slowly)

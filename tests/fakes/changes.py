"""What a test may do to single responses: the faults that real brokers do not show on demand."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.kafka_codec import framed

PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one response. Nothing set: the broker answers as it should.

    `error_code` is answered instead of the effect, or in spite of it where `is_performed`; `only` narrows it to one
    topic-partition. `drops_before`: the connection is closed without reading further; `drops_after`: when the effect has
    happened. `reply` turns the frame into the bytes to be sent; `closes`: the connection ends behind them.
    """

    error_code: int = 0
    is_performed: bool = False
    only: PartitionKey | None = None
    throttle_ms: int = 0
    first: Callable[[], object] | None = None
    hold: threading.Event | None = None
    drops_before: bool = False
    drops_after: bool = False
    reply: Callable[[bytes], bytes] | None = None
    closes: bool = False

    def code_of(self, topic_partition: PartitionKey | None) -> int:
        return self.error_code if self.only is None or self.only == topic_partition else 0


AS_IT_SHOULD = Change()


def error(code: int, only: PartitionKey | None = None, *, is_performed: bool = False) -> Change:
    return Change(error_code=code, only=only, is_performed=is_performed)


def dropped_before() -> Change:
    """Drop the request: it never arrived."""
    return Change(drops_before=True)


def dropped_after() -> Change:
    """Drop the response: the effect happened."""
    return Change(drops_after=True)


def cut(sent_bytes: int) -> Change:
    """Break the connection in the middle of the response."""
    return Change(reply=lambda frame: frame[:sent_bytes], closes=True)


def garbage(kept_bytes: int = 8) -> Change:
    """Send a frame of the right length and correlation id, full of nonsense."""
    return Change(reply=lambda frame: frame[:kept_bytes] + b"\xff" * (len(frame) - kept_bytes))


def truncated(lost_bytes: int) -> Change:
    """Send a whole frame whose content ends early."""
    return Change(reply=lambda frame: framed(frame[4:-lost_bytes]))


def oversized(announced_bytes: int = (1 << 31) - 1) -> Change:
    return Change(reply=lambda frame: announced_bytes.to_bytes(4, "big") + frame[4:])


def wrong_correlation_id() -> Change:
    return Change(reply=lambda frame: frame[:4] + b"\x7f\xff\xff\xff" + frame[8:])


def throttled(ms: int) -> Change:
    """Throttle; a Fetch response is empty then, as a real one is."""
    return Change(throttle_ms=ms)


def held(until: threading.Event) -> Change:
    return Change(hold=until)


def after(action: Callable[[], object]) -> Change:
    """Do something to the cluster, then answer as it should."""
    return Change(first=action)


def hostile(dice: random.Random, start: int = 8) -> Change:
    """Change a few bytes behind the correlation id."""

    def reply(frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(dice.randint(1, 4)):
            changed[dice.randrange(start, len(changed))] = dice.randrange(256)
        return bytes(changed)

    return Change(reply=reply)

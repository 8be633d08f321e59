"""Where offsets are preserved, readers of the target see records before the map has rows for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.checkpoints.logs.topics import ForgottenTopics, TopicIncarnation
from shallow_mirror.types import SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.verify import ignore_progress
from shallow_mirror.verify.mirror_verifier import DECIDED_WITHIN_S, MirrorVerifier

ORDERS = TopicPartition("orders", 0)
TARGET: Any = SimpleNamespace(topic=lambda _: SimpleNamespace(topic_id="id"), has=lambda _: True)


class Map:
    """`offsets`: the position after each refresh; the last one stays."""

    def __init__(self, *offsets: int, is_preserved: bool = True) -> None:
        self.offsets, self.is_preserved = list(offsets), is_preserved

    def refresh(self) -> None:
        self.offsets = self.offsets[1:] or self.offsets

    def positions(self) -> Any:
        target = TargetPartition("orders", "id", 0)
        producer_id = 7 if self.is_preserved else None
        position = SimpleNamespace(target=target, offset=self.offsets[0], shared_producer_id=producer_id)
        return {SourcePartition("orders", "id", 0): position}


@pytest.mark.parametrize(
    ("offset_map", "slept_s"),
    [
        (Map(10, 15, 20), 1.0),
        (Map(20), 0.0),
        (Map(10), DECIDED_WITHIN_S),  # written by others
        (Map(10, is_preserved=False), 0.0),
    ],
    ids=["decided meanwhile", "decided before", "never decided", "translated"],
)
def test_a_verification_waits_for_the_decision_of_what_it_will_read(offset_map: Map, slept_s: float) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    unused: Any = None
    fake: Any = offset_map
    verifier = MirrorVerifier(unused, fake, unused, unused, TARGET, unused, ignore_progress, clock=lambda: now_s, sleep=sleep)
    verifier._target_ends = {ORDERS: 20}
    verifier._await_decisions()
    assert now_s == slept_s


@pytest.mark.parametrize(
    ("topic_id", "target_id", "is_forgotten"),
    [("former", "former-copy", False), ("forgotten", "id", True)],
    ids=["target topic deleted", "forgotten"],
)
def test_positions_of_a_former_topic_of_the_same_name_do_not_end_the_wait(
    topic_id: str, target_id: str, is_forgotten: bool
) -> None:
    offset_map, now_s = Map(10), 0.0
    former = SourcePartition("orders", topic_id, 0)
    at = SimpleNamespace(target=TargetPartition("orders", target_id, 0), offset=30, shared_producer_id=7)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    unused: Any = None
    fake: Any = SimpleNamespace(positions=lambda: {**offset_map.positions(), former: at}, refresh=offset_map.refresh)
    closed = ForgottenTopics({TopicIncarnation("orders", topic_id): 1} if is_forgotten else {})
    verifier = MirrorVerifier(
        unused, fake, unused, unused, TARGET, unused, ignore_progress, clock=lambda: now_s, sleep=sleep, forgotten=closed
    )
    verifier._target_ends = {ORDERS: 20}
    verifier._await_decisions()
    assert now_s == DECIDED_WITHIN_S

"""Which map leads a group back: that of the move, or that of the reverse mirror."""

from __future__ import annotations

from shallow_mirror.groups.sync_plan import Committed
from shallow_mirror.migration.group_return import split
from shallow_mirror.types import TopicPartition

MOVED, ADDED, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("audit", 0)
LATER = TopicPartition("orders.later", 0)


def test_offsets_up_to_the_end_at_the_move_go_back_through_its_map_and_all_others_through_the_reverse_mirror() -> None:
    below = [
        Committed("billing", MOVED, 100, ""),
        Committed("ship", MOVED, None, ""),
        Committed("billing", ADDED, None, ""),
        Committed("billing", OTHER, 7, ""),
    ]
    above = [
        Committed("tax", MOVED, 101, ""),
        Committed("tax", ADDED, 0, ""),
        Committed("ship", ADDED, 10, ""),
        Committed("ship", LATER, 3, ""),
    ]
    assert split([*below, *above], {MOVED: 100}, {"orders", "orders.later"}) == (below, above)


def test_all_offsets_of_a_topic_that_was_created_again_lie_above_the_end_at_the_move() -> None:
    again = [Committed("billing", MOVED, 7, ""), Committed("ship", MOVED, None, "")]
    assert split(again, {MOVED: 100}, {"orders"}, {"orders"}) == ([], again)

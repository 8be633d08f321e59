"""What a plan says of the logs at the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.migration import blockers
from shallow_mirror.migration.blockers import _foreign_partitions
from shallow_mirror.migration.observations import MappedEnd
from shallow_mirror.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("is_preserved", "mapped", "is_foreign"),
    [
        (False, MappedEnd(21, 20), False),
        (False, MappedEnd(21, 0), True),
        (True, MappedEnd(21, 0), False),
        (True, MappedEnd(0, 0), True),
    ],
    ids=["copied", "only markers at the source", "fillers only", "not copied at all"],
)
def test_records_are_foreign_where_the_mirror_has_written_none(
    is_preserved: bool, mapped: MappedEnd, is_foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockers, "SETTLED_WITHIN_MS", 0)
    passage: Any = SimpleNamespace(
        other_log_ends=lambda: {ORDERS: SimpleNamespace(stable=21)},
        mapped_ends=lambda: {ORDERS: mapped},
        target_topic=lambda topic: topic,
        mirror=SimpleNamespace(topics=SimpleNamespace(is_preserved=lambda _topic: is_preserved)),
    )
    assert _foreign_partitions(passage) == ([ORDERS] if is_foreign else [])

"""Which topics would go round between two mirrors."""

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.sinks.kafka.targets.mirror_registration import Origin, loop_problems


def origin(**changes: Any) -> Origin:
    defaults: dict[str, Any] = {"mirror": "there", "source_cluster_id": "A", "source_alias": "east", "target_name": "{topic}"}
    return Origin(**(defaults | {"include": (".*",), "exclude": ()} | changes))


def problems(*topics: str, of: Origin, template: str = "{topic}", target_cluster_id: str = "A") -> list[str]:
    return loop_problems(topics, [of], template=template, source_alias="west", target_cluster_id=target_cluster_id)


def test_equal_names_in_both_directions_are_refused() -> None:
    (only,) = problems("orders", of=origin())
    assert only.startswith(
        "source topic orders is a copy of orders made by mirror there: copying it back as orders would be a replication"
    )


@pytest.mark.parametrize(
    ("of", "template"),
    [
        (origin(exclude=("orders",)), "{topic}"),
        (origin(include=("bills",)), "{topic}"),
        (origin(include=("orders",)), "{source}.{topic}"),
        (origin(target_name="{source}.{topic}"), "{topic}"),
    ],
    ids=["excluded there", "not included there", "comes back under a name that is not taken", "not a copy"],
)
def test_what_does_not_come_back_is_mirrored(of: Origin, template: str) -> None:
    assert problems("orders", of=of, template=template) == []


def test_a_mirror_from_elsewhere_is_no_loop() -> None:
    assert problems("orders", of=origin(source_cluster_id="C")) == []


def test_names_that_would_grow_for_ever_are_refused() -> None:
    of = origin(target_name="{source}.{topic}", source_alias="EAST")
    (only,) = problems("orders", "EAST.orders", of=of, template="{source}.{topic}")
    assert "EAST.orders is a copy of orders" in only
    assert "west.EAST.orders" in only


def test_a_note_is_read_as_it_was_written_and_long_patterns_become_all_topics() -> None:
    made = origin(include=("orders.*", "b+"), exclude=("x",))
    assert Origin.parse(made.build(4000)) == made
    long = origin(include=("x" * 5000,), exclude=("y",))
    assert Origin.parse(long.build(4000)) == origin()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "{}",
        '{"mirror": "m", "include": 5}',
        origin(include=("(",)).build(4000),
        origin(target_name="x").build(4000),
    ],
)
def test_what_is_no_such_note_says_nothing(text: str) -> None:
    assert Origin.parse(text) is None

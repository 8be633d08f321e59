"""What a mirror registers, and which topics would go round between two mirrors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from shallow_mirror.sinks.kafka import RingMirror, find_rings
from shallow_mirror.sinks.kafka.targets.mirror_registration import MAX_HOPS, Origin, upstream_of


def origin(**changes: Any) -> Origin:
    defaults: dict[str, Any] = {"mirror": "there", "source_cluster_id": "A", "source_alias": "east", "target_name": "{topic}"}
    return Origin(**(defaults | {"include": (".*",), "exclude": ()} | changes))


def problems(*topics: str, of: Origin, template: str = "{topic}", target_cluster_id: str = "A") -> list[str]:
    closing = RingMirror(
        mirror="back",
        source_alias="west",
        target_alias="east",
        target_cluster_id=target_cluster_id,
        target_name=template,
        since_ms=1,
        takes=lambda _: True,
    )
    return [ring.sentence() for ring in find_rings(topics, [of], closing)]


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


def chain(length: int, digests: int = 0) -> Origin:
    """Return a mirror with `length` mirrors in a row upstream of it; each takes so many topics whose names do not compress."""
    upstream: tuple[Origin, ...] = ()
    for number in range(length):
        include = ("orders", *(hashlib.sha256(f"{number} {digest}".encode()).hexdigest() for digest in range(digests)))
        upstream = (origin(mirror=f"m{number}", source_cluster_id=f"C{number}", include=include, upstream=upstream),)
    return origin(upstream=upstream)


def test_what_is_upstream_is_read_as_it_was_written() -> None:
    assert Origin.parse(chain(5).build(4000)) == chain(5)
    assert Origin.parse(origin(upstream=()).build(4000)) == origin(upstream=())


def test_the_farthest_mirrors_are_left_out_of_a_registration_that_is_too_long() -> None:
    long = chain(10, digests=20).build(4000)
    assert len(long) <= 4000
    read = Origin.parse(long)
    assert read is not None
    assert 0 < read.hops < 10
    assert read.upstream is not None
    assert read.upstream[0].mirror == "m9"


def test_a_registration_names_a_bounded_number_of_mirrors_in_a_row() -> None:
    read = Origin.parse(chain(MAX_HOPS + 5).build(100_000))
    assert read is not None
    assert read.hops == MAX_HOPS - 1


@pytest.mark.parametrize("upstream", [7, "no base85 é", "0" * 20, [], {"a": 1}])
def test_a_damaged_upstream_is_a_damaged_registration(upstream: Any) -> None:
    document = json.loads(origin(upstream=()).build(4000)) | {"upstream": upstream}
    assert Origin.parse(json.dumps(document)) is None


def test_a_way_that_returns_to_a_cluster_is_not_passed_on() -> None:
    back = origin(mirror="back", source_cluster_id="T")
    there = origin(
        mirror="there", source_cluster_id="A", upstream=(back, origin(mirror="far", source_cluster_id="B", upstream=()))
    )
    (kept,) = upstream_of([there, back], {"S", "T"})
    assert kept.upstream is not None
    assert [upstream.mirror for upstream in kept.upstream] == ["far"]

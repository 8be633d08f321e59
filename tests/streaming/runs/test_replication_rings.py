"""Mirrors between clusters as strict as brokers: which topologies are refused, which are not, and which mirror stops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.config import MirrorConfig, exclude_own_targets
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.runs import CycleDetector, cycle_detection

TOPIC = "orders"


class World:
    """Clusters A, B, C …, whose aliases are their names. The clock ticks at each start of a mirror."""

    def __init__(self, clusters: dict[str, StrictCluster]) -> None:
        self.clusters = clusters
        self.now_ms = 0

    def mirror(self, name: str, *, include: Sequence[str] = (TOPIC,), target_name: str = "{topic}", **topics: Any) -> Mirrored:
        """Return the mirror `ab` from A to B; what is behind its first two letters tells it from others between these."""
        source, target = name[0].upper(), name[1].upper()
        document = {
            "mirror": name,
            "source": {"alias": source.lower(), "client": {"bootstrap.servers": self.clusters[source].bootstrap}},
            "target": {"alias": target.lower(), "client": {"bootstrap.servers": self.clusters[target].bootstrap}},
            "topics": {"include": list(include), "target_name": target_name, **topics},
            "tables": "tables",
        }
        return Mirrored(self, MirrorConfig.from_document(document, folder=Path("/tmp")), source, target)


class Mirrored:
    """What a run does about rings: `start`, `look` as its topic monitor does, `add` as for a new topic."""

    def __init__(self, world: World, config: MirrorConfig, source: str, target: str) -> None:
        self.world, self.source, self.target = world, source, target
        self.config = exclude_own_targets(config, is_same_cluster=source == target)
        self.cycles: CycleDetector | None = None
        self.routes: dict[str, str] = {}

    def start(self, exempt: frozenset[str] = frozenset()) -> Mirrored:
        """Start a run: look at the source, create target topics, register. Raises ConfigError."""
        self.world.now_ms += 1
        now_ms = self.world.now_ms
        self.routes = {}
        self.cycles = CycleDetector(
            self.config, source_cluster_id=self.source, target_cluster_id=self.target, now_ms=lambda: now_ms
        )
        self.cycles.exempt(exempt)
        self.cycles.read_registrations()
        self.cycles.require_no_cycles(self.topics())
        self._add(self.topics())
        return self

    def topics(self) -> list[str]:
        return [name for name in self.world.clusters[self.source].topic_ids if self.config.topics.is_included(name)]

    def discover(self) -> None:
        """Copy what is new. Raises ConfigError."""
        self._add([topic for topic in self.topics() if topic not in self.routes])

    def _add(self, topics: Sequence[str]) -> None:
        assert self.cycles is not None
        new = {topic: self.cycles.target_topic_name(topic) for topic in topics}
        target = self.world.clusters[self.target]
        for name in new.values():
            if name not in target.topic_ids:
                target.create_topic(name)
        self.routes |= new
        if self.routes:
            self.cycles.register(self.routes)

    def look(self) -> bool:
        """Do what the monitor does once a minute. Return whether the mirror has to stop."""
        assert self.cycles is not None
        self.cycles.check_while_running(self.routes)
        try:
            self.cycles.require_no_ring()
        except ConfigError:
            return True
        return False

    def deregister(self) -> None:
        """Delete the consumer group of the registration, as the operator does."""
        offsets = self.world.clusters[self.target].groups.offsets
        for key in [key for key in offsets if key[0] == f"{self.config.mirror}-origin"]:
            del offsets[key]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(cycle_detection, "RINGS_EVERY_S", 0.0)
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(StrictCluster(cluster_id=name)) for name in "ABC"}
        clusters["A"].create_topic(TOPIC)
        yield World(clusters)


def test_a_ring_of_three_is_refused_by_the_mirror_that_closes_it(world: World) -> None:
    running = [world.mirror("ab").start(), world.mirror("bc").start()]
    closing = world.mirror("ca")
    with pytest.raises(ConfigError) as caught:
        closing.start()
    (problem,) = caught.value.problems
    assert problem.startswith(
        "source topic orders came from the target cluster: a:orders (ab) -> b:orders (bc) -> c:orders (ca) -> a:orders. "
        "Copying it there as orders would be a replication ring of 3 mirrors"
    )
    assert "(ab-origin, bc-origin)" in problem
    assert not any(mirror.look() for mirror in running)
    assert world.clusters["A"].groups.offsets == {}


def test_it_is_refused_as_well_where_the_mirrors_were_started_in_another_order(world: World) -> None:
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    later, first = world.mirror("bc").start(), world.mirror("ab").start()
    assert not later.look()  # learns of ab
    with pytest.raises(ConfigError, match="replication ring of 3 mirrors"):
        world.mirror("ca").start()
    assert not first.look()


def test_a_ring_that_closes_before_registrations_have_spread_ends_the_mirror_that_began_last(world: World) -> None:
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    bc, ab = world.mirror("bc").start(), world.mirror("ab").start()
    ca = world.mirror("ca").start()  # bc has not looked since ab began
    stopped = {name for _ in range(3) for name, mirror in {"ab": ab, "bc": bc, "ca": ca}.items() if mirror.look()}
    assert stopped == {"ca"}
    ab.look()
    assert ab.cycles is not None
    assert ab.cycles.rings_of_others == {}  # ca withdrew its registration
    ab.start()
    bc.start()


def test_the_others_name_the_mirror_that_stops(world: World) -> None:
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    bc, ab = world.mirror("bc").start(), world.mirror("ab").start()
    world.mirror("ca").start()
    assert not any(mirror.look() for mirror in (bc, ab))
    assert ab.cycles is not None
    ((sentence, topic),) = ab.cycles.rings_of_others.items()
    assert topic == TOPIC
    assert sentence == (
        "replication ring: b:orders (bc) -> c:orders (ca) -> a:orders (ab) -> b:orders: mirror ca began last and stops"
    )


def test_a_mirror_stops_itself_where_the_one_that_should_stop_does_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of `ab` have lost that the topic was handed over, and `ba` has received it."""
    world.clusters["B"].create_topic(TOPIC)
    there = world.mirror("ab").start()
    back = world.mirror("ba").start(exempt=frozenset({TOPIC}))
    assert not any(mirror.look() for mirror in (there, back, there))
    monkeypatch.setattr(cycle_detection, "RING_PATIENCE_S", 0.0)
    assert there.look()
    assert there.cycles is not None
    with pytest.raises(ConfigError, match=r"mirror ba began last, and has not stopped for 0 s: .* would be a replication cycle"):
        there.cycles.require_no_ring()
    assert not back.look()


def test_a_topic_that_appears_in_a_ring_ends_the_mirror_that_would_copy_it_first(world: World) -> None:
    mirrors = {name: world.mirror(name, include=["bills.*", f"only-{name}"]) for name in ("ab", "bc", "ca")}
    for name, mirror in mirrors.items():
        world.clusters[mirror.source].create_topic(f"only-{name}")
        mirror.start()
    for _ in range(3):
        assert not any(mirror.look() for mirror in mirrors.values())
    world.clusters["B"].create_topic("bills")
    with pytest.raises(ConfigError, match=r"b:bills \(bc\) -> c:bills|replication ring of 3 mirrors"):
        mirrors["bc"].discover()
    assert "bills" not in world.clusters["C"].topic_ids


def test_names_that_would_grow_round_a_ring_are_refused(world: World) -> None:
    everything: dict[str, Any] = {"include": [".*"], "target_name": "{source}.{topic}"}
    world.mirror("ab", **everything).start()
    world.mirror("bc", **everything).start()
    with pytest.raises(ConfigError) as caught:
        world.mirror("ca", **everything).start()
    assert "a:orders (ab) -> b:a.orders (bc) -> c:b.a.orders (ca) -> a:c.b.a.orders" in caught.value.problems[0]


def test_names_that_grow_once_and_are_taken_no_further_are_mirrored(world: World) -> None:
    named = "{source}.{topic}"
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    mirrors = [
        world.mirror(name, include=[TOPIC, *more], target_name=named).start()
        for name, more in {"ab": (), "bc": ("a\\.orders",), "ca": ("b\\.orders", "b\\.a\\.orders")}.items()
    ]
    for _ in range(3):
        assert not any(mirror.look() for mirror in mirrors)
        for mirror in mirrors:
            mirror.discover()
    assert "c.b.a.orders" in world.clusters["A"].topic_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology",
    [
        {"ab": {}, "ac": {"target_name": "from-a.{topic}"}, "bc": {"target_name": "from-b.{topic}"}},
        {"ac": {"target_name": "{source}.{topic}"}, "bc": {"target_name": "{source}.{topic}"}},
        {"ab": {}, "ac": {}, "bc2": {"include": ["other"]}},
        {name: {"include": [TOPIC], "target_name": "{source}.{topic}"} for name in ("ab", "ba", "bc", "cb", "ac", "ca")},
        {"ab": {}, "bc": {}, "ca": {"include": ["reports"]}},
        {"ab": {}, "bc": {}, "ca": {"exclude": [TOPIC], "include": [".*"]}},
        {"ab": {}, "ba": {"include": ["back"]}, "bc": {}},
    ],
    ids=["triangle", "fan-in", "fan-out", "mesh with prefixes", "other topics back", "excluded", "chain and a way back"],
)
def test_a_legal_topology_runs_in_any_order(world: World, topology: dict[str, dict[str, Any]]) -> None:
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    world.clusters["C"].create_topic("reports")
    for names in (list(topology), list(reversed(topology))):
        mirrors = [world.mirror(name, **topology[name]).start() for name in names]
        for _ in range(3):
            assert not any(mirror.look() for mirror in mirrors)
            for mirror in mirrors:
                mirror.discover()


def test_the_other_direction_is_free_when_the_first_mirror_is_deregistered(world: World) -> None:
    there = world.mirror("ab").start()
    on = world.mirror("bc").start()
    with pytest.raises(ConfigError, match="would be a replication cycle"):
        world.mirror("ba").start()
    there.deregister()
    back = world.mirror("ba").start()
    assert not any(mirror.look() for mirror in (back, on))
    with pytest.raises(ConfigError, match="would be a replication cycle"):
        there.start()


def test_a_topic_that_a_migration_took_back_while_the_reverse_mirror_copies_it_is_not_copied_again(world: World) -> None:
    world.clusters["B"].create_topic(TOPIC)
    moved = frozenset({TOPIC})
    there, back = world.mirror("ab").start(), world.mirror("ba")
    assert there.cycles is not None
    there.cycles.exempt(moved)
    back.start(exempt=moved)
    assert not any(mirror.look() for mirror in (there, back))
    there.cycles.exempt(frozenset(), returned=moved)
    assert not there.cycles.may_copy_again(moved)
    with pytest.raises(
        ConfigError, match="orders was taken back from a migration: source topic orders is a copy of orders made by"
    ):
        there.cycles.require_no_ring()
    assert not back.look(), "it has begun last, and leaves out what it has received"


def test_a_topic_that_an_aborted_migration_took_back_is_copied_again(world: World) -> None:
    there = world.mirror("ab").start()
    assert there.cycles is not None
    there.cycles.exempt(frozenset({TOPIC}))
    there.cycles.exempt(frozenset(), returned=frozenset({TOPIC}))
    assert there.cycles.may_copy_again({TOPIC})
    assert not there.look()


def test_a_registration_that_was_deleted_is_not_passed_on_in_circles(world: World) -> None:
    world.clusters["B"].create_topic(TOPIC)
    there = world.mirror("ab").start()
    named = [world.mirror(name, include=[".*"], target_name=f"{name}.{{topic}}", exclude=["..\\..*"]) for name in ("bc", "cb")]
    for mirror in named:
        mirror.start()
    for _ in range(3):
        assert not any(mirror.look() for mirror in named)
    assert _registered(world, "C", "ab")
    there.deregister()
    for _ in range(3):
        assert not any(mirror.look() for mirror in named)
    assert not _registered(world, "C", "ab")
    assert not _registered(world, "B", "ab")


def test_a_mirror_is_registered_while_one_topic_of_its_registration_is_left_and_then_for_others(world: World) -> None:
    for topic in ("a", "b", "z"):
        world.clusters["A"].create_topic(topic)
    there, cluster = world.mirror("ab", include=["orders", "a", "b", "z"]).start(), world.clusters["B"]

    def delete(topic: str) -> None:
        cluster.delete_topic(topic)
        del there.routes[topic]

    assert {key[1][0] for key in cluster.groups.offsets} == {"a", "b", "orders"}
    delete("a")
    delete("b")
    assert _registered(world, "B", "ab")
    delete("orders")
    assert not _registered(world, "B", "ab")
    assert not there.look()
    assert {key[1][0] for key in cluster.groups.offsets} == {"z"}
    with pytest.raises(ConfigError, match="would be a replication cycle"):
        world.mirror("ba", include=["z"]).start()


def _registered(world: World, cluster: str, mirror: str) -> bool:
    """Return whether any registration in a cluster names a mirror, as its reader sees it."""
    reader = CycleDetector(
        world.mirror(f"{cluster}a-reader").config, source_cluster_id=cluster, target_cluster_id="X", now_ms=lambda: 0
    )
    reader.read_registrations()
    return re.search(rf"mirror='{mirror}'", repr(reader._origins)) is not None


def test_a_mirror_of_an_earlier_version_in_the_ring_is_seen_by_the_one_in_front_of_it(world: World) -> None:
    for cluster in ("B", "C"):
        world.clusters[cluster].create_topic(TOPIC)
    ab = world.mirror("ab").start()
    bc = world.mirror("bc").start()
    _as_of_an_earlier_version(world, bc)
    ca = world.mirror("ca").start()  # does not see what is behind bc
    assert not ca.look()
    assert ab.look()


def _as_of_an_earlier_version(world: World, mirror: Mirrored) -> None:
    offsets = world.clusters[mirror.target].groups.offsets
    for key, committed in list(offsets.items()):
        if key[0] == f"{mirror.config.mirror}-origin":
            text = re.sub(r', "since_ms": \d+, "upstream": "[^"]*"', "", str(committed.metadata))
            assert text != committed.metadata
            offsets[key] = committed._replace(metadata=text)


@pytest.mark.slow
def test_many_mirrors_upstream_fit_into_the_registration(world: World) -> None:
    world.clusters["B"].create_topic(TOPIC)
    for number in range(40):
        world.mirror(f"ab{number}", include=[f"topic-{number}\\..*", TOPIC], target_name=f"{number}.{{topic}}").start()
    onward = world.mirror("bc").start()
    assert not onward.look()
    assert all(_registered(world, "C", f"ab{number}") for number in range(40))

"""Pure: which topics of a mirror came from its own target, through one mirror or several, and would return there again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from shallow_mirror import routing
from shallow_mirror.sinks.kafka.targets.mirror_registration import GROUP_SUFFIX, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class RingMirror:
    """The mirror that looks for rings: it reads from the source cluster and would close them.

    `takes`: the topics that it copies.
    """

    mirror: str
    source_alias: str
    target_alias: str
    target_cluster_id: str
    target_name: str
    since_ms: int
    takes: Callable[[str], bool]

    def target_of(self, topic: str) -> str:
        return routing.target_topic_name(self.target_name, self.source_alias, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A topic of the target cluster that returns to it. `hops`: the mirrors it passes, from the target cluster to the source.

    `names`: of the topic in the source cluster of each hop, then in the source cluster of the mirror that closes the ring.
    """

    hops: tuple[Origin, ...]
    names: tuple[str, ...]
    closing: RingMirror

    @property
    def topic(self) -> str:
        """Return the topic in the source cluster of the mirror that closes the ring."""
        return self.names[-1]

    @property
    def other_to_stop(self) -> str | None:
        """Return the mirror that has to stop if all of them run, the one whose run began last; None: the one that closes it.

        A mirror in front of one that does not record its upstream is the only one that sees the ring.
        """
        if any(hop.upstream is None for hop in self.hops):
            return None
        last = max(self.hops, key=lambda hop: (hop.since_ms, hop.mirror))
        return last.mirror if (last.since_ms, last.mirror) > (self.closing.since_ms, self.closing.mirror) else None

    def sentence(self) -> str:
        """Return the problem and the remedy."""
        first, target = self.names[0], self.closing.target_of(self.topic)
        if len(self.hops) == 1:
            return (
                f"source topic {self.topic} is a copy of {first} made by mirror {self.hops[0].mirror}: copying it back as "
                f"{target} would be a replication cycle. Give both mirrors topics.target_name: '{{source}}.{{topic}}' and the "
                f"same two aliases, or exclude the topic (topics.exclude){self._of_a_removed_mirror()}"
            )
        return (
            f"source topic {self.topic} came from the target cluster: {self.path()}. Copying it there as {target} would be a "
            f"replication ring of {len(self.hops) + 1} mirrors. Exclude the topic in one of them (topics.exclude)"
            f"{self._of_a_removed_mirror()}"
        )

    def path(self) -> str:
        """Return clusters, topics and mirrors of the ring, as the aliases of the mirrors name the clusters."""
        steps = [f"{hop.source_alias}:{name} ({hop.mirror})" for hop, name in zip(self.hops, self.names, strict=False)]
        closing = self.closing
        here = f"{closing.source_alias}:{self.topic} ({closing.mirror})"
        return " -> ".join([*steps, here, f"{closing.target_alias}:{closing.target_of(self.topic)}"])

    def _of_a_removed_mirror(self) -> str:
        groups = ", ".join(f"{hop.mirror}{GROUP_SUFFIX}" for hop in self.hops)
        return f"; of a mirror that was removed, delete the consumer group of its registration on its target ({groups})"


def find_rings(topics: Iterable[str], origins: Sequence[Origin], closing: RingMirror) -> list[Ring]:
    """Return the rings that `closing` would close by copying `topics`. `origins`: of the mirrors that write to its source."""
    ways = [tuple(reversed(way)) for way in _ways_from(closing.target_cluster_id, origins)]
    rings = []
    for topic in sorted(set(topics)) if ways else ():
        for way in ways:
            names = _names_along(way, topic)
            if names is not None and _returns(way, closing, closing.target_of(topic)):
                rings.append(Ring(hops=way, names=names, closing=closing))
    return rings


def _ways_from(cluster_id: str, origins: Iterable[Origin]) -> Iterator[tuple[Origin, ...]]:
    """Yield the mirrors on each way from a cluster to the one that holds `origins`, the last one first."""
    for origin in origins:
        if origin.source_cluster_id == cluster_id:
            yield (origin,)
            continue
        for way in _ways_from(cluster_id, origin.upstream or ()):
            yield (origin, *way)


def _names_along(way: Sequence[Origin], topic: str) -> tuple[str, ...] | None:
    """Return the names under which `topic` came along `way`; None if it did not."""
    names = [topic]
    for origin in reversed(way):
        before = origin.source_of(names[0])
        if before is None:
            return None
        names.insert(0, before)
    return tuple(names)


def _returns(way: Sequence[Origin], closing: RingMirror, name: str) -> bool:
    """Return whether a topic of the target cluster comes along `way` to the source, from which `closing` copies it again."""
    for origin in way:
        if not origin.takes(name):
            return False
        name = origin.target_of(name)
    return closing.takes(name)

"""Pure: clusters, the flows between them, and which topics of them go round or are fed twice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror import routing

_LITERAL = re.compile(r"(?:[A-Za-z0-9_-]|\\?\.(?![*+?{]))+")
_SAMPLE = "any-topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A cluster or an archive. `addresses`: bootstrap servers, or the location of the archive's tables."""

    key: str
    kind: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def title(self) -> str:
        return "/".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A mirror, archive or restore: `source` and `target` are keys of nodes. `exclude`: with those it leaves out itself."""

    kind: str
    name: str
    file: str
    source: str
    target: str
    source_alias: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    target_name: str

    def takes(self, topic: str) -> bool:
        return routing.is_included(topic, self.include, self.exclude)

    def target_of(self, topic: str) -> str:
        return routing.target_topic_name(self.target_name, self.source_alias, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRing:
    """Flows in their order, and the topic in the source of the first one."""

    flows: tuple[Flow, ...]
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FedTwice:
    """A topic of a cluster into which several flows write."""

    node: str
    topic: str
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`is_connected`: topics are those of the clusters; otherwise they are examples that the patterns match."""

    nodes: tuple[Node, ...]
    flows: tuple[Flow, ...]
    rings: tuple[FlowRing, ...]
    fed_twice: tuple[FedTwice, ...]
    topics: Mapping[str, tuple[str, ...]]
    is_connected: bool

    def node(self, key: str) -> Node:
        return next(node for node in self.nodes if node.key == key)

    def document(self) -> dict[str, Any]:
        """Return the topology as JSON values; flows have names, as their files do."""
        return {
            "connected": self.is_connected,
            "clusters": [{"name": node.title, "kind": node.kind, "addresses": list(node.addresses)} for node in self.nodes],
            "flows": [
                {
                    "kind": flow.kind,
                    "name": flow.name,
                    "file": flow.file,
                    "source": self.node(flow.source).title,
                    "target": self.node(flow.target).title,
                    "include": list(flow.include),
                    "exclude": list(flow.exclude),
                    "target_name": flow.target_name,
                    "topics": list(self.topics.get(flow.name, ())),
                }
                for flow in self.flows
            ],
            "rings": [{"flows": [flow.name for flow in ring.flows], "topic": ring.topic} for ring in self.rings],
            "fed_twice": [
                {"cluster": self.node(fed.node).title, "topic": fed.topic, "flows": [flow.name for flow in fed.flows]}
                for fed in self.fed_twice
            ],
        }


def build_topology(nodes: Sequence[Node], flows: Sequence[Flow], topics_of: Mapping[str, Collection[str]] | None) -> Topology:
    """Return the flows between clusters and archives.

    `topics_of`: the topics of each cluster, None if they are not known: then examples are used.
    """
    mirrors = [flow for flow in flows if flow.kind == "mirror"]
    examples = {topic for flow in flows for topic in example_topics(flow.include)}
    known: dict[str, Collection[str]] = {node.key: examples for node in nodes}
    if topics_of is not None:
        known = {node.key: topics_of.get(node.key, _archived_topics(node.key, flows, topics_of)) for node in nodes}
    return Topology(
        nodes=tuple(nodes),
        flows=tuple(flows),
        rings=tuple(_rings(mirrors, known)),
        fed_twice=tuple(_fed_twice([flow for flow in flows if flow.kind != "archive"], known)),
        topics={
            flow.name: tuple(sorted(topic for topic in known.get(flow.source, ()) if flow.takes(topic)))
            for flow in flows
            if topics_of is not None
        },
        is_connected=topics_of is not None,
    )


def _archived_topics(archive: str, flows: Iterable[Flow], topics_of: Mapping[str, Collection[str]]) -> set[str]:
    """Return the topics of the clusters that flows take into an archive. What else it holds is not known."""
    return {topic for flow in flows if flow.target == archive for topic in topics_of.get(flow.source, ()) if flow.takes(topic)}


def example_topics(patterns: Iterable[str]) -> list[str]:
    """Return a name that each pattern matches, from its beginning; of `.*` any name."""
    names = []
    for pattern in patterns:
        match = _LITERAL.match(pattern)
        literal = match[0].replace("\\", "") if match is not None else ""
        candidates = (literal, f"{literal}1", f"{literal}-example") if literal else (_SAMPLE,)
        names += [name for name in candidates if name and re.fullmatch(pattern, name)][:1]
    return names


def _rings(mirrors: Sequence[Flow], topics_of: Mapping[str, Collection[str]]) -> Iterator[FlowRing]:
    """Yield each ring once, with one topic: a way of a topic that comes back to a mirror which takes it again."""
    seen: set[frozenset[str]] = set()
    for first in mirrors:
        for topic in sorted(topics_of.get(first.source, ())):
            for ring in _ways_back((first,), topic, topic, mirrors) if first.takes(topic) else ():
                names = frozenset(flow.name for flow in ring)
                if names not in seen:
                    seen.add(names)
                    yield FlowRing(flows=ring, topic=topic)


def _ways_back(way: tuple[Flow, ...], began: str, topic: str, mirrors: Sequence[Flow]) -> Iterator[tuple[Flow, ...]]:
    """Yield ways on from the last flow of `way`, which takes `topic`, until the first one takes the topic again."""
    name = way[-1].target_of(topic)
    for flow in mirrors:
        if flow.source != way[-1].target or not flow.takes(name):
            continue
        if flow is way[0]:
            yield way
        elif flow not in way:
            yield from _ways_back((*way, flow), began, name, mirrors)


def _fed_twice(flows: Sequence[Flow], topics_of: Mapping[str, Collection[str]]) -> Iterator[FedTwice]:
    """Yield one topic of each group of flows that write into the same topics."""
    fed: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows:
        for topic in sorted(topics_of.get(flow.source, ())):
            if flow.takes(topic):
                fed.setdefault((flow.target, flow.target_of(topic)), []).append(flow)
    seen = set()
    for (node, topic), feeding in fed.items():
        names = (node, tuple(flow.name for flow in feeding))
        if len(feeding) > 1 and names not in seen:
            seen.add(names)
            yield FedTwice(node=node, topic=topic, flows=tuple(feeding))

"""For the cli: a topology as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from shallow_mirror.plurals import counted
from shallow_mirror.topology.flows import Topology

TOPICS_SHOWN = 10


def show(topology: Topology, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(topology.document()), file=console.file)
        return
    for line in lines(topology):
        console.print(Text(line))


def lines(topology: Topology) -> Iterator[str]:
    """Yield the lines of the text."""
    yield f"{counted(len(topology.nodes), 'cluster')} and archives, {counted(len(topology.flows), 'flow')}"
    for node in topology.nodes:
        yield f"{node.kind} {node.title}: {', '.join(node.addresses)}"
    for flow in topology.flows:
        ends = f"{topology.node(flow.source).title} -> {topology.node(flow.target).title}"
        yield f"{flow.kind} {flow.name} ({flow.file}): {ends}: {', '.join(flow.include)} as {flow.target_name}"
        if topology.is_connected:
            topics = topology.topics.get(flow.name, ())
            more = f" and {len(topics) - TOPICS_SHOWN} more" if len(topics) > TOPICS_SHOWN else ""
            yield f"  {counted(len(topics), 'topic')}: {', '.join(topics[:TOPICS_SHOWN])}{more}"
    example = "topic" if topology.is_connected else "for example topic"
    for ring in topology.rings:
        way = " -> ".join(topology.node(flow.source).title for flow in (*ring.flows, ring.flows[0]))
        yield f"RING: {way}, by {', '.join(flow.name for flow in ring.flows)}: {example} {ring.topic}"
    for fed in topology.fed_twice:
        names = ", ".join(flow.name for flow in fed.flows)
        yield f"FED TWICE: {topology.node(fed.node).title}, by {names}: {example} {fed.topic}"
    if not topology.rings and not topology.fed_twice:
        yield "no rings, and no topic is fed twice"

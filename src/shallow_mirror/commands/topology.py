"""`topology`: which clusters and topics feed which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.topology import Topology

TOPICS_SHOWN = 10


def topology(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of mirror, archive and restore files (YAML).")],
    is_connecting: Annotated[
        bool, typer.Option("--connect", help="Read topics and cluster ids from the clusters, instead of using patterns only.")
    ] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also write a picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which clusters and topics feed which, rings, and topics that are fed twice.

    The exit code is 1 if there is a ring or a topic that is fed twice.
    """
    from shallow_mirror.commands import topology
    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.topology import build_svg, read_topology

    shown = read_topology(folder, is_connecting=is_connecting)
    if svg is not None:
        try:
            svg.write_text(build_svg(shown), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg: {svg} cannot be written: {error.strerror or error}") from error
    topology.show(shown, stdout_console(), as_json=as_json)
    if shown.rings or shown.fed_twice:
        raise typer.Exit(EXIT_DIFFERENT)


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

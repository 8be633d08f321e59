"""Pure: a topology as an SVG of its own: clusters on an ellipse, flows as arrows, rings and double feeding marked, a legend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from shallow_mirror.topology.flows import Flow, Node, Topology

_BOX_WIDTH, _BOX_HEIGHT = 168, 46
_WIDTH, _MARGIN, _LEGEND = 960, 60, 96
_LONGEST = 34
"""Characters of a label; the whole text is in its title."""

_LABEL_SHARES = (0.36, 0.5, 0.24, 0.64)
"""Places of a label on an arrow: nearer to its start, so that labels of two opposite flows do not meet."""
_LABEL_WIDTH, _LABEL_HEIGHT = 130, 30

_STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2933}.small{font-size:11px;fill:#52606d}
.label{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.page{fill:#fff}.cluster{fill:#e3edf9;stroke:#2b6cb0}.archive{fill:#f4ecd8;stroke:#8a6d1f}
path{fill:none;stroke-width:2}.flow{stroke:#52606d}.ring{stroke:#c53030;stroke-width:3}
.twice{stroke:#b7791f;stroke-width:3;stroke-dasharray:7 4}.both{stroke:#c53030;stroke-width:3;stroke-dasharray:7 4}
.head-flow{fill:#52606d}.head-ring,.head-both{fill:#c53030}.head-twice{fill:#b7791f}marker path{stroke:none}
"""
_LEGEND_TEXTS = (
    ("flow", "a mirror, archive or restore"),
    ("ring", "part of a ring: topics come back"),
    ("twice", "writes into a topic that another one feeds as well"),
    ("both", "both"),
)

Point = tuple[float, float]


def build_svg(topology: Topology) -> str:
    """Return the picture. Its size follows the number of clusters and of flows between the same two."""
    height = 260 + 70 * max(2, len(topology.nodes)) + _LEGEND
    places = _places(topology.nodes, height - _LEGEND)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        "<title>Topology: which clusters feed which</title>",
        f"<style>{_STYLE}</style>",
        "<defs>",
        *(_head(style) for style, _ in _LEGEND_TEXTS),
        "</defs>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        *_arrows(topology, places),
        *(_box(node, places[node.key]) for node in topology.nodes),
        *_legend(height - _LEGEND + 10),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(style: str) -> str:
    return (
        f'<marker id="head-{style}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11" markerHeight="11" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="head-{style}" d="M0 0L10 5L0 10z"/></marker>'
    )


def _places(nodes: tuple[Node, ...], height: int) -> dict[str, Point]:
    """Return the centre of each box: on an ellipse, the first one on the left."""
    radius_x, radius_y = _WIDTH / 2 - _BOX_WIDTH / 2 - _MARGIN, height / 2 - _BOX_HEIGHT / 2 - _MARGIN
    angles = [math.pi + 2 * math.pi * number / len(nodes) for number in range(len(nodes))]
    return {
        node.key: (_WIDTH / 2 + radius_x * math.cos(angle), height / 2 + radius_y * math.sin(angle))
        for node, angle in zip(nodes, angles, strict=True)
    }


def _arrows(topology: Topology, places: dict[str, Point]) -> Iterator[str]:
    """Yield an arrow for each flow; those between the same two boxes are bent differently."""
    used: dict[tuple[str, str], int] = {}
    taken: list[Point] = []
    for flow in topology.flows:
        number = used.get((flow.source, flow.target), 0)
        used[flow.source, flow.target] = number + 1
        yield from _arrow(flow, _class_of(topology, flow), places[flow.source], places[flow.target], number, taken)


def _arrow(flow: Flow, style: str, start: Point, end: Point, number: int, taken: list[Point]) -> Iterator[str]:
    bend = 34 + 44 * number
    if flow.source == flow.target:
        x, y = start
        middle, path = (
            (x, y - 74 - bend),
            f"M{x - 30:.0f} {y - 23:.0f}C{x - 70:.0f} {y - 90 - bend:.0f} "
            + (f"{x + 70:.0f} {y - 90 - bend:.0f} {x + 30:.0f} {y - 23:.0f}"),
        )
    else:
        across = (-(end[1] - start[1]), end[0] - start[0])
        length = math.hypot(*across)
        control = tuple((start[axis] + end[axis]) / 2 + across[axis] / length * bend * 2 for axis in (0, 1))
        (x1, y1), (x2, y2) = _edge(start, (control[0], control[1])), _edge(end, (control[0], control[1]))
        places = [(_along(x1, control[0], x2, share), _along(y1, control[1], y2, share)) for share in _LABEL_SHARES]
        middle = next((place for place in places if not any(_meet(place, other) for other in taken)), places[0])
        path = f"M{x1:.0f} {y1:.0f}Q{control[0]:.0f} {control[1]:.0f} {x2:.0f} {y2:.0f}"
    taken.append(middle)
    topics = f"{', '.join(flow.include)} as {flow.target_name}"
    title = escape(f"{flow.kind} {flow.name}: {topics}")
    yield f'<path class="{style}" d="{path}" marker-end="url(#head-{style})"><title>{title}</title></path>'
    for line, text in enumerate((f"{flow.kind} {flow.name}", topics)):
        x, y = middle[0], middle[1] + 13 * line
        yield f'<text class="label" text-anchor="middle" x="{x:.0f}" y="{y:.0f}">{_short(text)}</text>'


def _meet(left: Point, right: Point) -> bool:
    """Return whether labels at these places would overlap."""
    return abs(left[0] - right[0]) < _LABEL_WIDTH and abs(left[1] - right[1]) < _LABEL_HEIGHT


def _along(start: float, control: float, end: float, share: float) -> float:
    """Return a coordinate of the curve, at a share of its way."""
    rest = 1 - share
    return rest * rest * start + 2 * rest * share * control + share * share * end


def _edge(centre: Point, toward: Point) -> Point:
    """Return the point at which the line from the centre of a box leaves it."""
    dx, dy = toward[0] - centre[0], toward[1] - centre[1]
    share = min(_BOX_WIDTH / 2 / abs(dx) if dx else math.inf, _BOX_HEIGHT / 2 / abs(dy) if dy else math.inf)
    return centre[0] + dx * share, centre[1] + dy * share


def _box(node: Node, centre: Point) -> str:
    x, y = centre[0] - _BOX_WIDTH / 2, centre[1] - _BOX_HEIGHT / 2
    addresses = ", ".join(node.addresses)
    title = escape(f"{node.kind} {node.title}: {addresses}")
    texts = (("", -3, _short(f"{node.kind} {node.title}", 22)), ("small", 14, _short(addresses, 26)))
    lines = "".join(
        f'<text class="{style}" text-anchor="middle" x="{centre[0]:.0f}" y="{centre[1] + below:.0f}">{text}</text>'
        for style, below, text in texts
    )
    box = f'<rect class="{node.kind}" x="{x:.0f}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
    return f"<g><title>{title}</title>{box}{lines}</g>"


def _legend(top: float) -> Iterator[str]:
    for number, (style, text) in enumerate(_LEGEND_TEXTS):
        x, y = 40 + 440 * (number % 2), top + 28 * (number // 2)
        yield f'<path class="{style}" d="M{x} {y:.0f}H{x + 50}" marker-end="url(#head-{style})"/>'
        yield f'<text class="small" x="{x + 62}" y="{y + 4:.0f}">{escape(text)}</text>'


def _class_of(topology: Topology, flow: Flow) -> str:
    is_in_ring = any(flow in ring.flows for ring in topology.rings)
    is_twice = any(flow in fed.flows for fed in topology.fed_twice)
    return "both" if is_in_ring and is_twice else "ring" if is_in_ring else "twice" if is_twice else "flow"


def _short(text: str, longest: int = _LONGEST) -> str:
    return escape(text if len(text) <= longest else f"{text[: longest - 1]}…")

"""Pure: a topology as an SVG of its own: clusters on an ellipse, flows as arrows, rings and double feeding marked, a legend.

The label of a flow lies on its arrow, where nothing else does. A flow without room for that has a number there, and its label
below the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from shallow_mirror.topology.flows import Flow, Node, Topology
from shallow_mirror.topology.label_places import Point, Rect, place_on

_BOX_WIDTH, _BOX_HEIGHT = 168, 46
_WIDTH, _MARGIN, _PADDING = 960, 60, 16
_LEGEND_HEIGHT, _LISTED_HEIGHT = 76, 18
_LONGEST, _LONGEST_LISTED = 34, 130
"""Characters of a label; the whole text is in its title."""
_CHARACTER_WIDTH, _LINE_HEIGHT = 6.2, 14
"""Of a label, at 11 px."""
_NUMBER_SIZE = (24.0, 18.0)
_CURVE_POINTS = 64
"""Nearer to each other than a number is wide, also on the longest curve."""

_STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2933}.small{font-size:11px;fill:#52606d}.label{font-size:11px}
.page,.under{fill:#fff}.number{fill:#fff;stroke:#52606d}.cluster{fill:#e3edf9;stroke:#2b6cb0}.archive{fill:#f4ecd8;stroke:#8a6d1f}
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


@dataclass(frozen=True, slots=True)
class Arrow:
    """The curve of a flow: the path of its SVG element, and points on it, near to each other."""

    flow: Flow
    path: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a flow. `number`: of its line below the picture, and the text on the arrow; None: the lines are there."""

    flow: Flow
    lines: tuple[str, ...]
    place: Rect
    number: int | None


def build_svg(topology: Topology) -> str:
    """Return the picture. Its size follows the number of clusters and of flows."""
    places = box_places(topology.nodes)
    arrows = arrows_of(topology.flows, places)
    labels = labels_of(arrows, places)
    left, top, right, bottom = _bounds(arrows, labels, places)
    listed = [label for label in labels if label.number is not None]
    height = bottom - top + _LEGEND_HEIGHT + _LISTED_HEIGHT * len(listed)
    view = f"{left:.0f} {top:.0f} {right - left:.0f} {height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="{right - left:.0f}" height="{height:.0f}" role="img">',
        "<title>Topology: which clusters feed which</title>",
        f"<style>{_STYLE}</style>",
        "<defs>",
        *(_head(style) for style, _ in _LEGEND_TEXTS),
        "</defs>",
        f'<rect class="page" x="{left:.0f}" y="{top:.0f}" width="{right - left:.0f}" height="{height:.0f}"/>',
        *(_arrow(arrow, _class_of(topology, arrow.flow)) for arrow in arrows),
        *(_box(node, places[node.key]) for node in topology.nodes),
        *(part for label in labels for part in _label(label)),
        *_listed(listed, left + _PADDING, bottom),
        *_legend(left + _PADDING, bottom + _LISTED_HEIGHT * len(listed) + _PADDING),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def box_places(nodes: Sequence[Node]) -> dict[str, Point]:
    """Return the centre of each box: on an ellipse, the first one on the left."""
    height = 260 + 70 * max(2, len(nodes))
    radius_x, radius_y = _WIDTH / 2 - _BOX_WIDTH / 2 - _MARGIN, height / 2 - _BOX_HEIGHT / 2 - _MARGIN
    angles = [math.pi + 2 * math.pi * number / len(nodes) for number in range(len(nodes))]
    return {
        node.key: (_WIDTH / 2 + radius_x * math.cos(angle), height / 2 + radius_y * math.sin(angle))
        for node, angle in zip(nodes, angles, strict=True)
    }


def arrows_of(flows: Sequence[Flow], places: Mapping[str, Point]) -> list[Arrow]:
    """Return an arrow for each flow; those between the same two boxes are bent differently."""
    used: dict[tuple[str, str], int] = {}
    arrows = []
    for flow in flows:
        number = used.get((flow.source, flow.target), 0)
        used[flow.source, flow.target] = number + 1
        bend = 34 + 44 * number
        start, end = places[flow.source], places[flow.target]
        curve = _loop(start, bend) if flow.source == flow.target else _bent(start, end, bend)
        arrows.append(Arrow(flow, _path(curve), tuple(_on_curve(curve, at / _CURVE_POINTS) for at in range(_CURVE_POINTS + 1))))
    return arrows


def labels_of(arrows: Sequence[Arrow], places: Mapping[str, Point]) -> list[Label]:
    """Return a label for each arrow, on it."""
    taken = [Rect(x, y, _BOX_WIDTH, _BOX_HEIGHT) for x, y in places.values()]
    labels: list[Label] = []
    for arrow in arrows:
        others = [other.points for other in arrows if other is not arrow]
        lines = tuple(_short(text) for text in (f"{arrow.flow.kind} {arrow.flow.name}", _topics(arrow.flow)))
        size = max(map(len, lines)) * _CHARACTER_WIDTH, len(lines) * _LINE_HEIGHT
        place, covered = place_on(arrow.points, size, others, taken)
        number = None
        if covered:
            number = 1 + sum(label.number is not None for label in labels)
            place, _ = place_on(arrow.points, _NUMBER_SIZE, others, taken)
        taken.append(place)
        labels.append(Label(arrow.flow, lines, place, number))
    return labels


def _bent(start: Point, end: Point, bend: float) -> tuple[Point, ...]:
    """Return the control points of a quadratic curve between the edges of two boxes."""
    across = (-(end[1] - start[1]), end[0] - start[0])
    length = math.hypot(*across)
    control = (
        (start[0] + end[0]) / 2 + across[0] / length * bend * 2,
        (start[1] + end[1]) / 2 + across[1] / length * bend * 2,
    )
    return _edge(start, control), control, _edge(end, control)


def _loop(centre: Point, bend: float) -> tuple[Point, ...]:
    """Return the control points of a cubic curve from a box to itself."""
    (x, y), half = centre, _BOX_HEIGHT / 2
    return (x - 30, y - half), (x - 70, y - 90 - bend), (x + 70, y - 90 - bend), (x + 30, y - half)


def _path(curve: Sequence[Point]) -> str:
    first, *rest = [f"{x:.0f} {y:.0f}" for x, y in curve]
    return f"M{first}{'Q' if len(rest) == 2 else 'C'}{' '.join(rest)}"


def _on_curve(curve: Sequence[Point], share: float) -> Point:
    """Return the point of a Bézier curve at a share of its way (de Casteljau)."""
    points = list(curve)
    while len(points) > 1:
        points = [
            (left[0] + (right[0] - left[0]) * share, left[1] + (right[1] - left[1]) * share) for left, right in pairwise(points)
        ]
    return points[0]


def _edge(centre: Point, toward: Point) -> Point:
    """Return the point at which the line from the centre of a box leaves it."""
    dx, dy = toward[0] - centre[0], toward[1] - centre[1]
    share = min(_BOX_WIDTH / 2 / abs(dx) if dx else math.inf, _BOX_HEIGHT / 2 / abs(dy) if dy else math.inf)
    return centre[0] + dx * share, centre[1] + dy * share


def _bounds(arrows: Sequence[Arrow], labels: Sequence[Label], places: Mapping[str, Point]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of everything above the list and the legend."""
    rects = [label.place for label in labels] + [Rect(x, y, _BOX_WIDTH, _BOX_HEIGHT) for x, y in places.values()]
    points = [point for arrow in arrows for point in arrow.points]
    for sign in (-1, 1):
        points += [(rect.x + sign * rect.width / 2, rect.y + sign * rect.height / 2) for rect in rects]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(0.0, *xs) - _PADDING, min(ys) - _PADDING, max(float(_WIDTH), *xs) + _PADDING, max(ys) + _PADDING


def _head(style: str) -> str:
    return (
        f'<marker id="head-{style}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11" markerHeight="11" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="head-{style}" d="M0 0L10 5L0 10z"/></marker>'
    )


def _arrow(arrow: Arrow, style: str) -> str:
    title = escape(_whole(arrow.flow))
    return f'<path class="{style}" d="{arrow.path}" marker-end="url(#head-{style})"><title>{title}</title></path>'


def _label(label: Label) -> Iterator[str]:
    place = label.place
    x, y = place.x - place.width / 2, place.y - place.height / 2
    style, lines = ("under", label.lines) if label.number is None else ("number", (str(label.number),))
    yield f'<rect class="{style}" x="{x:.0f}" y="{y:.0f}" width="{place.width:.0f}" height="{place.height:.0f}" rx="4"/>'
    first = place.y - _LINE_HEIGHT * (len(lines) - 1) / 2 + 4
    for line, text in enumerate(lines):
        at = first + _LINE_HEIGHT * line
        yield f'<text class="label" text-anchor="middle" x="{place.x:.0f}" y="{at:.0f}">{escape(text)}</text>'


def _listed(labels: Sequence[Label], left: float, top: float) -> Iterator[str]:
    """Yield a line for each label that is a number in the picture."""
    for line, label in enumerate(labels, start=1):
        text = escape(_short(f"{label.number}: {_whole(label.flow)}", _LONGEST_LISTED))
        yield f'<text class="small" x="{left:.0f}" y="{top + _LISTED_HEIGHT * line - 4:.0f}">{text}</text>'


def _box(node: Node, centre: Point) -> str:
    x, y = centre[0] - _BOX_WIDTH / 2, centre[1] - _BOX_HEIGHT / 2
    addresses = ", ".join(node.addresses)
    title = escape(f"{node.kind} {node.title}: {addresses}")
    texts = (("", -3, _short(f"{node.kind} {node.title}", 22)), ("small", 14, _short(addresses, 26)))
    lines = "".join(
        f'<text class="{style}" text-anchor="middle" x="{centre[0]:.0f}" y="{centre[1] + below:.0f}">{escape(text)}</text>'
        for style, below, text in texts
    )
    box = f'<rect class="{node.kind}" x="{x:.0f}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
    return f"<g><title>{title}</title>{box}{lines}</g>"


def _legend(left: float, top: float) -> Iterator[str]:
    for number, (style, text) in enumerate(_LEGEND_TEXTS):
        x, y = left + 440 * (number % 2), top + 28 * (number // 2)
        yield f'<path class="{style}" d="M{x:.0f} {y:.0f}H{x + 50:.0f}" marker-end="url(#head-{style})"/>'
        yield f'<text class="small" x="{x + 62:.0f}" y="{y + 4:.0f}">{escape(text)}</text>'


def _class_of(topology: Topology, flow: Flow) -> str:
    is_in_ring = any(flow in ring.flows for ring in topology.rings)
    is_twice = any(flow in fed.flows for fed in topology.fed_twice)
    return "both" if is_in_ring and is_twice else "ring" if is_in_ring else "twice" if is_twice else "flow"


def _topics(flow: Flow) -> str:
    return f"{', '.join(flow.include)} as {flow.target_name}"


def _whole(flow: Flow) -> str:
    return f"{flow.kind} {flow.name}: {_topics(flow)}"


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

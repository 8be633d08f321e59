"""The plot for people who do not read tables: CPU seconds per GB and MB/s of every peer, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.medians import standings, titles_of
from benchmarks.peers.peer_registry import OURS
from benchmarks.results import Result

_OURS_COLOR, _OTHERS = "#c8442c", ("#2f4b7c", "#6b8fb5", "#7a8b6f", "#b0a565", "#8a7a93", "#9aa3ab", "#c9c4b8")
_PANELS = (("CPU seconds per GB (less is better)", "cpu_s_per_gb"), ("MB/s (more is better)", "mb_per_s"))


def write_plot(path: Path, results: Sequence[Result]) -> None:
    """Write an SVG. A peer without a figure on a corpus over a link has no bar there."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(_PANELS), 1, figsize=(11, 8), layout="constrained")
    for panel, (title, name) in zip(axes, _PANELS, strict=True):
        _draw(panel, title, name, results)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw(panel: Any, heading: str, name: str, results: Sequence[Result]) -> None:
    titles = titles_of(results)
    peers = list(dict.fromkeys(result.peer for result in results))
    others = iter(_OTHERS)
    for i, peer in enumerate(peers):
        color = _OURS_COLOR if peer == OURS else next(others)
        places, heights = [], []
        for j, title in enumerate(titles):
            peer_standing = next((standing for standing in standings(results, title) if standing.peer == peer), None)
            median = None if peer_standing is None else peer_standing.median(lambda result: float(getattr(result, name)))
            if median is not None:
                places.append(j + (i - (len(peers) - 1) / 2) * 0.8 / len(peers))
                heights.append(median)
        bars = panel.bar(places, heights, 0.8 / len(peers), label=peer, color=color)
        panel.bar_label(bars, fmt="%.3g", fontsize=7, padding=1)
    if panel.patches:
        panel.set_yscale("log")
        panel.set_ylim(bottom=min(1.0, *(bar.get_height() for bar in panel.patches)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
    panel.set_title(heading, loc="left", fontsize=11)
    panel.set_xticks(range(len(titles)), [title.replace(", ", "\n") for title in titles])
    panel.spines[["top", "right"]].set_visible(False)

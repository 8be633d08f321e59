"""Order of the pages. A page that is not named here becomes a guide, so that new ones need no entry."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "install.md", "tour.md", "concepts.md"),
    "Guides": ("security.md", "topics.md", "groups.md", "flow.md", "monitoring.md", "preflight.md", "verify.md", "quarantine.md"),
    "Where it runs": ("spark-submit.md", "databricks.md", "object-stores.md"),
    "Operations": ("operations.md", "sources.md"),
    "MirrorMaker 2": ("comparison.md", "moving.md"),
    "Reference": (),
    "Design": ("design/architecture.md", "design/exactly-once.md"),
    "Evidence": ("benchmarks.md", "performance.md", "scale.md", "faults.md", "fuzzing.md"),
}
"""Titles come from the pages. Those that are not there (yet) are left out."""


def nav_of(docs: Path, generated: Iterable[str]) -> list[dict[str, Any]]:
    there = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if "site" not in path.relative_to(docs).parts)
    named = {page for pages in SECTIONS.values() for page in pages}
    sections = {title: [page for page in pages if page in there] for title, pages in SECTIONS.items()}
    sections["Reference"] += generated
    for page in there:
        if page not in named:
            sections["Design" if page.startswith("design/") else "Guides"].append(page)
    return [{title: pages} for title, pages in sections.items()]

"""Order of the pages: one section per folder of `docs/`. A page that is not named here comes last in its section."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tutorial": ("Tutorial", ("tour",)),
    "how-to": ("How-to guides", ()),
    "concepts": ("Concepts", ("overview", "sources", "preserved-offsets", "comparison", "cluster-mirroring")),
    "reference": (
        "Reference",
        (
            "settings",
            "archive-settings",
            "restore-settings",
            "commands",
            "python",
            "client-properties",
            "sign-in-errors",
            "acls",
            "tables",
            "errors",
            "error-remedies",
            "metrics",
            "preflight",
            "verify",
            "consumer-groups",
            "kafka-batches",
            "kafka-batches-options",
            "kafka-archive",
            "archive-format",
            "compatibility",
            "preserved-readers",
            "benchmarks",
            "performance",
            "scale",
            "faults",
        ),
    ),
    "design": (
        "Design",
        (
            "architecture",
            "exactly-once",
            "preserved-offsets",
            "archive",
            "wire",
            "spark-and-delta",
            "waits",
            "glossary",
            "tests",
            "fuzzing",
            "releasing",
        ),
    ),
}
"""Title and first pages of each folder. Titles of pages come from the pages."""

GROUPS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "how-to": (
        ("Set up and check", ("install", "preflight", "verify", "spark-submit", "databricks", "object-stores")),
        (
            "Operate",
            ("operations", "monitoring", "runbooks", "topics", "flow", "quarantine", "coalescing", "distance", "topology"),
        ),
        ("Move and fail over", ("groups", "failover", "migrate", "moving", "acls", "quotas", "schemas")),
        (
            "Sign in",
            (
                "security",
                "confluent-cloud",
                "amazon-msk",
                "event-hubs",
                "google-managed-kafka",
                "aiven",
                "strimzi",
                "cloudera",
            ),
        ),
        ("Archive and use the data", ("archive", "restore", "offset-map", "batches", "batch-client")),
    ),
}
"""Groups of pages within a folder, with their titles and pages. A page in none of them comes first in its section."""


def nav_of(docs: Path, generated: Iterable[str]) -> list[Any]:
    """Return the navigation of mkdocs: the start page, then the sections in order."""
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(generated)
    navigation: list[Any] = [page for page in sorted(pages) if "/" not in page]
    for folder, (title, first) in SECTIONS.items():
        order = [f"{folder}/{name}.md" for name in first]
        section: list[Any] = sorted(page for page in pages if page.startswith(f"{folder}/"))
        section.sort(key=lambda page: order.index(page) if page in order else len(order))
        for group, names in GROUPS.get(folder, ()):
            grouped = [f"{folder}/{name}.md" for name in names]
            section = [page for page in section if page not in grouped]
            section.append({group: grouped})
        navigation.append({title: section})
    return navigation

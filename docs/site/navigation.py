"""Order of the pages: one section per folder of `docs/`. A page that is not named here comes last in its section."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tutorial": ("Tutorial", ("tour",)),
    "how-to": (
        "How-to guides",
        (
            "install",
            "preflight",
            "operations",
            "monitoring",
            "verify",
            "archive",
            "restore",
            "groups",
            "acls",
            "schemas",
            "failover",
            "moving",
            "topics",
            "flow",
            "quarantine",
            "coalescing",
            "security",
            "confluent-cloud",
            "amazon-msk",
            "event-hubs",
            "google-managed-kafka",
            "aiven",
            "strimzi",
            "cloudera",
            "spark-submit",
            "databricks",
            "object-stores",
            "offset-map",
            "batches",
            "batch-client",
        ),
    ),
    "concepts": ("Concepts", ("overview", "sources", "preserved-offsets", "comparison")),
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


def nav_of(docs: Path, generated: Iterable[str]) -> list[Any]:
    """Return the navigation of mkdocs: the start page, then the sections in order."""
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(generated)
    navigation: list[Any] = [page for page in sorted(pages) if "/" not in page]
    for folder, (title, first) in SECTIONS.items():
        order = [f"{folder}/{name}.md" for name in first]
        section = sorted(page for page in pages if page.startswith(f"{folder}/"))
        navigation.append({title: sorted(section, key=lambda page: order.index(page) if page in order else len(order))})
    return navigation

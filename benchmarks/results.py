"""What one run of one peer came to, and its place in the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    peer: str
    corpus: str
    run: int
    link: Link = field(default_factory=Link)

    @property
    def title(self) -> str:
        """Return the corpus and the link: results with the same title are compared."""
        return ", ".join(part for part in (self.corpus, str(self.link)) if part)

    def as_row(self) -> dict[str, Any]:
        """Return all fields, with those of the link in its place."""
        row: dict[str, Any] = {}
        for name, value in asdict(self).items():
            row |= value if name == "link" else {name: value}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(_Run):
    """CPU is that of the whole process tree in the steady window; sizes and rates are bytes of the source's log, in 10⁶, 10⁹.

    `peak_mb`: PSS of the process tree. `startup_s`, `startup_cpu_s`: from the start of the process to the first bytes in the
    target's log. `seconds`: from there to the last ones. `log_size_ratio`: of the target's log to the source's. `difference`:
    empty where the copy is equal.
    """

    mb_per_s: float
    cpu_s_per_gb: float
    peak_mb: float
    equal: bool
    difference: str
    startup_s: float
    startup_cpu_s: float
    seconds: float
    window_s: float
    window_share: float
    micro_batches: int | None
    source_broker_cpu_s_per_gb: float
    target_broker_cpu_s_per_gb: float
    log_size_ratio: float
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Run):
    """A peer that could not run, or did not finish; never a figure."""

    failed: str


Result = Measured | Failed


def write_json(path: Path, results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.as_row() for result in results], indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""What one run of one peer came to, and its place in the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """CPU is that of the whole process tree in the steady window; sizes and rates are bytes of the source's log, in 10⁶, 10⁹.

    `startup_s`, `startup_cpu_s`: from the start of the process to the first bytes in the target's log. `seconds`: from there
    to the last ones. `log_size_ratio`: of the target's log to the source's. `difference`: empty where the copy is equal.
    """

    peer: str
    corpus: str
    run: int
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

    def as_row(self) -> dict[str, Any]:
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A peer that could not run, or did not finish; never a figure."""

    peer: str
    corpus: str
    run: int
    failed: str

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


Result = Measured | Failed


def write_json(path: Path, results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.as_row() for result in results], indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""The tables that are printed: one for each corpus, medians over the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.medians import Standing, corpora_of, standings
from benchmarks.peers.peer_registry import OURS
from benchmarks.results import Measured, Result

Figure = Callable[[Measured], float]

_COLUMNS: tuple[tuple[str, Figure, str], ...] = (
    ("MB/s", lambda one: one.mb_per_s, ".1f"),
    ("CPU\ns/GB", lambda one: one.cpu_s_per_gb, ".2f"),
    ("peak\nMB", lambda one: one.peak_mb, ".0f"),
    ("start-up\ns", lambda one: one.startup_s, ".1f"),
    ("start-up\nCPU s", lambda one: one.startup_cpu_s, ".1f"),
    ("source\nbroker", lambda one: one.source_broker_cpu_s_per_gb, ".2f"),
    ("target\nbroker", lambda one: one.target_broker_cpu_s_per_gb, ".2f"),
    ("log\nsize", lambda one: one.log_size_ratio, ".3f"),
)


def print_tables(results: Sequence[Result], console: Console) -> None:
    for corpus in corpora_of(results):
        found = standings(results, corpus)
        console.print(corpus_table(corpus, found))
        for one in found:
            for remark in one.remarks:
                console.print(f"  {one.peer}: {remark}", markup=False, highlight=False)


def corpus_table(corpus: str, found: Sequence[Standing]) -> Table:
    """CPU s/GB of the brokers as well; `× ours`: CPU of the peer by ours, and our rate by the peer's."""
    table = Table(title=f"{corpus}: medians, CPU seconds per GB of the source's log", title_justify="left")
    table.add_column("peer", no_wrap=True)
    for heading in (*(name for name, _, _ in _COLUMNS), "CPU\n÷ ours", "our MB/s\n÷ its", "equal", "runs"):
        table.add_column(heading, justify="right")
    ours = next((one for one in found if one.peer == OURS), None)
    for one in found:
        table.add_row(one.peer, *_cells(one, ours))
    return table


def _cells(one: Standing, ours: Standing | None) -> list[str]:
    runs = f"{len(one.measured)}" + (f", {len(one.failed)} failed" if one.failed else "")
    if not one.measured:
        return [*("failed" if i == 0 else "–" for i in range(len(_COLUMNS))), "–", "–", "–", runs]
    cells = [format(one.median(figure), form) for _, figure, form in _COLUMNS]
    cpu = _ratio(one, ours, lambda measured: measured.cpu_s_per_gb)
    rate = _ratio(ours, one, lambda measured: measured.mb_per_s)
    return [*cells, cpu, rate, "yes" if one.is_equal else "NO", runs]


def _ratio(above: Standing | None, below: Standing | None, figure: Figure) -> str:
    over = None if above is None else above.median(figure)
    under = None if below is None else below.median(figure)
    return "–" if over is None or not under else f"{over / under:.1f}"

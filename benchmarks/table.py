"""The tables that are printed: one for each corpus and link, medians over the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.medians import Standing, standings, titles_of
from benchmarks.peers.peer_registry import OURS
from benchmarks.results import Measured, Result

Figure = Callable[[Measured], float]

_COLUMNS: tuple[tuple[str, Figure, str], ...] = (
    ("MB/s", lambda result: result.mb_per_s, ".1f"),
    ("CPU\ns/GB", lambda result: result.cpu_s_per_gb, ".2f"),
    ("peak\nMB", lambda result: result.peak_mb, ".0f"),
    ("start-up\ns", lambda result: result.startup_s, ".1f"),
    ("start-up\nCPU s", lambda result: result.startup_cpu_s, ".1f"),
    ("source\nbroker", lambda result: result.source_broker_cpu_s_per_gb, ".2f"),
    ("target\nbroker", lambda result: result.target_broker_cpu_s_per_gb, ".2f"),
    ("log\nsize", lambda result: result.log_size_ratio, ".3f"),
)


def print_tables(results: Sequence[Result], console: Console) -> None:
    for title in titles_of(results):
        title_standings = standings(results, title)
        console.print(standings_table(title, title_standings))
        for result in title_standings:
            for remark in result.remarks:
                console.print(f"  {result.peer}: {remark}", markup=False, highlight=False)


def standings_table(title: str, title_standings: Sequence[Standing]) -> Table:
    """CPU s/GB of the brokers as well; `× ours`: CPU of the peer by ours, and our rate by the peer's."""
    table = Table(title=f"{title}: medians, CPU seconds per GB of the source's log", title_justify="left")
    table.add_column("peer", no_wrap=True)
    for heading in (*(name for name, _, _ in _COLUMNS), "CPU\n÷ ours", "our MB/s\n÷ its", "equal", "runs"):
        table.add_column(heading, justify="right")
    ours = next((result for result in title_standings if result.peer == OURS), None)
    for result in title_standings:
        table.add_row(result.peer, *_cells(result, ours))
    return table


def _cells(standing: Standing, ours: Standing | None) -> list[str]:
    runs = f"{len(standing.measured)}" + (f", {len(standing.failed)} failed" if standing.failed else "")
    if not standing.measured:
        return [*("failed" if i == 0 else "–" for i in range(len(_COLUMNS))), "–", "–", "–", runs]
    cells = [format(standing.median(figure), form) for _, figure, form in _COLUMNS]
    cpu = _ratio(standing, ours, lambda measured: measured.cpu_s_per_gb)
    rate = _ratio(ours, standing, lambda measured: measured.mb_per_s)
    return [*cells, cpu, rate, "yes" if standing.is_equal else "NO", runs]


def _ratio(above: Standing | None, below: Standing | None, figure: Figure) -> str:
    over = None if above is None else above.median(figure)
    under = None if below is None else below.median(figure)
    return "–" if over is None or not under else f"{over / under:.1f}"

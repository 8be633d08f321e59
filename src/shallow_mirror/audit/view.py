"""Driver, for the cli: how far an audit is, as a bar on a terminal and as lines elsewhere; its report as sentences or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from shallow_mirror.audit.report import Report
from shallow_mirror.audit.run import AuditProgress, OnProgress

LINES_EVERY_S = 5.0


def show(report: Report, *, as_json: bool) -> None:
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))


@contextmanager
def progress_on(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """Until the block ends. `console` is of standard error."""
    if console.is_terminal:
        with _bar(console) as on_progress:
            yield on_progress
    else:
        yield _lines(console, clock)


@contextmanager
def _bar(console: Console) -> Iterator[OnProgress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("verify", total=None)

        def on_progress(at: AuditProgress) -> None:
            progress.update(task, description=_text(at), completed=at.done_offsets, total=at.total_offsets)

        yield on_progress


def _lines(console: Console, clock: Callable[[], float]) -> OnProgress:
    last = clock()

    def on_progress(at: AuditProgress) -> None:
        nonlocal last
        if clock() - last >= LINES_EVERY_S:
            last = clock()
            percent = 100 * at.done_offsets // max(1, at.total_offsets)
            print(f"verify: {percent} % of {at.total_offsets:,} offsets; {_text(at)}", file=console.file, flush=True)

    return on_progress


def _text(at: AuditProgress) -> str:
    found = "no difference" if at.difference_count == 0 else f"{at.difference_count} differences"
    return f"{at.place}, {at.read_bytes / 1e6:,.0f} MB read, {found}"

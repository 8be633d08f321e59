"""Driver, for the cli: progress of long reads: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY_S = 5.0


class OffsetProgress(Protocol):
    """Progress in offsets. Its text names the position and the findings so far."""

    @property
    def done_offsets(self) -> int: ...
    @property
    def total_offsets(self) -> int: ...
    def __str__(self) -> str: ...


Show = Callable[[OffsetProgress], None]


@contextmanager
def progress_on(console: Console, command: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Show progress until the block ends. `console`: of standard error."""
    if console.is_terminal:
        with _bar(console, command) as show:
            yield show
    else:
        yield _lines(console, command, clock)


@contextmanager
def _bar(console: Console, command: str) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(command, total=None)

        def show(at: OffsetProgress) -> None:
            progress.update(task, description=str(at), completed=at.done_offsets, total=at.total_offsets)

        yield show


def _lines(console: Console, command: str, clock: Callable[[], float]) -> Show:
    last = clock()

    def show(at: OffsetProgress) -> None:
        nonlocal last
        if clock() - last >= LINES_EVERY_S:
            last = clock()
            percent = 100 * at.done_offsets // max(1, at.total_offsets)
            print(f"{command}: {percent} % of {at.total_offsets:,} offsets; {at}", file=console.file, flush=True)

    return show

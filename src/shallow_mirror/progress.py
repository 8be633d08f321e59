"""Driver, for the cli: progress of long reads: a bar on a terminal, lines elsewhere; and lines of commands that wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY_S = 5.0
SILENCE_S = 15.0
"""After which a command that has nothing new to say repeats what it waits for."""
_LOOK_S = 1.0


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


class Spoken:
    """Lines of a command on standard error. While nothing new is said, the last line is repeated, with the time so far.

    For any thread. Leaving the block ends the repetitions.
    """

    def __init__(self, awaited: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Say nothing yet: `awaited` is repeated until the first line."""
        self._clock, self._lock, self._stop = clock, threading.Lock(), threading.Event()
        self._awaited, self._detail = awaited, ""
        self._since_s = self._said_at_s = clock()
        self._thread = threading.Thread(target=self._run, name="silence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def says(self, sentence: str) -> None:
        """Print a line; it is repeated until the next one."""
        with self._lock:
            self._print(sentence)
            self._awaited, self._detail, self._since_s = sentence.removesuffix(" ..."), "", self._said_at_s

    def awaits(self, awaited: str) -> None:
        """Say later that this is waited for, if it takes long."""
        with self._lock:
            self._awaited, self._detail, self._since_s = awaited, "", self._clock()

    def progress(self, at: OffsetProgress) -> None:
        percent = 100 * at.done_offsets // max(1, at.total_offsets)
        with self._lock:
            self._detail = f" ({percent} % of {at.total_offsets:,} offsets; {at})"

    def break_silence(self) -> None:
        """Repeat the awaited step if nothing was said for SILENCE_S."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._said_at_s >= SILENCE_S:
                self._print(f"{self._awaited}: for {now_s - self._since_s:.0f} s so far{self._detail}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self._said_at_s = self._clock()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.break_silence()

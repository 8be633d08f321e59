"""Handling of Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import typer

from shallow_mirror.commands.exit_codes import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from typing import Protocol

    class Stoppable(Protocol):
        def stop(self) -> None: ...


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals(run: Stoppable) -> None:
    """Stop a mirror or an archive at the first signal; the second one ends the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # a second signal ends this process at once, and Spark with it
        run.stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)


@contextlib.contextmanager
def interruptible(state: str) -> Iterator[None]:
    """End the command at Ctrl-C and SIGTERM with exit code 130. `state`: what an interrupted command leaves, for the message."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {state}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None

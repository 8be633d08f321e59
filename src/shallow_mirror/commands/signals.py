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
    from shallow_mirror.streaming.runner.mirror import Mirror

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals(mirror: Mirror) -> None:
    """Stop the mirror at the first signal; the second one ends the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # a second signal ends this process at once, and Spark with it
        mirror.stop()

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

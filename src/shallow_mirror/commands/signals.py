"""Ctrl-C and SIGTERM."""

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
    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in _STOP_SIGNALS:
            signal.signal(one, signal.SIG_DFL)  # a second signal ends this process at once, and Spark with it
        mirror.stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)


@contextlib.contextmanager
def interruptible(left: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command; `left` says how it leaves things."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {left}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None

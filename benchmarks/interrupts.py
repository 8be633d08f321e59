"""SIGTERM as Ctrl-C: what a benchmark started is ended on the way out."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_on_sigterm() -> None:
    """Of this process; SIGINT as well, which a shell has its background jobs ignore."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)

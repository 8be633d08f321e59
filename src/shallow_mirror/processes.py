"""Everywhere: whether a process of this machine runs."""

from __future__ import annotations

import os


def is_process(pid: int) -> bool:
    """Return whether there is a process with this id, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

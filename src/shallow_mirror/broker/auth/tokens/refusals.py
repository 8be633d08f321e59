"""Everywhere: which HTTP statuses of a token source pass by themselves. Pure."""

from __future__ import annotations

_PASSING = {408, 425, 429}


def may_pass(status: int) -> bool:
    """Return whether to ask again later. Refused credentials are not sent again: providers lock accounts."""
    return status >= 500 or status in _PASSING

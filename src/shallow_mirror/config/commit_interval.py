"""Pure: the part of a transaction's timeout that tasks may use, and the commit interval that fits into it."""

from __future__ import annotations

TASK_SHARE = 0.75
"""Part of the transaction timeout that tasks may use; the rest is for the decision and EndTxn."""

DEFAULT_COMMIT_INTERVAL_S = 20
DEFAULT_COMMIT_INTERVAL = f"{DEFAULT_COMMIT_INTERVAL_S} seconds"
_MIN_INTERVALS_PER_TIMEOUT = 3
"""A default that does not fit into a short timeout is this part of it."""


def commit_interval_problem(interval_s: float, transaction_timeout_ms: int) -> str | None:
    """Return why slots cannot write for so long in one transaction; None where they can."""
    share_s = transaction_timeout_ms * TASK_SHARE / 1000
    if interval_s < share_s:
        return None
    return (
        f"{interval_s:g} seconds are not below {share_s:g}, the {TASK_SHARE:.0%} of write.transaction_timeout_ms="
        f"{transaction_timeout_ms} that slots may take: write less, or raise write.transaction_timeout_ms"
    )


def default_commit_interval(transaction_timeout_ms: int) -> str:
    """Return the interval of a mirror file that has none: `DEFAULT_COMMIT_INTERVAL`, less where the timeout is short."""
    short_ms = transaction_timeout_ms / _MIN_INTERVALS_PER_TIMEOUT
    return DEFAULT_COMMIT_INTERVAL if short_ms >= DEFAULT_COMMIT_INTERVAL_S * 1000 else f"{short_ms:.0f} ms"

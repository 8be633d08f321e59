"""PURE: how much of a transaction's timeout the tasks of a micro-batch may take, and how much of that one slot."""

from __future__ import annotations

TASK_SHARE = 0.75
"""Part of the transaction timeout that tasks may use; the rest is for the decision and EndTxn."""

DEFAULT_COMMIT_INTERVAL, DEFAULT_COMMIT_INTERVAL_MS = "20 seconds", 20_000
LEAST_TASK_MS = 5_000.0
"""A task has so much time however many waves there are: less, and a broker that starts ends every one."""
_WRITING_SHARE = 2 / 3
_LEAST_INTERVALS = 3
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
    short_ms = transaction_timeout_ms / _LEAST_INTERVALS
    return DEFAULT_COMMIT_INTERVAL if short_ms >= DEFAULT_COMMIT_INTERVAL_MS else f"{short_ms:.0f} ms"


class SlotTime:
    """How long a slot of the next round may take, where there are fewer free cores than slots: tasks then run in waves.

    The transactions of the first wave stay open until the last one is done. A task cannot know when the first one began, since
    clocks of different machines are never compared; so each gets its share of the time, by as many waves as were seen. Other
    work of the cluster may hold any number of cores: before a round was seen every slot may have to wait for all others.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waves: int | None = None

    def time_left_ms(self, transaction_timeout_ms: int) -> float:
        """Return the deadline of a task, from its own start."""
        share_ms = transaction_timeout_ms * TASK_SHARE
        return share_ms if self._waves is None else max(min(LEAST_TASK_MS, share_ms), share_ms / self._waves)

    def commit_interval_ms(self, configured_ms: float, transaction_timeout_ms: int) -> float:
        """Return after which time a slot hands over what it has; the rest of its time is for acknowledgements and receipt."""
        share_ms = transaction_timeout_ms * TASK_SHARE
        waves = self._slots if self._waves is None else self._waves
        return min(configured_ms, share_ms / waves * _WRITING_SHARE) if waves > 1 else configured_ms

    def saw(self, all_tasks_ms: float, slowest_ms: float, tasks: int) -> None:
        """Take over what a round took, and its slowest task. `tasks`: how many it had.

        Spark's own time counts as a wave: a number that is too high makes slots end earlier, nothing else.
        """
        if tasks and slowest_ms > 0:
            self._waves = max(1, round(min(float(tasks), all_tasks_ms / slowest_ms)))

    def record_failed_round(self, all_tasks_ms: float, time_left_ms: float, tasks: int) -> None:
        """Take over what a round took of which a task failed: how long each took is not known, but none more than `time_left_ms`.

        A round that failed early says nothing about waves.
        """
        if all_tasks_ms > time_left_ms:
            self.saw(all_tasks_ms, time_left_ms, tasks)

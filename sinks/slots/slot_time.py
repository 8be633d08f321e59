"""Pure: how much of a transaction's timeout the tasks of a micro-batch may take, and how much of that one slot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shallow_mirror.config.values import TASK_SHARE

LEAST_TASK_MS = 5_000.0
"""A task has so much time however many waves there are: less, and a broker that starts ends every one."""
_WRITING_SHARE = 2 / 3
_LEAST_WRITING_SHARE = 0.1
_IN_TURN = 1.5
"""A round that took so many times as long as its slowest task had tasks that waited for others."""


class SlotTime:
    """Time of a slot of the next round, also if there are fewer free cores than slots: tasks then run in waves.

    The transactions of the first wave stay open until the last one is done. A task cannot know when the first one began, since
    clocks of different machines are never compared; so each gets its share of the time, by as many waves as were seen. Other
    work of the cluster may hold any number of cores: before a round was seen every slot may have to wait for all others.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waves: int | None = None
        self._overhead_ms = 0.0
        """Time of a wave beyond the commit interval: the start of its tasks, the first answer, the last acknowledgement."""

    @property
    def is_one_wave(self) -> bool:
        """Return whether all tasks of the last round ran at once."""
        return self._waves == 1

    def time_left_ms(self, transaction_timeout_ms: int) -> float:
        """Return the deadline of a task, from its own start."""
        share_ms = transaction_timeout_ms * TASK_SHARE
        return share_ms if self._waves is None else max(min(LEAST_TASK_MS, share_ms), share_ms / self._waves)

    def commit_interval_ms(self, configured_ms: float, transaction_timeout_ms: int) -> float:
        """Return the time after which a slot hands over its results; the rest of its time is for acknowledgements and receipt."""
        waves = self._slots if self._waves is None else self._waves
        if waves <= 1:
            return configured_ms
        wave_ms = transaction_timeout_ms * TASK_SHARE / waves
        writing_ms = min(wave_ms * _WRITING_SHARE, wave_ms - self._overhead_ms)
        return min(configured_ms, max(writing_ms, wave_ms * _LEAST_WRITING_SHARE))

    def record_round(self, all_tasks_ms: float, task_ms: Sequence[float], commit_interval_ms: float) -> None:
        """Take over the durations of a round and of its tasks, which wrote for `commit_interval_ms` at the most.

        Cores that were never idle worked for as long as all tasks together. If the slowest task took about as long as the
        round, none waited for another. Spark's own time counts as that of a wave: a number that is too high makes slots end
        earlier, nothing else.
        """
        slowest_ms = max(task_ms, default=0.0)
        if slowest_ms <= 0:
            return
        in_turn = all_tasks_ms >= slowest_ms * _IN_TURN
        self._waves = math.ceil(min(len(task_ms), all_tasks_ms * len(task_ms) / sum(task_ms))) if in_turn else 1
        self._overhead_ms = max(0.0, all_tasks_ms / self._waves - commit_interval_ms)

    def record_failed_round(self, all_tasks_ms: float, time_left_ms: float, tasks: int) -> None:
        """Take over the duration of a round with a failed task: no task took more than `time_left_ms`.

        A round that failed early says nothing about waves.
        """
        if tasks and all_tasks_ms > time_left_ms:
            self._waves = max(1, round(min(float(tasks), all_tasks_ms / time_left_ms)))

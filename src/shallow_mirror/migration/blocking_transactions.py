"""Transactions of others that keep a mirror from the log ends: a wait for the mirror alone would never end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shallow_mirror.migration.conductor_ports import Clock, Effects
from shallow_mirror.migration.observations import LogEnds, LongTransactions, MappedEnd, open_sentence
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.migration.writing_producers import holders_sentence
from shallow_mirror.types import TopicPartition

LONG_S = 10.0
"""A transaction that is open for longer is named. It may be open for minutes, or for ever (KIP-664)."""


class BlockingTransactions:
    """Of one wave, during one step."""

    def __init__(self, effects: Effects, waiting: Waiting, clock: Clock) -> None:
        self._effects, self._waiting, self._clock = effects, waiting, clock
        self._at_origin, self._at_other = LongTransactions(LONG_S), LongTransactions(LONG_S)

    def wait(self, ends: LogEnds, mapped: Mapping[TopicPartition, MappedEnd], pause_s: float) -> bool:
        """Wait for `pause_s` for whoever has such transactions open. Return False if none is long. `ends`: of the origin."""
        effects, mirror = self._effects, self._effects.mirror_id
        now_s = self._clock.monotonic()
        # A mirror that reads committed records has nothing to do behind the begin of a transaction.
        held_back = [
            name
            for name in self._at_origin.look(ends, now_s)
            if name in mapped and ends[name].stable <= mapped[name].offset < ends[name].end
        ]
        other_ends = self._waiting.retried(effects.other_log_ends)
        # What it writes behind one is not visible, and it waits until it is. Its own transactions are long if its rounds are.
        hiding = self._at_other.look(other_ends, now_s)
        if held_back:
            request = (
                f"end the transactions that are open at {effects.origin_alias}: the mirror copies what lies in front of them"
            )
            self._waiting.for_somebody(request, self._sentence(ends, held_back, at_origin=True), pause_s)
        elif hiding:
            request = (
                f"keep the mirror {mirror} running, and end the transactions of others that are open at "
                f"{effects.other_alias}: its copies become visible behind them"
            )
            self._waiting.for_somebody(request, self._sentence(other_ends, hiding, at_origin=False), pause_s)
        return bool(held_back or hiding)

    def _sentence(self, ends: LogEnds, is_open: Sequence[TopicPartition], *, at_origin: bool) -> str:
        return open_sentence(ends, is_open) + holders_sentence(self._effects, is_open, at_origin=at_origin)

"""Pure: first offset at which a log of the source differs from its archive, found as in the truncation of a follower.

A follower asks the leader how far its own last leader epoch reaches (OffsetForLeaderEpoch, KIP-101). The leader answers with the
largest epoch that it has up to that one, and the offset where the next one begins. If the follower has that epoch, both logs
are equal up to the lower one of both ends. Otherwise it asks again for the largest epoch of its own below the answer (KIP-279).

The answer may be too low, never too high: then records that are archived already are archived again, and none is missing. It can
be too high where the source has deleted the epochs in question (its log starts behind the answer), and on compacted topics,
where the last batches of an epoch may be missing in the archive: `EpochHistory.floor` lowers it to what is certain there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shallow_mirror.types import EpochEnd


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Statement of one row about the log: offsets [start, end), and the leader epochs of its batches with their first offsets."""

    start: int
    end: int
    leader_epochs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The leader epochs of the archived log of one partition, rising, with their first offsets. `start` to `end`: of all rows.

    `row_starts`: first offsets of its rows, rising.
    """

    epochs: tuple[tuple[int, int], ...]
    start: int
    end: int
    row_starts: tuple[int, ...] = ()

    @classmethod
    def of_rows(cls, rows: Iterable[ArchivedRange]) -> EpochHistory:
        """Return the history of the rows of one log, in the order of offsets. Raises ValueError without a row."""
        ordered = sorted(rows, key=lambda row: (row.start, row.end))
        if not ordered:
            raise ValueError("a log without a row has no history")
        epochs: list[tuple[int, int]] = []
        for row in ordered:
            for epoch, start in row.leader_epochs:
                if epoch < 0 or not row.start <= start < row.end or (epochs and epochs[-1][0] == epoch):
                    continue
                # As a follower's cache of epochs: a lower epoch shows that those above it were of another log.
                while epochs and epochs[-1][0] >= epoch:
                    epochs.pop()
                epochs.append((epoch, start))
        starts = tuple(sorted({row.start for row in ordered}))
        return cls(tuple(epochs), ordered[0].start, max(row.end for row in ordered), starts)

    def last_below(self, end: int) -> int | None:
        """Return the leader epoch of the last batches in front of `end`; None if none is known."""
        return max((epoch for epoch, start in self.epochs if start < end), default=None)

    def last_up_to(self, leader_epoch: int, end: int) -> EpochEnd | None:
        """Return the largest epoch up to `leader_epoch` in front of `end`, and how far it reaches; None if there is none."""
        known = [(epoch, start) for epoch, start in self.epochs if start < end]
        below = [number for number, (epoch, _) in enumerate(known) if epoch <= leader_epoch]
        if not below:
            return None
        following = known[below[-1] + 1 :]
        return EpochEnd(known[below[-1]][0], following[0][1] if following else end)

    def floor(self, offset: int) -> int:
        """Return the start of the row with the last offset below `offset`. In front of it nothing was missing in the archive."""
        return max((start for start in self.row_starts if start < offset), default=offset)


class Divergence:
    """The search for one partition: `ask` the leader, `take` its answer, until there is nothing to ask.

    `offset`: the divergent offset, once `ask` is None: at most the end of the history, which means that the logs do not differ.
    None: it cannot be found out, and `reason` says why.
    """

    def __init__(self, history: EpochHistory, *, is_compacted: bool = False) -> None:
        self._history = history
        self._is_compacted = is_compacted
        self._end = history.end
        self.offset: int | None = None
        self.reason = ""
        self.ask = history.last_below(history.end)
        if self.ask is None:
            self.reason = "no archived batch has a leader epoch"

    def take(self, answer: EpochEnd) -> None:
        """Take the leader's answer to `ask`: the largest epoch that it has up to that one, and the end of it."""
        asked, self.ask = self.ask, None
        if asked is None:
            raise ValueError("nothing was asked")
        if answer.leader_epoch < 0 or answer.end < 0 or answer.leader_epoch > asked:
            self.reason = f"the leader does not know any leader epoch up to {asked}"
            return
        own = self._history.last_up_to(answer.leader_epoch, self._end)
        if own is None:
            # The leader has none of the archived epochs: all of them differ.
            first = self._history.epochs[0][1]
            self.offset = max(self._history.start, min(first, answer.end, self._end))
        elif own.leader_epoch == answer.leader_epoch:
            self.offset = self._lowered(own.end, answer.end)
        else:
            self._end = own.end
            self.ask = own.leader_epoch

    def _lowered(self, own_end: int, answered_end: int) -> int:
        """Return the lower end. An own end that another epoch sets may lie behind the epoch's last record on compacted topics."""
        if own_end > answered_end:
            return max(self._history.start, answered_end)
        if self._is_compacted and own_end < min(answered_end, self._history.end):
            return self._history.floor(own_end)
        return own_end

"""Pure: the numbered steps of the contract as points that a mirror passes, and the counting of points until one is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Right after the `nth` passing of `point` since the last passing of `after` (None: since it was asked for).

    `in_recovery`: passed by a start that finds a decision whose transactions nobody ended.
    """

    name: str
    point: str
    nth: int = 1
    after: str | None = None
    in_recovery: bool = False


SLOTS = 3
"""Slots of the mirrors that are harmed here: enough for something to happen between two slots."""

PLANNED = Step(name="1 Spark has planned", point="Planned")
OWNER_CHECKED = Step(name="2 ownership checked", point="TakeDecision")
INITIALISED = Step(name="3 first InitProducerId", point="task.initialised", after="TakeDecision")
PRODUCED = Step(name="4 first Produce", point="task.produced", after="TakeDecision")
RECEIPT = Step(name="4 first receipt", point="task.receipt", after="TakeDecision")
LAST_RECEIPT = Step(name="4 last receipt", point="task.receipt", nth=SLOTS, after="TakeDecision")
ANSWERED = Step(name="5 every slot answered", point="RunSlots")
DECIDED = Step(name="6 decided", point="Decide")
ENDED = tuple(
    Step(name=f"7 EndTxn of {number} of {SLOTS} slots", point="EndTxn", nth=number, after="Decide")
    for number in range(1, SLOTS + 1)
)
SETTLED = Step(name="7 first slot settled", point="AwaitVisible", after="Decide")
RETURNED = Step(name="7 all settled, not yet in Spark's checkpoint", point="Returned", after="Decide")
COMMITTED = Step(name="8 in Spark's checkpoint", point="Planned", after="Decide")

IN_MICRO_BATCH = (
    PLANNED,
    OWNER_CHECKED,
    INITIALISED,
    PRODUCED,
    RECEIPT,
    LAST_RECEIPT,
    ANSWERED,
    DECIDED,
    *ENDED,
    SETTLED,
    RETURNED,
    COMMITTED,
)
IN_RECOVERY = (
    Step(name="recovery: EndTxn of the first slot", point="EndTxn", in_recovery=True),
    Step(name="recovery: first slot settled", point="AwaitVisible", in_recovery=True),
    Step(name="recovery: first InitProducerId", point="InitProducerId", in_recovery=True),
    Step(name="recovery: settled", point="Settle", in_recovery=True),
    Step(name="recovery: nothing forgotten", point="AbortHangingTxns", in_recovery=True),
)
ALL = (*IN_MICRO_BATCH, *IN_RECOVERY)
IN_TASKS = (INITIALISED, PRODUCED, RECEIPT, LAST_RECEIPT)


class Awaited:
    """Counts points; says when the one that `step` means is passed."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._is_counting, self._passed = step.after is None, 0

    def is_reached_by(self, point: str) -> bool:
        """Return True once, and never again."""
        if self._is_counting and point == self._step.point:
            self._passed += 1
            return self._passed == self._step.nth
        if point == self._step.after and self._passed < self._step.nth:
            self._is_counting, self._passed = True, 0
        return False

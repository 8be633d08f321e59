"""Driver: the protocol of a micro-batch with one slot, in this process: how an operator's command copies something."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.run_guard import RunGuard
from shallow_mirror.sinks.kafka.protocol.txn_performer import TxnPerformer
from shallow_mirror.sinks.slot_values import MicroBatchOutcome, SlotResult

SINGLE_SLOT = 0

_ABORT_PATIENCE_MS = 5_000

Fill = Callable[[int, Deadline], SlotResult]
"""Do steps 3 to 5 of docs/design/exactly-once.md for a decision, in SINGLE_SLOT."""


class SingleSlot:
    """Micro-batches of one slot, by the owner of the map, after its recovery. `guard`: as `recover` has taken it."""

    def __init__(
        self,
        owner: LedgerOwner,
        performer: TxnPerformer,
        guard: RunGuard | None,
        *,
        transactional_id: str,
        transaction_timeout_ms: int,
        observer: Observer = observe_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._performer = performer
        self._guard = guard
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._observer = observer
        self._clock = clock

    def round(self, fill: Fill) -> MicroBatchOutcome:
        """Run one micro-batch with the single slot.

        Raises errors of a micro-batch; RetriableError if the transaction was not committed, and its rows were removed.
        """
        deadline = Deadline.after_ms(self._transaction_timeout_ms, self._clock)

        def perform(action: actions.Action) -> Any:
            match action:
                case actions.RunSlots(decision):
                    result = self._filled(fill, decision, deadline)
                    if self._guard is not None and result.txn is not None:
                        self._guard.require(deadline, is_begun_enough=False)
                    return (result,)
                case actions.Decide(_, rows):
                    return self._owner.decide(rows, highest_slot=SINGLE_SLOT)
                case _:
                    return self._performer.perform(action, deadline)

        outcome = actions.drive(actions.run_micro_batch(()), perform, self._observer)
        if outcome.not_committed:
            raise RetriableError("SLOT_NOT_COMMITTED", "nothing of this round was copied: run it again")
        return outcome

    def _filled(self, fill: Fill, decision: int, deadline: Deadline) -> SlotResult:
        try:
            return fill(decision, deadline)
        except MirrorError:
            self._owner.check_ownership()
            # Nothing is decided, so nothing is lost by an abort. Where it fails, the transaction ends by its timeout.
            with suppress(MirrorError):
                self._performer.perform(actions.InitProducerId(self._transactional_id), deadline.sooner(_ABORT_PATIENCE_MS))
            raise

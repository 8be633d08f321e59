"""Driver: the guard of a run: a transactional id that every run of the mirror initialises, also one with a copy of its tables.

Two copies of the tables do not fence each other: each run finds in its own table that it is the owner. Transactional ids alone
do not help either, because a slot that was fenced takes a new producer epoch. So a run decides only while the guard has the
producer epoch that this run took, as seen after the last InitProducerId of the transactions that are decided. A run that takes
the guard later fences these transactions after that, and then reads the receipts: it sees what they committed, or they never
commit. A run that has lost the guard takes it back in its next attempt, and reads the receipts: of two runs, the one that has not
decided anything ends.
"""

from __future__ import annotations

import logging

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.net import RUN_SUPERSEDED
from shallow_mirror.broker.produce.txn import BegunRequest, begin_describe_txn, describe_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, RetriableError
from shallow_mirror.sinks.kafka.targets.txn_ids import transactional_ids
from shallow_mirror.types import SlotTxn

_log = logging.getLogger(__name__)

_SUFFIX = "run"
"""Of the transactional id; those of slots end in numbers."""


class RunGuard:
    """The guard, for one attempt of a run. Nothing is ever written with its id, so its last transaction never blocks it."""

    def __init__(self, target: Cluster, mirror: str, transaction_timeout_ms: int) -> None:
        self.transactional_id = f"{mirror}-{_SUFFIX}"
        self._target, self._mirror = target, mirror
        self._transaction_timeout_ms = transaction_timeout_ms
        self._taken: SlotTxn | None = None
        self._begun: BegunRequest | None = None

    def take(self, deadline: Deadline) -> None:
        """Take the guard: no other run decides from now on. To be called before slots are fenced. Raises RetriableError."""
        self._taken = init_producer_id(self._target, self.transactional_id, self._transaction_timeout_ms, deadline)

    def slot_count(self, known: int, deadline: Deadline) -> int:
        """Return how many transactional ids of slots have to be fenced: another copy of the tables may know more than `known`."""
        count = max(known, 1)
        while self._is_any_used(transactional_ids(self._mirror, 2 * count)[count:], deadline):
            count *= 2
        return known if count == max(known, 1) else count

    def _is_any_used(self, names: list[str], deadline: Deadline) -> bool:
        try:
            begun = {name: begin_describe_txn(self._target, name, deadline) for name in names}
            states = [describe_txn(self._target, name, deadline, begun=begun[name]) for name in names]
        except ConfigError as error:  # an old broker, or ACLs that name the ids of this run one by one
            _log.debug("transactional ids of other runs are not known: %s", error)
            return False
        return any(state is not None for state in states)

    def begin(self, deadline: Deadline) -> None:
        """Ask who has the guard. The response counts for transactions that were initialised before."""
        self._begun = begin_describe_txn(self._target, self.transactional_id, deadline)

    def require(self, deadline: Deadline, *, is_begun_enough: bool) -> None:
        """Raise RetriableError if another run has taken the guard. Brokers before Kafka 3.0 do not say who has it.

        `is_begun_enough`: the response to `begin` counts for all transactions that are decided; otherwise it is asked again.
        """
        begun, self._begun = self._begun if is_begun_enough else None, None
        try:
            state = describe_txn(self._target, self.transactional_id, deadline, begun=begun)
        except BrokerTooOldError as error:
            _log.debug("whether another run has taken over is not known: %s", error)
            return
        taken = self._taken
        assert taken is not None, "the guard is required before it was taken"
        # None: a coordinator forgets an id that was not used for a week. The next attempt takes it again.
        if state is None or (state.producer_id, state.producer_epoch) != (taken.producer_id, taken.producer_epoch):
            found = "does not know it any more" if state is None else f"has epoch {state.producer_epoch} of it"
            raise RetriableError(
                RUN_SUPERSEDED,
                f"another run of this name, with a copy of its tables, may have begun: this run took epoch "
                f"{taken.producer_epoch} of the transactional id {self.transactional_id}, and the target {found}",
            )

"""Requests of transactions."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest as BegunRequest
    from shallow_mirror.broker.produce.txn.listed_transactions import list_transactional_ids as list_transactional_ids
    from shallow_mirror.broker.produce.txn.transactions import (
        CoordinatorState as CoordinatorState,
        EndTxnAnswer as EndTxnAnswer,
        begin_describe_txn as begin_describe_txn,
        begin_end_txn as begin_end_txn,
        begin_init_producer_id as begin_init_producer_id,
        blocked_txn as blocked_txn,
        describe_txn as describe_txn,
        end_txn as end_txn,
        finish_init_producer_id as finish_init_producer_id,
        init_producer_id as init_producer_id,
        new_producer_id as new_producer_id,
        timeout_problem as timeout_problem,
    )
    from shallow_mirror.broker.produce.txn.txn_additions import (
        BegunAddition as BegunAddition,
        add_partitions as add_partitions,
        add_partitions_and_offsets as add_partitions_and_offsets,
        begin_addition as begin_addition,
        finish_addition as finish_addition,
    )
    from shallow_mirror.broker.produce.txn.txn_offsets import add_group_offsets as add_group_offsets
else:
    __getattr__, __dir__ = lazy_names(__name__)

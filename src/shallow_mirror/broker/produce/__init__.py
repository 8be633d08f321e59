"""Writing of raw record batches with Produce requests and transactions."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.produce.leader_pipeline import Submission as Submission
    from shallow_mirror.broker.produce.produce_errors import (
        ProduceRefusedError as ProduceRefusedError,
        explain_refusal as explain_refusal,
    )
    from shallow_mirror.broker.produce.produce_pipeline import PRODUCE as PRODUCE, ProducePipeline as ProducePipeline
    from shallow_mirror.broker.produce.receipts import (
        MAX_RECEIPT_BYTES as MAX_RECEIPT_BYTES,
        METADATA_LIMIT as METADATA_LIMIT,
        Receipt as Receipt,
        begin_read_receipts as begin_read_receipts,
        begin_receipt as begin_receipt,
        finish_receipt as finish_receipt,
        is_receipt as is_receipt,
        read_receipt as read_receipt,
        read_receipts as read_receipts,
        receipt_limit_problem as receipt_limit_problem,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""BatchConsumer and BatchProducer: record batches without Spark."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.clients.batch_client import (
        BatchConsumer as BatchConsumer,
        BatchesInFlightError as BatchesInFlightError,
        BatchProducer as BatchProducer,
        ClientConfig as ClientConfig,
        Codec as Codec,
        Delivery as Delivery,
        FetchedBatch as FetchedBatch,
        FetchedBatches as FetchedBatches,
        IsolationLevel as IsolationLevel,
        LogAppendTimePolicy as LogAppendTimePolicy,
        StaleBatchError as StaleBatchError,
        TopicPartition as TopicPartition,
        TxnState as TxnState,
        TxnStateError as TxnStateError,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

"""Kafka-to-Kafka mirror that copies compressed record batches without opening them, exactly once.

What this module exports is the public interface; other modules may change in any release. Every name is imported from its
module when it is first used, so that `import shallow_mirror` starts neither Spark nor a client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shallow_mirror.version import __version__

if TYPE_CHECKING:
    from shallow_mirror.archive_reading.lookup import ArchivedRecord, ArchiveReader
    from shallow_mirror.broker.clients.batch_client import (
        BatchConsumer,
        BatchesInFlightError,
        BatchProducer,
        ClientConfig,
        Codec,
        Delivery,
        FetchedBatch,
        FetchedBatches,
        IsolationLevel,
        LogAppendTimePolicy,
        StaleBatchError,
        TopicPartition,
        TxnState,
        TxnStateError,
    )
    from shallow_mirror.checkpoints.ledger.offset_map import OffsetMap
    from shallow_mirror.checkpoints.rows.schema import schema_of
    from shallow_mirror.commands.options import parse_time
    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
    from shallow_mirror.errors import (
        ArchiveFormatError,
        BatchRefusedError,
        BrokerTooOldError,
        ConfigError,
        CopiesDifferError,
        CorruptBatchError,
        DataLossError,
        FencedError,
        IncompleteRunError,
        LateWritesError,
        LogTruncatedError,
        MirrorError,
        NotABrokerError,
        ObjectExistsError,
        ObjectMissingError,
        OffsetDeltasError,
        OffsetMapConflictError,
        OlderTablesError,
        OutcomeUnknownError,
        PreservedLogDamagedError,
        ProducerEpochFencedError,
        RecoverNeededError,
        RetriableError,
        SparkLostError,
        StoreRefusedError,
        StoreUnreachableError,
        TargetDataLossError,
        TopicAccessError,
        TopicGoneError,
        TopicRecreatedError,
        TopicSettingsError,
        TransactionBlockedError,
        TxnOutcomeChangedError,
    )
    from shallow_mirror.groups.sync_once import sync_groups
    from shallow_mirror.local_kafka.jars import delta_jars
    from shallow_mirror.operations.status import StatusReport, gather_status
    from shallow_mirror.preflight import PreflightReport, preflight_mirror
    from shallow_mirror.streaming.runs.archive import Archive
    from shallow_mirror.streaming.runs.mirror import Mirror
    from shallow_mirror.streaming.runs.restore import Restore
    from shallow_mirror.streaming.sources.catalog_archive import kafka_archive_options
    from shallow_mirror.streaming.sources.kafka_archive import register_kafka_archive
    from shallow_mirror.streaming.sources.kafka_batches import register_kafka_batches
    from shallow_mirror.streaming.spark.spark_session import local_session, session_for_tables
    from shallow_mirror.verify import VerifyReport, verify_mirror
    from shallow_mirror.wire.records.unpacked_batch import Record, open_batch

__all__ = [
    "Archive",
    "ArchiveConfig",
    "ArchiveFormatError",
    "ArchiveReader",
    "ArchivedRecord",
    "BatchConsumer",
    "BatchProducer",
    "BatchRefusedError",
    "BatchesInFlightError",
    "BrokerTooOldError",
    "ClientConfig",
    "Codec",
    "ConfigError",
    "CopiesDifferError",
    "CorruptBatchError",
    "DataLossError",
    "Delivery",
    "FencedError",
    "FetchedBatch",
    "FetchedBatches",
    "IncompleteRunError",
    "IsolationLevel",
    "LateWritesError",
    "LogAppendTimePolicy",
    "LogTruncatedError",
    "Mirror",
    "MirrorConfig",
    "MirrorError",
    "NotABrokerError",
    "ObjectExistsError",
    "ObjectMissingError",
    "OffsetDeltasError",
    "OffsetMap",
    "OffsetMapConflictError",
    "OlderTablesError",
    "OutcomeUnknownError",
    "PreflightReport",
    "PreservedLogDamagedError",
    "ProducerEpochFencedError",
    "Record",
    "RecoverNeededError",
    "Restore",
    "RestoreConfig",
    "RetriableError",
    "SparkLostError",
    "StaleBatchError",
    "StatusReport",
    "StoreRefusedError",
    "StoreUnreachableError",
    "TargetDataLossError",
    "TopicAccessError",
    "TopicGoneError",
    "TopicPartition",
    "TopicRecreatedError",
    "TopicSettingsError",
    "TransactionBlockedError",
    "TxnOutcomeChangedError",
    "TxnState",
    "TxnStateError",
    "VerifyReport",
    "__version__",
    "delta_jars",
    "gather_status",
    "kafka_archive_options",
    "local_session",
    "open_batch",
    "parse_time",
    "preflight_mirror",
    "register_kafka_archive",
    "register_kafka_batches",
    "schema_of",
    "session_for_tables",
    "sync_groups",
    "verify_mirror",
]

_MODULES = {
    "ArchiveReader": "shallow_mirror.archive_reading.lookup",
    "ArchivedRecord": "shallow_mirror.archive_reading.lookup",
    "BatchConsumer": "shallow_mirror.broker.clients.batch_client",
    "BatchProducer": "shallow_mirror.broker.clients.batch_client",
    "BatchesInFlightError": "shallow_mirror.broker.clients.batch_client",
    "ClientConfig": "shallow_mirror.broker.clients.batch_client",
    "Codec": "shallow_mirror.broker.clients.batch_client",
    "Delivery": "shallow_mirror.broker.clients.batch_client",
    "FetchedBatch": "shallow_mirror.broker.clients.batch_client",
    "FetchedBatches": "shallow_mirror.broker.clients.batch_client",
    "IsolationLevel": "shallow_mirror.broker.clients.batch_client",
    "LogAppendTimePolicy": "shallow_mirror.broker.clients.batch_client",
    "StaleBatchError": "shallow_mirror.broker.clients.batch_client",
    "TopicPartition": "shallow_mirror.broker.clients.batch_client",
    "TxnState": "shallow_mirror.broker.clients.batch_client",
    "TxnStateError": "shallow_mirror.broker.clients.batch_client",
    "OffsetMap": "shallow_mirror.checkpoints.ledger.offset_map",
    "schema_of": "shallow_mirror.checkpoints.rows.schema",
    "parse_time": "shallow_mirror.commands.options",
    "ArchiveConfig": "shallow_mirror.config",
    "MirrorConfig": "shallow_mirror.config",
    "RestoreConfig": "shallow_mirror.config",
    "ArchiveFormatError": "shallow_mirror.errors",
    "BatchRefusedError": "shallow_mirror.errors",
    "BrokerTooOldError": "shallow_mirror.errors",
    "ConfigError": "shallow_mirror.errors",
    "CopiesDifferError": "shallow_mirror.errors",
    "CorruptBatchError": "shallow_mirror.errors",
    "DataLossError": "shallow_mirror.errors",
    "FencedError": "shallow_mirror.errors",
    "IncompleteRunError": "shallow_mirror.errors",
    "LateWritesError": "shallow_mirror.errors",
    "LogTruncatedError": "shallow_mirror.errors",
    "MirrorError": "shallow_mirror.errors",
    "NotABrokerError": "shallow_mirror.errors",
    "ObjectExistsError": "shallow_mirror.errors",
    "ObjectMissingError": "shallow_mirror.errors",
    "OffsetDeltasError": "shallow_mirror.errors",
    "OffsetMapConflictError": "shallow_mirror.errors",
    "OlderTablesError": "shallow_mirror.errors",
    "OutcomeUnknownError": "shallow_mirror.errors",
    "PreservedLogDamagedError": "shallow_mirror.errors",
    "ProducerEpochFencedError": "shallow_mirror.errors",
    "RecoverNeededError": "shallow_mirror.errors",
    "RetriableError": "shallow_mirror.errors",
    "SparkLostError": "shallow_mirror.errors",
    "StoreRefusedError": "shallow_mirror.errors",
    "StoreUnreachableError": "shallow_mirror.errors",
    "TargetDataLossError": "shallow_mirror.errors",
    "TopicAccessError": "shallow_mirror.errors",
    "TopicGoneError": "shallow_mirror.errors",
    "TopicRecreatedError": "shallow_mirror.errors",
    "TopicSettingsError": "shallow_mirror.errors",
    "TransactionBlockedError": "shallow_mirror.errors",
    "TxnOutcomeChangedError": "shallow_mirror.errors",
    "sync_groups": "shallow_mirror.groups.sync_once",
    "delta_jars": "shallow_mirror.local_kafka.jars",
    "StatusReport": "shallow_mirror.operations.status",
    "gather_status": "shallow_mirror.operations.status",
    "PreflightReport": "shallow_mirror.preflight",
    "preflight_mirror": "shallow_mirror.preflight",
    "Archive": "shallow_mirror.streaming.runs.archive",
    "Mirror": "shallow_mirror.streaming.runs.mirror",
    "Restore": "shallow_mirror.streaming.runs.restore",
    "local_session": "shallow_mirror.streaming.spark.spark_session",
    "session_for_tables": "shallow_mirror.streaming.spark.spark_session",
    "kafka_archive_options": "shallow_mirror.streaming.sources.catalog_archive",
    "register_kafka_archive": "shallow_mirror.streaming.sources.kafka_archive",
    "register_kafka_batches": "shallow_mirror.streaming.sources.kafka_batches",
    "VerifyReport": "shallow_mirror.verify",
    "verify_mirror": "shallow_mirror.verify",
    "Record": "shallow_mirror.wire.records.unpacked_batch",
    "open_batch": "shallow_mirror.wire.records.unpacked_batch",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once: it is an attribute of this module from then on."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

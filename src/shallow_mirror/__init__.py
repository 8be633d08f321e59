"""Kafka-to-Kafka mirror that copies compressed record batches without opening them, exactly once.

What this module exports is the public interface; other modules may change in any release. Every name is imported from its
module when it is first used, so that `import shallow_mirror` starts neither Spark nor a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names
from shallow_mirror.version import __version__

if TYPE_CHECKING:
    from shallow_mirror.archive_reading.lookup import ArchivedRecord, ArchiveReader
    from shallow_mirror.broker.clients import (
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
    from shallow_mirror.checkpoints import OffsetMap, WrittenRecords, schema_of
    from shallow_mirror.commands.options import parse_time
    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
    from shallow_mirror.errors import (
        ArchiveFormatError,
        AuthenticationError,
        BatchRefusedError,
        BrokerTooOldError,
        ConfigError,
        CopiesDifferError,
        CorruptBatchError,
        DataLossError,
        FencedError,
        HookFailedError,
        IncompleteRunError,
        LateWritesError,
        LogTruncatedError,
        MicroBatchInDoubtError,
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
        RecordRefusedError,
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
    from shallow_mirror.local_kafka import delta_jars
    from shallow_mirror.operations.status import StatusReport, gather_status
    from shallow_mirror.preflight import PreflightReport, preflight_mirror
    from shallow_mirror.streaming import (
        kafka_archive_options,
        local_session,
        register_kafka_archive,
        register_kafka_batches,
        session_for_tables,
    )
    from shallow_mirror.streaming.dataframes import ExactlyOnceKafkaSink
    from shallow_mirror.streaming.runs import Archive, Mirror, Restore
    from shallow_mirror.verify import VerifyReport, verify_mirror
    from shallow_mirror.wire.records import Record, open_batch
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Archive",
    "ArchiveConfig",
    "ArchiveFormatError",
    "ArchiveReader",
    "ArchivedRecord",
    "AuthenticationError",
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
    "ExactlyOnceKafkaSink",
    "FencedError",
    "FetchedBatch",
    "FetchedBatches",
    "HookFailedError",
    "IncompleteRunError",
    "IsolationLevel",
    "LateWritesError",
    "LogAppendTimePolicy",
    "LogTruncatedError",
    "MicroBatchInDoubtError",
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
    "RecordRefusedError",
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
    "WrittenRecords",
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

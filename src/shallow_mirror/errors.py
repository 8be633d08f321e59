"""Errors by who must act next, with the evidence as fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import TopicPartition

_NAMED = 5
"""Partitions that a message names; of the others the number."""


class MirrorError(Exception):
    """Base of all errors of this package. The message says what happened, where, and what to do."""


class ConfigError(MirrorError):
    """The operator must change a setting. `problems` lists all of them, not only the first."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> Any:
        return type(self), (self.problems,)


class StoreRefusedError(ConfigError):
    """A store refuses an operation on objects: credentials, permissions, a missing bucket, a read-only folder.

    It ends a start. A run that has begun waits (`StoreUnreachableError`): credentials may be renewed while it runs.
    """

    def __init__(self, operation: str, store: str, reason: str, remedy: str) -> None:
        self.operation = operation
        self.store = store
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{store}: the store refuses to {operation}: {reason}. Remedy: {remedy}")

    def __reduce__(self) -> Any:
        return type(self), (self.operation, self.store, self.reason, self.remedy)


class TopicAccessError(ConfigError):
    """A cluster denies access to single topics, most often because an ACL was revoked. `topics`: their names on that cluster."""

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)

    def __reduce__(self) -> Any:
        return type(self), (self.problems, self.topics)


class TopicSettingsError(ConfigError):
    """Settings of target topics were changed while the mirror ran, so that records would not stay as they are.

    `topics`: their names on the target.
    """

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)

    def __reduce__(self) -> Any:
        return type(self), (self.problems, self.topics)


class TopicGoneError(ConfigError):
    """Target topics were deleted, or deleted and created again, and with them what was copied. `topics`: their names there."""

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)

    def __reduce__(self) -> Any:
        return type(self), (self.problems, self.topics)


class BrokerTooOldError(ConfigError):
    """A broker is older than the oldest supported release, or does not offer a request that only some operations need."""


class NotABrokerError(ConfigError):
    """An address is that of a KRaft controller, which serves no clients."""


class CorruptBatchError(MirrorError):
    """Bytes differ from what their producer sent, or are not a record batch.

    `pos` counts within what was being read: a response, a batch, or its opened records.
    """

    def __init__(self, topic_partition: TopicPartition, base_offset: int, pos: int, reason: str) -> None:
        self.topic_partition = topic_partition
        self.base_offset = base_offset
        self.pos = pos
        self.reason = reason
        super().__init__(f"{topic_partition}: corrupt record batch at base offset {base_offset}: {reason}")

    def __reduce__(self) -> tuple[type[CorruptBatchError], tuple[TopicPartition, int, int, str]]:
        return type(self), (self.topic_partition, self.base_offset, self.pos, self.reason)


class DataLossError(MirrorError):
    """The source no longer holds (or never held) offsets that should be copied next.

    `log_start_offset` None: not requested. The message names it where the log starts too late.
    """

    def __init__(self, topic_partition: TopicPartition, expected_offset: int, log_start_offset: int | None, detail: str) -> None:
        self.topic_partition = topic_partition
        self.expected_offset = expected_offset
        self.log_start_offset = log_start_offset
        self.detail = detail
        is_late = log_start_offset is not None and log_start_offset > expected_offset
        start = f", source log starts at {log_start_offset}" if is_late else ""
        super().__init__(f"{topic_partition}: expected offset {expected_offset}{start}: {detail}")

    def __reduce__(self) -> tuple[type[DataLossError], tuple[TopicPartition, int, int | None, str]]:
        return type(self), (self.topic_partition, self.expected_offset, self.log_start_offset, self.detail)


class LogTruncatedError(DataLossError):
    """The source's log was truncated below what was copied or planned of it (an unclean leader election, a lost disk).

    `log_end`: where it ends, below `expected_offset`; None: it was written to since and reaches beyond. `divergent_offset`: from
    which offset it holds other records than were copied; None: unknown. `topic_id`: "" where it is unknown.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        expected_offset: int,
        detail: str,
        log_end: int | None = None,
        divergent_offset: int | None = None,
        topic_id: str = "",
    ) -> None:
        self.log_end = log_end
        self.divergent_offset = divergent_offset
        self.topic_id = topic_id
        super().__init__(topic_partition, expected_offset, None, detail)

    def __reduce__(self) -> Any:
        evidence = self.log_end, self.divergent_offset, self.topic_id
        return type(self), (self.topic_partition, self.expected_offset, self.detail, *evidence)


class TxnOutcomeChangedError(LogTruncatedError):
    """A transaction was archived with one outcome, and has the other one at the source.

    Its marker, behind the position of the archive, was lost in a truncation. `divergent_offset`: its first offset, from which on
    the log is to be archived again.
    """


class TopicRecreatedError(DataLossError):
    """The source topic was deleted and created again with the same name: its offsets belong to other records."""

    def __init__(self, topic_partition: TopicPartition, expected_offset: int, before: str, after: str) -> None:
        self.before, self.after = before, after
        detail = f"the topic was deleted and created again (topic id {before} became {after})"
        super().__init__(topic_partition, expected_offset, None, detail)

    def __reduce__(self) -> Any:
        return type(self), (self.topic_partition, self.expected_offset, self.before, self.after)


class TargetDataLossError(MirrorError):
    """The target no longer holds what was copied to it: a log ended below recorded offsets. Nothing more was decided.

    `base_offset`: where the log ended, which is the offset that new records get. `others`: how many more partitions ended so.
    """

    def __init__(self, topic_partition: TopicPartition, recorded_end: int, base_offset: int, others: int = 0) -> None:
        self.topic_partition = topic_partition
        self.recorded_end = recorded_end
        self.base_offset = base_offset
        self.others = others
        more = f" (and {counted(others, 'more partition')} like it)" if others else ""
        super().__init__(
            f"target {topic_partition}: its log ended at offset {base_offset}, but records copied before reach offset "
            f"{recorded_end}{more}: the target topic was deleted and created again, its log was truncated (an unclean leader "
            "election, a lost disk), or the cluster was put back from a backup, and has lost records. Nothing more was decided. "
            "Mirror the topic from its start with another mirror id, tables and checkpoint, or exclude it (topics.exclude)"
        )

    def __reduce__(self) -> tuple[type[TargetDataLossError], tuple[TopicPartition, int, int, int]]:
        return type(self), (self.topic_partition, self.recorded_end, self.base_offset, self.others)


class PreservedLogDamagedError(MirrorError):
    """A target partition with preserved offsets holds something that this mirror or restore did not write, or at other offsets.

    `topic_partition`: of the target. `offset`: from which on its offsets are not those of the source, or later. `is_displaced`:
    records of this mirror are behind those of another writer. Translated offsets would copy them a second time.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, detail: str, is_displaced: bool = False) -> None:
        self.topic_partition = topic_partition
        self.offset = offset
        self.detail = detail
        self.is_displaced = is_displaced
        translated = (
            ". A mirror can also continue with topics.offsets: translated for this topic, which leaves it as it is and records "
            "other offsets from here on"
        )
        super().__init__(
            f"target {topic_partition}: offsets from {offset} on are not those of the source: {detail}. Nothing more is written "
            "to this partition. Find the other writer and take its Write permission away. Then delete the target topic and "
            "copy it again: a mirror with another mirror id, tables and checkpoint, a restore with another name and tables"
            f"{'' if is_displaced else translated}"
        )

    def __reduce__(self) -> tuple[type[PreservedLogDamagedError], tuple[TopicPartition, int, str, bool]]:
        return type(self), (self.topic_partition, self.offset, self.detail, self.is_displaced)


class BatchRefusedError(MirrorError):
    """A batch cannot be copied under the current settings; nothing of its micro-batch was decided."""

    def __init__(self, topic_partition: TopicPartition, base_offset: int, rule: str, remedy: str) -> None:
        self.topic_partition = topic_partition
        self.base_offset = base_offset
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{topic_partition}: batch at base offset {base_offset} refused: {rule}. {remedy}")

    def __reduce__(self) -> tuple[type[BatchRefusedError], tuple[TopicPartition, int, str, str]]:
        return type(self), (self.topic_partition, self.base_offset, self.rule, self.remedy)


class OffsetDeltasError(BatchRefusedError):
    """The records of an uncompressed batch have no rising offsets: their producer sent them so, and brokers store it unchecked.

    Such a batch can be copied as it is, and cannot be rebuilt. Consumers skip each record that is not above the one before it.
    """

    def __init__(self, topic_partition: TopicPartition, base_offset: int, reason: str) -> None:
        rule = f"{reason}: its producer sent it so, and brokers store uncompressed batches without a check of these"
        remedy = (
            "Such a batch can be copied as it is, and cannot be opened or rebuilt: correct the producer. With "
            "write.on_refused: quarantine a mirror that has to rebuild it keeps it in a table and continues"
        )
        super().__init__(topic_partition, base_offset, rule, remedy)
        self._reason = reason

    def __reduce__(self) -> Any:
        return type(self), (self.topic_partition, self.base_offset, self._reason)


class FencedError(MirrorError):
    """Another run with the same tables has taken over. `by` names it and when."""

    def __init__(self, by: str) -> None:
        self.by = by
        super().__init__(
            f"another run with these tables has taken over: {by}. This run stops; do not restart it while the other one runs."
        )

    def __reduce__(self) -> tuple[type[FencedError], tuple[str]]:
        return type(self), (self.by,)


class RetriableError(MirrorError):
    """A request to a cluster failed without effect, and may succeed later; the supervisor retries.

    `error_name` is Kafka's name of the error, or one of this package: for the network (`NETWORK_EXCEPTION`, `DEADLINE`), for
    tokens (`TOKEN_ENDPOINT_UNREACHABLE`, `OAUTH_CB_FAILED`). Remedies are chosen by it, not by the message.
    """

    def __init__(self, error_name: str, detail: str) -> None:
        self.error_name = error_name
        self.detail = detail
        super().__init__(f"{error_name}: {detail}")

    def __reduce__(self) -> tuple[type[RetriableError], tuple[str, str]]:
        return type(self), (self.error_name, self.detail)


class ProducerEpochFencedError(RetriableError):
    """A newer producer epoch owns the transactional id (47, 90), or the coordinator no longer knows it (48, 49).

    Ambiguous by nature: timed out, taken over, or committed and re-initialised. No more may be concluded from it.
    """


class TransactionBlockedError(RetriableError):
    """The last transaction of a transactional id cannot complete: one of its partitions does not accept the marker.

    The outcome of the transaction is decided and durable (`state` is PrepareCommit or PrepareAbort). The id cannot be used again
    before the partition has a leader and enough in-sync replicas.
    """

    def __init__(self, transactional_id: str, state: str, producer_id: int, producer_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.state = state
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        super().__init__(
            "CONCURRENT_TRANSACTIONS",
            f"the last transaction of {transactional_id} (producer id {producer_id}, epoch {producer_epoch}) is in state {state}"
            ": one of its partitions has no leader or too few in-sync replicas, and does not accept its marker",
        )

    def __reduce__(self) -> tuple[type[TransactionBlockedError], tuple[str, str, int, int]]:  # type: ignore[override]
        return type(self), (self.transactional_id, self.state, self.producer_id, self.producer_epoch)


class OutcomeUnknownError(MirrorError):
    """The effect may or may not have happened: check the map and the target before acting."""


class StoreUnreachableError(OutcomeUnknownError):
    """An operation of the store that holds tables or objects failed; a write may have been applied nevertheless.

    `table`: its URI, or the root of the objects. `is_refused`: the store rejected it
    (credentials, permissions, a missing bucket).
    """

    def __init__(self, operation: str, table: str, reason: str, remedy: str, *, is_refused: bool = False) -> None:
        self.operation = operation
        self.table = table
        self.reason = reason
        self.remedy = remedy
        self.is_refused = is_refused
        verb = "refuses to" if is_refused else "did not"
        super().__init__(f"{table}: the store {verb} {operation}: {reason}. Remedy: {remedy}")

    def __reduce__(self) -> Any:
        return _store_unreachable, (self.operation, self.table, self.reason, self.remedy, self.is_refused)


def _store_unreachable(operation: str, table: str, reason: str, remedy: str, is_refused: bool) -> StoreUnreachableError:
    return StoreUnreachableError(operation, table, reason, remedy, is_refused=is_refused)


class ObjectMissingError(MirrorError):
    """An object of an object store, or bytes of it, is not there. `reason` says which."""

    def __init__(self, store: str, name: str, reason: str, remedy: str) -> None:
        self.store = store
        self.name = name
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{store}/{name}: {reason}. Remedy: {remedy}")

    def __reduce__(self) -> Any:
        return type(self), (self.store, self.name, self.reason, self.remedy)


class ObjectExistsError(MirrorError):
    """An object of this name is there already, by another writer; objects are never overwritten, and it was not changed."""

    def __init__(self, store: str, name: str) -> None:
        self.store = store
        self.name = name
        super().__init__(
            f"{store}/{name}: an object of this name exists already and was not overwritten. Remedy: write under a new name"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.store, self.name)


class RecoverNeededError(MirrorError):
    """No evidence says whether a decided transaction was committed, or the target has lost it; only the operator can choose."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}. Its rows stay in the offset map and nothing was copied since. `shallow-mirror recover CONF` shows what is "
            "known and takes the choice"
        )

    def __reduce__(self) -> tuple[type[RecoverNeededError], tuple[str]]:
        return type(self), (self.what,)


class OlderTablesError(MirrorError):
    """The target has receipts of decisions that the tables do not have: older tables were put back, or a copy of them was used.

    `known`: the newest decision of the tables. `evidence`: a newer one of which the target knows, and `version` its version.
    """

    def __init__(self, known: str, evidence: str, version: int) -> None:
        self.known, self.evidence, self.version = known, evidence, version
        super().__init__(
            f"the tables are older than the target: their newest decision is {known}, but {evidence}. Nothing was written: it "
            "would copy again what was copied in between. Put the newest tables back (all of the folder or prefix of `tables`), "
            "or leave it to the run that has them; with `shallow-mirror recover CONF --accept-repeats` the mirror continues from "
            "these tables, and copies those records a second time"
        )

    def __reduce__(self) -> tuple[type[OlderTablesError], tuple[str, str, int]]:
        return type(self), (self.known, self.evidence, self.version)


class CopiesDifferError(MirrorError):
    """A migration found a difference between the clusters in what was copied. `sentences`: what `verify` says of it.

    `source` and `target`: aliases of the clusters that the sentences call so; a rollback copies from the cluster that it moved
    to. `mirror_file` and `migration_file`: for the commands that go on.
    """

    def __init__(
        self, sentences: Sequence[str], source: str, target: str, mirror_file: str = "CONF", migration_file: str = "FILE"
    ) -> None:
        self.sentences = tuple(sentences)
        self.source, self.target = source, target
        self.mirror_file, self.migration_file = mirror_file, migration_file
        super().__init__(
            f"the clusters differ, so nothing moves (source is {source} here, target is {target}): {'; '.join(self.sentences)}. "
            f"`shallow-mirror verify {mirror_file}` shows all of it; `shallow-mirror migrate abort {migration_file}` goes back "
            "to where the writers were"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.sentences, self.source, self.target, self.mirror_file, self.migration_file)


class LateWritesError(ConfigError):
    """Records were written to the cluster that a migration has left, behind the point of no return: no mirror copies them.

    `places`: partitions, offsets and numbers of records. `command`: what an operator runs to settle them.
    """

    def __init__(self, wave: str, cluster: str, other: str, places: Sequence[str], command: str) -> None:
        self.wave, self.cluster, self.other, self.places, self.command = wave, cluster, other, tuple(places), command
        super().__init__(
            f"wave {wave}: a client wrote to {cluster} after the point of no return, and no mirror copies that: "
            f"{listed(self.places)}. Stop that writer; then `{command} --carry` copies these records to the topics at "
            f"{other}, and `{command} --quarantine` to topics of their own there"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.wave, self.cluster, self.other, self.places, self.command)


class SparkLostError(MirrorError):
    """The JVM of Spark exited during a run. The next start resolves its open transactions."""


class IncompleteRunError(MirrorError):
    """A run up to the log ends of its start has ended without some partitions. `left_out`: each with the reason."""

    def __init__(self, left_out: Sequence[str]) -> None:
        self.left_out = tuple(left_out)
        more = f" and {len(left_out) - _NAMED:,} more" if len(left_out) > _NAMED else ""
        super().__init__(
            f"not everything was copied up to the log ends of the start: left out: {', '.join(left_out[:_NAMED])}{more}. The "
            "rest is complete. `shallow-mirror status` names the remedies; then start again"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.left_out,)


class OffsetMapConflictError(MirrorError):
    """Another application wrote to a table of the mirror, or the table is damaged or not what its name says."""


class ArchiveFormatError(MirrorError):
    """An object of an archive is damaged, cut, or no object of an archive."""

    def __init__(self, object_name: str, detail: str, remedy: str) -> None:
        self.object_name = object_name
        self.detail = detail
        self.remedy = remedy
        super().__init__(f"object {object_name}: {detail}. {remedy}")

    def __reduce__(self) -> tuple[type[ArchiveFormatError], tuple[str, str, str]]:
        return type(self), (self.object_name, self.detail, self.remedy)


class StoppedError(Exception):
    """A stop was requested while the run waited for something; the next start does what it left undone."""

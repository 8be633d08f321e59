"""Errors by who must act next, with the evidence as fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import TopicPartition

_NAMED = 5
"""Partitions that a message names; of the others the number."""


class MirrorError(Exception):
    """Base of all errors of this package. The message names the problem, its place and the remedy.

    Errors with evidence are dataclasses; `__post_init__` makes the message. The fields that `__init__` takes are its positional
    arguments, so that an error can be made again in another process.
    """

    def __reduce__(self) -> Any:
        if not is_dataclass(self):
            return super().__reduce__()
        return type(self), tuple(getattr(self, field.name) for field in fields(self) if field.init)


@dataclass(init=False, eq=False, repr=False)
class ConfigError(MirrorError):
    """The operator must change a setting. `problems` lists all of them, not only the first."""

    problems: tuple[str, ...]

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(eq=False, repr=False)
class StoreRefusedError(ConfigError):
    """A store refuses an operation on objects: credentials, permissions, a missing bucket, a read-only folder.

    It ends a start. A run that has begun waits (`StoreUnreachableError`): credentials may be renewed while it runs.
    """

    problems: tuple[str, ...] = field(init=False)
    operation: str
    store: str
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.store}: the store refuses to {self.operation}: {self.reason}. Remedy: {self.remedy}")


@dataclass(init=False, eq=False, repr=False)
class TopicAccessError(ConfigError):
    """A cluster denies access to single topics, most often because an ACL was revoked. `topics`: their names on that cluster."""

    topics: tuple[str, ...]

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)


@dataclass(init=False, eq=False, repr=False)
class TopicSettingsError(ConfigError):
    """Settings of target topics were changed while the mirror ran, so that records would not stay as they are.

    `topics`: their names on the target.
    """

    topics: tuple[str, ...]

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)


@dataclass(init=False, eq=False, repr=False)
class TopicGoneError(ConfigError):
    """Target topics were deleted, or deleted and created again, and with them what was copied. `topics`: their names there."""

    topics: tuple[str, ...]

    def __init__(self, problems: Sequence[str] | str, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        super().__init__(problems)


class AuthenticationError(ConfigError):
    """A broker refuses the credentials of the client, the client those of the broker, or there are none."""


class BrokerTooOldError(ConfigError):
    """A broker is older than the oldest supported release, or does not offer a request that only some operations need."""


class NotABrokerError(ConfigError):
    """An address is that of a KRaft controller, which serves no clients."""


@dataclass(eq=False, repr=False)
class CorruptBatchError(MirrorError):
    """Bytes differ from those that their producer sent, or are not a record batch.

    `pos` counts within the bytes being read: a response, a batch, or its opened records.
    """

    topic_partition: TopicPartition
    base_offset: int
    pos: int
    reason: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.topic_partition}: corrupt record batch at base offset {self.base_offset}: {self.reason}")


@dataclass(eq=False, repr=False)
class DataLossError(MirrorError):
    """The source no longer holds (or never held) offsets that should be copied next.

    `log_start_offset` None: not requested. The message names it if the log starts too late.
    """

    topic_partition: TopicPartition
    expected_offset: int
    log_start_offset: int | None
    detail: str

    def __post_init__(self) -> None:
        is_late = self.log_start_offset is not None and self.log_start_offset > self.expected_offset
        start = f", source log starts at {self.log_start_offset}" if is_late else ""
        super().__init__(f"{self.topic_partition}: expected offset {self.expected_offset}{start}: {self.detail}")


@dataclass(eq=False, repr=False)
class LogTruncatedError(DataLossError):
    """The source's log was truncated below the position that was copied or planned (an unclean leader election, a lost disk).

    `log_end`: its end, below `expected_offset`; None: it was written to since and reaches beyond. `divergent_offset`: from
    which offset it holds other records than were copied; None: unknown. `topic_id`: "" if it is unknown.
    """

    log_start_offset: int | None = field(init=False, default=None)
    log_end: int | None = None
    divergent_offset: int | None = None
    topic_id: str = ""


class TxnOutcomeChangedError(LogTruncatedError):
    """A transaction was archived with one outcome, and has the other one at the source.

    Its marker, behind the position of the archive, was lost in a truncation. `divergent_offset`: its first offset, from which on
    the log is to be archived again.
    """


@dataclass(eq=False, repr=False)
class TopicRecreatedError(DataLossError):
    """The source topic was deleted and created again with the same name: its offsets belong to other records."""

    log_start_offset: int | None = field(init=False, default=None)
    detail: str = field(init=False)
    before: str
    after: str

    def __post_init__(self) -> None:
        self.detail = f"the topic was deleted and created again (topic id {self.before} became {self.after})"
        super().__post_init__()


@dataclass(eq=False, repr=False)
class TargetDataLossError(MirrorError):
    """The target no longer holds what was copied to it: a log ended below recorded offsets. Nothing more was decided.

    `base_offset`: the end of the log, which is the offset that new records get. `others`: how many more partitions ended so.
    """

    topic_partition: TopicPartition
    recorded_end: int
    base_offset: int
    others: int = 0
    remedy: str = "Mirror the topic from its start with another mirror id, tables and checkpoint, or exclude it (topics.exclude)"

    def __post_init__(self) -> None:
        more = f" (and {counted(self.others, 'more partition')} like it)" if self.others else ""
        super().__init__(
            f"target {self.topic_partition}: its log ended at offset {self.base_offset}, but records copied before reach offset "
            f"{self.recorded_end}{more}: the target topic was deleted and created again, its log was truncated (an unclean "
            "leader "
            "election, a lost disk), or the cluster was put back from a backup, and has lost records. Nothing more was decided. "
            + self.remedy
        )


@dataclass(eq=False, repr=False)
class PreservedLogDamagedError(MirrorError):
    """A target partition with preserved offsets holds something that this mirror or restore did not write, or at other offsets.

    `topic_partition`: of the target. `offset`: from which on its offsets are not those of the source, or later.
    `is_translatable`: False if it is not known which records are copied, or if some are behind those of another writer:
    translated offsets would copy them a second time, or leave them out.
    `is_ended`: a start of this mirror with translated offsets has ended the preservation: there is no other writer.
    """

    topic_partition: TopicPartition
    offset: int
    detail: str
    is_translatable: bool = True
    is_ended: bool = False

    def __post_init__(self) -> None:
        translated = (
            ". A mirror can also continue with topics.offsets: translated for this topic, which leaves it as it is and records "
            "other offsets from here on"
        )
        remedy = (
            "Find the other writer and take its Write permission away. Then delete the target topic and "
            "copy it again: a mirror with another mirror id, tables and checkpoint, a restore with another name and tables"
            f"{translated if self.is_translatable else ''}"
        )
        if self.is_ended:
            remedy = (
                "Set topics.offsets to translated for this topic again: the mirror continues behind what is there. If that start "
                "is refused because of what the topic holds, mirror the topic to a new target topic with another mirror id, "
                "tables and checkpoint"
            )
        super().__init__(
            f"target {self.topic_partition}: offsets from {self.offset} on are not those of the source: {self.detail}. Nothing "
            f"more is written to this partition. {remedy}"
        )


@dataclass(eq=False, repr=False)
class BatchRefusedError(MirrorError):
    """A batch cannot be copied under the current settings; nothing of its micro-batch was decided."""

    topic_partition: TopicPartition
    base_offset: int
    rule: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.topic_partition}: batch at base offset {self.base_offset} refused: {self.rule}. {self.remedy}")


@dataclass(eq=False, repr=False)
class OffsetDeltasError(BatchRefusedError):
    """The records of an uncompressed batch have no rising offsets: their producer sent them so, and brokers store it unchecked.

    Such a batch can be copied as it is, and cannot be rebuilt. Consumers skip each record that is not above the one before it.
    """

    rule: str = field(init=False)
    remedy: str = field(init=False)
    reason: str

    def __post_init__(self) -> None:
        self.rule = f"{self.reason}: its producer sent it so, and brokers store uncompressed batches without a check of these"
        self.remedy = (
            "Such a batch can be copied as it is, and cannot be opened or rebuilt: correct the producer. With "
            "write.on_refused: quarantine a mirror that has to rebuild it keeps it in a table and continues"
        )
        super().__post_init__()


@dataclass(eq=False, repr=False)
class FencedError(MirrorError):
    """Another run with the same tables has taken over. `by` names it and when."""

    by: str

    def __post_init__(self) -> None:
        super().__init__(
            f"another run with these tables has taken over: {self.by}. This run stops; do not restart it while the other one "
            "runs."
        )


@dataclass(eq=False, repr=False)
class RetriableError(MirrorError):
    """A request to a cluster failed without effect, and may succeed later; the supervisor retries.

    `error_name` is Kafka's name of the error, or one of this package: for the network (`NETWORK_EXCEPTION`, `DEADLINE`), for
    tokens and tickets (`TOKEN_ENDPOINT_UNREACHABLE`, `TOKEN_PROVIDER_UNREACHABLE`, `OAUTH_CB_FAILED`, `KDC_UNREACHABLE`).
    Remedies are chosen by it, not by the message.
    """

    error_name: str
    detail: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.error_name}: {self.detail}")


class ProducerEpochFencedError(RetriableError):
    """A newer producer epoch owns the transactional id (47, 90), or the coordinator no longer knows it (48, 49).

    Ambiguous by nature: timed out, taken over, or committed and re-initialised. No more may be concluded from it.
    """


@dataclass(eq=False, repr=False)
class TransactionBlockedError(RetriableError):
    """The last transaction of a transactional id cannot complete: one of its partitions does not accept the marker.

    The outcome of the transaction is decided and durable (`state` is PrepareCommit or PrepareAbort). The id cannot be used again
    before the partition has a leader and enough in-sync replicas.
    """

    error_name: str = field(init=False, default="CONCURRENT_TRANSACTIONS")
    detail: str = field(init=False)
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int

    def __post_init__(self) -> None:
        self.detail = (
            f"the last transaction of {self.transactional_id} (producer id {self.producer_id}, epoch {self.producer_epoch}) is "
            f"in state {self.state}: one of its partitions has no leader or too few in-sync replicas, and does not accept its "
            "marker"
        )
        super().__post_init__()


class OutcomeUnknownError(MirrorError):
    """The effect may or may not have happened: check the map and the target before acting."""


@dataclass(eq=False, repr=False)
class StoreUnreachableError(OutcomeUnknownError):
    """An operation of the store that holds tables or objects failed; a write may have been applied nevertheless.

    `table`: its URI, or the root of the objects. `is_refused`: the store rejected it
    (credentials, permissions, a missing bucket).
    """

    operation: str
    table: str
    reason: str
    remedy: str
    is_refused: bool = False

    def __post_init__(self) -> None:
        verb = "refuses to" if self.is_refused else "did not"
        super().__init__(f"{self.table}: the store {verb} {self.operation}: {self.reason}. Remedy: {self.remedy}")


@dataclass(eq=False, repr=False)
class ObjectMissingError(MirrorError):
    """An object of an object store, or bytes of it, is not there. `reason` says which."""

    store: str
    name: str
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.store}/{self.name}: {self.reason}. Remedy: {self.remedy}")


@dataclass(eq=False, repr=False)
class ObjectExistsError(MirrorError):
    """An object of this name is there already, by another writer; objects are never overwritten, and it was not changed."""

    store: str
    name: str

    def __post_init__(self) -> None:
        super().__init__(
            f"{self.store}/{self.name}: an object of this name exists already and was not overwritten. Remedy: write under a "
            "new name"
        )


@dataclass(eq=False, repr=False)
class RecoverNeededError(MirrorError):
    """No evidence says whether a decided transaction was committed, or the target has lost it; only the operator can choose."""

    what: str

    def __post_init__(self) -> None:
        super().__init__(
            f"{self.what}. Its rows stay in the offset map and nothing was copied since. `shallow-mirror recover CONF` shows "
            "what is "
            "known and takes the choice"
        )


@dataclass(eq=False, repr=False)
class MicroBatchInDoubtError(MirrorError):
    """A part of a micro-batch of a DataFrame sink is committed, and the operator has to choose what becomes of the rest."""

    what: str

    def __post_init__(self) -> None:
        super().__init__(
            f"{self.what}. Nothing of it was written again. Give the sink on_doubt='skip' to leave it (records may be missing), "
            "or on_doubt='repeat' to write all of it once more (records may be there twice)"
        )


@dataclass(eq=False, repr=False)
class RecordRefusedError(MirrorError):
    """A row of a DataFrame cannot become a record; nothing of its micro-batch was decided.

    `row`: its number within the input partition `slot` of the DataFrame, from 0 on.
    """

    slot: int
    row: int
    rule: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"row {self.row} of partition {self.slot} of the DataFrame: {self.rule}. {self.remedy}")


@dataclass(eq=False, repr=False)
class OlderTablesError(MirrorError):
    """The target knows of decisions, or commands, that the tables do not have: older tables were put back, or a copy was used.

    `known`: the newest one of the tables, which is a `what`. `evidence`: a newer one of which the target knows; of a decision,
    `version` is its version, and `run_id` its run. `if_lost`: what is left to do if the newest tables are lost.
    """

    known: str
    evidence: str
    version: int = 0
    run_id: str = ""
    what: str = "decision"
    if_lost: str = (
        "with `shallow-mirror recover CONF --accept-repeats` the mirror continues from these tables, and copies those records a "
        "second time"
    )

    def __post_init__(self) -> None:
        super().__init__(
            f"the tables are older than the target: their newest {self.what} is {self.known}, but {self.evidence}. Nothing was "
            "written: it could repeat what was written in between. Put the newest tables back (all of the folder or prefix of "
            f"`tables`), or leave it to the run that has them; {self.if_lost}"
        )


@dataclass(eq=False, repr=False)
class CopiesDifferError(MirrorError):
    """A migration found a difference between the clusters in what was copied. `sentences`: of the report of `verify`.

    `source` and `target`: aliases of the clusters that the sentences call so; a rollback copies from the cluster that it moved
    to. `mirror_file` and `migration_file`: for the commands that go on.
    """

    sentences: Sequence[str]
    source: str
    target: str
    mirror_file: str = "CONF"
    migration_file: str = "FILE"
    """Empty: of none, and nothing can be aborted."""

    def __post_init__(self) -> None:
        self.sentences = tuple(self.sentences)
        abort = f"`shallow-mirror migrate abort {self.migration_file}` goes back to where the writers were"
        super().__init__(
            f"the clusters differ, so nothing moves (source is {self.source} here, target is {self.target}): "
            f"{'; '.join(self.sentences)}. `shallow-mirror verify {self.mirror_file}` shows all of it"
            f"{f'; {abort}' if self.migration_file else ''}"
        )


@dataclass(eq=False, repr=False)
class LateWritesError(ConfigError):
    """Records were written to the cluster that a migration has left, behind the point of no return: no mirror copies them.

    `places`: partitions, offsets and numbers of records. `command`: for the operator to settle them.
    """

    problems: tuple[str, ...] = field(init=False)
    wave: str
    cluster: str
    other: str
    places: Sequence[str]
    command: str

    def __post_init__(self) -> None:
        self.places = tuple(self.places)
        super().__init__(
            f"wave {self.wave}: a client wrote to {self.cluster} after the point of no return, and no mirror copies that: "
            f"{listed(self.places)}. Stop that writer; then `{self.command} --carry` copies these records to the topics at "
            f"{self.other}, and `{self.command} --quarantine` to topics of their own there"
        )


@dataclass(eq=False, repr=False)
class HookFailedError(MirrorError):
    """A hook of a migration or fail-over failed: a command or an HTTP call of the operator. It may have had an effect.

    `place`: when it was called. `reason`: what it printed. `ways`: commands that go on.
    """

    hook: str
    place: str
    reason: str
    ways: str

    def __post_init__(self) -> None:
        super().__init__(f"hook {self.hook} ({self.place}): {self.reason}. Mend it; {self.ways}")


class SparkLostError(MirrorError):
    """The JVM of Spark exited during a run. The next start resolves its open transactions."""


@dataclass(eq=False, repr=False)
class IncompleteRunError(MirrorError):
    """A run up to the log ends of its start has ended without some partitions, or entries of `topics.include` match no topic.

    `left_out`: each with the reason.
    """

    left_out: Sequence[str]

    def __post_init__(self) -> None:
        self.left_out = tuple(self.left_out)
        more = f" and {len(self.left_out) - _NAMED:,} more" if len(self.left_out) > _NAMED else ""
        super().__init__(
            f"not everything was copied up to the log ends of the start: left out: {', '.join(self.left_out[:_NAMED])}{more}. "
            "The "
            "rest is complete. `shallow-mirror status` names the remedies; then start again"
        )


class OffsetMapConflictError(MirrorError):
    """Another application wrote to a table of the mirror, or the table is damaged or not what its name says."""


@dataclass(eq=False, repr=False)
class ArchiveFormatError(MirrorError):
    """An object of an archive is damaged, cut, or no object of an archive."""

    object_name: str
    detail: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"object {self.object_name}: {self.detail}. {self.remedy}")


class StoppedError(Exception):
    """A stop was requested while the run waited for something; the next start does what it left undone."""

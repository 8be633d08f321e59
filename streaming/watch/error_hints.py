"""Pure: an error of this package as a problem: the event, and the remedy."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from shallow_mirror.broker.net import EMPTY_FETCH, LOG_ENDS_EARLY, PRODUCER_FORGOTTEN, RUN_SUPERSEDED
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    FencedError,
    LogTruncatedError,
    MirrorError,
    OlderTablesError,
    RecoverNeededError,
    RetriableError,
    StoreUnreachableError,
    TopicRecreatedError,
    TxnOutcomeChangedError,
)
from shallow_mirror.sinks import EarlyEnd
from shallow_mirror.sinks.micro_batches import SOURCE_LOG_TRUNCATED
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition
from shallow_mirror.types import Segment, SourcePartition

_RETRIES = "the mirror retries automatically"

_TOO_FEW_REPLICAS = "a target topic has fewer replicas in sync than min.insync.replicas: bring its brokers back"

_RETRIABLE = {
    "NETWORK_EXCEPTION": "check that the brokers run and that this machine reaches their advertised addresses",
    "BROKER_NOT_AVAILABLE": "check that the brokers run and that this machine reaches their advertised addresses",
    "TOKEN_ENDPOINT_UNREACHABLE": "check that the token endpoint runs and is reachable: sasl.oauthbearer.token.endpoint.url",
    "TOKEN_PROVIDER_UNREACHABLE": "check that this machine reaches the token service of its cloud, and its metadata service",
    "OAUTH_CB_FAILED": "check that this machine reaches what oauth_cb requests tokens from",
    "KDC_UNREACHABLE": "check that the KDCs of the realm run and are reachable: [realms] of krb5.conf",
    "DEADLINE": "the cluster answers too slowly: check its load, or raise request.timeout.ms or write.transaction_timeout_ms",
    "REQUEST_TIMED_OUT": "the cluster answers too slowly: check its load and its replicas that are not in sync",
    "TIMED_OUT": "the cluster answers too slowly: check its load",
    "LEADER_NOT_AVAILABLE": "a partition has no leader: check the brokers that hold its replicas",
    "NOT_LEADER_OR_FOLLOWER": "a partition changes its leader; if that continues, check the brokers that hold its replicas",
    "NOT_ENOUGH_REPLICAS": _TOO_FEW_REPLICAS,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _TOO_FEW_REPLICAS,
    "COORDINATOR_NOT_AVAILABLE": "the target has no transaction coordinator: check the partitions of __transaction_state",
    "COORDINATOR_LOAD_IN_PROGRESS": "the target's coordinator is starting",
    "NOT_CONTROLLER": "the cluster elects a controller; if that continues, check its controllers and its ZooKeeper if it has one",
    "KAFKA_STORAGE_ERROR": "a broker has a disk error: check its log",
    "THROTTLING_QUOTA_EXCEEDED": "a quota of the cluster throttles the mirror: raise it, or wait",
    "WORKER_LOST": "a worker or executor of Spark was lost: if that continues, it lacks memory (read.fetch_bytes, write.slots)",
    "SLOT_NOT_COMMITTED": "transactions were aborted by the target: if that continues, raise write.transaction_timeout_ms",
    LOG_ENDS_EARLY: "the source lost the end of the log before it was copied (an unclean leader election, a lost disk): check "
    "the brokers that hold its replicas",
    EMPTY_FETCH: "check that the broker can read the named offset: its log, its remote storage, and the permission to describe "
    "the topic",
    SOURCE_LOG_TRUNCATED: "the source lost the end of a log (an unclean leader election, a lost disk): check the brokers "
    "that hold its replicas",
    RUN_SUPERSEDED: "run it once: another run has a copy of its tables, and of the two, one ends with OlderTablesError",
    PRODUCER_FORGOTTEN: "none needed: it is written to once no request of an earlier run can arrive any more; a run with "
    "--available-now waits for that",
    "UNKNOWN_TOPIC_OR_PARTITION": "a topic was deleted, or a broker does not know it yet: check the topic",
    "TOPIC_RECREATED": "none needed: read.on_data_loss is continue",
}

_AFTER_DATA_LOSS = (
    "To skip what is lost, set read.on_data_loss: continue and start again: offsets that retention deleted are recorded as "
    "expired, and behind a truncated log the mirror continues at its position and reports which offsets hold other records now. "
    "Or exclude the topic (topics.exclude); to copy all it holds now, mirror it with another mirror id, tables and checkpoint"
)
_AFTER_RECREATION = (
    "To copy what has its name now from its start, set read.on_data_loss: continue and start again, or close the former topic "
    "(`shallow-mirror forget CONF TOPIC --apply`). Or exclude the topic (topics.exclude), or mirror it to a new target topic "
    "with another mirror id, tables and checkpoint"
)
_CONTINUES = "read.on_data_loss: continue continues behind what was lost"
_AS_NEXT_LINEAGE = (
    "To archive the log that the source has now, set read.on_data_loss: continue and start again: it becomes the next lineage of "
    "the partition, from the offset where it differs, and what was archived before stays. Or exclude the topic (topics.exclude)"
)
_DAMAGED = "Check the disk of the source's broker; if another replica is intact, make it the leader"
_QUARANTINE = "If the data is lost for good, write.on_refused: quarantine keeps the batch in a table and continues"
_NO_QUARANTINE = (
    "write.on_refused: quarantine cannot be used for this batch: if the data is lost for good, exclude the topic (topics.exclude)"
)

_REMEDY_OF_DAMAGE = "check the disk of the source's broker, or set write.on_refused: quarantine"
_REMEDY_OF_LOSS = "read.on_data_loss: continue skips what is lost; or exclude the topic"

REMEDY_OF_GONE = (
    "mirror the topic from its start with another mirror id, tables and checkpoint, or close it "
    "(`shallow-mirror forget CONF TOPIC --apply`)"
)
REMEDY_OF_RECREATED = (
    "read.on_data_loss: continue copies what has its name now from its start, and in a mirror closing the former one does so as "
    "well (`shallow-mirror forget CONF TOPIC --apply`); or exclude it (topics.exclude)"
)
REMEDY_OF_UNMATCHED = (
    "correct it, or take it out of topics.include; a run without --available-now waits for topics that are created later"
)

_DEFINITE = {
    "TopicGoneError": REMEDY_OF_GONE,
    "TopicRecreatedError": REMEDY_OF_RECREATED,
    "TopicAccessError": "grant what the message names",
    "TopicSettingsError": "set it as the message says; once the topic continues, `shallow-mirror verify CONF` compares what "
    "was written in between",
    "BatchRefusedError": "do what the message says, or set write.on_refused: quarantine",
    "CorruptBatchError": _REMEDY_OF_DAMAGE,
    "LogTruncatedError": "check the brokers that hold the source's replicas; with read.on_data_loss: continue a mirror copies it "
    "again once the log reaches the position, and an archive continues with the next lineage",
    "DataLossError": _REMEDY_OF_LOSS,
}


def problem_of_retry(what: str, error: MirrorError) -> Problem:
    """Return the problem of an error that is retried. `what`: the failed step."""
    name = error.error_name if isinstance(error, RetriableError) else type(error).__name__
    hint = error.remedy if isinstance(error, StoreUnreachableError) else _RETRIABLE.get(name)
    remedy = _RETRIES if hint is None else f"{hint}; {_RETRIES}"
    return Problem(kind=ProblemKind.RETRIABLE, text=f"{what}: {error}", remedy=remedy, error_name=name)


def problem_of_left_out(left: LeftOutPartition) -> Problem:
    """Return the problem of a partition that is left out of micro-batches. Its copy is resumed at its position."""
    hint = _RETRIABLE.get(left.error_name, "check that the partition can be read at the source and written at the target")
    remedy = _DEFINITE.get(left.error_name, "do what the message says") if left.is_definite else hint
    return Problem(
        kind=ProblemKind.LEFT_OUT,
        text=f"left out because of the {left.side.value}: {left.reason}",
        remedy=f"{remedy}; the other partitions continue, and the mirror retries this one automatically",
        error_name=left.error_name,
        place=left.source.topic_partition,
    )


def problem_of_wait(text: str, name: str | None) -> Problem:
    """Return the problem of a planner that waits. `name`: of the error that it waits out; None if there is none."""
    hint = _RETRIABLE.get(name or "", "check that the source runs and that this machine reaches its brokers")
    return Problem(kind=ProblemKind.WAIT, text=text, remedy=f"{hint}; {_RETRIES}")


def problem_of_early_ends(early_ends: Sequence[EarlyEnd], commit_interval: str) -> Problem:
    """Return the problem of slots that the commit interval ended: the path between the clusters is slower than planned."""
    seconds = max(end.seconds for end in early_ends)
    rate = sum(end.sent_bytes for end in early_ends) / max(0.001, seconds) / 1e6
    sending = sum(end.sending_s for end in early_ends) / max(0.001, sum(end.seconds for end in early_ends))
    side, share = ("target", sending) if sending >= 0.5 else ("source", 1 - sending)
    remedy = {
        "target": "check the network and the load of the target; small batches over a long distance need more requests in "
        "flight (write.in_flight_requests), or become larger ones (write.coalesce_bytes)",
        "source": "check the network and the load of the source",
    }[side]
    return Problem(
        kind=ProblemKind.WAIT,
        text=f"slots end before their ranges are done, after write.commit_interval ({commit_interval}): {rate:.3f} MB/s, "
        f"{share:.0%} of the time waiting for the {side}; each round commits what was copied",
        remedy=remedy,
    )


def problem_of_truncation(loss: LogTruncatedError) -> Problem:
    """Return the problem of a truncated log: the mirror continues at a position below which the source has other records."""
    position, divergent_offset = loss.expected_offset, loss.divergent_offset
    other = (
        f"the source may have other records below offset {position} than were copied: the first such offset is not known"
        if divergent_offset is None
        else f"the source holds other records at offsets {divergent_offset} to {position - 1} than were copied"
    )
    return Problem(
        kind=ProblemKind.TRUNCATED,
        text=f"{other}: its log was truncated (an unclean leader election, a lost disk). They are not copied; the "
        f"earlier copies stay on the target, and the mirror continues at offset {position}",
        remedy="`shallow-mirror verify` lists what differs, `shallow-mirror redo` copies a range into another topic",
        error_name=type(loss).__name__,
        place=loss.topic_partition,
    )


def problem_of_next_lineage(
    first_row: Segment, position: int, log_start: int | None, changed: TxnOutcomeChangedError | None = None
) -> Problem:
    """Return the problem of a truncated log that an archive continues as the next lineage.

    `position`: the end of the former lineage. `log_start`: of the source; None if it is not known. `changed`: the transaction
    that ended otherwise if no record differs.
    """
    start, lineage = first_row.source_start, first_row.lineage
    deleted = ""
    if log_start is not None and log_start > start:
        deleted = (
            f". The source has deleted offsets {start} to {log_start - 1} of the new log already, so that the former one may "
            f"differ before {start} as well"
        )
    differs = (
        f"the source holds other records from offset {start} on than were archived up to {position}: its log was truncated "
        "(an unclean leader election, a lost disk)"
        if changed is None
        else changed.detail
    )
    return Problem(
        kind=ProblemKind.TRUNCATED,
        text=f"{differs}. The archive continues at {start} with lineage {lineage}; what was archived "
        f"there before stays in lineage {lineage - 1}{deleted}",
        remedy=f"none needed; `until.lineage: {lineage - 1}` in a restore file restores what the source has lost",
        error_name=LogTruncatedError.__name__,
        place=first_row.source.topic_partition,
    )


def problem_of_unknown_divergence(source: SourcePartition, position: int, reason: str) -> Problem:
    """Return the problem of a truncated log whose point of divergence an archive cannot find."""
    return Problem(
        kind=ProblemKind.TRUNCATED,
        text=f"the source's log was truncated below offset {position}, and from which offset on it differs cannot be found out: "
        f"{reason}. No lineage begins: the archive continues at offset {position}, and other records before it are not "
        "archived",
        remedy="to archive all that the log holds now, archive the topic with another `archive` name, tables and checkpoint",
        error_name=LogTruncatedError.__name__,
        place=source.topic_partition,
    )


def problem_of_end(error: MirrorError) -> Problem:
    """Return the problem of an error that ends the run."""
    text = str(error)
    match error:
        case BatchRefusedError():
            remedy = error.remedy
            text = text.removesuffix(f". {error.remedy}")
        case CorruptBatchError():
            remedy = f"{_REMEDY_OF_DAMAGE}; shallow-mirror preflight counts such batches"
        case LogTruncatedError():
            remedy = f"{_CONTINUES}; an archive archives the log that the source has now as the next lineage"
        case DataLossError():
            remedy = _REMEDY_OF_LOSS
        case FencedError():
            remedy = "another run is active: do not start this one again"
        case RecoverNeededError():
            remedy = "shallow-mirror recover CONF"
        case OlderTablesError():
            remedy = f"put the newest tables back; {error.if_lost}"
            text = text.removesuffix(f"; {error.if_lost}")
        case RetriableError():
            remedy = _RETRIABLE.get(error.error_name, "start the mirror again")
        case _:
            remedy = "do what the message says, then start the mirror again"
    topic_partition = error.topic_partition if isinstance(error, BatchRefusedError | CorruptBatchError | DataLossError) else None
    return Problem(kind=ProblemKind.ENDED, text=text, remedy=remedy, error_name=type(error).__name__, place=topic_partition)


def with_archive_remedy(error: LogTruncatedError) -> MirrorError:
    """Return a copy whose message ends in the remedy of an archive, for whoever started the run."""
    explained = copy.copy(error)
    explained.args = (f"{error}. {_AS_NEXT_LINEAGE}",)
    return explained


def with_remedy(error: DataLossError | CorruptBatchError, *, is_quarantining: bool) -> MirrorError:
    """Return a copy whose message ends in the remedy, for whoever started the run; `problems` has a column for remedies."""
    if isinstance(error, TopicRecreatedError):
        remedy = _AFTER_RECREATION
    elif isinstance(error, DataLossError):
        remedy = _AFTER_DATA_LOSS
    else:
        remedy = f"{_DAMAGED}. {_NO_QUARANTINE if is_quarantining else _QUARANTINE}"
    explained = copy.copy(error)
    explained.args = (f"{error}. {remedy}",)
    return explained

"""Driver: evidence on the target about one decided Kafka transaction: coordinator, receipt, log. Changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from shallow_mirror.broker import Cluster, CoordinatorKind
from shallow_mirror.broker.admin import open_partitions, open_transactions
from shallow_mirror.broker.cluster import gone_topics, suspected_topics
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange
from shallow_mirror.broker.produce import Receipt, begin_read_receipts, read_receipt, read_receipts
from shallow_mirror.broker.produce.txn import begin_describe_txn, describe_txn
from shallow_mirror.checkpoints.ledger import Recorded
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, DataLossError, OlderTablesError, RetriableError
from shallow_mirror.sinks.kafka.protocol.txn_outcome import DecidedTxn, LogEvidence, ReceiptEvidence, WrittenRange
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition

_log = logging.getLogger(__name__)

FORGOTTEN_MARKER, TRANSACTION_ABORTED = "FORGOTTEN_MARKER", "TRANSACTION_ABORTED"

_FETCH_BYTES = 1 << 20

READ_PATIENCE_MS = 2_000
"""How long a look at log ends may take: enough for thousands of partitions, and short beside the wait for a new leader."""


def inspect_receipt(target: Cluster, decided: DecidedTxn, map_id: str, deadline: Deadline) -> ReceiptEvidence:
    """Return the evidence of the receipt. Raises RetriableError, ConfigError (another map's: it may have replaced ours)."""
    answer = read_receipt(target, decided.txn.transactional_id, decided.receipt_partition, deadline)
    if answer is None:
        return ReceiptEvidence.ABSENT
    if not isinstance(answer, Receipt):
        return ReceiptEvidence.PENDING
    _require_own(answer, decided.txn.transactional_id, map_id)
    is_ours = (answer.producer_id, answer.producer_epoch) == (decided.txn.producer_id, decided.txn.producer_epoch)
    return ReceiptEvidence.OURS if is_ours else ReceiptEvidence.ANOTHERS


def require_known_receipts(
    target: Cluster,
    transactional_ids: Sequence[str],
    map_id: str,
    recorded: Recorded,
    run_id_of: Callable[[int], str | None],
    deadline: Deadline,
) -> None:
    """Raise OlderTablesError if the target has a receipt of a decision that the tables do not have.

    A receipt exists only if its transaction was committed, and that is done only for a decision that is in the tables.
    `run_id_of`: the run of a run epoch according to the log of the tables, None where it does not say. Raises ConfigError if
    another mirror commits under these ids, RetriableError.
    """
    newer = [
        (name, receipt)
        for name, receipt in receipts_of(target, transactional_ids, map_id, deadline)
        if receipt.decision > recorded.decided_version or _is_anothers(receipt, recorded, run_id_of)
    ]
    if not newer:
        return
    transactional_id, receipt = max(newer, key=lambda found: found[1].decision)
    raise OlderTablesError(
        _decision_text(recorded.decided_version, recorded.decided_at_ms or None),
        f"consumer group {transactional_id} on the target has the receipt of "
        f"{_decision_text(receipt.decision, receipt.written_at_ms)}, of run {receipt.run_id}",
        receipt.decision,
        receipt.run_id,
    )


def receipts_of(target: Cluster, names: Sequence[str], map_id: str, deadline: Deadline) -> list[tuple[str, Receipt]]:
    """Return every committed receipt of these transactional ids, with its id.

    Raises ConfigError if one is of other tables, RetriableError.
    """
    target.find_coordinators(CoordinatorKind.GROUP, names, deadline)
    begun = {name: begin_read_receipts(target, name, deadline) for name in names}
    found = [(name, receipt) for name in names for receipt in read_receipts(target, name, deadline, begun=begun[name])]
    for name, receipt in found:
        _require_own(receipt, name, map_id)
    return found


def _is_anothers(receipt: Receipt, recorded: Recorded, run_id_of: Callable[[int], str | None]) -> bool:
    """Return whether a run with another copy of the tables has committed under a number that these tables use, too.

    Copies that runs continue number their run epochs alike: the higher number is not the later one. The log of the tables is
    read only for a receipt that was written after their newest decision: others are of decisions before it.
    """
    if receipt.decision == recorded.decided_version:
        return recorded.decided_run_id not in ("", receipt.run_id)
    if receipt.written_at_ms is not None and receipt.written_at_ms <= recorded.decided_at_ms:
        return False
    return run_id_of(receipt.decision >> 32) not in (None, receipt.run_id)


def _decision_text(version: int, at_ms: int | None) -> str:
    """Name a decision by its version (`commit_metadata.py`)."""
    if not version:
        return "none"
    at = "" if at_ms is None else f" ({datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec='seconds')})"
    return f"decision {version & 0xFFFF_FFFF} of run epoch {version >> 32}{at}"


def refuse_used_ids(target: Cluster, transactional_ids: Sequence[str], deadline: Deadline) -> None:
    """Raise ConfigError if the target knows an id of a mirror or sink whose tables do not exist yet, RetriableError."""
    target.find_coordinators(CoordinatorKind.TXN, transactional_ids, deadline)
    begun = {name: begin_describe_txn(target, name, deadline) for name in transactional_ids}
    for transactional_id in transactional_ids:
        try:
            state = describe_txn(target, transactional_id, deadline, begun=begun[transactional_id])
        except BrokerTooOldError as error:
            _log.warning("whether another application uses the transactional ids is not known: %s", error)
            return
        if state is not None:
            raise ConfigError(
                f"the tables are new, but the target knows the transactional id {transactional_id} (its last transaction: "
                f"{state.state}, producer id {state.producer_id}): another application, mirror or sink uses it, or the tables of "
                "this one are gone. Give it another name (of a mirror: `mirror`), or restore its tables"
            )


def _require_own(receipt: Receipt, transactional_id: str, map_id: str) -> None:
    if receipt.map_id != map_id:
        raise ConfigError(
            f"consumer group {transactional_id} on the target holds a receipt of the tables {receipt.map_id} (run "
            f"{receipt.run_id}); these are {map_id}: two mirrors or sinks have one name and different tables, or the tables were "
            "created again. Give one of them another name (of a mirror: `mirror`); if the other no longer exists, delete its "
            "consumer groups"
        )


def inspect_logs(
    target: Cluster, txn: SlotTxn, written: Sequence[WrittenRange], deadline: Deadline, pause: Callable[[int], None]
) -> tuple[LogEvidence, ...]:
    """Return the evidence of the first batch of each range, once the last stable offset is past it.

    If retention or DeleteRecords took the front of a range, that is the first batch that is left: one that is gone says
    nothing, least of all that it was aborted. Nor does a truncated batch leave evidence. `pause` waits between two looks, given
    their number. Raises RetriableError.
    """
    evidence = dict.fromkeys(written, LogEvidence.NOTHING)
    evidence |= dict.fromkeys(gone_ranges(target, written, deadline), LogEvidence.GONE)
    left = {each: each for each in written if evidence[each] is not LogEvidence.GONE}
    while left:
        found, cut = _inspect_starts(target, txn, list(left.values()), deadline, pause)
        evidence.update((whole, found[rest]) for whole, rest in left.items() if rest in found)
        left = {whole: cut[rest] for whole, rest in left.items() if rest in cut}
    return tuple(evidence[written_range] for written_range in written)


def _inspect_starts(
    target: Cluster, txn: SlotTxn, written: Sequence[WrittenRange], deadline: Deadline, pause: Callable[[int], None]
) -> tuple[dict[WrittenRange, LogEvidence], dict[WrittenRange, WrittenRange]]:
    """Return the evidence at the first offset of each range, and the rests of ranges whose first offset was deleted."""
    # Nothing will ever come to a log that ends in front of the range: a Fetch would only wait.
    evidence = dict.fromkeys(lost_ranges(target, written, deadline, wholly=True), LogEvidence.NOTHING)
    polls = 0
    while hidden := _hidden_ranges(
        target, [written_range for written_range in written if written_range not in evidence], deadline
    ):
        hidden_partitions = [written_range.topic_partition for written_range in hidden]
        still_open = open_partitions(open_transactions(target, hidden_partitions, deadline), txn.producer_id)
        without_marker = [written_range for written_range in hidden if written_range.topic_partition in still_open]
        evidence.update(dict.fromkeys(without_marker, LogEvidence.OPEN))
        if len(without_marker) < len(hidden):  # behind the open transaction of another producer, or its marker is on its way
            deadline.require(f"the last stable offset of {hidden[0].topic_partition} to pass {hidden[0].start}")
            pause(polls)
            polls += 1
    found, cut = _read_first_batches(
        target, txn, [written_range for written_range in written if written_range not in evidence], deadline
    )
    return evidence | found, cut


def _hidden_ranges(target: Cluster, written: Sequence[WrittenRange], deadline: Deadline) -> list[WrittenRange]:
    """Ranges whose first offset the last stable offset has not passed."""
    if not written:
        return []
    stable = target.list_offsets(
        {written_range.topic_partition: -1 for written_range in written}, IsolationLevel.READ_COMMITTED, deadline
    )
    return [written_range for written_range in written if stable[written_range.topic_partition].offset <= written_range.start]


def _read_first_batches(
    target: Cluster, txn: SlotTxn, written: Sequence[WrittenRange], deadline: Deadline
) -> tuple[dict[WrittenRange, LogEvidence], dict[WrittenRange, WrittenRange]]:
    """Fetch the batch at the first offset of each range, all of a leader's in one request. Return as `_inspect_starts`."""
    evidence, cut = dict.fromkeys(written, LogEvidence.NOTHING), dict[WrittenRange, WrittenRange]()
    unread = {written_range.topic_partition: written_range for written_range in written}
    while unread:
        ranges = [
            ReadRange(topic_partition, written_range.start, written_range.start + 1, 1.0, written_range.target.topic_id)
            for topic_partition, written_range in unread.items()
        ]
        reader = RangeReader(target, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=_FETCH_BYTES, deadline=deadline)
        try:
            for response in reader:
                for fetched in response:
                    found_evidence = _evidence_of(fetched, txn, unread[fetched.topic_partition].start)
                    if found_evidence is not None:
                        evidence[unread[fetched.topic_partition]] = found_evidence
        except DataLossError as loss:
            deleted = unread.pop(loss.topic_partition)  # the reader stopped for the others as well
            if loss.log_start_offset is not None and deleted.start < loss.log_start_offset < deleted.end:
                cut[deleted] = replace(deleted, start=loss.log_start_offset)
        else:
            break
    return evidence, cut


def _evidence_of(fetched: IndexedPartition, txn: SlotTxn, start: int) -> LogEvidence | None:
    """None if no batch of this transaction holds `start`."""
    headers = fetched.index.headers
    holds = (headers["base_offset"] <= start) & (fetched.index.last_offset >= start)
    is_of_txn = holds & (headers["producer_id"] == txn.producer_id) & (headers["producer_epoch"] == txn.producer_epoch)
    if not is_of_txn.any():
        return None
    is_aborted = any(producer_id == txn.producer_id and first_offset <= start for producer_id, first_offset in fetched.aborted)
    return LogEvidence.OURS_ABORTED if is_aborted else LogEvidence.OURS


def lost_ranges(
    target: Cluster, written: Sequence[WrittenRange], deadline: Deadline, *, wholly: bool = False
) -> tuple[WrittenRange, ...]:
    """Ranges whose log ends before their end (with `wholly`: before their start), although the topic is there.

    Retention does not make a log end earlier: records that are lost here were truncated. Raises RetriableError.
    """
    topic_ids = {written_range.target.topic: written_range.target.topic_id for written_range in written}
    listed = target.metadata(sorted(topic_ids), deadline)
    suspected = suspected_topics(listed, topic_ids)
    existing = [
        written_range.topic_partition
        for written_range in written
        if written_range.target.topic not in suspected and listed.has(written_range.topic_partition)
    ]
    ends = readable_ends(target, existing, deadline, IsolationLevel.READ_UNCOMMITTED)

    def is_lost(written_range: WrittenRange) -> bool:
        end = ends.get(written_range.topic_partition)  # without a leader, or a listed topic, the state is unknown
        return end is not None and (end <= written_range.start if wholly else end < written_range.end)

    return tuple(written_range for written_range in written if is_lost(written_range))


def gone_ranges(target: Cluster, written: Sequence[WrittenRange], deadline: Deadline) -> tuple[WrittenRange, ...]:
    """Ranges whose topic was deleted, or created again: no reader can reach them. Raises RetriableError."""
    gone = gone_topics(target, {written_range.target.topic: written_range.target.topic_id for written_range in written}, deadline)
    return tuple(written_range for written_range in written if written_range.target.topic in gone)


def readable_ends(
    target: Cluster,
    partitions: Sequence[TopicPartition],
    deadline: Deadline,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    *,
    is_patient: bool = False,
) -> dict[TopicPartition, int]:
    """Return the log ends (last stable offsets under read_committed) of the topic-partitions whose leaders answer.

    Does not wait for leaders; with `is_patient` for READ_PATIENCE_MS, if none answers at all.
    """
    if not partitions:
        return {}
    try:
        return target.latest_offsets(partitions, isolation, deadline.sooner(READ_PATIENCE_MS), is_patient=is_patient)[0]
    except RetriableError as error:
        _log.debug("no leader answers for %d target partitions: %s", len(partitions), error)
        return {}


def is_nothing_hanging(decided: Sequence[DecidedTxn], stable_ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether these last stable offsets show that `refuse_hanging` has nothing to refuse.

    Each is the offset of the first record that was written now: nothing is open in front of it, and nothing can come there later.
    """
    return all(
        stable_ends.get(range_.topic_partition) == range_.start for decided_txn in decided for range_ in decided_txn.written
    )


def refuse_hanging(target: Cluster, decided: Sequence[DecidedTxn], own_producer_ids: Collection[int], deadline: Deadline) -> None:
    """Raise RetriableError if a producer's open transaction begins before the batches of its newest one, or the newest is over.

    Also if another producer id of this mirror has a transaction open in front of it. Sends one request per leader, unless
    something is open in front of ours, or records of ours were deleted.
    """
    starts = {(txn.txn.producer_id, range_.topic_partition): range_.start for txn in decided for range_ in txn.written}
    latest = {partition: -1 for _, partition in starts}
    stable = target.list_offsets(latest, IsolationLevel.READ_COMMITTED, deadline) if latest else {}
    blocked = {partition for (_, partition), start in starts.items() if stable[partition].offset < start}
    unclear = {partition for (_, partition), start in starts.items() if stable[partition].offset != start}
    producers = target.describe_producers(sorted(unclear), deadline) if unclear else {}
    for (producer_id, partition), start in starts.items():
        # Open records hold the last stable offset while they are there. Beyond ours it says that they were deleted (retention,
        # DeleteRecords), which ends nothing, or that a marker has ended them, which the mirror did not send: the transaction
        # timed out, or an operator aborted it. In front of ours, where another transaction holds it, it says nothing about ours.
        # The leader knows. Nothing is decided yet, so nothing is lost.
        if stable[partition].offset != start and not any(
            state.producer_id == producer_id and 0 <= state.current_txn_start_offset <= start for state in producers[partition]
        ):
            raise RetriableError(
                TRANSACTION_ABORTED,
                f"{partition}: the records that producer id {producer_id} wrote from offset {start} on were aborted before they "
                "were decided (a transaction timeout, or an operator); they are copied again",
            )
    # What one of our producer ids has open in a partition that it did not write now is of an earlier transaction, and was aborted
    # without a marker. Readers would wait for it, and so would the settling of what is decided behind it.
    last = dict[TopicPartition, int]()
    for (_, partition), start in starts.items():
        last[partition] = max(start, last.get(partition, 0))
    for partition in sorted(blocked):
        for state in producers[partition]:
            is_own = state.producer_id in own_producer_ids
            start = starts.get((state.producer_id, partition), last[partition] if is_own else 0)
            if 0 <= state.current_txn_start_offset < start:
                raise RetriableError(
                    FORGOTTEN_MARKER,
                    f"{partition}: records of an aborted transaction of producer id {state.producer_id} are still open from "
                    f"offset {state.current_txn_start_offset}, before what was written now at {start}",
                )

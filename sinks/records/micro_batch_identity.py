"""Pure: whether a micro-batch of a DataFrame sink is to be written, as the table says (docs/design/dataframe-sink.md).

Asked by the owner of the table only, after its recovery: no other run decides between the question and the decision.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from shallow_mirror.checkpoints import DecidedSegment, WrittenBy
from shallow_mirror.errors import ConfigError, MicroBatchInDoubtError
from shallow_mirror.types import SlotTxn

OnDoubt = Literal["stop", "skip", "repeat"]
"""What becomes of a micro-batch that is committed in part: an error, no further write (records may be missing), or all of it
once more (records may be there twice)."""


_LONGEST_JOB_ID, _LONGEST_OFFSETS = 100, 1_000
"""Characters of them in a receipt: brokers accept 4,096 bytes by default (`offset.metadata.max.bytes`)."""


@dataclass(frozen=True, slots=True)
class SlotContent:
    """The records of a slot as they came from Spark: how many, and their checksum (`ContentDigest`)."""

    record_count: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchId:
    """A micro-batch of a streaming query, or with `job_id` what a batch job writes."""

    query_id: str | None = None
    batch_id: int | None = None
    job_id: str | None = None
    source_offsets: str | None = None
    """The ends of all sources, as Spark's log of offsets has them; None of a job, and if Spark does not tell."""

    def in_receipt(self) -> dict[str, str | int]:
        """Return how a receipt names it: of long offsets nothing, of a long job id its digest."""
        if self.job_id is not None:
            return {"job": _short(self.job_id)}
        named: dict[str, str | int] = {"query": self.query_id or "", "batch": self.batch_id or 0}
        if self.source_offsets is not None and len(self.source_offsets) <= _LONGEST_OFFSETS:
            named["offsets"] = self.source_offsets
        return named

    @classmethod
    def of_receipt(cls, named: Mapping[str, str | int]) -> Self | None:
        """Return the micro-batch that a receipt names; None if it was written by an earlier release."""
        match named:
            case {"job": str(job_id)}:
                return cls(job_id=job_id)
            case {"query": str(query_id), "batch": int(batch_id)}:
                offsets = named.get("offsets")
                return cls(query_id=query_id, batch_id=batch_id, source_offsets=None if offsets is None else str(offsets))
            case _:
                return None

    def is_same(self, named: MicroBatchId) -> bool:
        """Return whether `named`, of a receipt, names this one."""
        if self.job_id is not None:
            return _short(self.job_id) == named.job_id
        return (self.query_id, self.batch_id) == (named.query_id, named.batch_id)

    def described(self) -> str:
        """Return the text with the source offsets, as far as they are known."""
        return str(self) if self.source_offsets is None else f"{self} (source offsets {self.source_offsets})"

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}" if self.job_id is None else f"job {self.job_id}"


def _short(job_id: str) -> str:
    return job_id if len(job_id) <= _LONGEST_JOB_ID else hashlib.sha256(job_id.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RecordedMicroBatch:
    """A micro-batch as the table has it. `slots`: those whose records are all there. `found_count`: no record counts twice."""

    id: MicroBatchId
    record_count: int
    slots: Mapping[int, SlotContent]
    found_count: int
    is_lost: bool = False
    """Only receipts name it: a part of it at least is committed, and the table does not say which."""

    @property
    def is_complete(self) -> bool:
        return not self.is_lost and self.found_count >= self.record_count

    @classmethod
    def lost(cls, id: MicroBatchId) -> RecordedMicroBatch:
        return cls(id, record_count=0, slots={}, found_count=0, is_lost=True)

    @classmethod
    def of_rows(cls, rows: Sequence[DecidedSegment]) -> RecordedMicroBatch | None:
        """Return the micro-batch of these rows, all of one; None if there is no row.

        If the operator had it repeated, a slot may have several transactions, each of them in part. The one with the most
        records counts: those of another slot, which are there twice, do not make up for what is missing.
        """
        found: defaultdict[SlotTxn | None, int] = defaultdict(int)
        written: dict[SlotTxn | None, WrittenBy] = {}
        for row in rows:
            assert row.written_by is not None
            found[row.txn] += row.segment.record_count
            written[row.txn] = row.written_by
        best: defaultdict[int, dict[int, SlotTxn | None]] = defaultdict(dict)
        for txn, by in written.items():
            slots = best[by.micro_batch_record_count]
            if by.slot not in slots or found[slots[by.slot]] < found[txn]:
                slots[by.slot] = txn
        recorded: RecordedMicroBatch | None = None
        # A repetition with another number of records has divided them otherwise: it is complete by itself, or not.
        for record_count, slots in sorted(best.items()):
            by = written[next(iter(slots.values()))]
            of = MicroBatchId(query_id=by.query_id, batch_id=by.batch_id, job_id=by.job_id, source_offsets=by.source_offsets)
            contents = {
                slot: SlotContent(written[txn].slot_record_count, written[txn].slot_crc32c) for slot, txn in slots.items()
            }
            whole = {slot: content for slot, content in contents.items() if found[slots[slot]] == content.record_count}
            if recorded is None or not recorded.is_complete:
                recorded = cls(of, record_count, whole, sum(found[txn] for txn in slots.values()))
        return recorded


@dataclass(frozen=True, slots=True)
class Plan:
    """`is_written`: there is nothing to do. `committed`: slots to be compared instead of written."""

    is_written: bool
    committed: Mapping[int, SlotContent] = field(default_factory=dict)
    record_count: int | None = None
    """Of the whole micro-batch, if it was decided before; None: as many as there are."""


WRITE = Plan(is_written=False)
WRITTEN = Plan(is_written=True)


def plan_micro_batch(
    batch: MicroBatchId,
    newest: RecordedMicroBatch | None,
    same: RecordedMicroBatch | None,
    *,
    follows: str | None,
    on_doubt: OnDoubt,
) -> Plan:
    """Return the plan of a micro-batch.

    `newest`: the newest one of any query; `same`: the one with this id. `follows`: id of the query that this one replaces.
    Raises ConfigError if it may hold records that were written under another id, MicroBatchInDoubtError if only a part of it was
    committed, and what is left to write cannot be told.
    """
    if batch.job_id is None and newest is not None:
        _require_next(batch, newest.id, same, follows)
    if same is not None and same.is_complete:
        return WRITTEN
    if newest is not None and newest.id.query_id != batch.query_id and on_doubt == "stop":
        # Receipts name it until something else is decided; then nothing shows any more that its query replays it.
        if newest.is_lost:
            raise MicroBatchInDoubtError(f"{batch} follows {_lost(newest.id)}")
        # Another query begins behind its source offsets. A job may be written: the rows stay, and its query still replays it.
        if batch.job_id is None and not newest.is_complete:
            raise MicroBatchInDoubtError(
                f"{batch} follows {newest.id}, which was committed in part, {newest.found_count} of {newest.record_count} "
                "records: only a replay by its own query writes the others"
            )
    if same is None:
        return WRITE
    if on_doubt == "skip":
        return WRITTEN
    if on_doubt == "repeat":
        return WRITE
    if same.is_lost:
        raise MicroBatchInDoubtError(_lost(same.id))
    if sum(content.record_count for content in same.slots.values()) != same.found_count:
        raise MicroBatchInDoubtError(
            f"{batch} was committed in part, {same.found_count} of {same.record_count} records, and of a slot only in some "
            "partitions: a replay does not show which records are missing"
        )
    return Plan(is_written=False, committed=same.slots, record_count=same.record_count)


def _require_next(batch: MicroBatchId, newest: MicroBatchId, same: RecordedMicroBatch | None, follows: str | None) -> None:
    """Raise ConfigError unless the micro-batch comes behind the newest one, or is a replay (invariants C and D)."""
    assert batch.batch_id is not None
    assert newest.batch_id is not None
    if newest.query_id != batch.query_id:
        if same is None and follows == newest.query_id:
            return
        raise ConfigError(
            f"{batch}: the newest one that was written is {newest}, of another query. A new checkpoint begins at batch 0 again, "
            f"and may read again what is written already. Begin this query {_behind(newest)}"
        )
    if batch.batch_id > newest.batch_id:
        return
    recorded = None if same is None else same.id.source_offsets
    if None not in (recorded, batch.source_offsets):
        is_replay = recorded == batch.source_offsets
    else:  # only the newest one may not be recorded as done in Spark's checkpoint
        is_replay = same is not None and batch.batch_id == newest.batch_id
    if not is_replay:
        raise ConfigError(
            f"{batch} is neither the newest one, {newest}, nor has it the source offsets of the one that was written under this "
            f"id: its checkpoint is older than the tables. Restore the newest checkpoint, or begin a new query {_behind(newest)}"
        )


def _lost(micro_batch: MicroBatchId) -> str:
    return f"{micro_batch}, which was committed, perhaps in part: these older tables do not say what it wrote"


def _behind(newest: MicroBatchId) -> str:
    offsets = f" ({newest.source_offsets})" if newest.source_offsets is not None else ""
    return f"behind the source offsets of {newest}{offsets}, and give the sink follows={newest.query_id!r}"

"""Executor: which batches of a response are sent, in which form, and which are quarantined."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.errors import BatchRefusedError
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob
from shallow_mirror.sinks.slot_values import AdmittedPart, ReadPart
from shallow_mirror.sinks.slots.quarantine_policy import Refusal
from shallow_mirror.types import SourcePartition
from shallow_mirror.wire.batches import SENT, admit, can_be_quarantined
from shallow_mirror.wire.records import OPENED_FETCHES, make_outgoing

KnownRefusals = Mapping[tuple[SourcePartition, int], Refusal]
"""Refusals of the target in an earlier try of the slot, by base offset."""


def admit_part(job: KafkaSlotJob, part: ReadPart, position: int, known_refusals: KnownRefusals) -> AdmittedPart:
    """Return the batches of one partition's part of a response to send, and those to quarantine.

    Raises BatchRefusedError for batches that cannot be copied, CorruptBatchError for those that cannot be opened to be
    rebuilt, unless the job lets it be quarantined, and its end is certain.
    """
    topic_partition, limits, keeps_refused = part.source.topic_partition, job.routes[part.source.topic].limits, job.quarantines
    admission = admit(
        part.index,
        part.records,
        topic_partition=topic_partition,
        position=position,
        range_end=part.range_end,
        aborted=part.aborted,
        limits=limits,
        is_cut=part.is_cut,
    )
    refused = {
        refusal.index: Refusal(BatchRefusedError(topic_partition, refusal.base_offset, refusal.rule, refusal.remedy))
        for refusal in admission.refusals
    }
    for i in np.flatnonzero(np.isin(admission.verdicts, SENT)).tolist() if known_refusals else ():
        refusal = known_refusals.get((part.source, int(part.index.headers["base_offset"][i])))
        if refusal is not None:
            refused[i] = refusal
    _require_can_be_quarantined(job, part, refused)
    outgoing = make_outgoing(
        part.index,
        part.records,
        admission := admission.with_quarantined(refused),
        topic_partition=topic_partition,
        position=position,
        limits=limits,
        max_opened_bytes=OPENED_FETCHES * job.fetch_bytes,
        keeps_refused=keeps_refused,
    )
    not_rebuilt = {i: Refusal(error) for i, error in outgoing.refused.items()}
    _require_can_be_quarantined(job, part, not_rebuilt)
    kept = tuple(_kept(job, part, i, position, refusal) for i, refusal in sorted({**refused, **not_rebuilt}.items()))
    return AdmittedPart(part, admission.with_quarantined(not_rebuilt), outgoing, kept)


def _require_can_be_quarantined(job: KafkaSlotJob, part: ReadPart, refused: Mapping[int, Refusal]) -> None:
    for i, refusal in refused.items():
        if not (job.quarantines and can_be_quarantined(part.index, i, part.batch(i))):
            raise refusal.error


def _kept(job: KafkaSlotJob, part: ReadPart, i: int, position: int, refusal: Refusal) -> QuarantinedBatch:
    end = int(part.index.last_offset[i]) + 1
    return QuarantinedBatch(
        source=part.source,
        source_start=max(position, int(part.index.headers["base_offset"][i])),
        source_end=min(end, part.range_end) if part.is_cut else end,
        target=job.routes[part.source.topic].target_of(part.source),
        error_name=refusal.error_name,
        rule=refusal.rule,
        remedy=refusal.remedy,
        batch=bytes(part.batch(i)),
    )

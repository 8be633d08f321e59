"""Executor: the Produce requests of one try of a slot, and the commit interval that ends it."""

from __future__ import annotations

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce import PRODUCE, ProducePipeline
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob
from shallow_mirror.sinks.slot_values import EarlyEnd


class SlotSending:
    """The pipeline of one try, opened when something is sent, and until when it sends.

    `sent_bytes`: of batches that were acknowledged. `has_stopped`: nothing more may be sent, because not all of a response was.
    `until`: when the commit interval (`write.commit_interval`) ends; None before it begins: there is nothing to hand over then.
    """

    def __init__(
        self, job: KafkaSlotJob, target: Cluster, deadline: Deadline, *, transactional_id: str | None, purpose: str = PRODUCE
    ) -> None:
        self._job = job
        self._target = target
        self._deadline = deadline
        self._transactional_id = transactional_id
        self._purpose = purpose
        self._pipeline: ProducePipeline | None = None
        self.sent_bytes = 0
        self.has_stopped = False
        self.until: Deadline | None = None

    @property
    def is_due(self) -> bool:
        """Whether the slot hands over its results."""
        return self.has_stopped or (self.until is not None and self.until.is_over())

    def begin_interval(self) -> None:
        """Let the commit interval begin, unless it has begun."""
        if self.until is None:
            self.until = self._deadline.sooner(self._job.commit_interval_ms)

    def pipeline(self) -> ProducePipeline:
        """Return the pipeline, which the first call opens."""
        if self._pipeline is None:
            self._pipeline = ProducePipeline(
                self._target,
                self._transactional_id,
                in_flight_requests=self._job.in_flight_requests,
                in_flight_bytes=self._job.in_flight_bytes,
                deadline=self._deadline,
                until=self.until,
                purpose=self._purpose,
            )
        return self._pipeline

    def early_end(self) -> EarlyEnd | None:
        """Return the amount sent until the commit interval ended the slot; None for another end."""
        if not self.is_due or self.until is None:
            return None
        seconds = self.until.clock() - self.until.at + self._job.commit_interval_ms / 1000
        sending_s = 0.0 if self._pipeline is None else self._pipeline.busy_s()
        return EarlyEnd(self.sent_bytes, seconds, sending_s)

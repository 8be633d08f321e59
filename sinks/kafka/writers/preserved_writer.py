"""Executor: writes of one try of a slot to target partitions with preserved offsets: no transaction, visible at once.

Every batch is sent with the shared producer id and the sequence of its offset (docs/design/preserved-offsets.md). The broker
appends it there, or answers that it would be out of order: then another client has written, and the next try asks where the log
ends now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce import PRODUCE, ProduceRefusedError, Submission, explain_refusal
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    PreservedLogDamagedError,
    ProducerEpochFencedError,
    RetriableError,
)
from shallow_mirror.sinks.kafka.preserved.target_log import TargetLogs
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob
from shallow_mirror.sinks.kafka.writers.slot_sending import SlotSending
from shallow_mirror.sinks.kafka.writers.written_topics import WrittenTopics
from shallow_mirror.sinks.slot_values import ReadPart, SlotWrite
from shallow_mirror.types import IsolationLevel, Segment, SourcePartition, TopicPartition
from shallow_mirror.wire import TRANSACTIONAL_BIT
from shallow_mirror.wire.batches import SENT, Admission, SharedProducer, Verdict, admit, restamp_at_offsets
from shallow_mirror.wire.records import FILLER_KEY, OPENED_FETCHES, Fillers, PlacedQueue, Placement, place

_DUPLICATE_SEQUENCE_NUMBER = 46


@dataclass(frozen=True, slots=True)
class _PlacedPart:
    part: ReadPart
    admission: Admission
    placement: Placement


@dataclass(frozen=True, slots=True)
class _PlacedResponse:
    """Batches sent of one response of the source. `queues`: by target partition, empty ones included.

    `first_alone`: the first batches of some of them, acknowledged before the rest, `submission`, was sent. `in_place`: how many
    batches of each queue are known to be at their offsets.
    """

    parts: Sequence[_PlacedPart]
    queues: Mapping[TopicPartition, PlacedQueue]
    first_alone: Submission = field(default_factory=lambda: Submission({}))
    submission: Submission = field(default_factory=lambda: Submission({}))
    in_place: dict[TopicPartition, int] = field(default_factory=dict)

    def base_offsets(self, target: TopicPartition) -> list[int]:
        """Return the offsets at which batches of a queue were appended, as far as acknowledged."""
        return self.first_alone.base_offsets.get(target, []) + self.submission.base_offsets.get(target, [])

    @property
    def is_cut_short(self) -> bool:
        """Whether batches were not sent, because the commit interval is over or the leader too slow."""
        return self.first_alone.is_cut_short or self.submission.is_cut_short

    def number_of(self, refused: ProduceRefusedError, failed: Submission | None) -> int | None:
        """Return the number in its queue of a batch that was refused; None if it is of another response."""
        if failed is self.first_alone:
            return refused.index_in_queue
        if failed is self.submission:
            return refused.index_in_queue + len(self.first_alone.base_offsets.get(refused.topic_partition, ()))
        return None


class PreservedWriter:
    """Places the batches of partitions with preserved offsets (a `SlotWriter`).

    `purpose`: of the connections. `has_unanswered`: an earlier try may have the first batch of a log on its way, for `SlotWrite`.
    """

    def __init__(
        self,
        job: KafkaSlotJob,
        target: Cluster,
        logs: TargetLogs,
        deadline: Deadline,
        *,
        has_unanswered: bool = False,
        purpose: str = PRODUCE,
    ) -> None:
        self._has_unanswered = has_unanswered
        self._job = job
        self._target = target
        self._deadline = deadline
        self._logs = logs
        self._sending = SlotSending(job, target, deadline, transactional_id=None, purpose=purpose)
        self._admitted: dict[SourcePartition, int] = {}
        self._log_ends: dict[SourcePartition, int] = {}
        self._responses: deque[_PlacedResponse] = deque()
        self._fetched_bytes = 0
        self._written_topics = WrittenTopics(job, target, deadline)
        self._unstamped: set[str] = set()
        """Target topics that answered with a time, and have CreateTime: another run had appended the batch."""

    @property
    def is_due(self) -> bool:
        return self._sending.is_due

    @property
    def until(self) -> Deadline | None:
        return self._sending.until

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Ask for the log ends of these partitions. A reason against a partition is raised when it is written to."""
        self._logs.learn(self._job.routes[source.topic].target_of(source) for source in sources)

    def write(
        self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> Sequence[QuarantinedBatch]:
        """Send the batches of one response that the target lacks.

        Raises BatchRefusedError, PreservedLogDamagedError, RetriableError.
        """
        assert not self._sending.has_stopped, "a slot that has stopped sends nothing more"
        placed = [self._place(part, builder_of) for part in parts if len(part.index) or part.fills_log]
        if placed:
            self._sending.begin_interval()
            queues = {self._job.target_of(sent.part.source): sent.placement.queue for sent in placed}
            restamp_at_offsets([part for sent in placed for part in sent.placement.stamped])
            response = _PlacedResponse(placed, queues)
            self._responses.append(response)
            with self._errors_explained():
                self._send(response)
            self._sending.has_stopped = response.is_cut_short
        # Where nothing was read, there is time to wait for the acknowledgements.
        self._record(builder_of, left=self._job.responses_in_flight if placed else 0)
        return ()

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        if self._admitted:
            written = {self._job.routes[source.topic].target_topic for source in self._admitted}
            self._written_topics.begin(written, self._sending.pipeline())
        self._record(builder_of, left=0)
        return ()

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        self._written_topics.require()
        sources = {segment.source for segment in segments}
        # Without `stamped_topics`: a topic that has LogAppendTime is not written to (`_require_own_times`).
        return SlotWrite(
            txn=None,
            fetched_bytes=self._fetched_bytes,
            early_end=self._sending.early_end() if is_partial else None,
            shared_producers={source: id_ for source in sources if (id_ := self._job.shared_producers.get(source)) is not None},
            has_unanswered=self._has_unanswered,
            target_speeds=self._target.path_speeds(),
        )

    def _place(self, part: ReadPart, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> _PlacedPart:
        source, route = part.source, self._job.routes[part.source.topic]
        if source.topic in self._job.unfit:
            raise target_topic_policy.changed_error({route.target_topic: self._job.unfit[source.topic]})
        position = max(self._admitted.get(source, builder_of(source).position), part.start)
        admission = admit(
            part.index,
            part.records,
            topic_partition=source.topic_partition,
            position=position,
            range_end=part.range_end,
            aborted=part.aborted,
            limits=route.limits,
            is_cut=part.is_cut,
        )
        admission = self._as_begun(part, admission, position)
        for refusal in admission.refusals:
            raise BatchRefusedError(source.topic_partition, refusal.base_offset, refusal.rule, refusal.remedy)
        assert self._job.guard_times is not None
        now_ms = int(time.time() * 1000)
        placement = place(
            part.index,
            part.records,
            admission,
            topic_partition=source.topic_partition,
            position=position,
            log_end=self._log_end(source),
            limits=route.limits,
            fillers=Fillers(FILLER_KEY if route.is_compacted else None, route.limits.max_message_bytes),
            producer=SharedProducer(
                producer_id=self._job.shared_producers[source],
                now_ms=now_ms,
                old_before_ms=now_ms - self._job.guard_times.old_after_ms,
            ),
            max_opened_bytes=OPENED_FETCHES * self._job.fetch_bytes,
        )
        self._admitted[source], self._log_ends[source] = admission.next_position, placement.log_end
        return _PlacedPart(part, admission, placement)

    def _as_begun(self, part: ReadPart, admission: Admission, position: int) -> Admission:
        """Return the admission, with the batches of transactions that an undecided micro-batch wrote as that one read them.

        It may have read with another isolation level: then an aborted batch is a filler on the target although this reading
        sends it, or the other way round. Offsets cannot be written again, so the row follows the target. A batch in which the
        target's log ends is completed as it was begun: so a batch is always of one kind.
        """
        source = part.source
        log_end, target = self._log_end(source), self._job.routes[source.topic].target_of(source)
        if position >= log_end:
            return admission
        bases, verdicts = part.index.headers["base_offset"], admission.verdicts
        in_txn = (part.index.headers["attributes"] & TRANSACTIONAL_BIT) != 0
        is_written = in_txn & (bases < log_end) & (part.index.last_offset >= position)

        def those(of_kind: npt.NDArray[np.bool_], *, are_fillers: bool) -> list[int]:
            candidates = np.flatnonzero(is_written & of_kind).tolist()
            return [i for i in candidates if self._logs.is_filler_at(target, max(int(bases[i]), position)) is are_fillers]

        left_out = those(np.isin(verdicts, (*SENT, Verdict.REFUSE)), are_fillers=True)
        copied = those(verdicts == Verdict.DROP_ABORTED, are_fillers=False)
        if copied:
            uncommitted = admit(
                part.index,
                part.records,
                topic_partition=source.topic_partition,
                position=position,
                range_end=part.range_end,
                aborted=(),
                limits=replace(self._job.routes[source.topic].limits, isolation_level=IsolationLevel.READ_UNCOMMITTED),
                is_cut=part.is_cut,
            )
            admission = admission.with_verdicts_of(uncommitted, copied)
        return admission.with_aborted(left_out)

    def _log_end(self, source: SourcePartition) -> int:
        if source not in self._log_ends:
            self._log_ends[source] = self._logs.end_of(self._job.routes[source.topic].target_of(source))
        return self._log_ends[source]

    def _send(self, response: _PlacedResponse) -> None:
        pipeline = self._sending.pipeline()
        queues = {target: queue for target, queue in response.queues.items() if len(queue)}
        first_alone = [target for target in queues if self._logs.take_first_alone(target)]
        if first_alone:
            pipeline.submit({target: [queues[target][0]] for target in first_alone}, response.first_alone)
            pipeline.finish(response.first_alone)
            self._require_in_place(response)
            if response.first_alone.is_cut_short:
                return  # behind a batch that was not sent another one would be appended in its place
            queues |= {target: queues[target].without_first() for target in first_alone}
        pipeline.submit({target: queue.batches() for target, queue in queues.items() if len(queue)}, response.submission)

    def _record(self, builder_of: Callable[[SourcePartition], SegmentBuilder], left: int) -> None:
        """Hand the oldest responses to the segments, until so many are left; none if the slot has stopped."""
        while len(self._responses) > (0 if self._sending.has_stopped else left):
            response = self._responses[0]
            with self._errors_explained():
                self._sending.pipeline().finish(response.submission)
            self._require_in_place(response)
            self._require_own_times()
            self._responses.popleft()
            for sent in response.parts:
                part, placement = sent.part, sent.placement
                end = placement.done_with(len(response.base_offsets(self._job.target_of(part.source))), part.index)
                builder = builder_of(part.source)
                builder.add(part.index, sent.admission, placement.base_offsets_of(end), placement.rewritten, end=end)
                self._fetched_bytes += int(part.index.size_bytes.sum())
                self._sending.sent_bytes += int(part.index.size_bytes[:end].sum())
            self._job.observer("task.produced")

    def _require_in_place(self, response: _PlacedResponse) -> None:
        """Raise PreservedLogDamagedError if a batch was appended at another offset than its own."""
        for target, queue in response.queues.items():
            base_offsets = response.base_offsets(target)
            misplaced = queue.first_misplaced(base_offsets, response.in_place.get(target, 0))
            if misplaced is not None:
                wanted, offset = queue.offset(misplaced), base_offsets[misplaced]
                detail = f"the batch of offset {wanted} was appended at {offset}"
                raise PreservedLogDamagedError(target, min(wanted, offset), detail, is_translatable=False)
            response.in_place[target] = len(base_offsets)

    def _require_settings(self, topics: Collection[str]) -> None:
        """Raise TopicSettingsError if target topics are no longer fit: somebody has changed them while the mirror runs."""
        settings = self._target.topic_configs(sorted(topics), self._deadline, keys=target_topic_policy.OF_PRESERVED)
        for route in self._job.routes.values():
            of_topic = settings.get(route.target_topic)
            problem = of_topic and target_topic_policy.changed_problem(of_topic, is_compacted=route.is_compacted)
            if problem:
                raise target_topic_policy.changed_error({route.target_topic: f"target topic {route.target_topic} {problem}"})

    def _require_own_times(self) -> None:
        """Raise TopicSettingsError if a response says that a topic gives records its own times.

        The response to a batch that another run has appended names a time as well, so the setting is asked for.
        """
        stamped = {key.topic for key in self._sending.pipeline().stamped} - self._unstamped
        if stamped:
            self._require_settings(stamped)
            self._unstamped |= stamped

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """Raise errors in the source's terms. Acknowledgements before an error are checked as well."""
        try:
            yield
        except ProducerEpochFencedError as error:
            # The broker knows another end of the log: the next try asks for it.
            raise RetriableError(error.error_name, error.detail) from error
        except ProduceRefusedError as refused:
            if refused.error_code == _DUPLICATE_SEQUENCE_NUMBER:
                raise RetriableError(refused.error_name, f"Produce to {refused.topic_partition}: {refused.message}") from refused
            self._require_settings([refused.topic_partition.topic])  # a remedy for the batch would not help
            raise self._explained(refused) from refused
        finally:
            for response in self._responses:
                self._require_in_place(response)

    def _explained(self, refused: ProduceRefusedError) -> Exception:
        """Return the target's response in the source's terms."""
        failed = self._sending.pipeline().failed
        for response in self._responses:
            number = response.number_of(refused, failed)
            if number is None:
                continue
            queue = response.queues[refused.topic_partition]
            for sent in response.parts:
                if self._job.target_of(sent.part.source) == refused.topic_partition:
                    batch = queue[number]
                    assert isinstance(batch, memoryview)
                    source, offset = sent.part.source.topic_partition, queue.offset(number)
                    return explain_refusal(refused, batch, source, offset, 0, is_preserved=True)
        return refused

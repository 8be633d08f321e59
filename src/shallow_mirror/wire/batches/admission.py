"""Pure: what becomes of each fetched batch, from its header alone: raw, rebuild, drop, refuse, or not ours."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SegmentKind, TopicPartition
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.control_records import Marker, MarkerType, parse_marker
from shallow_mirror.wire.batches.header import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Codec,
)


class Verdict(enum.IntEnum):
    RAW = 0
    REBUILD = 1
    DROP_BELOW = 2
    DROP_CONTROL = 3
    DROP_ABORTED = 4
    DROP_EMPTY = 5
    REFUSE = 6
    BEYOND = 7
    """Base offset at or above the range's end: the next range holds it."""
    QUARANTINE = 8
    """Cannot be copied, and is quarantined instead. Only `Admission.with_quarantined` gives this verdict."""


SENT = (Verdict.RAW, Verdict.REBUILD)
"""Verdicts of batches that are sent, unless rebuilding them fails."""

_KIND_OF_MARKER = {MarkerType.COMMIT: SegmentKind.COMMIT, MarkerType.ABORT: SegmentKind.ABORT, MarkerType.OTHER: SegmentKind.GAP}
_KIND_OF_VERDICT = {
    Verdict.DROP_ABORTED: SegmentKind.ABORTED,
    Verdict.DROP_EMPTY: SegmentKind.GAP,
    Verdict.QUARANTINE: SegmentKind.QUARANTINED,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why batch `index` is refused, and the remedy; or why it has to be rebuilt, and how to avoid that (empty: not possible)."""

    index: int
    base_offset: int
    rule: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdicts of a response. `verdicts` is int8[n]; `next_position` follows the last batch below the range's end.

    `cut`: no record from this offset on is sent, also of a batch that begins below it. None: batches are sent whole.
    """

    verdicts: npt.NDArray[np.int8]
    next_position: int
    markers: Mapping[int, Marker] = field(default_factory=dict)
    refusals: tuple[Reason, ...] = ()
    rebuilds: tuple[Reason, ...] = ()
    cut: int | None = None

    def with_quarantined(self, batches: Collection[int]) -> Admission:
        """Return the same with these batches quarantined: neither refused nor rebuilt."""
        if not batches:
            return self
        return self._with_verdicts(batches, Verdict.QUARANTINE)

    def with_aborted(self, batches: Collection[int]) -> Admission:
        """Return the same with these batches left out as aborted: neither refused nor rebuilt."""
        return self._with_verdicts(batches, Verdict.DROP_ABORTED) if batches else self

    def with_verdicts_of(self, other: Admission, batches: Collection[int]) -> Admission:
        """Return the same with the verdicts of `other` on these batches. Only `other` may refuse or rebuild them."""
        if not batches:
            return self
        verdicts = self.verdicts.copy()
        verdicts[list(batches)] = other.verdicts[list(batches)]
        refusals, rebuilds = (
            tuple(sorted({*mine, *(reason for reason in others if reason.index in batches)}, key=lambda reason: reason.index))
            for mine, others in ((self.refusals, other.refusals), (self.rebuilds, other.rebuilds))
        )
        return replace(self, verdicts=verdicts, refusals=refusals, rebuilds=rebuilds)

    def _with_verdicts(self, batches: Collection[int], verdict: Verdict) -> Admission:
        verdicts = self.verdicts.copy()
        verdicts[list(batches)] = verdict
        refusals, rebuilds = (
            tuple(reason for reason in reasons if reason.index not in batches) for reasons in (self.refusals, self.rebuilds)
        )
        return replace(self, verdicts=verdicts, refusals=refusals, rebuilds=rebuilds)


def admit(
    index: BatchIndex,
    records: memoryview,
    *,
    topic_partition: TopicPartition,
    position: int,
    range_end: int,
    aborted: Sequence[tuple[int, int]],
    limits: BatchLimits,
    is_cut: bool = False,
) -> Admission:
    """Return verdicts for one partition's part of a Fetch response.

    `is_cut`: a batch that straddles `range_end` loses its records from there on. Otherwise it is sent whole.

    `aborted` is the response's list of (producer id, first offset); the walk over it begins at the first batch, also
    if that lies below `position`. Raises nothing: batches that cannot be copied are in `refusals`.
    """
    headers, count = index.headers, len(index)
    base = headers["base_offset"]
    last = index.last_offset
    attributes = headers["attributes"]
    verdicts = np.zeros(count, np.int8)
    refusals: dict[int, Reason] = {}
    rebuilds: dict[int, Reason] = {}

    # A later mark wins over an earlier one, so the calls below are in rising order of precedence: what brokers refuse unchanged,
    # then what no rebuild can save, then what readers of the source do not see, which needs neither, then what is out of range.
    def mark(mask: npt.NDArray[np.bool_], verdict: Verdict, rule: str = "", remedy: str = "") -> None:
        if not mask.any():
            return
        verdicts[mask] = verdict
        for i in np.flatnonzero(mask).tolist():
            refusals.pop(i, None)
            rebuilds.pop(i, None)
            if verdict in (Verdict.REFUSE, Verdict.REBUILD):
                (refusals if verdict is Verdict.REFUSE else rebuilds)[i] = Reason(i, int(base[i]), rule, remedy)

    is_append_time = (attributes & LOG_APPEND_TIME_BIT) != 0
    if limits.log_append_time is LogAppendTimePolicy.KEEP:
        mark(is_append_time, Verdict.REBUILD, "the source topic has message.timestamp.type=LogAppendTime",
             "read.log_append_time: producer copies the producers' times instead")  # fmt: skip
    mark(index.size_bytes > limits.max_message_bytes, Verdict.REBUILD,
         f"larger than max.message.bytes={limits.max_message_bytes} of the target topic",
         f"Set its max.message.bytes to {int(index.size_bytes.max(initial=0))} or more")  # fmt: skip
    # Brokers refuse a produced batch whose count does not equal its last offset delta + 1 (InvalidRecordException).
    has_holes = headers["records_count"] != headers["last_offset_delta"].astype(np.int64) + 1
    mark(has_holes, Verdict.REBUILD, "records are missing inside the batch (compaction)")
    is_straddling = (base < position) & (last >= position)
    mark(is_straddling, Verdict.REBUILD, f"the batch straddles the position {position} (records before it were deleted)")
    if is_cut:
        mark((base < range_end) & (last >= range_end), Verdict.REBUILD, f"the batch straddles the cut at {range_end}")
    mark((attributes & CODEC_MASK) > max(Codec), Verdict.REFUSE, "unknown compression codec",
         "No broker accepts this batch; the source is damaged or newer than this version")  # fmt: skip
    mark((headers["last_offset_delta"] < 0) | (headers["records_count"] < 0), Verdict.REFUSE, "impossible count or offsets",
         "The source is damaged at this offset")  # fmt: skip
    # Compaction keeps the header of an emptied batch for its producer state: nothing to send, and its offsets are a gap.
    mark((headers["records_count"] == 0) & (headers["last_offset_delta"] >= 0), Verdict.DROP_EMPTY)
    is_control = (attributes & CONTROL_BIT) != 0
    markers, bad_markers = _parse_markers(index, records, is_control & (headers["records_count"] > 0))
    if limits.isolation_level is IsolationLevel.READ_COMMITTED:
        mark(_aborted_mask(index, is_control, markers, aborted), Verdict.DROP_ABORTED)
    mark(is_control & (headers["records_count"] > 0), Verdict.DROP_CONTROL)
    for i, reason in bad_markers.items():
        mark(np.arange(count) == i, Verdict.REFUSE, f"unreadable control batch: {reason}", "The source is damaged at this offset")
    mark((last < position) & (headers["last_offset_delta"] >= 0), Verdict.DROP_BELOW)
    mark(base >= range_end, Verdict.BEYOND)

    is_in_range = base < range_end
    next_position = max(position, int(last[is_in_range].max(initial=position - 1)) + 1)
    if is_cut:
        next_position = max(position, min(next_position, range_end))
    return Admission(
        verdicts,
        next_position,
        {i: marker for i, marker in markers.items() if verdicts[i] == Verdict.DROP_CONTROL},
        tuple(refusals[i] for i in sorted(refusals)),
        tuple(rebuilds[i] for i in sorted(rebuilds)),
        range_end if is_cut else None,
    )


def kind_of(admission: Admission, i: int) -> SegmentKind:
    """Return the kind of batch `i`, which must be below the range's end, in the offset map: data unless it is dropped."""
    verdict = Verdict(int(admission.verdicts[i]))
    if verdict is Verdict.DROP_CONTROL:
        return _KIND_OF_MARKER[admission.markers[i].type]
    return _KIND_OF_VERDICT.get(verdict, SegmentKind.DATA)


def _parse_markers(
    index: BatchIndex, records: memoryview, is_control: npt.NDArray[np.bool_]
) -> tuple[dict[int, Marker], dict[int, str]]:
    markers: dict[int, Marker] = {}
    bad: dict[int, str] = {}
    for i in np.flatnonzero(is_control).tolist():
        start = int(index.pos[i])
        try:
            markers[i] = parse_marker(records[start : start + int(index.size_bytes[i])])
        except ValueError as error:
            bad[i] = str(error)
    return markers, bad


def _aborted_mask(
    index: BatchIndex,
    is_control: npt.NDArray[np.bool_],
    markers: Mapping[int, Marker],
    aborted: Sequence[tuple[int, int]],
) -> npt.NDArray[np.bool_]:
    """Return which batches are aborted, as Java's consumer decides it (CompletedFetch).

    An aborted transaction lasts from its first offset to its ABORT marker.
    """
    mask = np.zeros(len(index), np.bool_)
    if not aborted:
        return mask
    waiting = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(waiting)
    active: set[int] = set()
    producer_ids = index.headers["producer_id"].tolist()
    is_transactional = ((index.headers["attributes"] & TRANSACTIONAL_BIT) != 0).tolist()
    control = is_control.tolist()
    for i, last_offset in enumerate(index.last_offset.tolist()):
        if producer_ids[i] == NO_PRODUCER_ID:
            continue
        while waiting and waiting[0][0] <= last_offset:
            active.add(heapq.heappop(waiting)[1])
        # One producer id may have several aborted transactions in a response: its marker ends the current one.
        if control[i]:
            marker = markers.get(i)
            if marker is not None and marker.type is MarkerType.ABORT:
                active.discard(producer_ids[i])
        elif is_transactional[i] and producer_ids[i] in active:
            mask[i] = True
    return mask

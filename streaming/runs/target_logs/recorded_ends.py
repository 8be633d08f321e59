"""Driver: the logs of the target against the ends that the offset map records, at a start."""

from __future__ import annotations

from collections.abc import Collection

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import TargetDataLossError
from shallow_mirror.sinks.kafka.protocol import LOSS_PATIENCE_MS, readable_ends
from shallow_mirror.sinks.kafka.writers import target_ends_of
from shallow_mirror.types import IsolationLevel


def require_recorded_ends(target: Cluster, positions: Collection[Position], deadline: Deadline) -> None:
    """Raise TargetDataLossError if a log of the target ends below committed offsets.

    Slots find the same when the target has assigned offsets to their batches; before anything is written, the log is as it was
    found. A topic that is gone or was created again is left to those who look at topic ids, a partition without a leader to
    the slots, and logs with preserved offsets to their writers, which look before they write. Raises RetriableError.
    """
    copied = [position for position in positions if position.target_end > 0 and position.shared_producer_id is None]
    if not copied:
        return
    listed = target.metadata(sorted({position.target.topic for position in copied}), deadline)
    present = [
        position
        for position in copied
        if listed.has(position.target.topic_partition)
        and listed.topics[position.target.topic].topic_id == position.target.topic_id
    ]
    recorded = target_ends_of(present)
    unsure, tries = sorted(recorded), 0
    patience = deadline.sooner(LOSS_PATIENCE_MS)
    while True:
        ends = readable_ends(target, unsure, deadline, IsolationLevel.READ_UNCOMMITTED, is_patient=True)
        unsure = [partition for partition in unsure if ends.get(partition, recorded[partition]) < recorded[partition]]
        if not unsure:
            return
        first = unsure[0]
        # A broker that starts, and a leader whose followers are away, report lower ends than there are.
        if patience.is_over():
            raise TargetDataLossError(first, recorded[first], ends[first], others=len(unsure) - 1)
        target.pause(tries, deadline)
        tries += 1
        deadline.require(f"the log of target {first} to reach offset {recorded[first]}, where the last copied record ends")

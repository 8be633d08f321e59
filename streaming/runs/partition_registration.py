"""Driver: the registration of partitions that appear during a run: their first rows, before anything of them is planned.

Spark writes a plan into its checkpoint before a micro-batch runs. If a new partition were planned before the offset map has its
first row, and the mirror ended in between, only Spark's plan would contain the partition. The next start would treat it as new,
and `topics.start` might skip what was written until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.streaming.planning.planner_state import RegistrationFiles
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

_NAMED = 20
"""New partitions that one line of the log names."""


FirstRows = Callable[[Mapping[SourcePartition, int], Deadline], tuple[DecidedSegment, ...]]
"""Return the zero-length first row of each partition at its start."""


class PartitionRegistrar:
    """Registers the partitions that the planner of one query requests. Never called while a micro-batch runs."""

    def __init__(
        self,
        files: RegistrationFiles,
        owner: LedgerOwner,
        source: Cluster,
        first_rows: FirstRows,
        *,
        deadline: Callable[[], Deadline],
        report: Callable[[Mapping[SourcePartition, Position]], None] = lambda _positions: None,
        observer: Observer = observe_nothing,
    ) -> None:
        """`first_rows`: prepares partitions at the target, and returns their rows.

        `deadline`: returns that of one attempt. `report` receives all positions once rows were added.
        """
        self._files = files
        self._owner = owner
        self._source = source
        self._first_rows = first_rows
        self._deadline = deadline
        self._report = report
        self._observer = observer

    def register(self) -> None:
        """Write the first rows of the partitions that the planner listed, then the positions of all it requested.

        Partitions that were deleted or recreated since are left out: the planner no longer requests them after its next
        listing. Raise ConfigError if a target topic cannot be used, RetriableError, and as `LedgerOwner.decide`.
        """
        seen = self._files.read_seen()
        if not seen:
            return
        positions = self._owner.positions()
        starts = {partition: start for partition, start in seen.items() if partition not in positions}
        if starts:
            self._add_rows(starts)
            positions = self._owner.positions()
        registered = {partition: positions[partition].offset for partition in seen if partition in positions}
        try:
            self._files.write_registered(registered)
        except OSError as error:
            raise RetriableError("NOTE_NOT_WRITTEN", f"new partitions cannot be reported to the planner: {error}") from error
        self._observer("registered.noted")

    def _add_rows(self, starts: Mapping[SourcePartition, int]) -> None:
        deadline = self._deadline()
        rows = self._first_rows(self._present(starts, deadline), deadline)
        if not rows:
            return
        decide_first_rows(self._owner, rows, self._observer)
        begins = {row.segment.source.topic_partition: row.segment.source_end for row in rows}
        names = [f"{topic_partition} from {offset}" for topic_partition, offset in begins.items()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _log.info("new partitions are mirrored: %s%s", ", ".join(names[:_NAMED]), more)
        self._report(self._owner.positions())

    def _present(self, starts: Mapping[SourcePartition, int], deadline: Deadline) -> dict[SourcePartition, int]:
        """Return the partitions that the source still has under the same topic id."""
        topics = self._source.metadata(sorted({partition.topic for partition in starts}), deadline).topics
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.error_code == 0}
        return {partition: start for partition, start in starts.items() if ids.get(partition.topic) == partition.topic_id}


def decide_first_rows(owner: LedgerOwner, rows: Sequence[DecidedSegment], observer: Observer = observe_nothing) -> None:
    """Add zero-length rows as a decision of their own, which is settled at once: it has no transaction.

    Raises as `LedgerOwner.decide`.
    """
    owner.next_decision()
    owner.decide(rows, highest_slot=-1)
    observer("first_rows.decided")
    owner.settle()
    observer("first_rows.settled")

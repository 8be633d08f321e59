"""Pure: whether the source's log ends a transaction as the archive has it.

A row lists the aborted transactions of its data, also those whose marker lies behind the row. If the log is truncated between the
row and such a marker, the transaction is open again, and may end the other way: the position is not above the end of the log, and
no batch that is archived differs. The first row behind the position shows it: like a Fetch response, it lists the aborted
transactions that reach into it from before, and these have to be those that the row in front of it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shallow_mirror.checkpoints import DecidedSegment, Position, TxnKey, in_source_order
from shallow_mirror.errors import TxnOutcomeChangedError
from shallow_mirror.types import SourcePartition


class TxnOutcomes:
    """The aborted transactions whose markers lie at or behind the positions of an archive."""

    def __init__(self, unended: Mapping[SourcePartition, frozenset[TxnKey]], is_compacted: Callable[[str], bool]) -> None:
        """`unended`: of the rows that end at the positions. `is_compacted`: whether the source may remove data of a topic."""
        self._unended = dict(unended)
        self._is_compacted = is_compacted

    def take(self, rows: Iterable[DecidedSegment], positions: Mapping[SourcePartition, Position]) -> None:
        """Take the rows of the next decision. `positions`: those before it.

        Raises TxnOutcomeChangedError, and takes none, if a row contradicts the one in front of it.
        """
        unended = dict(self._unended)
        # Behind a row without batches nothing is compared: what lies in front of it was not read there. Nor is it where a lineage
        # begins: the transactions of the former one end on their own in it.
        ends = {
            source: position.offset
            for source, position in positions.items()
            if position.target_end == position.offset > position.start
        }
        for row in sorted(rows, key=in_source_order):
            source, start = row.segment.source, row.segment.source_start
            if row.stored is None:
                ends.pop(source, None)
                unended.pop(source, None)
                continue
            if ends.get(source) == start:
                self._require_same(row, unended.get(source, frozenset()), positions.get(source))
            ends[source] = row.segment.source_end
            unended[source] = frozenset(
                TxnKey(txn.producer_id, txn.first_offset) for txn in row.stored.aborted if txn.last_offset is None
            )
        self._unended = unended

    def _require_same(self, row: DecidedSegment, before: frozenset[TxnKey], position: Position | None) -> None:
        assert row.stored is not None
        source, start = row.segment.source, row.segment.source_start
        listed = {TxnKey(txn.producer_id, txn.first_offset) for txn in row.stored.aborted if txn.first_offset < start}
        changed = listed ^ before
        if not changed:
            return
        if not listed - before and self._is_compacted(source.topic):
            # Compaction removes aborted data, and with it what a response lists. Only another leader can have lost a marker.
            known = None if position is None or position.epoch_end is None else position.epoch_end.leader_epoch
            if all(epoch.leader_epoch == known for epoch in row.stored.leader_epochs):
                return
        first = min(changed, key=lambda txn: txn.first_offset)
        raise TxnOutcomeChangedError(
            source.topic_partition,
            start,
            f"the transaction of producer id {first.producer_id} from offset {first.first_offset} on was archived as "
            f"{'aborted' if first in before else 'committed'}, and the source's log has it as "
            f"{'committed' if first in before else 'aborted'}: the log was truncated in front of its marker (an unclean leader "
            "election, a lost disk), and it ended the other way",
            divergent_offset=first.first_offset,
            topic_id=source.topic_id,
        )

"""Driver: offsets of groups, committed together in a transaction, and only if none of them has changed meanwhile.

OffsetCommit compares nothing: of a process that was suspended after its look at a group, the commit counts whenever it comes.
Here, whoever begins later ends the transaction of whoever began before (InitProducerId), and whoever commits looks again in
between: offsets that wait for the end of a transaction keep a consumer that starts then from reading older ones (KIP-447).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shallow_mirror.broker import BegunOffsets, CommittedOffset
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce.txn import EndTxnAnswer, end_txn, init_producer_id
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.group_client import GroupClient, Offsets
from shallow_mirror.plurals import counted
from shallow_mirror.types import SlotTxn, TopicPartition

_VISIBLE_MS, _POLL_MS = 5_000, 20


class TransactionalCommits(GroupClient):
    """Groups of one cluster. `commit_together` only prepares offsets, `finish_commits` commits all that were prepared.

    Raises RetriableError, ConfigError, OutcomeUnknownError: everything is to be done again, from `begin_commits` on.
    """

    def __init__(
        self, client: ClientConfig, where: str, timeout_s: float | None, transactional_id: str, transaction_timeout_ms: int
    ) -> None:
        super().__init__(client, where, timeout_s)
        self._transactional_id, self._transaction_timeout_ms = transactional_id, transaction_timeout_ms
        self._txn: SlotTxn | None = None
        self._seen: dict[str, Mapping[TopicPartition, int | None]] = {}
        """What groups had when they were looked at."""
        self._prepared: dict[str, dict[TopicPartition, int]] = {}

    def begin_commits(self) -> None:
        """End what others have prepared, and what this client has. Before the offsets are read on which commits are based."""
        self._txn = init_producer_id(self._cluster, self._transactional_id, self._transaction_timeout_ms, self._deadline())
        self._seen.clear()
        self._prepared.clear()

    def finish_committed(self, group: str, begun: BegunOffsets) -> tuple[CommittedOffset, ...]:
        committed = super().finish_committed(group, begun)
        self._seen[group] = {offset.topic_partition: offset.offset for offset in committed}
        return committed

    def commit_together(self, offsets: Mapping[str, Offsets]) -> dict[str, dict[TopicPartition, str]]:
        """Prepare offsets by group. Return a sentence for each that was refused, by group."""
        assert self._txn is not None, "offsets are prepared in a transaction that has begun"
        refused = self._groups.commit_in_txn(self._txn, offsets, self._deadline())
        for group, of_group in offsets.items():
            left = {place: offset for place, (offset, _) in of_group.items() if place not in refused.get(group, {})}
            if left:
                self._prepared.setdefault(group, {}).update(left)
        return refused

    def finish_commits(self) -> None:
        """Commit what was prepared, unless a group has members or other offsets than when it was looked at."""
        if not self._prepared:
            return
        assert self._txn is not None, "offsets were prepared in a transaction"
        if changed := self._changed(sorted(self._prepared)):
            end_txn(self._cluster, self._txn, False, self._deadline())
            raise RetriableError(
                "GROUPS_CHANGED", f"{self._where}: nothing was committed: {', '.join(changed)} changed meanwhile"
            )
        if end_txn(self._cluster, self._txn, True, self._deadline()) is EndTxnAnswer.AMBIGUOUS:
            raise RetriableError(
                "TRANSACTION_ENDED",
                f"{self._where}: {counted(len(self._prepared), 'group')} may have been committed: the transaction "
                f"{self._transactional_id} was ended by another process, or by its timeout",
            )
        self._await_visible()
        self._prepared.clear()

    def _changed(self, groups: Sequence[str]) -> list[str]:
        listed, now = self.listed(), self.committed(groups, waits_for_txns=False)
        changed = []
        for group in groups:
            has = {offset.topic_partition: offset.offset for offset in now[group]}
            seen = self._seen.get(group, {})
            is_free = group not in listed or listed[group].is_free
            if not is_free or any(has.get(place) != seen.get(place) for place in self._prepared[group]):
                changed.append(group)
        return changed

    def _await_visible(self) -> None:
        """Wait until the offsets can be read: markers are written behind the end."""
        deadline = self._deadline().sooner(_VISIBLE_MS)
        while not deadline.is_over():
            now = self.committed(sorted(self._prepared))
            # Of a group that had none, an offset that waits for its marker is not listed at all.
            visible = {group: {offset.topic_partition for offset in now[group] if offset.offset is not None} for group in now}
            if all(self._prepared[group].keys() <= visible[group] for group in now):
                return
            self._cluster.wait(_POLL_MS, deadline)

"""One partition on its leader: stored batches, producer state, open and aborted transactions, and what a Fetch may see."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fakes.record_rules import Header, RefusedError, check_batch, header_of, marker_batch, records_of, stored

REMEMBERED_BATCHES = 5
LAST_SEQUENCE = (1 << 31) - 1
FIRST_VERSION_WITH_RACK = 11
EPOCH_POS = 12
"""Of the leader epoch in a batch."""


class Stored(NamedTuple):
    """`segment` counts the log segments: one Fetch response never goes beyond one."""

    header: Header
    data: bytes
    segment: int


class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class Seen(NamedTuple):
    """A batch that this producer wrote, as the leader remembers it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    max_timestamp: int


class Verification(NamedTuple):
    """A transaction that the leader has asked the coordinator about and that has no batch here yet."""

    epoch: int
    lowest_sequence: int


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class ProducerEntry:
    epoch: int
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    txn_start: int | None = None
    coordinator_epoch: int = -1
    last_timestamp: int = -1


class Read(NamedTuple):
    records: bytes
    aborted: list[Aborted]
    diverging: tuple[int, int] | None = None
    preferred_replica: int = -1


@dataclass(slots=True)
class Follower:
    """A replica in sync that may lag: where its log and its high watermark end; None: where those of the leader do."""

    end_offset: int | None = None
    high_watermark: int | None = None


class PartitionLog:
    """Not locked: the cluster's lock is."""

    def __init__(self, leader: int, configs: dict[str, str]) -> None:
        """`configs` are those of the topic, which its partitions share."""
        self.leader, self.leader_epoch = leader, 0
        self.configs = configs
        self.batches: list[Stored] = []
        self._segment = 0
        self._segment_time: int | None = None
        self.log_start_offset = self.end_offset = 0
        self.local_start_offset = 0
        """What lies in front of it is in remote storage, and comes with every `remote_responses`-th answer."""
        self.remote_responses = 1
        self._remote_reads = 0
        self.replicas = self.in_sync = 1
        """How many there are, the leader among them."""
        self.high_watermark_limit: int | None = None
        self.followers: dict[int, Follower] = {}
        self.select_replica: Callable[[str], int] | None = None
        """`replica.selector.class` of the leader: from the client's rack to a node (KIP-392)."""
        self.producers: dict[int, ProducerEntry] = {}
        self._verifications: dict[int, Verification] = {}
        self.aborted: list[Aborted] = []
        self._epoch_starts: list[tuple[int, int]] = [(0, 0)]

    @property
    def high_watermark(self) -> int:
        limit = self.high_watermark_limit
        return self.end_offset if limit is None else min(limit, self.end_offset)

    @property
    def takes_appends(self) -> bool:
        """Whether a write with acks=all, or a marker, can be appended."""
        return self.leader >= 0 and self.in_sync >= min(int(self.configs["min.insync.replicas"]), self.replicas)

    @property
    def last_stable_offset(self) -> int:
        open_txns = [entry.txn_start for entry in self.producers.values() if entry.txn_start is not None]
        # What is deleted of an open transaction holds nothing back: then the first batch does (maybeIncrementFirstUnstableOffset).
        first = self.batches[0].header.base_offset if self.batches else self.log_start_offset
        return max(min([self.high_watermark, *open_txns]), min(first, self.high_watermark))

    def visible_end(self, isolation_level: int) -> int:
        return self.last_stable_offset if isolation_level else self.high_watermark

    def end_offset_at(self, node_id: int) -> int:
        """Where the log of one replica ends."""
        follower = self.followers.get(node_id)
        return self.end_offset if follower is None or follower.end_offset is None else follower.end_offset

    def high_watermark_at(self, node_id: int) -> int:
        """As far as one replica knows."""
        follower = self.followers.get(node_id)
        high_watermark = self.high_watermark if follower is None or follower.high_watermark is None else follower.high_watermark
        return min(high_watermark, self.high_watermark, self.end_offset_at(node_id))

    def last_stable_offset_at(self, node_id: int) -> int:
        """As far as one replica knows: a marker above its high watermark ends nothing there."""
        if node_id not in self.followers:
            return self.last_stable_offset
        end, txns = self.high_watermark_at(node_id), dict[int, int]()
        for header, _, _ in self.batches:
            if header.last_offset >= end:
                break
            if header.is_control:
                txns.pop(header.producer_id, None)
            elif header.is_transactional:
                txns.setdefault(header.producer_id, header.base_offset)
        return min([end, *txns.values()])

    def data(self) -> list[bytes]:
        """Every stored batch that is not a control batch."""
        return [batch.data for batch in self.batches if not batch.header.is_control]

    # --- writing ---

    def has_open_txn(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self.producers.get(producer_id)
        return entry is not None and entry.txn_start is not None and entry.epoch == producer_epoch

    def begin_verification(self, header: Header) -> None:
        verification = self._verifications.get(header.producer_id)
        lowest = header.base_sequence
        if verification is not None and verification.epoch == header.producer_epoch:
            lowest = min(lowest, verification.lowest_sequence)
        self._verifications[header.producer_id] = Verification(header.producer_epoch, lowest)

    def append(self, batch: bytes, now_ms: int) -> Appended:
        """Append a verified batch of a client. Raises Refused, without effect."""
        if not self.takes_appends:
            raise RefusedError(19)
        records = check_batch(batch, self.configs, now_ms)
        header = header_of(batch)
        if header.producer_id >= 0:
            duplicate = self._duplicate(header)
            if duplicate is not None:
                return Appended(duplicate.first_offset, duplicate.max_timestamp, self.log_start_offset)
            self._check_producer(header)
        is_append_time = self.configs["message.timestamp.type"] == "LogAppendTime"
        self._take_in(
            stored(
                batch,
                base_offset=self.end_offset,
                leader_epoch=self.leader_epoch,
                records=records,
                configs=self.configs,
                now_ms=now_ms,
            )
        )
        return Appended(self.end_offset - header.records_count, now_ms if is_append_time else -1, self.log_start_offset)

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Append a marker. Raises Refused where it is older than what the producer, or the coordinator of its last marker, has here."""
        entry = self.producers.get(producer_id)
        if entry is not None and producer_epoch < entry.epoch:
            raise RefusedError(47, f"marker of epoch {producer_epoch} behind {entry.epoch}")
        if entry is not None and coordinator_epoch < entry.coordinator_epoch:
            raise RefusedError(52, f"marker of coordinator epoch {coordinator_epoch} behind {entry.coordinator_epoch}")

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int, now_ms: int
    ) -> None:
        self._take_in(
            marker_batch(
                self.end_offset,
                is_commit=is_commit,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
            )
        )

    def seed(self, *batches: bytes) -> None:
        """Store batches as they are, base offsets included: what another broker wrote and a cleaner cleaned."""
        for batch in batches:
            self._take_in(batch)

    def _duplicate(self, header: Header) -> Seen | None:
        entry = self.producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        wanted = (header.base_sequence, header.last_sequence)
        return next((seen for seen in entry.seen if (seen.first_sequence, seen.last_sequence) == wanted), None)

    def _check_producer(self, header: Header) -> None:
        entry = self.producers.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise RefusedError(47, f"epoch {header.producer_epoch} is below {entry.epoch}")
        verification = self._verifications.get(header.producer_id)
        if verification is not None and header.base_sequence > verification.lowest_sequence:
            raise RefusedError(45, f"sequence {verification.lowest_sequence} was seen first")
        if entry is None:
            return
        if header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise RefusedError(45, "a new epoch begins with sequence 0")
        elif header.base_sequence != self._next_sequence(entry):
            raise RefusedError(45, f"sequence {header.base_sequence}, expected {self._next_sequence(entry)}")
        if entry.txn_start is not None and not header.is_transactional:
            raise RefusedError(48, "a plain batch inside an open transaction")

    @staticmethod
    def _next_sequence(entry: ProducerEntry) -> int:
        last = entry.seen[-1].last_sequence if entry.seen else -1
        return 0 if last == LAST_SEQUENCE else last + 1

    def _take_in(self, data: bytes) -> None:
        header = header_of(data)
        if self._segment_time is None or header.max_timestamp - self._segment_time > int(self.configs["segment.ms"]):
            self._segment, self._segment_time = self._segment + 1, header.max_timestamp
        self.batches.append(Stored(header, data, self._segment))
        self.end_offset = header.last_offset + 1
        if header.producer_id < 0:
            return
        entry = self.producers.setdefault(header.producer_id, ProducerEntry(header.producer_epoch))
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.seen.clear()
        if header.is_control:
            self._close_txn(entry, header, data)
            return
        self._verifications.pop(header.producer_id, None)
        entry.last_timestamp = header.max_timestamp
        entry.seen.append(Seen(header.base_sequence, header.last_sequence, header.base_offset, header.max_timestamp))
        if header.is_transactional and entry.txn_start is None:
            entry.txn_start = header.base_offset

    def _close_txn(self, entry: ProducerEntry, header: Header, data: bytes) -> None:
        is_commit = data[-10:-8] == b"\x00\x01"
        if entry.txn_start is not None and not is_commit:
            self.aborted.append(Aborted(header.producer_id, entry.txn_start, header.base_offset))
        entry.txn_start = None
        entry.last_timestamp = header.max_timestamp
        entry.coordinator_epoch = int.from_bytes(data[-5:-1], "big", signed=True)

    # --- what befalls a log ---

    def roll(self) -> None:
        self._segment_time = None

    def compact_away(self, start: int, end: int) -> None:
        """Remove the batches whose base offsets lie in [start, end), as the cleaner does: in compacted topics only."""
        self.configs["cleanup.policy"] = "compact"
        self.batches = [batch for batch in self.batches if not start <= batch.header.base_offset < end]

    def build_epochs_anew(self) -> None:
        """Rebuild the epoch cache of a replica made from what is left: leader epochs of its batches, and its own as a leader."""
        starts: dict[int, int] = {}
        for header, data, _ in self.batches:
            starts.setdefault(int.from_bytes(data[EPOCH_POS : EPOCH_POS + 4], "big", signed=True), header.base_offset)
        starts.setdefault(self.leader_epoch, self.end_offset)
        self._epoch_starts = sorted(starts.items())

    def delete_records_before(self, offset: int) -> None:
        self.log_start_offset = offset
        self.batches = [batch for batch in self.batches if batch.header.last_offset >= offset]

    def truncate(self, offset: int) -> None:
        """Truncate the log, as an unclean election does: the new leader's log ends here."""
        self.batches = [batch for batch in self.batches if batch.header.last_offset < offset]
        self.end_offset = min(self.end_offset, offset)
        self.move(self.leader)

    def move(self, leader: int) -> None:
        self.leader, self.leader_epoch = leader, self.leader_epoch + 1
        self._epoch_starts = [epoch_start for epoch_start in self._epoch_starts if epoch_start[1] < self.end_offset]
        self._epoch_starts.append((self.leader_epoch, self.end_offset))

    # --- reading ---

    def check_leader(self, node_id: int, asked_epoch: int) -> None:
        if node_id != self.leader:
            raise RefusedError(6)
        if 0 <= asked_epoch < self.leader_epoch:
            raise RefusedError(74)
        if asked_epoch > self.leader_epoch:
            raise RefusedError(75)

    def check_replica(self, node_id: int, asked_epoch: int, fetch_version: int) -> None:
        """Followers serve consumers from version 11 of Fetch on, which names a rack (KIP-392)."""
        if node_id not in self.followers or fetch_version < FIRST_VERSION_WITH_RACK:
            self.check_leader(node_id, asked_epoch)

    def preferred_replica(self, node_id: int, rack: str, offset: int, fetch_version: int) -> int:
        """Whom the leader names instead of reading: an in-sync follower that has the offset; -1: nobody."""
        if node_id != self.leader or self.select_replica is None or fetch_version < FIRST_VERSION_WITH_RACK:
            return -1
        selected = self.select_replica(rack)
        is_able = selected in self.followers and self.log_start_offset <= offset <= self.end_offset_at(selected)
        return selected if is_able else -1

    def read(
        self,
        offset: int,
        isolation_level: int,
        max_bytes: int,
        *,
        is_first: bool,
        last_fetched_epoch: int = -1,
        node_id: int | None = None,
    ) -> Read:
        """Read within one log segment, cut by bytes. `is_first`: nothing was read for this request yet, so one batch comes whatever its
        size. `node_id`: the replica that reads, by default the leader.
        """
        node_id = self.leader if node_id is None else node_id
        if last_fetched_epoch >= 0:
            epoch, end_offset = self.end_of_epoch(last_fetched_epoch)
            if epoch < 0:
                raise RefusedError(1, "unknown last fetched epoch")
            if epoch < last_fetched_epoch or end_offset < offset:
                return Read(b"", [], (epoch, end_offset))
        if not self.log_start_offset <= offset <= self.end_offset_at(node_id):
            raise RefusedError(1)
        if offset < self.local_start_offset:
            self._remote_reads += 1
            if self._remote_reads % self.remote_responses:
                return Read(b"", [])
        end = self.last_stable_offset_at(node_id) if isolation_level else self.high_watermark_at(node_id)
        readable = [batch for batch in self.batches if batch.header.last_offset >= offset and batch.header.last_offset < end]
        if not readable:
            return Read(b"", [])
        readable = [stored for stored in readable if stored.segment == readable[0].segment]
        size = max_bytes
        if len(readable[0].data) > max_bytes:
            size = len(readable[0].data) if is_first else 0
        records = b"".join(stored.data for stored in readable)[:size]
        upper = self._upper_bound(readable, len(records))
        return Read(
            records,
            [
                aborted_txn
                for aborted_txn in self.aborted
                if aborted_txn.last_offset >= offset and aborted_txn.first_offset < upper
            ],
        )

    @staticmethod
    def _upper_bound(batches: list[Stored], size: int) -> int:
        upper = batches[0].header.base_offset
        for batch in batches:
            if size <= 0:
                break
            upper, size = batch.header.last_offset + 1, size - len(batch.data)
        return upper

    def end_of_epoch(self, asked: int) -> tuple[int, int]:
        """(epoch, end offset), -1/-1 for an epoch that never was."""
        if asked > self.leader_epoch:
            return -1, -1
        if asked == self.leader_epoch:
            return asked, self.end_offset
        if asked < self._epoch_starts[0][0]:
            return asked, self._epoch_starts[0][1]
        floor = max(epoch for epoch, _ in self._epoch_starts if epoch <= asked)
        return floor, min(start for epoch, start in self._epoch_starts if epoch > asked)

    def offset_at(self, timestamp: int, isolation_level: int) -> tuple[int, int]:
        """(offset, timestamp) for ListOffsets: -1 latest, -2 earliest, else the first record at or after it."""
        if timestamp == -1:
            return self.visible_end(isolation_level), -1
        if timestamp == -2:
            return self.log_start_offset, -1
        if timestamp == -4:
            return max(self.local_start_offset, self.log_start_offset), -1
        if timestamp < 0:
            raise RefusedError(35)
        end = self.visible_end(isolation_level)
        for header, data, _ in self.batches:
            if header.is_control or header.max_timestamp < timestamp:
                continue
            for record in records_of(header, data):
                offset = header.base_offset + record.offset_delta
                if record.timestamp >= timestamp and self.log_start_offset <= offset < end:
                    return offset, record.timestamp
        return -1, -1

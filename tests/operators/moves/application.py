"""Writers and consumers of the waves, at one of the two clusters each, and what an observer knows of their records."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.operators.fake_cluster import FakeCluster, WriterTxn
from tests.operators.history import Outcome, SourceTxn

PRINCIPAL = "User:shop"
INTERNAL = "__"
_TOPIC, _LITERAL, _WRITE, _DENY = 2, 3, 4, 2
_POLLED = 4


@dataclass(eq=False)
class Written:
    """A record that a client wrote at `side`, when the writers of its wave had moved `stay` times.

    `is_foreign`: written to the cluster that the wave had not moved to yet, or to a topic of no wave there.
    """

    value: str
    side: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    stay: int
    is_foreign: bool
    txn: SourceTxn | None

    @property
    def is_visible(self) -> bool:
        return self.txn is None or self.txn.outcome is Outcome.COMMITTED


@dataclass(eq=False)
class OpenTxn:
    side: str
    writer: WriterTxn
    known: SourceTxn
    is_of_writers: bool


@dataclass(eq=False)
class Site:
    """Where the writers and consumers of a wave are. `letters`: its topics are those whose names begin with one of them."""

    wave: str
    letters: str
    groups: tuple[str, ...]
    side: str = "east"
    stay: int = 0
    is_writing: bool = True
    is_reading: bool = True

    def has(self, topic: str) -> bool:
        return topic[0] in self.letters


@dataclass
class Application:
    clusters: Mapping[str, FakeCluster]
    sites: tuple[Site, ...]
    chance: random.Random
    written: list[Written] = field(default_factory=list)
    open_txns: list[OpenTxn] = field(default_factory=list)
    last_end_s: dict[str, float] = field(default_factory=dict)
    """When a transaction has ended last, by side."""
    read: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How often each group has read each value. One that it skipped by a reset counts as read, one behind the reset does not."""
    misread: list[str] = field(default_factory=list)
    """Positions of groups from which nothing can be read."""

    def site_of(self, topic: str) -> Site:
        return next(site for site in self.sites if site.has(topic))

    def topics(self, site: Site, side: str | None = None) -> list[str]:
        names = self.clusters[side or site.side].topic_ids()
        return sorted(name for name in names if not name.startswith(INTERNAL) and site.has(name))

    # --- writers ---

    def write(self, side: str, topic: str, partition: int, count: int, txn: OpenTxn | None = None) -> bool:
        """Write a batch. Return False if the cluster refuses it."""
        cluster, site = self.clusters[side], self.site_of(topic)
        if self.is_denied(side, topic):
            return False
        values = [f"{topic}{partition}:{len(self.written) + number}" for number in range(count)]
        first = cluster.produce(topic, partition, values, None if txn is None else txn.writer)
        topic_id = cluster.topic_ids()[topic]
        is_foreign = site.stay == 0 and side != site.side
        known = None if txn is None else txn.known
        stay = site.stay + (side != site.side)  # one that comes to the next cluster early lies in front of what follows there
        self.written += [
            Written(value, side, topic, topic_id, partition, first + number, stay, is_foreign, known)
            for number, value in enumerate(values)
        ]
        return True

    def is_denied(self, side: str, topic: str) -> bool:
        entries = (self.clusters[side].state.acls or {}).get((_TOPIC, topic, _LITERAL), [])
        wanted = {"principal": PRINCIPAL, "operation": _WRITE, "permission_type": _DENY}
        return any(wanted.items() <= entry.items() for entry in entries)

    def deny(self, side: str, topic: str) -> None:
        """Let an ACL keep the writers from a topic."""
        acls = self.clusters[side].state.acls
        assert acls is not None
        entry = {"principal": PRINCIPAL, "host": "*", "operation": _WRITE, "permission_type": _DENY}
        acls.setdefault((_TOPIC, topic, _LITERAL), []).append(entry)

    def begin(self, side: str, *, is_of_writers: bool) -> OpenTxn:
        txn = OpenTxn(side, self.clusters[side].begin(), SourceTxn(), is_of_writers)
        self.open_txns.append(txn)
        return txn

    def end(self, txn: OpenTxn, *, is_commit: bool) -> None:
        self.open_txns.remove(txn)
        if txn.writer.sequences:
            self.clusters[txn.side].end(txn.writer, is_commit=is_commit)
        txn.known.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        self.last_end_s[txn.side] = self.clusters[txn.side].state.now_ms() / 1000

    def _write_a_little(self, site: Site) -> None:
        topics = self.topics(site)
        if not topics:
            return
        topic = self.chance.choice(topics)
        partition = self.chance.randrange(self.clusters[site.side].partitions(topic))
        own = [txn for txn in self.open_txns if txn.is_of_writers and txn.side == site.side]
        match self.chance.randrange(6):
            case 0 if not self.is_denied(site.side, topic):
                txn = own[0] if own else self.begin(site.side, is_of_writers=True)
                self.write(site.side, topic, partition, 1, txn)
            case 1 if own:
                self.end(own[0], is_commit=self.chance.random() < 0.6)
            case _:
                self.write(site.side, topic, partition, self.chance.randint(1, 2))

    def stop_writers(self, site: Site) -> None:
        """They end their transactions, as applications do."""
        site.is_writing = False
        if not any(other.is_writing and other.side == site.side for other in self.sites):
            for txn in [txn for txn in self.open_txns if txn.is_of_writers and txn.side == site.side]:
                self.end(txn, is_commit=True)

    def start_writers(self, site: Site, side: str) -> None:
        if site.side != side:
            site.side, site.stay = side, site.stay + 1
        site.is_writing = True

    # --- consumers ---

    def stop_consumers(self, site: Site) -> None:
        site.is_reading = False
        for cluster in self.clusters.values():
            for group in site.groups:
                cluster.state.groups.members.pop(group, None)

    def start_consumers(self, site: Site, side: str) -> None:
        self.stop_consumers(site)
        site.is_reading = True
        for group in site.groups:
            self.clusters[side].state.groups.members[group] = [f"{group}-app"]

    def poll(self, site: Site, side: str, group: str, most: int = _POLLED) -> int:
        """Let a group read at most so many records of each partition, and commit. Return how many it has read."""
        cluster, count = self.clusters[side], 0
        for topic in self.topics(site, side):
            for partition in range(cluster.partitions(topic)):
                count += self._poll_partition(cluster, group, topic, partition, most)
        return count

    def _poll_partition(self, cluster: FakeCluster, group: str, topic: str, partition: int, most: int) -> int:
        if cluster.state.groups.is_unstable(group, (topic, partition)):
            return 0  # a consumer waits until the transaction that commits its offset has ended
        start, end = cluster.bounds(topic, partition)
        committed = cluster.group_offsets(group).get((topic, partition))
        if committed is not None and committed > end:
            self.misread.append(f"group {group} is at {committed} of {topic}-{partition} at {cluster.name}, which ends at {end}")
            return 0
        position = max(start, committed or 0)
        found = [(offset, value) for offset, value in sorted(cluster.read(topic, partition).items()) if offset >= position]
        found = found[:most]
        self.read[group].update(value for _, value in found)
        if found:
            cluster.commit_group(group, topic, partition, found[-1][0] + 1)
        return len(found)

    def reset(self, group: str, side: str, topic: str, partition: int, offset: int) -> None:
        """kafka-consumer-groups.sh --reset-offsets, of a group without members."""
        cluster = self.clusters[side]
        assert group not in cluster.state.groups.members, "Kafka refuses that"
        cluster.commit_group(group, topic, partition, offset)
        for at, value in cluster.read(topic, partition, is_committed=False).items():
            self.read[group][value] = int(at < offset)  # also of transactions that are open: they are skipped, too

    # --- time ---

    def tick(self) -> None:
        """Let all that run do what they do in a second."""
        for site in self.sites:
            if site.is_writing and self.chance.random() < 0.4:
                self._write_a_little(site)
            for group in site.groups if site.is_reading else ():
                if self.chance.random() < 0.4:
                    self.poll(site, self._reading_side(site), group)

    def _reading_side(self, site: Site) -> str:
        """Return where the members are: they may start before the writers do."""
        sides = [side for side, cluster in self.clusters.items() if site.groups[0] in cluster.state.groups.members]
        return sides[0] if sides else site.side

    def read_everything(self) -> None:
        for site in self.sites:
            for group in site.groups:
                while self.poll(site, site.side, group):
                    pass

    def visible(self) -> Iterator[Written]:
        """Yield the records that readers have to see."""
        return (record for record in self.written if record.is_visible)

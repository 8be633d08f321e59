"""Latency of the other partitions while one of them is broken, at the source or at the target.

    python -m benchmarks.broken_partition --side target --minutes 10

A cluster of three nodes is on the side that breaks, one node on the other. Every partition has one replica, and exactly one of
them lies on the node that is killed (SIGKILL), and started again after the minutes. Internal topics have three replicas. Records
with the time in them are written to all partitions in turn, those of the partition that breaks by a producer of its own, which
keeps them until the partition is back. The mirror has its default configuration, but `trigger: 0 seconds`. At the target a plain
transactional producer shows what every producer of that cluster waits for when a broker is killed.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.arrivals import Arrival, Latencies, Phase, caught_up_after_s, order_problems, pauses
from benchmarks.comparison import PROPERTIES
from benchmarks.equality import difference, topic_digest
from benchmarks.interrupts import end_on_sigterm
from benchmarks.running_mirror import running_mirror, write_mirror_file
from benchmarks.timed_clients import PLAIN_TOPIC, TIMEOUT_S, TOPIC, PlainTransactions, Receiver, Sender
from benchmarks.topics import create_topic
from shallow_mirror.broker import Cluster, CoordinatorKind
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.logs.runs import MICRO_BATCHES_TABLE
from shallow_mirror.deadline import Deadline
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import BrokerStartError
from shallow_mirror.types import TopicPartition

SIDES = SOURCE, TARGET = "source", "target"
WARM_UP_S = 30.0
HEALED_S = 30.0
LONG_S = 5.0
FIRST_MINUTE_S = 60.0
UNDER_WAY_S = 5.0
"""What was sent so shortly before the node was killed counts to the time in which it is broken."""

_NODES = 3
_BREAKING_PROPERTIES = {
    **PROPERTIES,
    # Kafka's defaults: how long a killed node is taken for alive, and for a replica in sync, decides how long the others pause.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.lag.time.max.ms": "30000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    # One partition each, so that one of the nodes leads none of them.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
_TRANSACTIONS = "__transaction_state"
_INTERNAL_TOPICS = ("__consumer_offsets", _TRANSACTIONS)
_TOPIC_SETTINGS = {"min.insync.replicas": "1"}
_START_WITHIN_S = 600.0
_CATCH_UP_WITHIN_S = 600.0
_STARTS = 4
_LOG_LINES = 30


@dataclass(frozen=True, slots=True)
class Pair:
    """`node` is the one that is killed, of `breaking`."""

    source: LocalKafka | LocalKafkaCluster
    target: LocalKafka | LocalKafkaCluster
    breaking: LocalKafkaCluster
    node: LocalKafka


@contextmanager
def running_pair(folder: Path, side: str, *, is_coordinator: bool) -> Iterator[Pair]:
    with ExitStack() as stack:
        breaking = LocalKafkaCluster(folder / side, _NODES, properties=_BREAKING_PROPERTIES)
        other = LocalKafka(folder / "other", properties=PROPERTIES)
        stack.enter_context(breaking)
        stack.enter_context(other)
        leaders = internal_leaders(breaking.bootstrap)
        if is_coordinator:
            node_id = leaders[_TRANSACTIONS]
        else:
            node_id = max(node.node_id for node in breaking.nodes if node.node_id not in leaders.values())
        node = breaking.nodes[node_id - 1]
        print(f"node {node_id} of the {side} will be killed; leaders of internal topics: {leaders}", flush=True)
        yield Pair(breaking, other, breaking, node) if side == SOURCE else Pair(other, breaking, breaking, node)


def internal_leaders(bootstrap: str) -> dict[str, int]:
    """Return the node that leads the only partition of each internal topic, which is created by asking for a coordinator."""
    deadline = Deadline.after_ms(TIMEOUT_S * 1000, time.monotonic)
    with closing(Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))) as cluster:
        for kind in CoordinatorKind:
            cluster.retrying("finding coordinators", functools.partial(cluster.coordinator, kind, TOPIC), deadline)
        leaders = cluster.leaders([TopicPartition(topic, 0) for topic in _INTERNAL_TOPICS], deadline)
    return {partition.topic: leader.leader for partition, leader in leaders.items()}


def leaders_of(partitions: int, nodes: Sequence[int], killed: int) -> list[int]:
    """Return the node of each partition: the last one is alone on `killed`, the others take turns on the rest."""
    others = [node for node in nodes if node != killed]
    return [*(others[partition % len(others)] for partition in range(partitions - 1)), killed]


@dataclass(frozen=True, slots=True)
class Run:
    """`start_took_s`: of the killed node, until it took part again, at `back_at`."""

    phases: Sequence[Phase]
    start_took_s: float
    back_at: float


def break_and_heal(pair: Pair, sender: Sender, receiver: Receiver, partitions: int, healthy_s: float, broken_s: float) -> Run:
    """Raise TimeoutError where nothing arrives at first, or the partition is not caught up in the end."""
    broken = partitions - 1
    _wait_until(
        "every partition", lambda: len({arrival.partition for arrival in receiver.arrivals()}) == partitions, _START_WITHIN_S
    )
    time.sleep(WARM_UP_S)
    healthy_at = time.time()
    print(f"healthy for {healthy_s:.0f} s", flush=True)
    time.sleep(healthy_s)
    pair.node.kill()
    broken_at = time.time()
    print(f"broken for {broken_s:.0f} s", flush=True)
    time.sleep(broken_s)
    healed_at = time.time()
    _start(pair.node)
    back_at = time.time()
    backlog = sender.sent[broken]
    print(f"the node is back after {back_at - healed_at:.1f} s", flush=True)
    _wait_until(
        f"the backlog of partition {broken}",
        lambda: sum(arrival.partition == broken for arrival in receiver.arrivals()) >= backlog,
        _CATCH_UP_WITHIN_S,
    )
    time.sleep(HEALED_S)
    end = time.time()
    phases = [
        Phase("healthy", healthy_at, broken_at - UNDER_WAY_S),
        Phase("broken", broken_at - UNDER_WAY_S, healed_at),
        Phase("healed", healed_at, end),
    ]
    if broken_s > FIRST_MINUTE_S:
        phases.insert(2, Phase("broken, from its second minute", broken_at + FIRST_MINUTE_S, healed_at))
    return Run(phases, back_at - healed_at, back_at)


def _start(node: LocalKafka) -> None:
    """Raise BrokerStartError. On a busy machine a start may take longer than a test would wait."""
    for _ in range(_STARTS - 1):
        try:
            return node.start()
        except BrokerStartError as error:
            print(f"starting the node again: {error.args[0].splitlines()[0]}", flush=True)
    node.start()


def _wait_until(what: str, is_there: Callable[[], bool], within_s: float) -> None:
    give_up_at = time.monotonic() + within_s
    while not is_there():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what} did not arrive within {within_s:.0f} s")
        time.sleep(0.5)


def long_micro_batches(tables: Path, phase: Phase) -> list[Mapping[str, float]]:
    """Return the steps of each micro-batch that took long and was settled in the phase."""
    rows = DeltaTable(str(tables / MICRO_BATCHES_TABLE)).to_pyarrow_table().sort_by("micro_batch").to_pylist()
    steps = [json.loads(row["duration_ms"]) for row in rows if phase.holds(row["settled_at"].timestamp())]
    return [durations for durations in steps if durations["Total"] > LONG_S * 1000]


def report(run: Run, arrivals: Sequence[Arrival], broken: int, tables: Path) -> None:
    others = [arrival for arrival in arrivals if arrival.partition != broken]
    all_pauses = pauses(others, LONG_S)
    print(f"the other {broken} partitions, pauses and micro-batches longer than {LONG_S:.0f} s:")
    for phase in run.phases:
        in_phase = [pause for pause in all_pauses if phase.holds(pause.end)]
        slow = long_micro_batches(tables, phase)
        print(f"{_sentence(phase, Latencies.of(others, phase))}; {len(in_phase)} pauses, {len(slow)} micro-batches")
        for pause in in_phase:
            at_s = pause.begin - phase.begin
            print(f"    nothing for {pause.seconds:.1f} s in {pause.partitions} partitions, from {at_s:+.1f} s on")
        if slow:
            slowest = max(slow, key=lambda steps: steps["Total"])
            print(f"    the slowest micro-batch took {slowest['Total'] / 1000:.1f} s: {json.dumps(slowest)}")
    caught_up_s = caught_up_after_s([arrival for arrival in arrivals if arrival.partition == broken], run.back_at)
    print(f"the broken partition had caught up {caught_up_s:.1f} s after its node was back, which took {run.start_took_s:.1f} s")


def _sentence(phase: Phase, figures: Latencies) -> str:
    return (
        f"{phase.name} ({phase.end - phase.begin:.0f} s): {figures.records} records, median {figures.median_s:.3f} s, "
        f"p95 {figures.p95_s:.3f} s, p99 {figures.p99_s:.3f} s, most {figures.max_s:.3f} s"
    )


def report_plain(run: Run, transactions: Sequence[Arrival]) -> None:
    print("transactions of a plain producer at the same coordinator, from begin to commit:")
    for phase in run.phases:
        print(_sentence(phase, Latencies.of(transactions, phase)).replace("records", "transactions"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.broken_partition", description=__doc__.partition("\n")[0])
    parser.add_argument("--side", choices=SIDES, required=True, help="where the partition breaks")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it is broken")
    parser.add_argument("--healthy-minutes", type=float, default=2.0, help="how long nothing is broken first")
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument(
        "--every-ms", type=float, default=20.0, help="between two records, of which each partition has one in turn"
    )
    parser.add_argument("--coordinator", action="store_true", help="kill the node that coordinates transactions")
    parser.add_argument("--without-spark", action="store_true", help="the loop of the fault campaigns in Spark's place")
    parser.add_argument("--folder", type=Path, help="where brokers and the mirror keep their data; default: a temporary one")
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with running_pair(folder / "kafka", options.side, is_coordinator=options.coordinator) as pair:
            return _measure(pair, folder, options)


def _measure(pair: Pair, folder: Path, options: argparse.Namespace) -> int:
    partitions = options.partitions
    leaders = leaders_of(partitions, [node.node_id for node in pair.breaking.nodes], pair.node.node_id)
    for cluster in (pair.source, pair.target):
        is_breaking = cluster is pair.breaking
        create_topic(cluster.bootstrap, TOPIC, partitions, _TOPIC_SETTINGS, leaders=leaders if is_breaking else None)
    plain = None
    if options.side == TARGET:
        create_topic(pair.target.bootstrap, PLAIN_TOPIC, 1, _TOPIC_SETTINGS, leaders=leaders[:1])
        plain = PlainTransactions(pair.target.bootstrap)
        plain.start()
    sender = Sender(pair.source.bootstrap, partitions, options.every_ms)
    receiver = Receiver(pair.target.bootstrap, partitions)
    conf = write_mirror_file(folder, pair, TOPIC, {"trigger": "0 seconds"})
    try:
        with running_mirror(conf, is_without_spark=options.without_spark):
            sender.start()
            receiver.start()
            run = break_and_heal(pair, sender, receiver, partitions, options.healthy_minutes * 60, options.minutes * 60)
            sender.stop()
            sent = sum(sender.sent.values())
            _wait_until("every record", lambda: len(receiver.arrivals()) >= sent, _CATCH_UP_WITHIN_S)
    except TimeoutError:
        print("\n".join(conf.with_name("mirror.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]), file=sys.stderr)
        raise
    receiver.stop()
    report(run, receiver.arrivals(), partitions - 1, folder / "tables")
    if plain is not None:
        plain.stop()
        report_plain(run, plain.done)
    problems = order_problems(receiver.arrivals(), sender.sent)
    unequal = difference(*(topic_digest(cluster.bootstrap, TOPIC, partitions) for cluster in (pair.source, pair.target)))
    if unequal:
        problems.append(unequal)
    print("\n".join(problems) or f"{sent} records, each exactly once and in order in its partition; the topics are equal")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""A partition that breaks behind a plan that Spark has written down: the others are copied, and it catches up by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    Running,
    admin,
    catch_up,
    create_topic,
    open_transaction,
    read_values,
    write,
)
from tests.verify.log_files import LogFile, stopped

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import Recorded
from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.status import gather_status
from shallow_mirror.sinks import Side

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300)]


def mirror_of(folder: Path, source: str, target: str, *topics: str) -> MirrorConfig:
    return runs.config(folder, source, target, topics, write={"transaction_timeout_ms": 30_000, "slots": 2})


def plan_without_copying(settings: MirrorConfig, spark: Any) -> None:
    """Spark has logged the end offsets of a micro-batch that nothing was written for."""
    with pytest.raises(CrashError):
        catch_up(settings, spark, observer=CrashAt("TakeDecision"))


class Pair(NamedTuple):
    source: LocalKafkaCluster
    target: LocalKafka


@pytest.fixture
def pair(tmp_path: Path, target_cluster: LocalKafka) -> Iterator[Pair]:
    """Start a source of two nodes, which cannot elect another controller, or leader, without one of them."""
    with LocalKafkaCluster(tmp_path / "source", 2) as source:
        yield Pair(source, target_cluster)


@pytest.mark.long
def test_a_missing_leader_delays_no_other_partition_and_its_own_is_copied_when_it_is_back(
    pair: Pair, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = pair.source.bootstrap, pair.target.bootstrap
    create_topic(source, topic_name, 2)
    leaders = {
        n: partition.leader for n, partition in admin(source).list_topics(topic_name).topics[topic_name].partitions.items()
    }
    broken, well = sorted(leaders, key=lambda n: leaders[n], reverse=True)
    settings = mirror_of(tmp_path, source, target, topic_name)
    for partition in (broken, well):
        write(source, topic_name, [f"{partition} first"], partition)
    catch_up(settings, spark)
    for partition in (broken, well):
        write(source, topic_name, [f"{partition} planned"], partition)
    plan_without_copying(settings, spark)
    node = pair.source.nodes[leaders[broken] - 1]
    node.kill()

    def copied() -> dict[tuple[str, int], int]:
        return runs.positions(settings)

    with Running(settings, spark) as mirror:
        mirror.wait_for("what was planned of the other partition", lambda: copied()[topic_name, well] == 2)
        write(source, topic_name, [f"{well} later"], well)
        mirror.wait_for("what was written later", lambda: copied()[topic_name, well] == 3)
        mirror.wait_for("a status that names it", lambda: gather_status(settings).left_out)
        (left,) = gather_status(settings).left_out
        assert (left.source.topic_partition, left.side) == ((topic_name, broken), Side.SOURCE)
        assert copied()[topic_name, broken] == 1
        node.start()
        mirror.wait_for("the partition that was left out", lambda: copied()[topic_name, broken] == 2)
        mirror.wait_for("a status without it", lambda: not gather_status(settings).left_out)
    assert read_values(target, topic_name, broken) == [f"{broken} first", f"{broken} planned"]
    assert read_values(target, topic_name, well) == [f"{well} first", f"{well} planned", f"{well} later"]


@pytest.mark.long
def test_a_log_that_loses_its_planned_end_delays_no_other_and_continues_from_where_it_was_copied(
    stoppable_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    cut, well = f"{topic_name}-cut", f"{topic_name}-well"
    for topic in (cut, well):
        create_topic(source, topic)
        write(source, topic, ["0"])
    settings = mirror_of(tmp_path, source, target, cut, well)
    catch_up(settings, spark)
    for number in range(1, 6):
        write(source, cut, [str(number)])
    plan_without_copying(settings, spark)
    with stopped(stoppable_clusters.source):
        log = LogFile(stoppable_clusters.source, cut)
        del log.batches[4:]
        log.write()
    write(source, well, ["1"])
    with Running(settings, spark) as mirror:
        mirror.wait_for("both", lambda: runs.positions(settings) == {(cut, 0): 4, (well, 0): 2})
        write(source, cut, ["new"])
        mirror.wait_for("what was written below the planned end", lambda: runs.positions(settings)[cut, 0] == 5)
        for value in ("newer", "newest"):
            write(source, cut, [value])
        mirror.wait_for("what was written beyond it", lambda: runs.positions(settings)[cut, 0] == 7)
    assert read_values(target, cut) == ["0", "1", "2", "3", "new", "newer", "newest"]
    assert read_values(target, well) == ["0", "1"]


class OnceAt:
    """Observer. Calls `act` when the driver first passes `point` while it is armed; never in a worker."""

    def __init__(self, point: str, act: Callable[[], None]) -> None:
        self._point, self._act, self._driver, self.is_armed = point, act, os.getpid(), False

    def __call__(self, point: str) -> None:
        if point == self._point and self.is_armed and os.getpid() == self._driver:
            self.is_armed = False
            self._act()

    def __getstate__(self) -> dict[str, object]:
        """Travel to workers without what only the driver calls."""
        return {"_point": self._point, "_act": None, "_driver": self._driver, "is_armed": False}


def recorded(settings: MirrorConfig) -> Recorded:
    recorded = OffsetMap.open(settings.tables).recorded()
    assert recorded is not None
    return recorded


@pytest.mark.long
def test_a_target_partition_that_takes_no_marker_is_held_until_it_does_and_the_others_continue(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    """The only replica of some partitions is killed between the decision and EndTxn."""
    with LocalKafkaCluster(tmp_path / "target", 3) as cluster:
        source, target = source_cluster.bootstrap, cluster.bootstrap
        create_topic(source, topic_name, 3)
        settings = runs.config(
            tmp_path, source, target, [topic_name],
            topics={"replication_factor": 1}, write={"transaction_timeout_ms": 30_000, "slots": 2},
        )  # fmt: skip

        def write_to_all(value: str) -> None:
            for partition in range(3):
                write(source, topic_name, [value], partition)

        def copied() -> dict[int, int]:
            return {partition: end for (_, partition), end in runs.positions(settings).items()}

        write_to_all("0")
        catch_up(settings, spark)
        leaders = {
            n: partition.leader for n, partition in admin(target).list_topics(topic_name).topics[topic_name].partitions.items()
        }
        led_partitions = {partition for partition, leader in leaders.items() if leader == leaders[0]}
        node = cluster.nodes[leaders[0] - 1]
        between_decision_and_end = OnceAt("Decide", node.kill)
        between_decision_and_end.is_armed = True
        write_to_all("1")
        with Running(settings, spark, between_decision_and_end) as mirror:
            mirror.wait_for("a transaction that is pending", lambda: recorded(settings).pending_txns)
            write_to_all("2")
            mirror.wait_for("what is not held", lambda: all(copied()[n] == 3 for n in range(3) if n not in led_partitions))
            mirror.wait_for("a status that names the others", lambda: gather_status(settings).left_out)
            left_out = gather_status(settings).left_out
            assert {(left.source.partition, left.side) for left in left_out} == {(n, Side.TARGET) for n in led_partitions}
            node.start()
            mirror.wait_for("what was held", lambda: all(end == 3 for end in copied().values()))
            mirror.wait_for("the end of the pending transaction", lambda: not recorded(settings).pending_txns)
        for partition in range(3):
            assert read_values(target, topic_name, partition) == ["0", "1", "2"]


@pytest.mark.long
def test_a_target_partition_behind_an_open_transaction_of_others_is_held_and_the_rest_continues(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    hidden, well = f"{topic_name}-hidden", f"{topic_name}-well"
    for topic in (hidden, well):
        create_topic(source, topic)
        write(source, topic, ["0"])
    settings = mirror_of(tmp_path, source, target, hidden, well)
    catch_up(settings, spark)
    with Running(settings, spark) as mirror:
        with open_transaction(target, hidden, ["of others"]):
            for topic in (hidden, well):
                write(source, topic, ["1"])
            mirror.wait_for("a transaction that is pending", lambda: recorded(settings).pending_txns)
            for topic in (hidden, well):
                write(source, topic, ["2"])
            mirror.wait_for("what is not held", lambda: runs.positions(settings)[well, 0] == 3)
            mirror.wait_for("a status that names the other", lambda: gather_status(settings).left_out)
            (left,) = gather_status(settings).left_out
            assert (left.source.topic_partition, left.side) == ((hidden, 0), Side.TARGET)
            assert "is open from offset" in left.reason
        mirror.wait_for("what was held", lambda: runs.positions(settings)[hidden, 0] == 3)
    assert read_values(target, well) == ["0", "1", "2"]
    assert read_values(target, hidden) == ["0", "of others", "1", "2"]

"""An archive of logs that a real broker lost the end of: the new log is the next lineage, and the lost one can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from tests.conftest import TwoClusters
from tests.faults.archive_check import SourceLog, lineage_differences, load_archived_rows, load_files
from tests.faults.gate import Gate
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.support.lineage_runs import PATIENCE_S, LineageRuns, consumed
from tests.support.mirror_runs import admin, create_topic, wait_for, write
from tests.verify.log_files import LogFile, stopped

from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("ends_below_position", "engine"),
    [
        pytest.param(False, WITHOUT_SPARK, id="grown beyond it"),
        pytest.param(True, WITHOUT_SPARK, id="ends below it", marks=pytest.mark.long),
        pytest.param(True, SPARK, id="ends below it, on Spark", marks=pytest.mark.long),
    ],
)
def test_two_truncated_logs_are_archived_as_next_lineages_and_both_logs_can_be_restored(
    stoppable_clusters: TwoClusters, gate: Gate, tmp_path: Path, topic_name: str, ends_below_position: bool, engine: str
) -> None:
    """Also where the log ends below the archive's position, and where the start that finds it is killed before its commit."""
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    create_topic(source, topic_name, 2)
    write_to_both(source, topic_name, "first", 10)
    runs = LineageRuns(tmp_path, gate, source, topic_name, engine)
    runs.archive_up_to({0: (0, 10), 1: (0, 10)})
    before = consumed(source, topic_name, 2)
    source_log = SourceLog(stoppable_clusters.source.folder / "data")
    with stopped(stoppable_clusters.source):
        for partition, kept in ((0, 6), (1, 3)):
            source_log.before_truncation(TopicPartition(topic_name, partition))
            log = LogFile(stoppable_clusters.source, topic_name, partition)
            del log.batches[kept:]
            log.write()
    write_to_both(source, topic_name, "second", 5 if ends_below_position else 9)
    now = consumed(source, topic_name, 2)
    ends = {0: (1, len(now[0])), 1: (1, len(now[1]))}
    assert ends == ({0: (1, 11), 1: (1, 8)} if ends_below_position else {0: (1, 15), 1: (1, 12)})

    if ends_below_position:
        with runs.running("stop") as process:
            assert process.wait(PATIENCE_S) == 1
            assert "set read.on_data_loss: continue and start again: it becomes the next lineage" in process.log()
        runs.kill_at("lineage.found")
        assert runs.ends() == {0: (0, 10), 1: (0, 10)}
    log_text = runs.archive_up_to(ends)
    assert "The archive continues at 6 with lineage 1" in log_text
    assert "The archive continues at 3 with lineage 1" in log_text

    rows, files = load_archived_rows(Path(runs.config.tables)), load_files(Path(runs.config.objects))
    for topic_partition, group in groupby(rows, key=lambda row: row.topic_partition):
        assert lineage_differences(list(group), files, source_log.logs(topic_partition)) == []
    assert runs.archived(2) == now
    assert runs.archived(2, lineage=0) == before
    assert runs.restored(target, "newest", 2) == now
    assert runs.restored(target, "former", 2, lineage=0) == before
    assert verify_archive(runs.config, is_deep=True).is_equal
    rebuild(runs.config, str(tmp_path / "rebuilt"))
    runs.config = runs.config.model_copy(update={"tables": str(tmp_path / "rebuilt")})
    assert (runs.archived(2), runs.archived(2, lineage=0)) == (now, before)
    assert verify_archive(runs.config, is_deep=True).is_equal


def write_to_both(bootstrap: str, topic: str, name: str, count: int) -> None:
    """Write batches of one record to both partitions."""
    for number in range(count):
        write(bootstrap, topic, [f"{name} {number}"], 0)
        write(bootstrap, topic, [f"{name} {number}"], 1)


TOPIC = "orders"


@pytest.mark.long
@pytest.mark.parametrize("is_running", [False, True], ids=["between runs", "under a running archive"])
def test_unclean_elections_one_after_the_other_lose_nothing_of_any_log(
    target_cluster: LocalKafka, gate: Gate, tmp_path: Path, *, is_running: bool
) -> None:
    """Two replicas take turns as the only one that is alive: each election brings back a log without the other one's end.

    A third broker keeps the quorum of controllers.
    """
    with LocalKafkaCluster(tmp_path / "kafka", 3, properties={"min.insync.replicas": "1"}) as cluster:
        first, second, _ = cluster.nodes
        source = cluster.bootstrap
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        topic = NewTopic(TOPIC, 1, replica_assignment=[[first.node_id, second.node_id]], config=settings)
        client = admin(source)  # futures fail when the client that returned them is collected
        client.create_topics([topic])[TOPIC].result(60)
        write_when_led(cluster, first, "both", 6)
        wait_for("both replicas in sync", lambda: len(partition_of(cluster).isrs) == 2)
        second.kill()
        write_when_led(cluster, first, "first", 5)
        runs = LineageRuns(tmp_path, gate, source, TOPIC)
        with runs.running() if is_running else nullcontext() as process:

            def archive_up_to(lineage: int, end: int) -> None:
                if process is None:
                    runs.archive_up_to({0: (lineage, end)})
                    return
                what = f"lineage {lineage} up to {end}"
                wait_for(what, lambda: process.exit_code is not None or runs.ends() == {0: (lineage, end)})
                assert process.exit_code is None, process.log()[-4000:]

            archive_up_to(0, 11)
            logs = [consumed(source, TOPIC, 1)]
            for lineage, (stopped_node, started, name) in enumerate(
                ((first, second, "second"), (second, first, "first again")), 1
            ):
                stopped_node.kill()
                started.start()
                write_when_led(cluster, started, name, 3)
                logs.append(consumed(source, TOPIC, 1))
                archive_up_to(lineage, len(logs[-1][0]))
            assert process is None or process.stop() == 0
        assert [len(log[0]) for log in logs] == [11, 9, 14]

        assert [runs.archived(1, lineage=number) for number in range(3)] == logs
        assert runs.archived(1) == logs[2]
        target = target_cluster.bootstrap
        assert runs.restored(target, "newest", 1) == logs[2]
        assert runs.restored(target, "zero", 1, lineage=0) == logs[0]
        assert runs.restored(target, "one", 1, lineage={TOPIC: {0: 1}}) == logs[1]
        assert verify_archive(runs.config, is_deep=True).is_equal


def write_when_led(cluster: LocalKafkaCluster, leader: LocalKafka, name: str, count: int) -> None:
    wait_for(f"node {leader.node_id} as leader", lambda: partition_of(cluster).leader == leader.node_id)
    for number in range(count):
        write(cluster.bootstrap, TOPIC, [f"{name} {number}"])


def partition_of(cluster: LocalKafkaCluster) -> Any:
    return admin(cluster.bootstrap).list_topics(TOPIC, timeout=20).topics[TOPIC].partitions[0]

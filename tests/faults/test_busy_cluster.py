"""Fewer free cores than slots: the transactions of the first tasks stay open until the last one has run, and none times out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.faults.gate import Gate
from tests.faults.mirror_process import BUSY_CLUSTER, BUSY_SLOTS, BUSY_WITHOUT_SPARK, MirrorProcess
from tests.faults.proxy import FaultPlan, HeldPort, Proxy
from tests.support.mirror_runs import conf_file, create_topic, positions, read_partitions

from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster

BATCHES, BATCH_BYTES = 120, 90_000
LINK_BYTES_PER_S = 400_000
"""27 s for all of it: were it copied in one transaction for each slot, the first of them would time out."""
TRANSACTION_MS = 15_000
PATIENCE_S = 400.0


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", [BUSY_WITHOUT_SPARK, BUSY_CLUSTER])
def test_slots_that_wait_for_one_core_commit_what_they_have_and_everything_arrives_once(
    source_cluster: Any, topic_name: str, tmp_path: Path, engine: str
) -> None:
    source, plan = source_cluster.bootstrap, FaultPlan()
    create_topic(source, topic_name, BUSY_SLOTS)
    producer = Producer({"bootstrap.servers": source, "batch.num.messages": 1, "log_level": 0})
    for number in range(BATCHES):
        producer.produce(topic_name, os.urandom(BATCH_BYTES), partition=number % BUSY_SLOTS)
    assert producer.flush(60) == 0
    with ExitStack() as opened:
        port = opened.enter_context(HeldPort())
        target = opened.enter_context(LocalKafkaCluster(tmp_path / "target", 1, proxies=[port.number]))
        proxy = opened.enter_context(Proxy(port, target.proxied_ports[0], plan))
        gate = opened.enter_context(Gate(tmp_path))
        proxy.limit(LINK_BYTES_PER_S)
        write = {"transaction_timeout_ms": TRANSACTION_MS, "slots": BUSY_SLOTS, "slot_bytes": 1 << 20}
        conf = conf_file(tmp_path, source, target.proxied_bootstrap, [topic_name], write=write, tables=str(tmp_path / "tables"))
        settings = MirrorConfig.load(conf)
        process = MirrorProcess(conf, gate.address, tmp_path / "mirror.log", tmp_path / "scratch", engine, {})
        opened.callback(process.kill)
        wait_for(process, lambda: sum(positions(settings).values()) == BATCHES)
        assert process.stop() == 0, process.log()
        rows = DeltaTable(str(tmp_path / "tables" / "offset_map")).to_pyarrow_table(columns=["transactional_id"])
        used = {name for name in rows.column(0).to_pylist() if name is not None}
        topic_partitions = [(topic_name, partition) for partition in range(BUSY_SLOTS)]
        values = [[record.value for record in each] for each in read_partitions(source, topic_partitions).values()]
        assert [
            [record.value for record in each] for each in read_partitions(target.bootstrap, topic_partitions).values()
        ] == values
    log = process.log()
    assert len(used) == BUSY_SLOTS, log
    assert log.count("SLOT_NOT_COMMITTED") <= 1, log
    assert proxy.requested_bytes < 2 * BATCHES * BATCH_BYTES, "nothing is aborted and sent again and again"


def wait_for(process: MirrorProcess, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.exit_code is None, process.log()
        assert time.monotonic() < give_up_at, process.log()
        time.sleep(0.5)

"""A backlog that a link cannot carry within a transaction's or a request's timeout is copied all the same, a part at a time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.faults.proxy import FaultPlan, HeldPort, Proxy
from tests.support.mirror_runs import conf_file, create_topic, positions, read_partitions, wait_for_run
from tests.verify.mirror_main import mirror

from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster

BATCHES, BATCH_BYTES = 46, 90_000
LINK_BYTES_PER_S = 450_000
"""Three quarters of the shortest transaction timeout, 10 s, carry 3.4 MB of the 4.1 MB."""


@pytest.mark.long
@pytest.mark.brokers
@pytest.mark.timeout(180)
def test_a_backlog_that_does_not_fit_into_a_transaction_is_committed_a_part_at_a_time(
    source_cluster: Any, topic_name: str, tmp_path: Path
) -> None:
    source, plan = source_cluster.bootstrap, FaultPlan()
    create_topic(source, topic_name, 2)
    producer = Producer({"bootstrap.servers": source, "batch.num.messages": 1, "log_level": 0})
    for number in range(BATCHES):
        producer.produce(topic_name, os.urandom(BATCH_BYTES), partition=number % 2)
    assert producer.flush(60) == 0
    with ExitStack() as opened:
        port = opened.enter_context(HeldPort())
        target = opened.enter_context(LocalKafkaCluster(tmp_path / "target", 1, proxies=[port.number]))
        proxy = opened.enter_context(Proxy(port, target.proxied_ports[0], plan))
        proxy.limit(LINK_BYTES_PER_S)
        write = {"transaction_timeout_ms": 10_000, "slots": 2, "slot_bytes": 1 << 20}
        conf = conf_file(tmp_path, source, target.proxied_bootstrap, [topic_name], write=write, tables=str(tmp_path / "tables"))
        settings = MirrorConfig.load(conf)
        assert settings.write.commit_interval_s < 4
        with mirror(conf) as process:
            wait_for_run(process, "everything", lambda: sum(positions(settings).values()) == BATCHES)
            process.terminate()
            _, log = process.communicate(timeout=60)
        topic_partitions = [(topic_name, 0), (topic_name, 1)]
        values = [[record.value for record in each] for each in read_partitions(source, topic_partitions).values()]
        assert [
            [record.value for record in each] for each in read_partitions(target.bootstrap, topic_partitions).values()
        ] == values
        assert log.count("micro-batch ") > 2, log
        assert "slots end before their ranges are done, after write.commit_interval (3333 ms)" in log
        assert "waiting for the target" in log
        assert proxy.requested_bytes < 1.5 * BATCHES * BATCH_BYTES, "each batch is sent about once"


SOURCE_BATCHES, SOURCE_BATCH_BYTES, SOURCE_BYTES_PER_S, REQUEST_TIMEOUT_MS = 100, 20_000, 100_000, 4_000
"""A Fetch may wait for half a second longer: one for the whole backlog would take 20 s to be answered, and be given up."""


@pytest.mark.brokers
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_backlog_is_read_over_a_link_that_does_not_carry_it_within_a_request_timeout(
    target_cluster: Any, topic_name: str, tmp_path: Path
) -> None:
    target, plan = target_cluster.bootstrap, FaultPlan()
    with ExitStack() as opened:
        port = opened.enter_context(HeldPort())
        source = opened.enter_context(LocalKafkaCluster(tmp_path / "source", 1, proxies=[port.number]))
        proxy = opened.enter_context(Proxy(port, source.proxied_ports[0], plan))
        create_topic(source.bootstrap, topic_name, 2)
        producer = Producer({"bootstrap.servers": source.bootstrap, "batch.num.messages": 1, "log_level": 0})
        for number in range(SOURCE_BATCHES):
            producer.produce(topic_name, os.urandom(SOURCE_BATCH_BYTES), partition=number % 2)
        assert producer.flush(60) == 0
        proxy.limit_replies(SOURCE_BYTES_PER_S)
        conf = conf_file(
            tmp_path,
            source.proxied_bootstrap,
            target,
            [topic_name],
            source={"client": {"bootstrap.servers": source.proxied_bootstrap, "request.timeout.ms": REQUEST_TIMEOUT_MS}},
            write={"transaction_timeout_ms": 10_000, "slots": 1},
            tables=str(tmp_path / "tables"),
        )
        settings = MirrorConfig.load(conf)
        with mirror(conf) as process:
            wait_for_run(process, "everything", lambda: sum(positions(settings).values()) == SOURCE_BATCHES)
            process.terminate()
            _, log = process.communicate(timeout=60)
        topic_partitions = [(topic_name, 0), (topic_name, 1)]
        values = [[record.value for record in each] for each in read_partitions(source.bootstrap, topic_partitions).values()]
        assert [[record.value for record in each] for each in read_partitions(target, topic_partitions).values()] == values
        assert "slots end before their ranges are done, after write.commit_interval (3333 ms)" in log
        assert "waiting for the source" in log
        assert proxy.replied_bytes < 1.5 * SOURCE_BATCHES * SOURCE_BATCH_BYTES, "each batch is read about once"

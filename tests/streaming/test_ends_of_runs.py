"""How `shallow-mirror run` ends, as a process: signals, clusters that cannot be reached, exit codes and the last line."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests import mirror_runs as runs
from tests.mirror_runs import catch_up, command, conf_file, create_topic, read_values, said, wait_for_run, write

from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.node import free_ports

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]


def test_signals_under_traffic_end_a_run_at_a_micro_batch_boundary_with_exit_0(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    conf = conf_file(tmp_path, source, target, [topic_name])
    settings = MirrorConfig.load(conf)
    is_over, written = threading.Event(), list[str]()

    def traffic() -> None:
        while not is_over.wait(0.05):
            write(source, topic_name, [str(len(written))])
            written.append(str(len(written)))

    writer = threading.Thread(target=traffic)
    writer.start()
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            begin = runs.positions(settings).get((topic_name, 0), 0)
            with command(tmp_path, conf) as process:
                wait_for_run(
                    process, "progress", lambda begin=begin: runs.positions(settings).get((topic_name, 0), 0) > begin + 5
                )
                os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
                assert process.wait(runs.PATIENCE_S) == 0, said(tmp_path)
            assert "Traceback" not in said(tmp_path)
            assert runs.is_settled(settings)
            copied = read_values(target, topic_name)
            assert copied == [str(one) for one in range(runs.positions(settings)[topic_name, 0])]
    finally:
        is_over.set()
        writer.join()
    catch_up(settings, spark)
    assert read_values(target, topic_name) == written


def test_a_cluster_that_cannot_be_reached_is_named_and_waited_for_until_a_signal_or_the_end_of_the_time(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    conf = conf_file(tmp_path, nowhere, nowhere, ["orders"])
    with command(tmp_path, conf, "--available-now") as process:
        wait_for_run(process, "the second attempt", lambda: said(tmp_path).count("source cluster east: NETWORK_EXCEPTION") == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(runs.PATIENCE_S) == 0, said(tmp_path)
    assert (
        f"stopped while waiting: source cluster east: NETWORK_EXCEPTION: gave up asking for metadata: cannot connect to {nowhere}"
        in said(tmp_path)
    )
    with command(tmp_path, conf, "--for", "1") as process:
        assert process.wait(runs.PATIENCE_S) == 1
    assert said(tmp_path).splitlines()[-1].startswith("Retriable: NETWORK_EXCEPTION: gave up asking for metadata: cannot connect")


def test_a_refusal_is_the_last_line_and_the_only_one_of_its_kind(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["x" * 5_000])
    create_topic(target, topic_name, settings={"max.message.bytes": "1000"})
    conf = conf_file(tmp_path, source, target, [topic_name])
    with command(tmp_path, conf, "--available-now") as process:
        assert process.wait(runs.PATIENCE_S) == 1
    assert "Traceback" not in said(tmp_path)
    assert said(tmp_path).splitlines()[-1].startswith(f"BatchRefused: {topic_name}-0: batch at base offset 0 refused: ")
    conf = conf_file(tmp_path, source, source, [topic_name])
    with command(tmp_path, conf) as process:
        assert process.wait(runs.PATIENCE_S) == 2
    assert said(tmp_path).splitlines()[-1].startswith("ConfigError: source east and target west are one cluster")

"""Batches that were made of columns, read by the clients of three languages."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.readers.clients import CLIENTS, NotAvailableError

from shallow_mirror import ExactlyOnceKafkaSink
from shallow_mirror.local_kafka.node import LocalKafka

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ROWS = 400


def test_clients_of_other_languages_read_every_codec(
    spark: Any, target_cluster: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = target_cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic_name, 1, 1)])[topic_name].result()
    expected = []
    for codec in CODECS:
        rows = spark.range(0, ROWS, 1, 1).selectExpr(
            f"concat('{codec}-', id) key", f"concat('{codec} ', id, ' ', repeat('x', cast(id as int))) value"
        )
        client = {"bootstrap.servers": bootstrap}
        with ExactlyOnceKafkaSink(
            name=f"{topic_name}-{codec}",
            client=client,
            tables=str(tmp_path / codec),
            topic=topic_name,
            codec=codec,
            batch_bytes=20_000,
        ) as sink:
            assert sink.write(rows, job_id="1")
        expected += [f"{codec} {i} {'x' * i}" for i in range(ROWS)]
    read = []
    for reader in CLIENTS:
        if reader.name not in ("librdkafka", "java", "franz-go"):
            continue
        try:
            command = reader.prepare(tmp_path / reader.name)
        except NotAvailableError as error:
            print(f"{reader.name}: {error}")
            continue
        done = subprocess.run(
            [*command, bootstrap, topic_name, "0", str(len(expected))], capture_output=True, text=True, timeout=120
        )
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        assert [line[2] for line in lines if line[0] == "record"] == expected, (reader.name, done.stderr[-500:])
        read.append(f"{reader.name} {lines[0][1]}")
    print(read)
    assert len(read) >= 2

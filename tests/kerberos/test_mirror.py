"""Mirrors between clusters of two realms that run on: new tickets, and a key that is replaced. A short one: test_on_brokers.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.kerberos.conftest import TwoRealms
from tests.kerberos.kerberized_broker import KerberizedBroker, new_client
from tests.kerberos.mirrors import PARTITIONS, mirror_file, wait_until_copied
from tests.support.mirror_runs import (
    PATIENCE_S,
    command,
    log_text,
    read_partitions,
    write,
)

from shallow_mirror.commands.options import EXIT_CONFIG

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600)]

MEGABYTES = int(os.environ.get("KERBEROS_MB", "20"))
SECONDS = int(os.environ.get("KERBEROS_S", "75"))
"""What the long mirror copies, and in which time; more than the life of a ticket."""
_RECORD_BYTES = 10_000


@pytest.mark.long
def test_a_mirror_whose_key_was_changed_ends_with_one_line_and_tries_it_a_few_times_only(
    realms: TwoRealms, tmp_path: Path, topic_name: str
) -> None:
    keytab = new_client(realms.source.realm, "replaced", "-maxlife", "5s")
    of_source = {"sasl.kerberos.principal": "replaced@SOURCE.TEST", "sasl.kerberos.keytab": str(keytab)}
    conf = mirror_file(tmp_path, realms, topic_name, "SHORT", **of_source)
    write(realms.source.node.bootstrap, topic_name, ["a"])
    with command(tmp_path, conf) as process:
        wait_until_copied(process, realms, topic_name, ["a"])
        realms.source.realm.change_key("replaced")
        assert process.wait(PATIENCE_S) == EXIT_CONFIG, log_text(tmp_path)
    last = log_text(tmp_path).splitlines()[-1]
    assert "AuthenticationError" in last
    assert "no ticket of replaced@SOURCE.TEST: Preauthentication failed: the keytab holds an old key" in last
    # Once for each process and connection that noticed it.
    assert realms.source.realm.refusals("replaced") <= 12


@contextmanager
def written_meanwhile(broker: KerberizedBroker, topic: str) -> Iterator[threading.Thread]:
    """Write MEGABYTES within SECONDS in a thread, at an even rate, without security."""
    total = MEGABYTES * 1_000_000 // _RECORD_BYTES

    def run() -> None:
        producer = Producer(
            {"bootstrap.servers": broker.node.bootstrap, "compression.type": "lz4", "linger.ms": 20, "log_level": 0}
        )
        began = time.monotonic()
        for number in range(total):
            value = number.to_bytes(8, "big") + os.urandom(_RECORD_BYTES - 8)
            producer.produce(topic, value, key=str(number), partition=number % PARTITIONS)
            producer.poll(0)
            time.sleep(max(0.0, began + SECONDS * number / total - time.monotonic()))
        assert producer.flush(60) == 0

    thread = threading.Thread(target=run, name="writer")
    thread.start()
    yield thread
    thread.join()


def longest_gap_s(broker: KerberizedBroker, topic: str, records: int, is_running: threading.Thread) -> float:
    """Read until so many records were seen; return the longest time without one after the first, while there were new ones."""
    consumer = Consumer(
        {"bootstrap.servers": broker.node.bootstrap, "group.id": f"gap-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    try:
        seen, last, longest = 0, None, 0.0
        give_up_at = time.monotonic() + SECONDS + PATIENCE_S
        while seen < records:
            assert time.monotonic() < give_up_at, f"{seen} of {records} records after {SECONDS} s"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                seen += 1
                if last is not None and is_running.is_alive():
                    longest = max(longest, time.monotonic() - last)
                last = time.monotonic()
        return longest
    finally:
        consumer.close()


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
def test_a_mirror_runs_on_beyond_the_lives_of_its_tickets_without_a_difference(
    realms: TwoRealms, tmp_path: Path, topic_name: str
) -> None:
    conf = mirror_file(tmp_path, realms, topic_name, "SHORT")
    write(realms.source.node.bootstrap, topic_name, ["warm"])
    total = MEGABYTES * 1_000_000 // _RECORD_BYTES
    tickets = [broker.realm.tickets_given("mirror") for broker in (realms.source, realms.target)]
    with command(tmp_path, conf) as process:
        wait_until_copied(process, realms, topic_name, ["warm"])
        with written_meanwhile(realms.source, topic_name) as writer:
            longest = longest_gap_s(realms.target, topic_name, total + 1, writer)
        assert process.poll() is None, log_text(tmp_path)
    partitions = [(topic_name, partition) for partition in range(PARTITIONS)]
    source, target = (read_partitions(broker.node.bootstrap, partitions) for broker in (realms.source, realms.target))
    differences = sum([record[1:] for record in source[key]] != [record[1:] for record in target[key]] for key in partitions)
    assert differences == 0
    renewed = [
        broker.realm.tickets_given("mirror") - before
        for broker, before in zip((realms.source, realms.target), tickets, strict=True)
    ]
    print(f"{MEGABYTES} MB in {SECONDS} s, longest gap {longest:.2f} s, tickets {renewed}, {differences} differences")
    assert min(renewed) >= SECONDS // 60 + 1

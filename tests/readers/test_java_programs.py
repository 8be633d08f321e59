"""The Java programs run with the clients of every Kafka release that is tested, whose internal classes move."""

from __future__ import annotations

import subprocess

import pytest
from tests.readers.clients import java_command

from shallow_mirror.local_kafka.jars import KAFKA_VERSION, OLD_KAFKA_VERSION, PREVIOUS_KAFKA_VERSION

pytestmark = [pytest.mark.brokers]


@pytest.mark.parametrize("version", [KAFKA_VERSION, PREVIOUS_KAFKA_VERSION, OLD_KAFKA_VERSION])
def test_the_range_reader_says_the_version_of_its_client_and_ends_with_its_requests(version: str) -> None:
    done = subprocess.run(java_command("RangeReader.java", version), input="", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"version\t{version}\n"), done.stderr


@pytest.mark.parametrize("version", [KAFKA_VERSION, PREVIOUS_KAFKA_VERSION])
@pytest.mark.parametrize("program", ["ConsumerReader.java", "ShareReader.java"])
def test_a_consumer_says_the_version_of_its_client_first(program: str, version: str) -> None:
    done = subprocess.run(java_command(program, version), capture_output=True, text=True, timeout=120)
    assert done.stdout == f"version\t{version}\n", done.stderr
    assert "ArrayIndexOutOfBoundsException" in done.stderr  # without the arguments, which come next

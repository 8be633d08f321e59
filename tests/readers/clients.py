"""The clients: how each is fetched by its package manager into a folder, and the command that reads a topic with it.

A program is called with bootstrap address, topic, first offset, and how many records there are. It prints its version, then
each record as it comes, and ends some seconds after so many records: more of them would be fillers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shallow_mirror.local_kafka.jars import KAFKA_VERSION, java_executable, kafka_jars

PROGRAMS = Path(__file__).parent / "programs"
_FETCH_WITHIN_S = 400
_TAIL = 300
_AIOKAFKA = "aiokafka==0.14.0"


class NotAvailableError(Exception):
    """A client could not be fetched or built here: it was not tried."""


@dataclass(frozen=True, slots=True)
class Client:
    """`title`: in the table. `prepare(folder)` returns the command. `seeks`: False where a group has no start but the earliest."""

    name: str
    title: str
    prepare: Callable[[Path], list[str]]
    seeks: bool = True


def _with_this_python(program: str, *options: str) -> Callable[[Path], list[str]]:
    return lambda folder: [sys.executable, str(PROGRAMS / program), *options]


def java_command(program: str, kafka_version: str = KAFKA_VERSION) -> list[str]:
    """Return the command of a Java program: one source file, which the JDK compiles at its start."""
    jars = kafka_jars(kafka_version)
    return [java_executable(), "-XX:TieredStopAtLevel=1", "-cp", f"{jars[0].parent}/*", str(PROGRAMS / program)]


def _java(program: str) -> Callable[[Path], list[str]]:
    return lambda folder: java_command(program)


def _aiokafka(folder: Path) -> list[str]:
    _fetch([sys.executable, "-m", "venv", str(folder)], folder)
    python = str(folder / "bin" / "python")
    _fetch([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", _AIOKAFKA], folder)
    return [python, str(PROGRAMS / "aiokafka_reader.py")]


def _kafkajs(folder: Path) -> list[str]:
    shutil.copytree(PROGRAMS / "kafkajs", folder, dirs_exist_ok=True)
    _fetch(["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"], folder)
    return ["node", str(folder / "reader.js")]


def _go(program: str) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        shutil.copytree(PROGRAMS / program, folder, dirs_exist_ok=True)
        _fetch(["go", "mod", "tidy"], folder)
        _fetch(["go", "build", "-o", "reader", "."], folder)
        return [str(folder / "reader")]

    return prepare


CLIENTS = (
    Client("librdkafka", "librdkafka (confluent-kafka)", _with_this_python("librdkafka_reader.py")),
    Client(
        "librdkafka-ignoring",
        "librdkafka, MSG_SIZE_TOO_LARGE ignored",
        _with_this_python("librdkafka_reader.py", "--ignore-too-large"),
    ),
    Client("java", "Java consumer", _java("ConsumerReader.java")),
    Client("java-share", "Java share consumer (KIP-932)", _java("ShareReader.java"), seeks=False),
    Client("kafka-python", "kafka-python", _with_this_python("kafka_python_reader.py")),
    Client("aiokafka", "aiokafka", _aiokafka),
    Client("kafkajs", "kafkajs", _kafkajs),
    Client("franz-go", "franz-go", _go("franz_go")),
    Client("sarama", "sarama", _go("sarama")),
)


def _fetch(command: Sequence[str], folder: Path) -> None:
    """Run one step. Raises NotAvailableError."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which(command[0]) is None:
        raise NotAvailableError(f"there is no `{command[0]}` on the path")
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotAvailableError(f"`{' '.join(command[:3])}` took longer than {_FETCH_WITHIN_S} s") from error
    if ended.returncode != 0:
        lines = " ".join((ended.stderr or ended.stdout)[-_TAIL:].split())
        raise NotAvailableError(f"`{' '.join(command[:3])}` failed: {lines}")

"""Consumers that read ranges of partitions: librdkafka and the Java client, which share no code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.readers.clients import java_command

from shallow_mirror.demo.checker import read_histories
from shallow_mirror.demo.history import History, HistoryBuilder
from shallow_mirror.types import IsolationLevel, TopicPartition

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Half-open, one for every partition of their topics. Some may be empty."""

ReadRanges = Callable[[str, IsolationLevel, Ranges], dict[TopicPartition, History]]
"""(bootstrap, isolation level, ranges) -> the records of each range."""

_PROGRAM = "RangeReader.java"
_END = "end"
_ERROR_CHARACTERS = 500


class JavaReaderError(Exception):
    """The Java program has ended; the end of its error output is in the message."""


def read_with_librdkafka(bootstrap: str, isolation: IsolationLevel, ranges: Ranges) -> dict[TopicPartition, History]:
    """Read each range. Raises RetriableError when a broker sends nothing for a minute."""
    starts = {key: start for key, (start, _) in ranges.items()}
    ends = {key: end for key, (_, end) in ranges.items()}
    topics = sorted({key.topic for key in ranges})
    histories = read_histories(bootstrap, topics, isolation, lambda records: None, starts=starts, ends=ends)
    return {key: histories[key] for key in ranges}


class JavaReader:
    """The Java client, in a process that is started at the first read; context manager. `folder` gets its error output.

    Its digests are its own: they compare with those of other reads of this program only.
    """

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "java_reader.log"
        self._process: subprocess.Popen[str] | None = None
        self.version = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def read(self, bootstrap: str, isolation: IsolationLevel, ranges: Ranges) -> dict[TopicPartition, History]:
        """Read each range. Raises JavaReaderError, also when a broker sends nothing for a minute."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request_line(bootstrap, isolation, ranges))
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        lines: list[str] = []
        for line in process.stdout:
            if line.rstrip("\n") == _END:
                return parse_histories(lines, ranges)
            lines.append(line)
        raise self._ended()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._errors.open("w", encoding="utf-8") as errors:
                self._process = subprocess.Popen(
                    java_command(_PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
                )
            assert self._process.stdout is not None
            self.version = self._process.stdout.readline().strip().removeprefix("version\t")
        return self._process

    def _ended(self) -> JavaReaderError:
        self._end()
        return JavaReaderError(self._errors.read_text(encoding="utf-8", errors="replace").strip()[-_ERROR_CHARACTERS:])


def request_line(bootstrap: str, isolation: IsolationLevel, ranges: Ranges) -> str:
    """Pure: return the request for the ranges that are not empty."""
    named = [f"{key.topic}:{key.partition}:{start}:{end}" for key, (start, end) in sorted(ranges.items()) if start < end]
    return "\t".join((bootstrap, isolation.value, *named)) + "\n"


def parse_histories(lines: Iterable[str], ranges: Ranges) -> dict[TopicPartition, History]:
    """Pure: return the records of each range, from a line of the Java program for each. Raises ValueError, KeyError."""
    builders = {key: HistoryBuilder() for key in ranges}
    for line in lines:
        topic, partition, offset, digest = line.split("\t")
        builders[TopicPartition(topic, int(partition))].add(int(offset), bytes.fromhex(digest))
    return {key: builder.build() for key, builder in builders.items()}

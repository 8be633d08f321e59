"""Options of `kafka-batches`, under the names of Spark's Kafka source, checked as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.fetch import Keep
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.sources.option_texts import OptionTexts
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition

DEFAULT_FETCH_BYTES = 16 << 20
DEFAULT_INPUT_PARTITIONS = 8
NO_LIMIT_BYTES = 1 << 62

_CLIENT_PREFIX = "kafka."
_NAMES = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "batches",
    "isolationLevel",
    "fetchBytes",
    "inputPartitions",
)
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_EXAMPLE = '{"topic": {"0": 23, "1": -2}}'
_WORDS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}

Ends = int | Mapping[TopicPartition, int]
"""LATEST_TIMESTAMP, or an end for every partition (-1: latest)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    client: ClientConfig
    plan: PlannerConfig
    ends: Ends
    keep: Keep
    is_data_loss_fatal: bool
    fetch_bytes: int


def parse_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Return the checked options. Raises ConfigError with every problem."""
    return _BatchesParser(options, is_streaming).parse()


class _BatchesParser(OptionTexts):
    def __init__(self, options: Mapping[str, str], is_streaming: bool) -> None:
        super().__init__(options, _NAMES, _CLIENT_PREFIX)
        self._is_streaming = is_streaming

    def parse(self) -> SourceOptions:
        self.check_names()
        client = self._client()
        topics = self._topics()
        include = tuple(re.escape(topic) for topic in topics) or self._pattern()
        starts = self._offsets("startingOffsets", "latest" if self._is_streaming else "earliest")
        ends = self._offsets("endingOffsets", "latest")
        if ends == EARLIEST_TIMESTAMP:
            self.problems.append('endingOffsets: is "latest" or JSON, not "earliest"')
        keep = self.one_of("batches", {keep.value: keep for keep in Keep}, "committed")
        isolation = self.one_of("isolationLevel", {level.value: level for level in IsolationLevel}, "read_committed")
        is_fatal = self.boolean("failOnDataLoss", "true")
        limit_bytes = self._number("maxBytesPerTrigger", NO_LIMIT_BYTES)
        limit_offsets = self._number("maxOffsetsPerTrigger", 0)
        fetch_bytes = self._number("fetchBytes", DEFAULT_FETCH_BYTES, least=65_536, most=1 << 30)
        slots = self._number("inputPartitions", DEFAULT_INPUT_PARTITIONS, most=10_000)
        if self.problems or client is None:
            raise ConfigError(self.problems)
        plan = PlannerConfig(
            include=include,
            required_topics=topics,
            isolation=isolation,
            start_timestamp_ms=starts if isinstance(starts, int) else EARLIEST_TIMESTAMP,
            start_offsets={} if isinstance(starts, int) else starts,
            micro_batch_bytes=limit_bytes,
            micro_batch_offsets=limit_offsets or None,
            slots=slots,
            request_timeout_ms=client.request_timeout_ms,
        )
        return SourceOptions(client=client, plan=plan, ends=ends, keep=keep, is_data_loss_fatal=is_fatal, fetch_bytes=fetch_bytes)

    def check_names(self) -> None:
        super().check_names()
        foreign = _STREAM_ONLY if not self._is_streaming else ("endingOffsets",)
        for name in foreign:
            if name.lower() in self._options:
                self.problems.append(f"{name}: has no meaning in a {'stream' if self._is_streaming else 'batch query'}")

    def _client(self) -> ClientConfig | None:
        try:
            return ClientConfig.from_properties(self.prefixed(), where="kafka")
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _topics(self) -> tuple[str, ...]:
        names = self._options.get("subscribe")
        if (names is None) == ("subscribepattern" not in self._options):
            self.problems.append("give one of subscribe (topic names with commas in between) and subscribePattern")
        if names is None:
            return ()
        topics = tuple(name.strip() for name in names.split(",") if name.strip())
        if not topics:
            self.problems.append("subscribe: names no topic")
        return topics

    def _pattern(self) -> tuple[str, ...]:
        pattern = self._options.get("subscribepattern", "")
        try:
            re.compile(pattern)
        except re.error as error:
            self.problems.append(f"subscribePattern: {pattern!r} is not a regular expression: {error}")
        return (pattern,)

    def _offsets(self, name: str, default: str) -> Ends:
        text = self._options.get(name.lower(), default)
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        words = "latest" if name == "endingOffsets" else "earliest, latest"
        try:
            return _parse_offsets(json.loads(text))
        except json.JSONDecodeError as error:
            where = f" (from character {error.pos + 1} on)" if text.lstrip().startswith("{") else "; a time is not supported"
            self.problems.append(f"{name}: {text!r} is neither {words} nor JSON such as {_EXAMPLE}{where}")
        except ValueError as error:
            self.problems.append(f"{name}: {error}; write {words} or JSON such as {_EXAMPLE}")
        return LATEST_TIMESTAMP

    def _number(self, name: str, default: int, *, least: int = 1, most: int = NO_LIMIT_BYTES) -> int:
        return self.number(name, default, least=least, most=most, unit="whole number")


def _parse_offsets(document: Any) -> dict[TopicPartition, int]:
    """Return offsets by partition. Raises ValueError."""

    def checked(is_valid: Callable[[Any], bool], value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(f"{value!r} is not valid")
        return value

    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in checked(lambda value: isinstance(value, dict), document).items():
        for partition, offset in checked(lambda value: isinstance(value, dict), partitions).items():
            checked(lambda value: value.isdecimal(), partition)
            checked(lambda value: type(value) is int and value >= EARLIEST_TIMESTAMP, offset)
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.broker.fetch import Keep
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.sources.source_options import NO_LIMIT_BYTES, parse_options
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders, users.eu"}


def _problems(*, is_streaming: bool = True, **options: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        parse_options({**LEAST, **options}, is_streaming=is_streaming)
    return raised.value.problems


def test_the_least_options_read_committed_batches_from_where_spark_s_kafka_source_would_start() -> None:
    stream, batch = parse_options(LEAST, is_streaming=True), parse_options(LEAST, is_streaming=False)
    assert stream.plan.include == ("orders", r"users\.eu")
    assert (stream.plan.start_timestamp_ms, batch.plan.start_timestamp_ms) == (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
    assert batch.ends == LATEST_TIMESTAMP
    assert (stream.keep, stream.is_data_loss_fatal, stream.plan.isolation) == (
        Keep.COMMITTED,
        True,
        IsolationLevel.READ_COMMITTED,
    )
    assert (stream.plan.micro_batch_bytes, stream.plan.micro_batch_offsets) == (NO_LIMIT_BYTES, None)


def test_names_are_understood_in_any_case_because_spark_hands_them_over_in_lower_case() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "subscribepattern": "orders.*",
            "STARTINGOFFSETS": '{"orders": {"0": 23, "1": -2}}',
            "maxoffsetspertrigger": "100",
            "maxBytesPerTrigger": "200",
            "failondataloss": "FALSE",
            "batches": "all",
            "isolationLevel": "read_uncommitted",
        },
        is_streaming=True,
    )
    assert options.plan.include == ("orders.*",)
    assert options.plan.start_offsets == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}
    assert (options.plan.micro_batch_offsets, options.plan.micro_batch_bytes) == (100, 200)
    assert (options.is_data_loss_fatal, options.keep) == (False, Keep.ALL)


def test_every_problem_is_in_one_error() -> None:
    kafka: dict[str, Any] = {"kafka.group.id": "g", "kafka.linger.ms": "5"}
    problems = _problems(
        subscribePattern="(",
        startingOffsets="yesterday",
        maxBytesPerTrigger="1GiB",
        batches="some",
        maxOffsetPerTrigger="1",
        **kafka,
    )
    text = "\n".join(problems)
    assert "give one of subscribe" in text
    assert "startingOffsets" in text
    assert "maxBytesPerTrigger: '1GiB'" in text
    assert "batches: 'some' is not one of committed, all" in text
    assert "did you mean maxOffsetsPerTrigger?" in text
    assert "kafka.group.id: has no effect on record batches" in text
    assert "kafka.linger.ms" in text
    assert len(problems) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-01-01", "'2026-01-01' is neither earliest, latest nor JSON such as {}; a time is not supported"),
        ("yesterday", "'yesterday' is neither earliest, latest nor JSON such as {}; a time is not supported"),
        ("{'t': 1}", "\"{{'t': 1}}\" is neither earliest, latest nor JSON such as {} (from character 2 on)"),
        ("[1]", "[1] is not valid; write earliest, latest or JSON such as {}"),
    ],
)
def test_offsets_that_are_no_json_are_said_in_words_of_the_option(text: str, message: str) -> None:
    assert _problems(startingOffsets=text) == ("startingOffsets: " + message.format('{"topic": {"0": 23, "1": -2}}'),)
    (of_ends,) = _problems(is_streaming=False, endingOffsets=text)
    assert "earliest" not in of_ends


@pytest.mark.parametrize("offsets", ['{"t": 5}', '{"t": {"x": 5}}', '{"t": {"0": -3}}', '{"t": {"0": "5"}}', "[1]", "5"])
def test_offsets_that_are_not_topics_of_partitions_of_offsets_are_refused(offsets: str) -> None:
    (problem,) = _problems(startingOffsets=offsets)
    assert problem.startswith("startingOffsets: ")
    assert '{"topic": {"0": 23, "1": -2}}' in problem


def test_options_of_the_other_kind_of_query_are_refused() -> None:
    assert _problems(endingOffsets="latest") == ("endingOffsets: has no meaning in a stream",)
    assert _problems(is_streaming=False, maxOffsetsPerTrigger="5") == ("maxOffsetsPerTrigger: has no meaning in a batch query",)
    assert _problems(is_streaming=False, endingOffsets="earliest") == ('endingOffsets: is "latest" or JSON, not "earliest"',)

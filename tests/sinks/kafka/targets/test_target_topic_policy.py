from __future__ import annotations

import pytest

from shallow_mirror.broker import TopicMetadata
from shallow_mirror.sinks.kafka.targets.target_topic_policy import (
    NO_LIMIT_MS,
    are_limits_unknown,
    before_3_6,
    bounded_replicas,
    config_warnings,
    configs_of_new,
    missing_problem,
    other_target_problem,
    problems_of,
)
from shallow_mirror.types import TargetPartition

PLAIN = {"cleanup.policy": "delete", "retention.ms": "604800000", "max.message.bytes": "1048588"}
BEFORE = TargetPartition("orders", "idA", 0)


def test_a_new_topic_gets_what_the_source_topic_keeps_and_what_leaves_batches_as_they_are() -> None:
    made = configs_of_new({**PLAIN, "min.insync.replicas": "2", "compression.type": "zstd"})
    assert made == {
        **PLAIN,
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(NO_LIMIT_MS),
        "message.timestamp.after.max.ms": str(NO_LIMIT_MS),
    }
    assert problems_of("orders", 3, 3, made) == config_warnings(made, PLAIN) == []


def test_a_target_older_than_3_6_gets_the_one_limit_that_it_knows() -> None:
    assert are_limits_unknown(["cannot be created: Unknown topic config name: message.timestamp.after.max.ms"])
    assert not are_limits_unknown(["cannot be created: Unknown topic config name: cleanup.policies"])
    older = before_3_6(configs_of_new(PLAIN))
    assert older == {
        **PLAIN,
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.difference.max.ms": str(NO_LIMIT_MS),
    }
    assert config_warnings(older, PLAIN) == []


def test_every_problem_of_a_topic_is_reported() -> None:
    fewer, recompressing = problems_of("orders", 3, 2, {"compression.type": "zstd"})
    assert fewer.startswith("has fewer partitions (2) than source topic orders (3)")
    assert fewer.endswith("or exclude orders (topics.exclude)")
    assert recompressing.startswith("has compression.type=zstd: the broker would open and recompress every batch")


def test_the_error_of_a_missing_target_topic_names_every_remedy() -> None:
    assert missing_problem("orders", 3).endswith(
        "create it with at least 3 partitions, set topics.create: true, or exclude orders (topics.exclude)"
    )


@pytest.mark.parametrize(
    ("changed", "of_source", "message"),
    [
        (
            {"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "1"},
            {},
            "records get the target's append time",
        ),
        ({"message.timestamp.after.max.ms": "3600000"}, {}, f"Set message.timestamp.after.max.ms={NO_LIMIT_MS}"),
        ({"message.timestamp.before.max.ms": "1"}, {}, "has message.timestamp.before.max.ms=1: records with timestamps beyond"),
        ({"message.timestamp.difference.max.ms": "1"}, {}, "has message.timestamp.difference.max.ms=1"),
        ({"max.message.bytes": "1000"}, {}, "has max.message.bytes=1000, below the source topic's 1048588"),
        ({"cleanup.policy": "compact"}, {}, "records without a key are rejected"),
        ({}, {"cleanup.policy": "compact", "retention.ms": "1"}, "is not compacted, the source topic is"),
        ({"retention.ms": "1000"}, {}, "has retention.ms=1000, less than the source topic's"),
        ({}, {"retention.ms": "-1"}, "has retention.ms=604800000, less than the source topic's"),
    ],
)
def test_each_setting_that_makes_another_copy_is_doubted(
    changed: dict[str, str], of_source: dict[str, str], message: str
) -> None:
    doubts = config_warnings({**PLAIN, **changed}, {**PLAIN, **of_source})
    assert any(message in doubt for doubt in doubts), doubts
    assert len(doubts) == (2 if "cleanup.policy" in of_source else 1)


def test_where_both_topics_are_alike_there_is_no_doubt() -> None:
    for same in ({}, {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}, {"retention.ms": "-1"}):
        assert config_warnings({**PLAIN, **same}, {**PLAIN, **same}) == []


@pytest.mark.parametrize(
    ("target", "topic_metadata", "message"),
    [
        ("orders", TopicMetadata("orders", "idA", False, 0, {}), None),
        ("orders", None, "was deleted, with what was copied to it"),
        ("orders", TopicMetadata("orders", "idB", False, 0, {}), "was deleted and created again (topic id idA became idB)"),
        ("east.orders", None, "was mirrored to orders until now, topics.target_name makes it east.orders"),
    ],
)
def test_the_rest_goes_where_the_beginning_is(target: str, topic_metadata: TopicMetadata | None, message: str | None) -> None:
    problem = other_target_problem("orders", BEFORE, target, topic_metadata)
    assert problem is None if message is None else problem is not None and message in problem


def test_replicas_are_bounded_by_the_brokers() -> None:
    assert [bounded_replicas(wanted, 2) for wanted in (None, 1, 2, 3)] == [None, 1, 2, 2]

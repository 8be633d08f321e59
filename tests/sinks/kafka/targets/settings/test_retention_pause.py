"""Which settings of a target topic would delete or refuse what is restored, and what a new topic gets instead."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS
from shallow_mirror.sinks.kafka.targets.settings.retention_pause import (
    RestoredAmount,
    deletions,
    existing_topic_findings,
    may_delete_or_refuse,
    pause_of,
    refusals,
)

NOW_MS = 1_000_000
FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
BY_KEY = {"min.compaction.lag.ms": str(NO_LIMIT_MS), "max.compaction.lag.ms": str(NO_LIMIT_MS)}


@pytest.fixture
def amount() -> RestoredAmount:
    """Ten old records, five of times in between, and two without a timestamp."""
    amount = RestoredAmount()
    amount.add(0, NOW_MS - 900, NOW_MS - 800, 10, 4_000)
    amount.add(1, NOW_MS - 700, NOW_MS - 100, 5, 2_000)
    amount.add(1, -1, -1, 2, 100)
    return amount


@pytest.mark.parametrize(
    ("archived", "pause"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, {"retention.ms": "-1"}),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "7"}, {"retention.bytes": "-1"}),
        (FOREVER, {}),
        ({"cleanup.policy": "compact", "retention.ms": "5", "min.compaction.lag.ms": "0"}, BY_KEY),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5", "retention.bytes": "-1"}, {"retention.ms": "-1", **BY_KEY}),
        ({"cleanup.policy": ""}, {}),
        ({}, {"retention.ms": "-1", "retention.bytes": "-1", **BY_KEY}),
    ],
)
def test_a_new_topic_gets_settings_that_delete_nothing_and_no_others(archived: dict[str, str], pause: dict[str, str]) -> None:
    assert pause_of(archived) == pause
    assert pause_of({**archived, **pause}) == {}


@pytest.mark.parametrize(
    ("settings", "deleted"),
    [
        (FOREVER, []),
        ({"retention.ms": "1000"}, []),
        ({"retention.ms": "750"}, ["retention.ms=750: 10 of 17 records to restore are older"]),
        ({"retention.ms": "600"}, ["retention.ms=600: 10 to 15 of 17 records to restore are older"]),
        ({"retention.ms": "1", "cleanup.policy": "compact", **BY_KEY}, []),
        ({"retention.ms": "1", "message.timestamp.type": "LogAppendTime"}, []),
        ({"retention.bytes": "3000"}, ["retention.bytes=3000: 1 partition (0) would be larger"]),
        ({"cleanup.policy": "compact"}, ["cleanup.policy=compact: brokers remove restored records that have a newer one"]),
        ({"cleanup.policy": "compact", **BY_KEY}, []),
    ],
)
def test_what_would_be_deleted_is_counted(amount: RestoredAmount, settings: dict[str, str], deleted: list[str]) -> None:
    found = deletions(settings, amount, NOW_MS)
    assert len(found) == len(deleted)
    assert all(part in sentence for part, sentence in zip(deleted, found, strict=True))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"message.timestamp.before.max.ms": "750"}, ["before.max.ms=750: brokers would refuse 10 of 17 records"]),
        ({"message.timestamp.before.max.ms": "1000"}, []),
        ({"message.timestamp.after.max.ms": "3600000"}, []),
        ({"message.timestamp.difference.max.ms": "850"}, ["difference.max.ms=850: brokers would refuse 0 to 10 of 17 records"]),
        ({"message.timestamp.before.max.ms": "1", "message.timestamp.type": "LogAppendTime"}, []),
        ({"message.timestamp.after.max.ms": str(NO_LIMIT_MS - 1)}, []),
    ],
)
def test_what_brokers_would_refuse_for_its_time_is_counted(
    amount: RestoredAmount, settings: dict[str, str], refused: list[str]
) -> None:
    found = refusals(settings, amount, NOW_MS)
    assert len(found) == len(refused)
    assert all(part in sentence for part, sentence in zip(refused, found, strict=True))


def test_records_of_the_future_are_refused_beyond_the_limit(amount: RestoredAmount) -> None:
    amount.add(0, NOW_MS, NOW_MS + 9_000, 3, 10)
    (sentence,) = refusals({"message.timestamp.after.max.ms": "8999"}, amount, NOW_MS)
    assert "of 3 records in the same segments" in sentence


def test_an_existing_topic_is_refused_where_it_would_delete_unless_the_file_accepts_it(amount: RestoredAmount) -> None:
    settings: Mapping[str, str] = {**FOREVER, "retention.ms": "750", "message.timestamp.before.max.ms": "750"}
    problems, notes = existing_topic_findings(settings, amount, NOW_MS, is_paused=True, stops_at_refused=True)
    assert len(problems) == 2
    assert "set retention.ms=-1 on it until they may be deleted" in problems[0]
    assert "accept it with topics.retention: archived" in problems[0]
    assert f"Set message.timestamp.before.max.ms={NO_LIMIT_MS}" in problems[1]
    assert notes == []
    problems, notes = existing_topic_findings(settings, amount, NOW_MS, is_paused=False, stops_at_refused=False)
    assert (problems, len(notes)) == ([], 2)
    assert may_delete_or_refuse(settings)
    assert not may_delete_or_refuse(FOREVER)

"""The failover drill at length: traffic goes on, the mirror is killed, groups stop wherever they are and change clusters again
and again."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.groups.group_runs import consume, write_transactions
from tests.support.mirror_runs import CrashAt, CrashError, Running, catch_up, config, create_topic, wait_for

from shallow_mirror.groups.sync_once import sync_groups

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

PARTITIONS, ROUNDS, RECORDS = 12, 4, 3_000


def test_three_groups_change_clusters_again_and_again_and_read_every_record_once(
    two_clusters: Any, spark: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    groups = {"sync": "1 second", "include": [f"{topic_name}\\..*"]}
    settings = config(tmp_path, source, target, [topic_name], groups=groups)
    names = [f"{topic_name}.{number}" for number in range(3)]
    create_topic(source, topic_name, PARTITIONS)
    read: dict[str, list[str]] = {name: [] for name in names}
    written: list[str] = []
    chance = random.Random(7)
    for turn in range(ROUNDS):
        written += write_transactions(source, topic_name, PARTITIONS, RECORDS, f"{turn}")
        with pytest.raises(CrashError):
            catch_up(settings, spark, CrashAt(chance.choice(["Decide", "EndTxn"])))
        for name in names:
            read[name] += consume(source, name, topic_name, PARTITIONS, chance.randrange(RECORDS))
        written += write_transactions(source, topic_name, PARTITIONS, RECORDS // 4, f"{turn}-late")
        with Running(settings, spark):
            wait_for("groups in step", lambda: sync_groups(settings, is_applied=True).is_done)
        for name in names:
            read[name] += consume(target, name, topic_name, PARTITIONS, chance.choice([None, chance.randrange(RECORDS)]))
        back = sync_groups(settings, is_reverse=True, is_applied=True)
        assert back.is_done
        assert {partition.repeats for partition in back.partitions} == {0}
    for name in names:
        read[name] += consume(source, name, topic_name, PARTITIONS)
        assert Counter(read[name]) == Counter(written)

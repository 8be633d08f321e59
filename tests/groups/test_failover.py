"""Consumers stop in the middle at one cluster and go on at the other: every record once. On real brokers, with a real mirror."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.groups.group_runs import consume, write_transactions
from tests.support.mirror_runs import catch_up, config, create_topic

from shallow_mirror.checkpoints.logs import last_pass
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.report import GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.operations.status import gather_status

pytestmark = pytest.mark.brokers

PARTITIONS = 12


def settings(folder: Path, clusters: Any, topic: str, sync: str) -> MirrorConfig:
    groups = {"sync": sync, "include": [f"{topic}\\..*"]}
    return config(folder, clusters.source.bootstrap, clusters.target.bootstrap, [topic], groups=groups)


def partitions_of(report: GroupsReport, group: str) -> list[GroupPartition]:
    return [partition for partition in report.partitions if partition.group == group]


def test_three_groups_go_over_to_the_target_and_back_and_read_every_record_once(
    two_clusters: Any, inline_streams: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    unsynced = settings(tmp_path, two_clusters, topic_name, "off")
    behind, middle, ahead = groups = [f"{topic_name}.{name}" for name in ("behind", "middle", "ahead")]
    create_topic(source, topic_name, PARTITIONS)
    read: dict[str, list[str]] = {group: [] for group in groups}

    def reads(bootstrap: str, group: str, most: int | None = None) -> None:
        read[group] += consume(bootstrap, group, topic_name, PARTITIONS, most)

    written = write_transactions(source, topic_name, PARTITIONS, 300, "a")
    catch_up(unsynced, inline_streams)
    reads(source, behind, 40)
    written += write_transactions(source, topic_name, PARTITIONS, 200, "b")
    reads(source, middle, len(written) // 2)
    reads(source, ahead)

    first = sync_groups(unsynced, is_applied=True)
    assert not first.is_done
    assert {partition.repeats for partition in first.partitions} <= {0, None}
    assert sum(partition.waits_for or 0 for partition in partitions_of(first, ahead)) > 0
    assert {partition.outcome for partition in partitions_of(first, ahead)} <= {Outcome.TRANSLATED, Outcome.WAITS}
    assert {partition.step for partition in partitions_of(first, behind)} == {Step.COMMITTED}

    synced = settings(tmp_path, two_clusters, topic_name, "1 second")
    catch_up(synced, inline_streams)
    last = last_pass(TableStorage(synced.tables).best_effort_tables(), datetime.now(UTC))
    assert last is not None
    assert (last.problem, last.group_count, last.waiting_count, last.left_count) == (None, 3, 0, 0)
    then = sync_groups(synced)
    assert then.is_done
    assert {partition.step for partition in then.partitions} == {Step.IN_PLACE}
    assert gather_status(synced).groups == last
    moved_at = datetime.now(UTC)

    for group in groups:
        reads(target, group, 120 if group == middle else None)
    assert Counter(read[behind]) == Counter(read[ahead]) == Counter(written)

    back = sync_groups(synced, is_reverse=True, is_applied=True)
    assert back.is_done
    assert (back.origin, back.other, {partition.repeats for partition in back.partitions}) == ("west", "east", {0})
    written += write_transactions(source, topic_name, PARTITIONS, 60, "c")
    for group in groups:
        reads(source, group)
        assert Counter(read[group]) == Counter(written)

    earlier = sync_groups(synced, as_of=moved_at)
    offsets = {
        (partition.group, partition.topic_partition): (partition.offset, partition.to_offset) for partition in earlier.partitions
    }
    assert offsets == {
        (partition.group, partition.topic_partition): (partition.offset, partition.to_offset) for partition in then.partitions
    }

"""Metadata beside an offset that the other cluster refuses for its size, and names of groups that hold line breaks."""

from __future__ import annotations

import pytest
from tests.fakes.coordinators import MAX_METADATA_BYTES
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config.sections import GroupSettings
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import GroupPartition, Outcome, Step
from shallow_mirror.groups.sync_plan import GroupCommits
from shallow_mirror.types import TopicPartition

SHORT, LONG = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_an_offset_is_committed_without_metadata_that_the_cluster_refuses_and_the_report_says_so() -> None:
    with StrictCluster() as cluster:
        cluster.create_topic("orders", 2)
        client = GroupClient(ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap}), "target cluster west")
        partition = GroupPartition(
            group="g",
            topic_partition=SHORT,
            offset=5,
            metadata="kept",
            outcome=Outcome.TRANSLATED,
            to_topic_partition=SHORT,
            to_offset=5,
        )
        too_long = partition._replace(topic_partition=LONG, to_topic_partition=LONG, metadata="m" * (MAX_METADATA_BYTES + 1))
        (group,) = GroupCommits(client).plan_commits([partition, too_long], is_applied=True)
        committed = {entry.topic_partition: (entry.offset, entry.metadata) for entry in client.committed(["g"])["g"]}
        client.close()
    assert [done.step for done in group.partitions] == [Step.COMMITTED, Step.COMMITTED]
    assert [done.reason for done in group.partitions] == [
        None,
        "committed without its metadata: its metadata is larger than offset.metadata.max.bytes of that cluster",
    ]
    assert committed == {SHORT: (5, "kept"), LONG: (5, "")}


@pytest.mark.parametrize(("exclude", "is_included"), [([], True), (["a.*"], False)])
def test_patterns_match_names_with_line_breaks(exclude: list[str], is_included: bool) -> None:
    assert GroupSettings(include=[".*"], exclude=exclude).is_included("a\nb") is is_included

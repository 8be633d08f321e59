"""Clusters leave out groups that the mirror's user may not Describe, and say nothing of it: what `groups` makes of that."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import CommittedOffset
from shallow_mirror.broker.admin import Operation
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups import view
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.groups.sync_plan import GroupOffsets
from shallow_mirror.types import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture
def fake() -> Iterator[StrictCluster]:
    with StrictCluster() as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("on_cluster", "may_hide"), [({Operation.DESCRIBE, Operation.CREATE}, False), ({Operation.CREATE}, True), (set(), True)]
)
def test_who_may_describe_the_cluster_sees_every_group(fake: StrictCluster, on_cluster: set[Operation], may_hide: bool) -> None:
    def respond(body: Any) -> None:
        body.authorized_operations = on_cluster

    fake.alter_responses("Metadata", respond)
    client = GroupClient(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap}), "source cluster east")
    assert client.may_hide_groups() is may_hide
    client.close()


def test_no_group_where_groups_may_be_hidden_is_not_done_and_says_what_to_grant() -> None:
    report = GroupsReport(mirror="m", origin="east", other="west", groups=())
    assert report.is_done
    hidden = GroupsReport(mirror="m", origin="east", other="west", groups=(), may_hide_groups=True)
    assert not hidden.is_done
    out = io.StringIO()
    view.show(hidden, Console(file=out, width=200), as_json=False)
    assert (
        "east shows no groups that the mirror's user may not Describe: grant it on the groups, or on the cluster"
        in out.getvalue()
    )
    assert hidden.document()["may_hide_groups"] is True


class HidingCluster(GroupClient):
    """Has the group `hidden`, which it shows nobody; `new` it does not have."""

    def __init__(self) -> None:
        """Connect to nothing."""

    def reported(self) -> dict[str, Any]:
        return {}

    def may_hide_groups(self) -> bool:
        return True

    def begin_committed(self, groups: Sequence[str], *, waits_for_txns: bool = True) -> dict[str, Any]:
        return {group: group for group in groups}

    def finish_committed(self, group: str, begun: Any) -> tuple[CommittedOffset, ...]:
        if group == "hidden":
            raise ConfigError("GROUP_AUTHORIZATION_FAILED: grant Describe on group hidden")
        return ()


def test_a_group_that_the_other_cluster_hides_is_refused_and_others_go_over() -> None:
    config = MirrorConfig.from_document(
        {
            "mirror": "m",
            "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
            "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
            "topics": {"include": ["orders"]},
            "tables": "/nowhere",
        },
        folder=Path("/"),
    )
    look = GroupOffsets(config)
    look.other = HidingCluster()
    evaluated = [
        GroupPartition(
            group=group,
            topic_partition=ORDERS_0,
            offset=5,
            metadata="",
            outcome=Outcome.TRANSLATED,
            to_topic_partition=ORDERS_0,
            to_offset=5,
        )
        for group in ("hidden", "new")
    ]
    hidden, new = look.plan_commits(evaluated, is_applied=False)
    assert (hidden.state, hidden.partitions[0].step) == ("hidden", Step.REFUSED)
    assert hidden.partitions[0].reason == "GROUP_AUTHORIZATION_FAILED: grant Describe on group hidden"
    assert (new.state, new.partitions[0].step) == ("not there yet", Step.TO_COMMIT)

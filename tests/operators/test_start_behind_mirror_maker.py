"""`mm2 check`: only a mirror that begins at the log ends may continue in the topics of MirrorMaker 2."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.operators.surroundings import opened_world

from shallow_mirror.config import MirrorConfig
from shallow_mirror.mirror_maker.flows import Flow
from shallow_mirror.mirror_maker.running.names import names_of
from shallow_mirror.mirror_maker.running.take_over import check_take_over

pytestmark = pytest.mark.usefixtures("without_logging")

_ELSEWHERE = (
    "a would be copied from a time or from offsets on, wherever MirrorMaker 2 has ended (read.start, topics.start): set latest"
)


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"read": {"start": "latest"}}, ()),
        ({"topics": {"start": {"a": "latest"}}}, ()),
        ({"read": {}}, ("a would be copied from the start again (read.start, topics.start): set latest",)),
        ({"read": {"start": "2020-01-01T00:00:00Z"}}, (_ELSEWHERE,)),
        ({"read": {"start": "latest"}, "topics": {"start": {"a": "2020-01-01T00:00:00Z"}}}, (_ELSEWHERE,)),
        ({"read": {"start": "latest"}, "topics": {"start": {"a": {0: 2}}}}, (_ELSEWHERE,)),
    ],
)
def test_a_mirror_that_would_not_begin_at_the_ends_of_the_logs_must_not_run_yet(
    tmp_path: Path, settings: dict[str, dict[str, Any]], problems: tuple[str, ...]
) -> None:
    with opened_world(tmp_path / "world") as world:
        for cluster in (world.source, world.target):
            cluster.create_topic("a", 1)
            cluster.produce("a", 0, ["copied", "by MirrorMaker 2"])
        world.target.create_topic("offsets", 1)
        world.target.produce("offsets", 0, ["no offset of a"])
        document = deepcopy(world.document)
        for section, values in settings.items():
            document[section] |= values
        config = MirrorConfig.from_document(document, folder=tmp_path)
        flow = Flow("east", "west", {"clusters": "east, west", "replication.policy.class": "IdentityReplicationPolicy"})
        names = names_of(flow, "mm2.properties", connect_offsets="offsets")
        checked = check_take_over(config, names, "mm2.properties", watch_s=0, sleep=lambda _: None, on_wait=lambda _: None)
        of_settings = tuple(problem for problem in checked.problems if "topics.start" in problem)
        assert of_settings == problems


@pytest.mark.parametrize(
    ("of_mirror_maker", "of_mirror", "is_problem"),
    [
        (None, "read_committed", True),
        ("read_committed", "read_uncommitted", True),
        ("read_committed", "read_committed", False),
        (None, "read_uncommitted", False),
    ],
)
def test_while_a_transaction_is_open_a_mirror_with_another_isolation_level_would_begin_elsewhere(
    tmp_path: Path, of_mirror_maker: str | None, of_mirror: str, is_problem: bool
) -> None:
    with opened_world(tmp_path / "world") as world:
        for cluster in (world.source, world.target):
            cluster.create_topic("a", 1)
            cluster.produce("a", 0, ["copied"])
        world.source.produce("a", 0, ["of an open transaction"], world.source.begin())
        world.source.produce("a", 0, ["behind it"])
        world.target.create_topic("offsets", 1)
        world.target.produce("offsets", 0, ["no offset of a"])
        document = deepcopy(world.document)
        document["read"] |= {"start": "latest", "isolation_level": of_mirror}
        config = MirrorConfig.from_document(document, folder=tmp_path)
        properties = {"clusters": "east, west", "replication.policy.class": "IdentityReplicationPolicy"}
        if of_mirror_maker is not None:
            properties["east.consumer.isolation.level"] = of_mirror_maker
        names = names_of(Flow("east", "west", properties), "mm2.properties", connect_offsets="offsets")
        checked = check_take_over(config, names, "mm2.properties", watch_s=0, sleep=lambda _: None, on_wait=lambda _: None)
        problem = (
            "a-0: a transaction is open at the source from offset 1 on, and the mirror and MirrorMaker 2 read it with different "
            "isolation levels: some records would be copied twice or not at all. Wait until it has ended, or end it"
        )
        assert [found for found in checked.problems if "transaction" in found] == [problem] * is_problem
